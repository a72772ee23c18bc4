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

// Rises with the score; both zeros have one.
template <class T>
HP_INLINE auto rising_key(T score) {
  using Key = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr Key kSign = Key(1) << (8 * sizeof(T) - 1);
  const Key bits = std::bit_cast<Key>(score + T(0));
  return bits & kSign ? ~bits : bits | kSign;
}

}  // namespace

template <class T>
Best<T>::Best(int64_t k)
    : k_(k),
      threshold_(k > 0 ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity()),
      scores_(2 * k),
      numbers_(2 * k),
      keys_(2 * k) {}

template <class T>
void Best<T>::add_those_above(const T* scores, int64_t count, int64_t first) {
  const auto add_one = [&](int64_t i) __attribute__((always_inline)) {
    if (!(scores[i] > threshold_)) return;
    scores_[size_] = scores[i], numbers_[size_++] = static_cast<int32_t>(first + i);
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
  vectorise_products([&]() __attribute__((always_inline)) {
    T* scores = scores_.data();
    int32_t* numbers = numbers_.data();
    Key* keys = keys_.data();
    Key low = ~Key(0), high = 0;
    for (int64_t i = 0; i < size_; ++i) {
      keys[i] = rising_key(scores[i]);
      low = keys[i] < low ? keys[i] : low, high = keys[i] > high ? keys[i] : high;
    }
    const auto count = [&](Key least) __attribute__((always_inline)) {
      Key n = 0;
      for (int64_t i = 0; i < size_; ++i) n += keys[i] >= least ? 1 : 0;
      return static_cast<int64_t>(n);
    };
    // At least k keys are `low` or more, and fewer are more than `high`.
    int64_t kept = size_;
    while (low < high && kept != k_) {
      const Key middle = low + (high - low) / 2 + 1;
      const int64_t n = count(middle);
      if (n >= k_) {
        low = middle, kept = n;
      } else {
        high = middle - 1;
      }
    }
    int64_t equal = k_ - (low == ~Key(0) ? 0 : count(low + 1)), size = 0;  // so many of those that are `low`
    threshold_ = std::numeric_limits<T>::infinity();
    for (int64_t i = 0; i < size_; ++i) {
      const bool is_equal = keys[i] == low, takes = keys[i] > low || (is_equal && equal > 0);
      equal -= is_equal ? 1 : 0;
      threshold_ = takes && scores[i] < threshold_ ? scores[i] : threshold_;
      scores[size] = scores[i], numbers[size] = numbers[i];
      size += takes ? 1 : 0;
    }
    size_ = size;
  });
}

template <class T>
void Best<T>::write(int64_t offset, int64_t width, int32_t* out) {
  if (size_ > k_) keep_best();
  for (int64_t i = 0; i < size_; ++i) out[i] = static_cast<int32_t>(numbers_[i] + offset);
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
