#include "optim/state_memory.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "base/trace.h"

namespace hyperparallel::optim {
namespace {

constexpr size_t kLeastBytes = 1 << 20, kMostBytes = 256 << 20;  // of a file, unless a tensor needs more; each twice the last
constexpr size_t kAlign = 64;

}  // namespace

at::Tensor StateMemory::zeros(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const size_t bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * options.dtype().itemsize();
  if (folder_.empty() || bytes == 0) return at::zeros(sizes, options);
  if (files_.empty() || files_.back()->size() - used_ < bytes) {
    const size_t usual = files_.empty() ? kLeastBytes : std::min(kMostBytes, 2 * files_.back()->size());
    files_.push_back(std::make_shared<file::MappedMemory>(std::max(bytes, usual), folder_));
    files_.back()->take_space();
    used_ = 0;
  }
  void* place = static_cast<char*>(files_.back()->data()) + used_;
  used_ = std::min(files_.back()->size(), used_ + (bytes + kAlign - 1) / kAlign * kAlign);
  return at::from_blob(
      place, sizes, [file = files_.back()](void*) {}, options);
}

void StateMemory::prefetch() {
  if (files_.empty()) return;
  reader_ = std::jthread([files = files_] {
    trace::set_thread_name("prefetch");
    for (const auto& file : files) file->populate();
  });
}

void StateMemory::rest() {
  if (reader_.joinable()) reader_.join();
  for (const auto& file : files_) file->unmap_pages();
}

}  // namespace hyperparallel::optim
