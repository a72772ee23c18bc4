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
    : scratch_(heads, d, most_keys),
      keys_((most_keys + PairScratch::kKeyUnit) * d),
      key_pairs_((most_keys + PairScratch::kKeyUnit) / 2 * d),
      columns_((most_keys + PairScratch::kKeyUnit) / 2 * scratch_.lanes),
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

class TileProducts {
 public:
  TileProducts(Bits* keys, uint32_t* key_pairs, uint32_t* columns, float* sums)
      : keys_(keys), key_pairs_(key_pairs), columns_(columns), sums_(sums) {}

  HP_INLINE void begin(const Query<Bits>& query) {
    const int64_t count = query.count, d = query.d;
    constexpr int64_t kUnit = PairScratch::kKeyUnit;
    padded_ = (count + kUnit - 1) / kUnit * kUnit;
    for (int64_t i = 0; i < count; ++i) std::memcpy(keys_ + i * d, query.keys[i], d * sizeof(Bits));
    std::memset(keys_ + count * d, 0, (padded_ - count) * d * sizeof(Bits));
    const auto* halves = reinterpret_cast<const uint16_t*>(keys_);
    for (int64_t i = 0; i < padded_; i += 2) gemm::interleave(halves + i * d, halves + (i + 1) * d, d, key_pairs_ + i / 2 * d);
  }

  template <int L>
  HP_INLINE void dots(const Query<Bits>& query, const uint32_t* x, float* out) {
    const int64_t d = query.d, key_bytes = d * static_cast<int64_t>(sizeof(Bits));
    for (int64_t key = 0; key < padded_; key += 2 * kTile) {
      clear_tile<0>(), clear_tile<1>();
      for (int64_t c = 0; c < d; c += kPairs) {
        load_tile<2>(x + c / 2 * L, 4 * L);
        load_tile<3>(keys_ + key * d + c, key_bytes);
        load_tile<4>(keys_ + (key + kTile) * d + c, key_bytes);
        multiply_tiles<0, 3, 2>();
        multiply_tiles<1, 4, 2>();
      }
      store_tile<0>(out + key * L, 4 * L);
      store_tile<1>(out + (key + kTile) * L, 4 * L);
    }
  }

  template <int L>
  HP_INLINE void mix(const Query<Bits>& query, uint32_t* w, int64_t heads, float* out) {
    const int64_t d = query.d, pairs = padded_ / 2;
    for (int64_t i = (query.count + 1) / 2 * L; i < pairs * L; ++i) w[i] = 0;
    gemm::transpose_words(w, L, pairs, L, columns_, pairs);  // [L, pairs]
    float* const to = heads < L ? sums_ : out;
    for (int64_t column = 0; column < d; column += 2 * kTile) {
      clear_tile<5>(), clear_tile<6>();
      for (int64_t pair = 0; pair < pairs; pair += kTile) {
        load_tile<7>(columns_ + pair, 4 * pairs);
        load_tile<3>(key_pairs_ + pair * d + column, 4 * d);
        load_tile<4>(key_pairs_ + pair * d + column + kTile, 4 * d);
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
    for (int64_t key = 0; key < query.count; key += kTile) {
      load_tile<0>(weights + key * L, 4 * L);
      for (int64_t column = 0; column < d; column += 2 * kTile) {
        clear_tile<3>(), clear_tile<4>();
        load_tile<7>(both + column, 4 * d);
        multiply_tiles<3, 0, 7>();
        load_tile<7>(both + column + kTile, 4 * d);
        multiply_tiles<4, 0, 7>();
        store_tile<3>(sums_ + column, 4 * d);
        store_tile<4>(sums_ + column + kTile, 4 * d);
      }
      const int64_t last = std::min(kTile, query.count - key);
      for (int64_t i = 0; i < last; ++i) {
        float* sum = to[key + i];
        const float* more = sums_ + i * d;
#pragma GCC ivdep
        for (int64_t c = 0; c < d; ++c) sum[c] += more[c];
      }
    }
  }

 private:
  Bits* keys_;
  uint32_t *key_pairs_, *columns_;
  float* sums_;
  int64_t padded_ = 0;  // keys, to whole pairs of tiles
};

}  // namespace

void TileAttention::forward(const Query<Bits>& query, float* out) {
  const TileScope scope(scratch_.lanes);
  TileProducts products(keys_.data(), key_pairs_.data(), columns_.data(), sums_.data());
  forward_pairs(products, scratch_, query, out);
}
void TileAttention::backward(const Query<Bits>& query, const Bits* gradient, float* dq, float* const* dkeys, float* dsink) {
  const TileScope scope(scratch_.lanes);
  TileProducts products(keys_.data(), key_pairs_.data(), columns_.data(), sums_.data());
  backward_pairs(products, scratch_, query, gradient, dq, dkeys, dsink);
}
void TileAttention::add_attention(const Query<Bits>& query, float* sums) {
  const TileScope scope(scratch_.lanes);
  TileProducts products(keys_.data(), key_pairs_.data(), columns_.data(), sums_.data());
  add_pairs(products, scratch_, query, sums);
}
#pragma GCC pop_options

}  // namespace hyperparallel::kernels::attention
#else

namespace hyperparallel::kernels::attention {

bool TileAttention::takes(int64_t) {
  return false;
}
TileAttention::TileAttention(int64_t, int64_t, int64_t) : scratch_(0, 0, 0) {
  throw std::logic_error("TileAttention on a processor without products of tiles");
}
void TileAttention::forward(const Query<Bfloat16Bits>&, float*) {}
void TileAttention::backward(const Query<Bfloat16Bits>&, const Bfloat16Bits*, float*, float* const*, float*) {}
void TileAttention::add_attention(const Query<Bfloat16Bits>&, float*) {}

}  // namespace hyperparallel::kernels::attention
#endif
