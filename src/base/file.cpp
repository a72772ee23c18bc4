#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <vector>

namespace hyperparallel::file {
namespace {

System& default_system() {
  static System system;
  return system;
}

std::atomic<System*> replaced_system = nullptr;

System& calls() {
  System* replaced = replaced_system;
  return replaced ? *replaced : default_system();
}

int open_for(const Path& path, int flags, std::string_view operation) {
  int descriptor;
  do {
    descriptor = calls().open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) throw FileError(path, operation, errno);
  return descriptor;
}

// Linux closes the descriptor even when close() reports EINTR, so it is never repeated.
bool close_fails(int descriptor) {
  return calls().close(descriptor) != 0 && errno != EINTR;
}

void write_all(int descriptor, const Path& path, const char* bytes, size_t size) {
  while (size > 0) {
    ssize_t written = calls().write(descriptor, bytes, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw FileError(path, "written", errno);
    bytes += written;
    size -= static_cast<size_t>(written);
  }
}

void sync(int descriptor, const Path& path) {
  int result;
  do {
    result = calls().fsync(descriptor);
  } while (result != 0 && errno == EINTR);
  if (result != 0) throw FileError(path, "made durable", errno);
}

Path folder_of(const Path& path) {
  Path parent = path.parent_path();
  return parent.empty() ? Path(".") : parent;
}

// Owns a descriptor on the way out of a throwing function.
struct Closer {
  int descriptor;
  ~Closer() {
    if (descriptor >= 0) calls().close(descriptor);
  }
};

}  // namespace

FileError::FileError(const Path& path, std::string_view operation, int error_number)
    : Error(ExitCode::kUsage,
            fmt::format("{}: cannot be {}: {}", path.string(), operation, std::generic_category().message(error_number))),
      error_number_(error_number) {}

Output::Output(Path path) : path_(std::move(path)), temporary_(path_.string() + ".tmp") {
  descriptor_ = open_for(temporary_, O_WRONLY | O_CREAT | O_TRUNC, "created");
}

Output::~Output() {
  if (descriptor_ < 0) return;
  calls().close(descriptor_);
  calls().unlink(temporary_.c_str());
}

void Output::write(const void* bytes, size_t size) {
  HP_CHECK(descriptor_ >= 0, "{} is written after commit", path_.string());
  write_all(descriptor_, temporary_, static_cast<const char*>(bytes), size);
}

void Output::commit() {
  HP_CHECK(descriptor_ >= 0, "{} is committed twice", path_.string());
  sync(descriptor_, temporary_);
  if (close_fails(std::exchange(descriptor_, -1))) {
    int error_number = errno;
    calls().unlink(temporary_.c_str());
    throw FileError(temporary_, "closed", error_number);
  }
  try {
    file::rename(temporary_, path_);
  } catch (const FileError&) {
    calls().unlink(temporary_.c_str());
    throw;
  }
}

std::string read(const Path& path) {
  Closer closer{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (closer.descriptor < 0) throw FileError(path, "opened", errno);
  struct stat status;
  if (::fstat(closer.descriptor, &status) != 0) throw FileError(path, "read", errno);
  std::string text;
  text.reserve(static_cast<size_t>(status.st_size));
  char buffer[1 << 16];
  for (;;) {
    ssize_t count = ::read(closer.descriptor, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw FileError(path, "read", errno);
    if (count == 0) return text;
    text.append(buffer, static_cast<size_t>(count));
  }
}

void write(const Path& path, std::string_view text) {
  Output output(path);
  output.write(text);
  output.commit();
}

void append(const Path& path, std::string_view text) {
  Closer closer{open_for(path, O_WRONLY | O_CREAT | O_APPEND, "opened")};
  write_all(closer.descriptor, path, text.data(), text.size());
  if (close_fails(std::exchange(closer.descriptor, -1))) throw FileError(path, "closed", errno);
}

void create_folders(const Path& path) {
  std::vector<Path> absent;
  for (Path folder = path.lexically_normal(); !folder.empty() && !std::filesystem::exists(folder); folder = folder.parent_path())
    absent.push_back(folder);
  for (auto folder = absent.rbegin(); folder != absent.rend(); ++folder) {
    if (folder->filename().empty()) continue;  // a trailing slash
    if (calls().mkdir(folder->c_str(), 0777) != 0 && errno != EEXIST) throw FileError(*folder, "created", errno);
    sync_folder(folder_of(*folder));
  }
}

void rename(const Path& from, const Path& to) {
  if (calls().rename(from.c_str(), to.c_str()) != 0) throw FileError(from, fmt::format("renamed to {}", to.string()), errno);
  sync_folder(folder_of(to));
}

void remove(const Path& path) {
  if (calls().unlink(path.c_str()) != 0) throw FileError(path, "removed", errno);
}

void remove_tree(const Path& path, std::string_view last) {
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.path().filename() == last) continue;
    if (entry.is_directory() && !entry.is_symlink()) {
      remove_tree(entry.path());
    } else {
      file::remove(entry.path());
    }
  }
  if (!last.empty() && std::filesystem::exists(path / last)) {
    sync_folder(path);
    file::remove(path / last);
  }
  if (calls().rmdir(path.c_str()) != 0) throw FileError(path, "removed", errno);
  sync_folder(folder_of(path));
}

void sync_folder(const Path& path) {
  Closer closer{open_for(path, O_RDONLY | O_DIRECTORY, "opened")};
  try {
    sync(closer.descriptor, path);
  } catch (const FileError& error) {
    if (error.error_number() != EINVAL) throw;  // some network file systems have no sync of folders: renames are durable there
  }
}

void sync_file_system(const Path& folder) {
  Closer closer{open_for(folder, O_RDONLY | O_DIRECTORY, "opened")};
  if (calls().syncfs(closer.descriptor) != 0) throw FileError(folder, "made durable", errno);
}

int System::open(const char* path, int flags, mode_t mode) {
  return ::open(path, flags, mode);
}
ssize_t System::write(int descriptor, const void* bytes, size_t size) {
  return ::write(descriptor, bytes, size);
}
int System::fsync(int descriptor) {
  return ::fsync(descriptor);
}
int System::syncfs(int descriptor) {
  return ::syncfs(descriptor);
}
int System::close(int descriptor) {
  return ::close(descriptor);
}
int System::rename(const char* from, const char* to) {
  return ::rename(from, to);
}
int System::mkdir(const char* path, mode_t mode) {
  return ::mkdir(path, mode);
}
int System::unlink(const char* path) {
  return ::unlink(path);
}
int System::rmdir(const char* path) {
  return ::rmdir(path);
}

ScopedSystem::ScopedSystem(System& system) {
  System* before = replaced_system.exchange(&system);
  HP_CHECK(before == nullptr, "two file systems replaced at once");
}
ScopedSystem::~ScopedSystem() {
  replaced_system = nullptr;
}

}  // namespace hyperparallel::file
