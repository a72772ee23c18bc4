// The file layer: every file that this program writes goes through here.
//
// Written files appear whole or not at all: an Output writes PATH.tmp, and commit() syncs it, renames it to PATH and syncs the
// folder. Interrupted and short writes are continued; every failure throws FileError, which names path, operation and reason.
// All calls that change a file system pass through one replaceable System, so that tests can fail or stop at the N-th of them.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"

namespace hyperparallel::file {

using Path = std::filesystem::path;

// A file could not be read or written: disk full, no permission, device error. Commands wrap it where they can say more.
class FileError : public Error {
 public:
  FileError(const Path& path, std::string_view operation, int error_number);
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

// Creates, or replaces on commit(), the file at `path`. Not committed, it leaves nothing behind. Not thread-safe.
class Output {
 public:
  explicit Output(Path path);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void write(const void* bytes, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();  // durable under its name on return

 private:
  Path path_, temporary_;
  int descriptor_ = -1;
};

std::string read(const Path& path);
void write(const Path& path, std::string_view text);   // whole file through Output
void append(const Path& path, std::string_view text);  // creates the file when absent; not synced
void create_folders(const Path& path);                 // with parents; durable
void rename(const Path& from, const Path& to);         // file or folder, same file system; durable
void remove(const Path& path);                         // one file; absent is an error
// Removes a folder and all below it; in the folder itself the file named `last` goes last. Symbolic links are not followed.
void remove_tree(const Path& path, std::string_view last = {});
void sync_folder(const Path& path);         // makes created, renamed and removed entries durable
void sync_file_system(const Path& folder);  // makes all that was written to its file system durable, for many small files at once

// The calls that change a file system, as POSIX defines them (-1 and errno on failure). The default passes them on.
class System {
 public:
  virtual ~System() = default;
  virtual int open(const char* path, int flags, mode_t mode);  // for writing, and of folders to sync
  virtual ssize_t write(int descriptor, const void* bytes, size_t size);
  virtual int fsync(int descriptor);
  virtual int syncfs(int descriptor);
  virtual int close(int descriptor);
  virtual int rename(const char* from, const char* to);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int unlink(const char* path);
  virtual int rmdir(const char* path);
};

// Replaces the System of the whole process while alive; for tests. Not to be nested or created while files are being written.
class ScopedSystem {
 public:
  explicit ScopedSystem(System& system);
  ~ScopedSystem();
  ScopedSystem(const ScopedSystem&) = delete;
  ScopedSystem& operator=(const ScopedSystem&) = delete;
};

}  // namespace hyperparallel::file
