// Runs of the tiny model in a layout, on ranks as threads, and what all ranks found put together.
#pragma once

#include <gmock/gmock.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "parity/layouts.h"
#include "train/trainer.h"

namespace hyperparallel::parity {

inline constexpr int64_t kSteps = 10;

// configs/tiny.yaml with sizes that divide nothing and the samples of this folder, in 8 rows a step. Cache quantisers are off: an
// element that rounds to the other code moves what follows by a step of the code (NOTE [Ties of stored codes] in
// train/verify.cpp).
// With AdamW and without draft layers and z-loss, where `more` does not say otherwise: their bounds are the strictest.
std::vector<std::string> tiny_overrides(const std::vector<std::string>& more);
train::Config tiny(const std::vector<std::string>& overrides);

using Tensors = std::map<std::string, at::Tensor>;

struct Outcome {
  std::vector<double> losses, norms;       // by step
  Tensors gradients, loads;                // of step 1
  std::map<std::string, Tensors> choices;  // of step 1: by name of the value, by row of the step: int64 [tokens, k], -1 behind
  Tensors before, parameters;              // at the start, at the end
};

// What a run adds to training. `callbacks` is called on every rank.
struct RunOptions {
  std::function<std::vector<std::unique_ptr<train::TrainerCallback>>()> callbacks = {};
  std::function<void(train::Trainer&)> begin = {}, end = {};  // around training
};
Outcome run(const Layout& layout, const RunOptions& options = {});

// Ends a run after a step.
std::unique_ptr<train::TrainerCallback> stop_after(int64_t step);

// One rank, in the default layout, with `data` of a Layout: in FP32 and in double.
using Data = std::vector<std::string>;
const Outcome& one_rank(const Data& data = {});
const Outcome& exact(const Data& data = {});

// Of Data: tables outside of device memory under SparseAdam; and the declared mix of update rules, with such tables and all
// losses.
inline const Data kSparseTables{"--model.engram_storage=host"};
inline const Data kEverything{"--optimizer.name=muon", "--model.engram_storage=host", "--train.loss.z=1e-4",
                              "--train.loss.draft.weight=0.5", "--train.loss.draft.anchors=29"};

double relative(double a, double b);
double largest(const at::Tensor& tensor);

// NOTE [Rules of comparison], tests/golden/README.md: losses and norm of step 1 within 1e-5, all losses within 1e-4; each
// gradient of step 1 within max(10 e, 3e-5 m), e the error of one rank in FP32 against double and m the largest value; parameters
// at the end in root mean square within max(10 r, 0.002 u), r the largest such error of five runs of one rank in FP32, four of
// them from weights disturbed by 6e-8, and u the distance from the start.
//
// NOTE [Flipped choices]. After step 1 the weights of two layouts differ by rounding. An expert or a group that is within that of
// another is then chosen by one and not by the other, and the losses from there on differ by more than rounding. That it was
// this is proven, not assumed: the same layout in double, where no choice is that near, must give one rank's losses to 1e-9 in
// all steps and its parameters to 1e-5 of the update. Such a layout is printed; a loss more than 1e-3 off is a failure anyway.
void expect_loss_and_norm(const std::vector<double>& losses, const std::vector<double>& norms, const Data& data = {});
using Runner = std::function<Outcome(const Layout&)>;
void expect_first_step(const Outcome& found, const Data& data = {});
// Reports a flip, and proves it by `again`.
void expect_later_steps(
    const Layout& layout, const Outcome& found, const Runner& again = [](const Layout& other) { return run(other); });
void expect_same_in_double(
    const Layout& layout, const Runner& runner = [](const Layout& other) { return run(other); });

}  // namespace hyperparallel::parity
