#include "base/scratch_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/file.h"

namespace hyperparallel::file {

ScratchFile::ScratchFile(const std::filesystem::path& folder) : folder_(folder) {
  descriptor_ = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {  // a file system without O_TMPFILE
    std::string name = (folder / "scratch-XXXXXX").string();
    descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (descriptor_ >= 0) ::unlink(name.c_str());
  }
  if (descriptor_ < 0) throw FileError(folder, "given a scratch file", errno);
}

ScratchFile::~ScratchFile() {
  ::close(descriptor_);
}

void ScratchFile::write(int64_t offset, const void* bytes, size_t size) {
  const char* from = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t written = ::pwrite(descriptor_, from, size, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw FileError(folder_, "written, as a scratch file", written < 0 ? errno : EIO);
    from += written;
    offset += written;
    size -= static_cast<size_t>(written);
  }
}

void ScratchFile::read(int64_t offset, void* bytes, size_t size) const {
  char* to = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t got = ::pread(descriptor_, to, size, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw FileError(folder_, "read, as a scratch file", got < 0 ? errno : EIO);
    to += got;
    offset += got;
    size -= static_cast<size_t>(got);
  }
}

void* ScratchFile::map(size_t bytes) {
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) throw FileError(folder_, "given a scratch file", errno);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED) throw FileError(folder_, "mapped, as a scratch file", errno);
  return memory;
}

void ScratchFile::take_space(size_t bytes) {
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes));
  if (error != 0) throw FileError(folder_, fmt::format("given {} bytes, as a scratch file", bytes), error);
}

void ScratchFile::drop_cache() const {
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace hyperparallel::file
