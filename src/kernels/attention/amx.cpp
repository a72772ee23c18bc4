#include "kernels/attention/amx.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels/attention/softmax.h"
#include "kernels/gemm/transpose.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hyperparallel::kernels::attention {
namespace {

constexpr int64_t kTile = 16, kPairs = 32;  // rows of a tile; BF16 numbers in one of its rows
constexpr int64_t kMostLeft = 8;            // queries times blocks of heads whose gradients of window keys are summed at once
constexpr int64_t kNearRoom = 36;           // rows behind the window's that tiles touch: an odd one and two tiles

// The kernel saves tiles only for processes that have asked.
bool may_use_tiles() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kBf16 = 1U << 22, kTiles = 1U << 24;
  return (d & kBf16) && (d & kTiles) && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

}  // namespace

bool TileAttention::takes(int64_t d) {
  static const bool has = may_use_tiles();
  return has && d % kPairs == 0 && PairAttention::takes(d);
}

TileAttention::TileAttention(int64_t heads, int64_t d, int64_t most_keys)
    : scratch_(heads, d, most_keys + 2),
      d_(d),
      block_queries_(std::max<int64_t>(1, kMostLeft / scratch_.blocks)),
      keys_((most_keys + PairScratch::kKeyUnit) * d),
      near_((most_keys + block_queries_ + kNearRoom) * d),
      key_pairs_((most_keys + PairScratch::kKeyUnit) / 2 * d),
      near_pairs_((most_keys + block_queries_ + kNearRoom) / 2 * d),
      columns_((most_keys + 2 * PairScratch::kKeyUnit) / 2 * scratch_.lanes),
      sums_(kTile * d) {}

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,amx-tile,amx-bf16,prefer-vector-width=512")
}  // namespace hyperparallel::kernels::attention
#include "kernels/attention/pair_block.h"
namespace hyperparallel::kernels::attention {
namespace {

using Bits = Bfloat16Bits;

// The compiler's own functions for tiles do not tell it that memory is read and written.
template <int T>
HP_INLINE void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T>
HP_INLINE void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
}
template <int T>
HP_INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}
// sum += a b
template <int Sum, int A, int B>
HP_INLINE void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
}

// NOTE [Tiles]: which tile has which shape, for L heads. Nobody else may be using tiles of this thread: libtorch's tile products
// are ended by gemm::release().
//   0, 1, 2   16 keys x L heads (sums of logits), 16 pairs of channels x L heads, 16 keys x L pairs
//   3, 4      16 x 16: keys x pairs of channels, pairs of keys x channels, keys x channels
//   5, 6, 7   L x 16: heads x channels, heads x pairs of keys, heads x channels in pairs of (q, gradient)
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};
class TileScope {
 public:
  explicit TileScope(int lanes) {
    TileShapes shapes;
    for (int t = 0; t < 8; ++t) {
      shapes.rows[t] = t >= 5 ? static_cast<uint8_t>(lanes) : kTile;
      shapes.bytes[t] = t <= 2 ? static_cast<uint16_t>(4 * lanes) : 64;
    }
    asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
  }
  ~TileScope() { asm volatile("tilerelease" : : : "memory"); }
};

// Keys [rows, d] as tiles read them; `rows` may be fewer than tiles touch.
struct TiledKeys {
  const Bits* keys;
  const uint32_t* pairs;  // [rows / 2, d]
  int64_t rows;
};

// Copies two rows of d, beside each other, and makes pairs of them. `second` may be nullptr: zeros.
HP_INLINE void copy_pair(const Bits* first, const Bits* second, int64_t d, Bits* to, uint32_t* pairs) {
  alignas(64) uint16_t low[kPairs], high[kPairs];
  for (uint16_t i = 0; i < kPairs; ++i) {
    low[i] = static_cast<uint16_t>(i / 2 + (i % 2 ? kPairs : 0));
    high[i] = static_cast<uint16_t>(low[i] + kPairs / 2);
  }
  const __m512i lows = _mm512_load_si512(low), highs = _mm512_load_si512(high);
  for (int64_t c = 0; c < d; c += kPairs) {
    const __m512i a = _mm512_loadu_si512(first + c), b = second ? _mm512_loadu_si512(second + c) : _mm512_setzero_si512();
    _mm512_storeu_si512(to + c, a);
    _mm512_storeu_si512(to + d + c, b);
    _mm512_storeu_si512(pairs + c, _mm512_permutex2var_epi16(a, lows, b));
    _mm512_storeu_si512(pairs + c + kPairs / 2, _mm512_permutex2var_epi16(a, highs, b));
  }
}
// Zeros for the rows [count, padded), both even.
HP_INLINE void clear_pairs(int64_t count, int64_t padded, int64_t d, Bits* to, uint32_t* pairs) {
  std::memset(to + count * d, 0, (padded - count) * d * sizeof(Bits));
  std::memset(pairs + count / 2 * d, 0, (padded - count) / 2 * d * sizeof(uint32_t));
}
HP_INLINE int64_t rounded_up(int64_t x, int64_t unit) {
  return (x + unit - 1) / unit * unit;
}

// What is left for the gradients of a block's window keys by one query and block of heads.
struct Left {
  uint32_t *weights, *both;  // [near rows, L], [L, d]
};

// NOTE [Gaps]: arrays over keys begin with those of the window, from an even row of the block on and to an even number of them,
// since pairs of the block's rows are made once. So there may be a row before the first and behind the last that are no keys.
class TileProducts {
 public:
  TileProducts(Bits* keys, uint32_t* key_pairs, uint32_t* columns, float* sums)
      : keys_(keys), key_pairs_(key_pairs), columns_(columns), sums_(sums) {}

  // `block`: from its first row on. The query's other keys are copied.
  HP_INLINE void begin(const Query<Bits>& query, const TiledKeys& block, const Left& left) {
    const int64_t d = query.d;
    near_count_ = query.near, lead_ = near_count_ > 0 ? query.near_row % 2 : 0;
    const int64_t first = query.near_row - lead_;
    near_ = {block.keys + first * d, block.pairs + first / 2 * d, (lead_ + near_count_ + 1) / 2 * 2};
    left_ = left, left_first_ = first, left_rows_ = block.rows;
    const int64_t count = query.count - query.near, padded = rounded_up(count, PairScratch::kKeyUnit);
    const Bits* const* keys = query.keys + query.near;
    for (int64_t i = 0; i < count; i += 2)
      copy_pair(keys[i], i + 1 < count ? keys[i + 1] : nullptr, d, keys_ + i * d, key_pairs_ + i / 2 * d);
    clear_pairs(rounded_up(count, 2), padded, d, keys_, key_pairs_);
    far_ = {keys_, key_pairs_, count};
  }
  HP_INLINE void begin(const Query<Bits>&) {}

  HP_INLINE int64_t rows() const { return near_.rows + far_.rows; }
  HP_INLINE int64_t row(int64_t key) const { return key < near_count_ ? lead_ + key : near_.rows + key - near_count_; }
  template <int L>
  HP_INLINE void fill_gaps(float* p, float x) {
    if (lead_ > 0) std::fill_n(p, L, x);
    if (lead_ + near_count_ < near_.rows) std::fill_n(p + (near_.rows - 1) * L, L, x);
  }

  template <int L>
  HP_INLINE void dots(const Query<Bits>& query, const uint32_t* x, float* out) {
    dots_of<L>(near_, query.d, x, out);
    dots_of<L>(far_, query.d, x, out + near_.rows * L);
  }

  template <int L>
  HP_INLINE void mix(const Query<Bits>& query, uint32_t* w, int64_t heads, float* out) {
    const int64_t d = query.d, near = near_.rows / 2, far = (far_.rows + 1) / 2, behind = rounded_up(near, kTile),
                  pairs = behind + rounded_up(far, kTile);
    columns_of<L>(w, near, columns_, behind, pairs);
    columns_of<L>(w + near * L, far, columns_ + behind, pairs - behind, pairs);
    float* const to = heads < L ? sums_ : out;
    for (int64_t column = 0; column < d; column += 2 * kTile) {
      clear_tile<5>(), clear_tile<6>();
      for (int64_t pair = 0; pair < pairs; pair += kTile) {
        const uint32_t* keys = (pair < behind ? near_.pairs + pair * d : far_.pairs + (pair - behind) * d) + column;
        load_tile<7>(columns_ + pair, 4 * pairs);
        load_tile<3>(keys, 4 * d);
        load_tile<4>(keys + kTile, 4 * d);
        multiply_tiles<5, 7, 3>();
        multiply_tiles<6, 7, 4>();
      }
      store_tile<5>(to + column, 4 * d);
      store_tile<6>(to + column + kTile, 4 * d);
    }
    if (heads < L) std::memcpy(out, sums_, heads * d * sizeof(float));
  }

  template <int L>
  HP_INLINE void spread(const Query<Bits>& query, const uint32_t* weights, uint32_t* both, int64_t heads, float* const* to) {
    const int64_t d = query.d;
    std::memset(both + heads * d, 0, (L - heads) * d * sizeof(uint32_t));
    if (near_count_ > 0) {
      std::memset(left_.weights, 0, left_rows_ * L * sizeof(uint32_t));
      std::memcpy(left_.weights + left_first_ * L, weights, near_.rows * L * sizeof(uint32_t));
      std::memcpy(left_.both, both, L * d * sizeof(uint32_t));
      left_.weights += left_rows_ * L, left_.both += L * d;
    }
    weights += near_.rows * L, to += near_count_;
    for (int64_t key = 0; key < far_.rows; key += kTile) {
      load_tile<0>(weights + key * L, 4 * L);
      for (int64_t column = 0; column < d; column += 2 * kTile) {
        clear_tile<3>(), clear_tile<4>();
        add_spread(both + column, d);
        store_sums(column, d);
      }
      const int64_t last = std::min(kTile, far_.rows - key);
      for (int64_t i = 0; i < last; ++i) add_sums(i, d, to[key + i]);
    }
  }

  // drows [count, d] += what all queries and blocks of heads of the block have left.
  template <int L>
  HP_INLINE void add_left(const Left& left, int64_t number, int64_t rows, int64_t count, int64_t d, float* drows) {
    for (int64_t key = 0; key < count; key += kTile) {
      for (int64_t column = 0; column < d; column += 2 * kTile) {
        clear_tile<3>(), clear_tile<4>();
        for (int64_t i = 0; i < number; ++i) {
          load_tile<0>(left.weights + (i * rows + key) * L, 4 * L);
          add_spread(left.both + i * L * d + column, d);
        }
        store_sums(column, d);
      }
      const int64_t last = std::min(kTile, count - key);
      for (int64_t i = 0; i < last; ++i) add_sums(i, d, drows + (key + i) * d);
    }
  }

 private:
  template <int L>
  HP_INLINE void dots_of(const TiledKeys& of, int64_t d, const uint32_t* x, float* out) {
    const int64_t key_bytes = d * static_cast<int64_t>(sizeof(Bits));
    for (int64_t key = 0; key < of.rows; key += 2 * kTile) {
      clear_tile<0>(), clear_tile<1>();
      for (int64_t c = 0; c < d; c += kPairs) {
        load_tile<2>(x + c / 2 * L, 4 * L);
        load_tile<3>(of.keys + key * d + c, key_bytes);
        load_tile<4>(of.keys + (key + kTile) * d + c, key_bytes);
        multiply_tiles<0, 3, 2>();
        multiply_tiles<1, 4, 2>();
      }
      store_tile<0>(out + key * L, 4 * L);
      store_tile<1>(out + (key + kTile) * L, 4 * L);
    }
  }
  // to [L, padded], rows `stride` apart: the transpose of w [pairs, L], then zeros.
  template <int L>
  HP_INLINE void columns_of(const uint32_t* w, int64_t pairs, uint32_t* to, int64_t padded, int64_t stride) {
    gemm::transpose_words(w, L, pairs, L, to, stride);
    for (int l = 0; l < L; ++l) std::fill(to + l * stride + pairs, to + l * stride + padded, 0);
  }
  // Tiles 3 and 4 += weights in tile 0 times 32 columns.
  HP_INLINE void add_spread(const uint32_t* both, int64_t d) {
    load_tile<7>(both, 4 * d);
    multiply_tiles<3, 0, 7>();
    load_tile<7>(both + kTile, 4 * d);
    multiply_tiles<4, 0, 7>();
  }
  HP_INLINE void store_sums(int64_t column, int64_t d) {
    store_tile<3>(sums_ + column, 4 * d);
    store_tile<4>(sums_ + column + kTile, 4 * d);
  }
  HP_INLINE void add_sums(int64_t row, int64_t d, float* to) {
    const float* more = sums_ + row * d;
#pragma GCC ivdep
    for (int64_t c = 0; c < d; ++c) to[c] += more[c];
  }

  Bits* keys_;
  uint32_t *key_pairs_, *columns_;
  float* sums_;
  TiledKeys near_{}, far_{};
  int64_t near_count_ = 0, lead_ = 0;
  Left left_{};
  int64_t left_first_ = 0, left_rows_ = 0;
};

}  // namespace

void TileAttention::begin_block(const Bits* rows, int64_t count) {
  near_rows_ = count, left_ = 0;
  const int64_t even = rounded_up(count, 2);
  for (int64_t i = 0; i < count; i += 2)
    copy_pair(rows + i * d_, i + 1 < count ? rows + (i + 1) * d_ : nullptr, d_, near_.data() + i * d_,
              near_pairs_.data() + i / 2 * d_);
  clear_pairs(even, even + kNearRoom - 2, d_, near_.data(), near_pairs_.data());
}

template <class Body>
void TileAttention::with_products(const Query<Bits>& query, const Body& body) {
  const TileScope scope(scratch_.lanes);
  const int64_t rows = rounded_up(near_rows_ + 2, kTile), lanes = scratch_.lanes;
  TileProducts products(keys_.data(), key_pairs_.data(), columns_.data(), sums_.data());
  products.begin(query, {near_.data(), near_pairs_.data(), rows},
                 {near_weights_.data() + left_ * rows * lanes, near_both_.data() + left_ * lanes * d_});
  body(products);
}

void TileAttention::forward(const Query<Bits>& query, float* out) {
  with_products(query, [&](TileProducts& products) { forward_pairs(products, scratch_, query, out); });
}
void TileAttention::backward(const Query<Bits>& query, const Bits* gradient, float* dq, float* const* dkeys, float* dsink) {
  if (near_weights_.empty()) {
    near_weights_.resize(block_queries_ * scratch_.blocks * (near_.size() / d_ + kTile) * scratch_.lanes);
    near_both_.resize(block_queries_ * scratch_.blocks * scratch_.lanes * d_);
  }
  with_products(query, [&](TileProducts& products) { backward_pairs(products, scratch_, query, gradient, dq, dkeys, dsink); });
  if (query.near > 0) left_ += scratch_.blocks;
}
void TileAttention::add_attention(const Query<Bits>& query, float* sums) {
  with_products(query, [&](TileProducts& products) { add_pairs(products, scratch_, query, sums); });
}
void TileAttention::end_block(float* drows) {
  const TileScope scope(scratch_.lanes);
  TileProducts products(keys_.data(), key_pairs_.data(), columns_.data(), sums_.data());
  with_lanes(scratch_.lanes, [&](auto lanes) __attribute__((always_inline)) {
    products.template add_left<lanes()>({near_weights_.data(), near_both_.data()}, left_, rounded_up(near_rows_ + 2, kTile),
                                        near_rows_, d_, drows);
  });
  left_ = 0;
}
#pragma GCC pop_options

}  // namespace hyperparallel::kernels::attention
#else

namespace hyperparallel::kernels::attention {

bool TileAttention::takes(int64_t) {
  return false;
}
TileAttention::TileAttention(int64_t, int64_t, int64_t) : scratch_(0, 0, 0), d_(0), block_queries_(1) {
  throw std::logic_error("TileAttention on a processor without products of tiles");
}
void TileAttention::forward(const Query<Bfloat16Bits>&, float*) {}
void TileAttention::backward(const Query<Bfloat16Bits>&, const Bfloat16Bits*, float*, float* const*, float*) {}
void TileAttention::add_attention(const Query<Bfloat16Bits>&, float*) {}
void TileAttention::begin_block(const Bfloat16Bits*, int64_t) {}
void TileAttention::end_block(float*) {}

}  // namespace hyperparallel::kernels::attention
#endif
