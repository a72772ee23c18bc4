#include "models/deepseek_v41/numpy_random.h"

#include <array>
#include <bit>

#include "base/error.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

// numpy.random.SeedSequence with a pool of four words.
class SeedSequence {
 public:
  explicit SeedSequence(uint64_t seed) {
    const std::array<uint32_t, 4> entropy = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0, 0};
    uint32_t constant = 0x43b0d7e5;
    const auto hashed = [&](uint32_t value) {
      value ^= constant;
      constant *= 0x931e8875;
      value *= constant;
      return value ^ (value >> 16);
    };
    for (size_t i = 0; i < pool_.size(); ++i) pool_[i] = hashed(entropy[i]);
    for (size_t source = 0; source < pool_.size(); ++source) {
      for (size_t target = 0; target < pool_.size(); ++target) {
        if (source != target) pool_[target] = mixed(pool_[target], hashed(pool_[source]));
      }
    }
  }

  // generate_state(4, uint64)
  std::array<uint64_t, 4> state() const {
    std::array<uint32_t, 8> words;
    uint32_t constant = 0x8b51f9dd;
    for (size_t i = 0; i < words.size(); ++i) {
      uint32_t value = pool_[i % pool_.size()] ^ constant;
      constant *= 0x58f38ded;
      value *= constant;
      words[i] = value ^ (value >> 16);
    }
    std::array<uint64_t, 4> state;
    for (size_t i = 0; i < state.size(); ++i) state[i] = words[2 * i] | static_cast<uint64_t>(words[2 * i + 1]) << 32;
    return state;
  }

 private:
  static uint32_t mixed(uint32_t x, uint32_t y) {
    const uint32_t value = x * 0xca01f9dd - y * 0x4973f715;
    return value ^ (value >> 16);
  }

  std::array<uint32_t, 4> pool_;
};

}  // namespace

NumpyRandom::NumpyRandom(uint64_t seed) {
  const auto words = SeedSequence(seed).state();
  increment_ = ((uint128{words[2]} << 64 | words[3]) << 1) | 1;
  step();
  state_ += uint128{words[0]} << 64 | words[1];
  step();
}

void NumpyRandom::step() {
  constexpr uint128 kMultiplier = uint128{0x2360ed051fc65da4} << 64 | 0x4385df649fccf645;
  state_ = state_ * kMultiplier + increment_;
}

uint64_t NumpyRandom::next() {
  step();
  return std::rotr(static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_), static_cast<int>(state_ >> 122));
}

uint64_t NumpyRandom::below(uint64_t bound) {
  HP_CHECK(bound > UINT32_MAX, "bound {}", bound);
  uint128 product = uint128{next()} * bound;
  const uint64_t threshold = -bound % bound;  // (2^64 - bound) mod bound
  while (static_cast<uint64_t>(product) < threshold) product = uint128{next()} * bound;
  return static_cast<uint64_t>(product >> 64);
}

}  // namespace hyperparallel::models::deepseek_v41
