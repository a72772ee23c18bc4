#include "base/mapped_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "base/file.h"

namespace hyperparallel::file {
namespace {

const size_t kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));

}  // namespace

MappedMemory::MappedMemory(size_t bytes, const std::filesystem::path& folder) : size_(bytes) {
  if (bytes == 0) return;
  if (folder.empty()) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    return;
  }
  file_ = std::make_unique<ScratchFile>(folder);
  data_ = file_->map(bytes);
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void MappedMemory::write(size_t offset, const void* bytes, size_t size) {
  if (file_ != nullptr) {
    file_->write(static_cast<int64_t>(offset), bytes, size);
  } else {
    std::memcpy(static_cast<char*>(data_) + offset, bytes, size);
  }
}

void MappedMemory::will_need(const std::vector<std::pair<size_t, size_t>>& ranges) const {
  if (file_ == nullptr) return;
  size_t first = 0, end = 0;  // pages; neighbours go in one call
  const auto advise = [&] {
    if (end > first) ::madvise(static_cast<char*>(data_) + first * kPage, (end - first) * kPage, MADV_WILLNEED);
  };
  for (const auto& [offset, size] : ranges) {
    const size_t from = offset / kPage, to = (offset + size + kPage - 1) / kPage;
    if (from > end || from < first) {
      advise();
      first = from;
      end = from;
    }
    end = std::max(end, to);
  }
  advise();
}

void MappedMemory::take_space() {
  if (file_ != nullptr) file_->take_space(size_);
}

void MappedMemory::populate() const {
  if (file_ == nullptr) return;
  ::madvise(data_, size_, MADV_WILLNEED);
#ifdef MADV_POPULATE_READ
  ::madvise(data_, size_, MADV_POPULATE_READ);
#endif
}

void MappedMemory::unmap_pages() const {
  if (file_ != nullptr) ::madvise(data_, size_, MADV_DONTNEED);
}

void MappedMemory::drop_pages() const {
  if (file_ == nullptr) return;
  ::msync(data_, size_, MS_SYNC);
  unmap_pages();
  file_->drop_cache();
}

}  // namespace hyperparallel::file
