// A file system that fails: the N-th call returns an error, or the process "crashes" there and un-synced data is lost.
//
// It passes calls on to the real one and keeps a model of what is durable below `root`: a file's bytes at its last fsync, a
// folder's entries at its last fsync. After a crash no call has any effect; recover() then puts the folder into the state in
// which a machine could come back.
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"

namespace hyperparallel {

// What survives of a crash besides what was synced.
enum class Survives { kNothing, kEntries, kEverything };

class FaultySystem : public file::System {
 public:
  explicit FaultySystem(const std::filesystem::path& root) : root_(root) { take(add(true), root); }

  void fail_at(int call, int error_number) { fail_at_ = call, error_number_ = error_number; }  // this call only; from 1
  void crash_at(int call) { crash_at_ = call; }                                                // this call and all after it
  void disturb(bool on) { disturb_ = on; }  // every other open, write and fsync is interrupted, writes are short
  int count() const { return count_; }
  void restart_count() { count_ = 0; }

  // Makes the disk what it would be after the crash.
  void recover(Survives survives) {
    if (survives != Survives::kEverything) {
      std::filesystem::remove_all(root_);
      put(0, root_, survives);
    }
    crash_at_ = count_ = 0;
    nodes_.clear();
    open_.clear();
    take(add(true), root_);
  }

  int open(const char* path, int flags, mode_t mode) override {
    if (interrupted() || fails()) return -1;
    int descriptor = System::open(path, flags, mode);
    if (descriptor < 0) return -1;
    int node = find(path);
    if (node < 0) folder_of(path).live[name(path)] = node = add(false);
    open_[descriptor] = node;
    return descriptor;
  }
  ssize_t write(int descriptor, const void* bytes, size_t size) override {
    if (interrupted() || fails()) return -1;
    return System::write(descriptor, bytes, disturb_ ? (size + 2) / 3 : size);
  }
  int fsync(int descriptor) override {
    if (interrupted() || fails()) return -1;
    Node& node = nodes_[open_.at(descriptor)];
    if (node.folder) {
      node.durable = node.live;
    } else {
      node.content = content("/proc/self/fd/" + std::to_string(descriptor));
    }
    return 0;
  }
  int close(int descriptor) override {
    bool failed = fails();
    open_.erase(descriptor);
    int result = System::close(descriptor);
    if (failed) errno = error_number_;
    return failed ? -1 : result;
  }
  int rename(const char* from, const char* to) override {
    if (fails() || System::rename(from, to) != 0) return -1;
    int node = find(from);
    folder_of(from).live.erase(name(from));
    folder_of(to).live[name(to)] = node;
    return 0;
  }
  int mkdir(const char* path, mode_t mode) override {
    if (fails() || System::mkdir(path, mode) != 0) return -1;
    int node = add(true);
    folder_of(path).live[name(path)] = node;
    return 0;
  }
  int unlink(const char* path) override {
    if (fails() || System::unlink(path) != 0) return -1;
    folder_of(path).live.erase(name(path));
    return 0;
  }
  int rmdir(const char* path) override {
    if (fails() || System::rmdir(path) != 0) return -1;
    folder_of(path).live.erase(name(path));
    return 0;
  }

 private:
  struct Node {
    bool folder;
    std::map<std::string, int> live, durable;
    std::string content;  // durable
  };

  bool fails() {
    ++count_;
    bool crashed = crash_at_ > 0 && count_ >= crash_at_;
    if (crashed) error_number_ = EIO;
    if (!crashed && count_ != fail_at_) return false;
    errno = error_number_;
    return true;
  }
  bool interrupted() {
    if (!disturb_ || (interrupt_ = !interrupt_) == false) return false;
    errno = EINTR;
    return true;
  }

  static std::string content(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::string name(const std::filesystem::path& path) { return path.filename().string(); }
  int add(bool folder) {
    nodes_.push_back({folder, {}, {}, {}});
    return static_cast<int>(nodes_.size()) - 1;
  }
  int find(const std::filesystem::path& path) const {
    int node = 0;
    for (const auto& part : path.lexically_relative(root_)) {
      if (part == ".") continue;
      auto found = nodes_[node].live.find(part.string());
      if (found == nodes_[node].live.end()) return -1;
      node = found->second;
    }
    return node;
  }
  Node& folder_of(const std::filesystem::path& path) { return nodes_[find(path.parent_path())]; }
  void take(int node, const std::filesystem::path& path) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      int child = add(entry.is_directory());
      nodes_[node].live[name(entry.path())] = nodes_[node].durable[name(entry.path())] = child;
      if (entry.is_directory()) {
        take(child, entry.path());
      } else {
        nodes_[child].content = content(entry.path());
      }
    }
  }
  void put(int node, const std::filesystem::path& path, Survives survives) const {
    if (!nodes_[node].folder) {
      std::ofstream(path, std::ios::binary) << nodes_[node].content;
      return;
    }
    std::filesystem::create_directory(path);
    for (const auto& [name, child] : survives == Survives::kNothing ? nodes_[node].durable : nodes_[node].live)
      put(child, path / name, survives);
  }

  std::filesystem::path root_;
  std::vector<Node> nodes_;
  std::map<int, int> open_;  // descriptor -> node
  int count_ = 0, fail_at_ = 0, crash_at_ = 0, error_number_ = 0;
  bool disturb_ = false, interrupt_ = false;
};

}  // namespace hyperparallel
