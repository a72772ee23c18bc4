// The numbers of numpy's Generator(PCG64(seed)): SeedSequence, PCG64 (XSL-RR) and Lemire's bounded draw.
#pragma once

#include <cstdint>

namespace hyperparallel::models::deepseek_v41 {

class NumpyRandom {
 public:
  explicit NumpyRandom(uint64_t seed);

  uint64_t next();  // 64 random bits
  // As integers(bound): from 0 to bound - 1. The bound is over 2^32, below which numpy draws 32 bits at a time.
  uint64_t below(uint64_t bound);

 private:
  using uint128 = unsigned __int128;
  void step();

  uint128 state_ = 0, increment_ = 0;
};

}  // namespace hyperparallel::models::deepseek_v41
