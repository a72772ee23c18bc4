#include "dist/reduction.h"

#include <bit>

#include "base/error.h"
#include "base/vectorise.h"

#define HP_INLINE [[gnu::always_inline]] static inline

namespace hyperparallel::dist {
namespace {

constexpr int64_t kBlock = 512;  // elements whose sums stay in the nearest cache

// How elements of a type are stored, and what they are added in.
template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  HP_INLINE Value load(Stored x) { return x; }
  HP_INLINE Stored store(Value x) { return x; }
  HP_INLINE Value add(Value a, Value b) { return static_cast<Value>(a + b); }
};
struct Bool : Plain<uint8_t> {
  HP_INLINE uint8_t add(uint8_t a, uint8_t b) { return a | b; }
};
struct BFloat16 {
  using Stored = uint16_t;
  using Value = float;
  HP_INLINE float load(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }
  HP_INLINE uint16_t store(float x) {  // to the nearest, ties to even
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<uint16_t>(x != x ? 0x7fc0 : rounded);
  }
  HP_INLINE float add(float a, float b) { return a + b; }
};
struct Half {
  using Stored = c10::Half;
  using Value = float;
  HP_INLINE float load(c10::Half x) { return x; }
  HP_INLINE c10::Half store(float x) { return x; }
  HP_INLINE float add(float a, float b) { return a + b; }
};

template <class Type, Reduction kReduction>
HP_INLINE void reduce_block(typename Type::Stored* __restrict out, std::span<const void* const> parts, int64_t begin,
                            int64_t count) {
  using Value = typename Type::Value;
  const auto part = [&](size_t index) __attribute__((always_inline)) {
    return static_cast<const typename Type::Stored*>(parts[index]) + begin;
  };
  Value values[kBlock];
  const auto* first = part(0);
  for (int64_t i = 0; i < count; ++i) values[i] = Type::load(first[i]);
  for (size_t index = 1; index < parts.size(); ++index) {
    const auto* next = part(index);
    for (int64_t i = 0; i < count; ++i) {
      const Value a = values[i], b = Type::load(next[i]);
      if constexpr (kReduction == Reduction::kSum) {
        values[i] = Type::add(a, b);
      } else {
        values[i] = a > b || a != a ? a : b;
      }
    }
  }
  for (int64_t i = 0; i < count; ++i) out[begin + i] = Type::store(values[i]);
}

template <class Type, Reduction kReduction>
void reduce_blocks(void* out, std::span<const void* const> parts, int64_t count) {
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      reduce_block<Type, kReduction>(static_cast<typename Type::Stored*>(out), parts, begin, std::min(kBlock, count - begin));
    }
  });
}

template <class Type>
void reduce(void* out, std::span<const void* const> parts, int64_t count, Reduction reduction) {
  reduction == Reduction::kSum ? reduce_blocks<Type, Reduction::kSum>(out, parts, count)
                               : reduce_blocks<Type, Reduction::kMax>(out, parts, count);
}

}  // namespace

void reduce_elements(void* out, std::span<const void* const> parts, int64_t count, c10::ScalarType type, Reduction reduction) {
  switch (type) {
    case c10::ScalarType::Float:
      return reduce<Plain<float>>(out, parts, count, reduction);
    case c10::ScalarType::Double:
      return reduce<Plain<double>>(out, parts, count, reduction);
    case c10::ScalarType::BFloat16:
      return reduce<BFloat16>(out, parts, count, reduction);
    case c10::ScalarType::Half:
      return reduce<Half>(out, parts, count, reduction);
    case c10::ScalarType::Long:
      return reduce<Plain<int64_t>>(out, parts, count, reduction);
    case c10::ScalarType::Int:
      return reduce<Plain<int32_t>>(out, parts, count, reduction);
    case c10::ScalarType::Short:
      return reduce<Plain<int16_t>>(out, parts, count, reduction);
    case c10::ScalarType::Char:
      return reduce<Plain<int8_t>>(out, parts, count, reduction);
    case c10::ScalarType::Byte:
      return reduce<Plain<uint8_t>>(out, parts, count, reduction);
    case c10::ScalarType::Bool:
      return reduce<Bool>(out, parts, count, reduction);
    default:
      HP_CHECK(false, "tensors of type {} cannot be reduced", c10::toString(type));
  }
}

}  // namespace hyperparallel::dist
