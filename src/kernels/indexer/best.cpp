#include "kernels/indexer/best.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/vectorise.h"
#include "kernels/vectors.h"

namespace hyperparallel::kernels::indexer {

namespace {

// Of 8 scores: the lowest bit of a byte is set where the score is above.
template <class T>
HP_INLINE uint64_t those_above(const T* scores, T threshold) {
  return std::bit_cast<uint64_t>(__builtin_convertvector(load<T, 8>(scores) > threshold, Vec<int8_t, 8>)) & 0x0101010101010101u;
}

}  // namespace

template <class T>
Best<T>::Best(int64_t k)
    : k_(k), threshold_(k > 0 ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity()), entries_(2 * k) {}

template <class T>
void Best<T>::add_those_above(const T* scores, int64_t count, int64_t first) {
  const auto add_one = [&](int64_t i) __attribute__((always_inline)) {
    if (!(scores[i] > threshold_)) return;
    entries_[size_++] = {scores[i], static_cast<int32_t>(first + i)};
    if (size_ == 2 * k_) keep_best();
  };
  vectorise_products([&]() __attribute__((always_inline)) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      for (uint64_t above = those_above(scores + i, threshold_); above != 0; above &= above - 1)
        add_one(i + std::countr_zero(above) / 8);
    }
    for (; i < count; ++i) add_one(i);
  });
}

template <class T>
void Best<T>::keep_best() {
  const auto better = [](const Entry& a, const Entry& b) { return a.score != b.score ? a.score > b.score : a.number < b.number; };
  std::nth_element(entries_.begin(), entries_.begin() + (k_ - 1), entries_.begin() + size_, better);
  size_ = k_;
  threshold_ = entries_[k_ - 1].score;
}

template <class T>
void Best<T>::write(int64_t offset, int64_t width, int32_t* out) {
  if (size_ > k_) keep_best();
  for (int64_t i = 0; i < size_; ++i) out[i] = static_cast<int32_t>(entries_[i].number + offset);
  std::sort(out, out + size_);
  std::fill(out + size_, out + width, -1);
}

template <class T>
void BestBlocks<T>::add(const T* scores, int64_t begin, int64_t end, T most) {
  added_ = end;
  if (!(most > best_.threshold())) {  // no number here lifts its block among the best
    if (end > (block_ + 1) * block_size_) {
      close_block();
      block_ = (end - 1) / block_size_;
    }
    return;
  }
  vectorise_products([&]() __attribute__((always_inline)) {
    for (int64_t g = begin; g < end;) {
      if (g == (block_ + 1) * block_size_) close_block();
      const int64_t stop = std::min(end, (block_ + 1) * block_size_);
      if (stop - g == 8) {
        const Vec<T, 8> all = load<T, 8>(scores + (g - begin));
        const Vec<T, 4> a = __builtin_shufflevector(all, all, 0, 1, 2, 3), b = __builtin_shufflevector(all, all, 4, 5, 6, 7);
        const Vec<T, 4> half = a > b ? a : b;
        most_ = std::max({most_, half[0], half[1], half[2], half[3]});
        g = stop;
      }
      for (; g < stop; ++g) most_ = std::max(most_, scores[g - begin]);
    }
  });
}

template <class T>
void BestBlocks<T>::close_block() {
  best_.add(&most_, 1, block_++, most_);
  most_ = -std::numeric_limits<T>::infinity();
}

template <class T>
void BestBlocks<T>::write(int64_t width, int32_t* out) {
  if (added_ > 0) most_ = std::numeric_limits<T>::infinity(), close_block();
  best_.write(0, width, out);
}

namespace {

// One query, `kVectors` of N groups at a time.
template <class T, int N, int kVectors>
HP_INLINE T combine(int64_t heads, const T* dots, const T* weights, T* out) {
  Vec<T, N> sums[kVectors] = {};
  for (int64_t h = 0; h < heads; ++h) {
    for (int v = 0; v < kVectors; ++v) {
      const Vec<T, N> dot = load<T, N>(dots + h * kPanel + v * N);
      sums[v] += weights[h] * (dot > 0 ? dot : Vec<T, N>{});
    }
  }
  Vec<T, N> most = sums[0];
  for (int v = 0; v < kVectors; ++v) {
    store<T, N>(out + v * N, sums[v]);
    most = sums[v] > most ? sums[v] : most;
  }
  T result = most[0];
  for (int i = 1; i < N; ++i) result = most[i] > result ? most[i] : result;
  return result;
}

}  // namespace

template <class T>
void combine_heads(int64_t queries, int64_t heads, const T* dots, const T* weights, T* out, int64_t stride, T* most) {
  constexpr int N = 64 / sizeof(T), kVectors = 4;
  static_assert(kPanel % (N * kVectors) == 0);
  vectorise_products([&]() __attribute__((always_inline)) {
    for (int64_t q = 0; q < queries; ++q) {
      T best = -std::numeric_limits<T>::infinity();
      for (int64_t g = 0; g < kPanel; g += N * kVectors) {
        const T here = combine<T, N, kVectors>(heads, dots + q * heads * kPanel + g, weights + q * heads, out + q * stride + g);
        best = here > best ? here : best;
      }
      most[q] = best;
    }
  });
}

#define HP_INSTANTIATE(T)       \
  template class Best<T>;       \
  template class BestBlocks<T>; \
  template void combine_heads<T>(int64_t, int64_t, const T*, const T*, T*, int64_t, T*);
HP_INSTANTIATE(float)
HP_INSTANTIATE(double)
#undef HP_INSTANTIATE

}  // namespace hyperparallel::kernels::indexer
