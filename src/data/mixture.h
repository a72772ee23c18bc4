// The order of samples: several files mixed by weight, each shuffled anew in each of its epochs. A pure function of seed and
// files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hyperparallel::data {

class Mixture {
 public:
  struct Source {
    int64_t samples = 0;
    double weight = 0;  // share of the samples taken, relative to the other sources
  };
  // One sample of one source.
  struct Pick {
    int64_t source = 0;
    int64_t sample = 0;
  };

  // With `repeat` the order never ends: at each place comes the source that is furthest behind its share, and a source that is
  // through begins its next epoch. Without it every sample comes once, source after source, whatever the weights.
  // With `shuffle` an epoch of a source is a random permutation keyed by (seed, source, epoch), else the order of the file.
  Mixture(std::vector<Source> sources, uint64_t seed, bool shuffle, bool repeat);

  std::optional<Pick> next();

  // Samples taken of each source so far; with restore() the order goes on from there.
  const std::vector<int64_t>& taken() const { return taken_; }
  void restore(std::vector<int64_t> taken);

 private:
  std::optional<int64_t> next_source() const;

  std::vector<Source> sources_;
  uint64_t seed_;
  bool shuffle_, repeat_;
  std::vector<int64_t> taken_;
  std::vector<int64_t> epoch_;                      // whose permutation is held, -1 none
  std::vector<std::vector<int64_t>> permutations_;  // one for each source, of its present epoch
};

}  // namespace hyperparallel::data
