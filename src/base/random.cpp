#include "base/random.h"

#include <xxhash.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace hyperparallel {
namespace {

// ln(x) for a normal x > 0 within 1e-15 relative, from IEEE basic operations: x = m 2^e, ln m = 2 atanh((m-1)/(m+1)).
double portable_log(double x) {
  int exponent;
  double m = std::frexp(x, &exponent);  // [0.5, 1)
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1), s2 = s * s;  // |s| < 0.172
  double sum = 0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
  return 2 * s * sum + exponent * 0.69314718055994531;
}

double polynomial(const double (&c)[8], double x) {
  double sum = 0;
  for (int i = 7; i >= 0; --i) sum = sum * x + c[i];
  return sum;
}

// The value that a standard normal stays below with probability p, 0 < p < 1: Wichura's algorithm AS 241 (PPND16), 1989.
double inverse_normal(double p) {
  constexpr double kA[8] = {3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
                            45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727};
  constexpr double kB[8] = {1.0,
                            42.313330701600911252,
                            687.18700749205790830,
                            5394.1960214247511077,
                            21213.794301586595867,
                            39307.895800092710610,
                            28729.085735721942674,
                            5226.4952788528545610};
  constexpr double kC[8] = {1.42343711074968357734,    4.63033784615654529590,   5.76949722146069140550,
                            3.64784832476320460504,    1.27045825245236838258,   2.41780725177450611770e-1,
                            2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kD[8] = {1.0,
                            2.05319162663775882187,
                            1.67638483018380384940,
                            6.89767334985100004550e-1,
                            1.48103976427480074590e-1,
                            1.51986665636164571966e-2,
                            5.47593808499534494600e-4,
                            1.05075007164441684324e-9};
  constexpr double kE[8] = {6.65790464350110377720,    5.46378491116411436990,    1.78482653991729133580,
                            2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                            2.71155556874348757815e-5, 2.01033439929228813265e-7};
  constexpr double kF[8] = {1.0,
                            5.99832206555887937690e-1,
                            1.36929880922735805310e-1,
                            1.48753612908506148525e-2,
                            7.86869131145613259100e-4,
                            1.84631831751005468180e-5,
                            1.42151175831644588870e-7,
                            2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(kA, r) / polynomial(kB, r);
  }
  const double r = std::sqrt(-portable_log(q < 0 ? p : 1 - p));
  const double x = r <= 5 ? polynomial(kC, r - 1.6) / polynomial(kD, r - 1.6) : polynomial(kE, r - 5) / polynomial(kF, r - 5);
  return q < 0 ? -x : x;
}

// 52 bits to the middle of one of 2^52 equal pieces of (0, 1).
double normal_from_bits(uint64_t bits) {
  return inverse_normal((static_cast<double>(bits >> 12) + 0.5) * 0x1p-52);
}

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0], product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

RandomStream::RandomStream(uint64_t seed, std::string_view name)
    : seed_(seed), name_hash_(XXH3_64bits(name.data(), name.size())) {}

std::array<uint64_t, 2> RandomStream::block(uint64_t index) const {
  const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
  const auto high = [](uint64_t value) { return static_cast<uint32_t>(value >> 32); };
  const auto r = philox({low(index), high(index), low(name_hash_), high(name_hash_)}, {low(seed_), high(seed_)});
  return {uint64_t{r[1]} << 32 | r[0], uint64_t{r[3]} << 32 | r[2]};
}

uint64_t RandomStream::bits(uint64_t index) const {
  return block(index / 2)[index % 2];
}

double RandomStream::uniform(uint64_t index) const {
  return static_cast<double>(bits(index) >> 11) * 0x1p-53;
}

double RandomStream::normal(uint64_t index) const {
  return normal_from_bits(bits(index));
}

uint64_t RandomStream::below(uint64_t index, uint64_t bound) const {
  HP_CHECK(bound > 0, "empty range");
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits(index)) * bound) >> 64);
}

void fill_normal(float* out, int64_t count, uint64_t seed, std::string_view name, int64_t first_index, double std) {
  const RandomStream stream(seed, name);
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(std * stream.normal(static_cast<uint64_t>(first_index + i)));
}

std::vector<int64_t> random_permutation(int64_t count, uint64_t seed, std::string_view name) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), int64_t{0});
  const RandomStream stream(seed, name);
  for (int64_t i = count - 1; i > 0; --i) std::swap(order[i], order[stream.below(i, i + 1)]);
  return order;
}

}  // namespace hyperparallel
