// Counter-based random numbers: every value is a pure function of (seed, stream name, index).
//
// So a shard starts anywhere, threads need no order, and every layout begins from the same bits. The generator is Philox 4x32-10
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with the seed as key and (index, hash of the name) as
// counter. Normal values use IEEE basic operations alone (no library logarithm), so they are the same bits on every machine.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace hyperparallel {

// Ten rounds of Philox 4x32: 128 bits of counter and 64 bits of key to 128 random bits.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// One named stream of a seed, for example the full name of a parameter, or "shuffle/epoch-3".
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name);

  uint64_t bits(uint64_t index) const;
  double uniform(uint64_t index) const;                  // [0, 1), a multiple of 2^-53
  double normal(uint64_t index) const;                   // mean 0, standard deviation 1; |value| < 8.3
  uint64_t below(uint64_t index, uint64_t bound) const;  // 0 .. bound-1; bound > 0

 private:
  std::array<uint64_t, 2> block(uint64_t index) const;

  uint64_t seed_, name_hash_;
};

// out[i] = float(std * normal(first_index + i)) for i < count.
void fill_normal(float* out, int64_t count, uint64_t seed, std::string_view name, int64_t first_index, double std);

// 0 .. count-1 in random order.
std::vector<int64_t> random_permutation(int64_t count, uint64_t seed, std::string_view name);

}  // namespace hyperparallel
