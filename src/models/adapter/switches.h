// Our own keys of the `model` section, beside those of config.json. A family takes those that mean something to it and refuses
// others that are not at their default.
#pragma once

#include <string>

namespace hyperparallel::models {

// Starting values that the published reports leave open (docs/model.md, Start values). Everything else: norm gains 1, biases 0.
struct Initialisation {
  double std = 0.0;         // of every normal start; 0 means the file's initializer_range
  double engram_std = 0.0;  // of the Engram tables; 0 means `std`
  double attention_sink = 0.0;
  double hc_scale = 0.01;         // hc_*_scale
  double hc_post_base = 0.0;      // 0: an output enters once; hc pre base is log(1/(n-1)), each stream weighs 1/n
  double hc_comb_diagonal = 4.0;  // comb base on the diagonal, 0 elsewhere: near the identity after Sinkhorn

  bool operator==(const Initialisation&) const = default;
};

// Where Engram tables live, and how their rows are found.
enum class EngramStorage {
  kDevice,  // parameters like others, cut over ep
  kHost,    // rows in memory of the host, each with one owner; gradients by rows
  kMmap,    // likewise in a mapped file
};

struct ModelSwitches {
  bool cache_quantisation = true;  // FP8 / FP4 fake quantisation of window KV, compressed KV, indexer
  bool candidates = true;          // candidate pool of the index sources after the candidate source
  EngramStorage engram_storage = EngramStorage::kDevice;
  Initialisation initialisation;

  bool operator==(const ModelSwitches&) const = default;
};

}  // namespace hyperparallel::models
