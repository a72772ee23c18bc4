#include "models/deepseek_v41/batch.h"

#include <span>

namespace hyperparallel::models::deepseek_v41 {
namespace {

template <class T>
std::span<const T> view(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<T>(), static_cast<size_t>(tensor.numel())};
}
std::span<int64_t> out(at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<int64_t>(), static_cast<size_t>(tensor.numel())};
}

}  // namespace

EngramLookup hash_tokens(const EngramHasher& hasher, const at::Tensor& ids, const at::Tensor& dead,
                         const at::Tensor& cu_seqlens) {
  const at::Tensor tokens = ids.contiguous(), blocked = dead.to(at::kByte).contiguous(), borders = cu_seqlens.contiguous();
  EngramLookup lookup{at::empty({tokens.size(0), hasher.layers(), hasher.columns()}, at::kLong),
                      at::empty({tokens.size(0), hasher.max_ngram()}, at::kLong)};
  hasher.hash(view<int64_t>(tokens), view<uint8_t>(blocked), view<int64_t>(borders), out(lookup.rows), out(lookup.ngrams));
  return lookup;
}

}  // namespace hyperparallel::models::deepseek_v41
