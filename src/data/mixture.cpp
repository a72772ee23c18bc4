#include "data/mixture.h"

#include <utility>

#include "base/error.h"
#include "base/random.h"

namespace hyperparallel::data {

Mixture::Mixture(std::vector<Source> sources, uint64_t seed, bool shuffle, bool repeat)
    : sources_(std::move(sources)),
      seed_(seed),
      shuffle_(shuffle),
      repeat_(repeat),
      taken_(sources_.size(), 0),
      epoch_(sources_.size(), -1),
      permutations_(sources_.size()) {}

void Mixture::restore(std::vector<int64_t> taken) {
  HP_CHECK(taken.size() == sources_.size(), "{} counts for {} sources", taken.size(), sources_.size());
  taken_ = std::move(taken);
}

std::optional<int64_t> Mixture::next_source() const {
  const auto count = static_cast<int64_t>(sources_.size());
  if (!repeat_) {
    for (int64_t i = 0; i < count; ++i) {
      if (taken_[i] < sources_[i].samples) return i;
    }
    return std::nullopt;
  }
  double weight = 0;
  int64_t total = 1;  // with the sample to be taken
  for (int64_t i = 0; i < count; ++i) {
    weight += sources_[i].weight;
    total += taken_[i];
  }
  int64_t best = 0;
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double deficit = sources_[i].weight / weight * static_cast<double>(total) - static_cast<double>(taken_[i]);
    if (i == 0 || deficit > largest) {
      largest = deficit;
      best = i;
    }
  }
  return best;
}

std::optional<Mixture::Pick> Mixture::next() {
  const std::optional<int64_t> source = next_source();
  if (!source) return std::nullopt;
  const int64_t samples = sources_[*source].samples;
  const int64_t epoch = taken_[*source] / samples;
  int64_t sample = taken_[*source] % samples;
  ++taken_[*source];
  if (shuffle_) {
    if (epoch_[*source] != epoch) {
      permutations_[*source] = random_permutation(samples, seed_, fmt::format("data/source-{}/epoch-{}", *source, epoch));
      epoch_[*source] = epoch;
    }
    sample = permutations_[*source][sample];
  }
  return Pick{*source, sample};
}

}  // namespace hyperparallel::data
