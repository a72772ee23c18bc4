// The interface between the trainer and a family of models. A family lives in one folder, models/<family>/, and gives three
// things:
//
//   Family        how to recognise and read its config.json          one static table, listed in models/families/families.cpp
//   Architecture  what was read: one model, without a layout         sizes, summary, FLOPs, and `build`
//   Model         its program for one rank of a layout               segments, exchanges, parameters, and a micro-batch's inputs
//
// docs/adding-a-model.md walks through a whole family. builder.h and tokens.h hold what decoders share.
#pragma once

#include "base/aten.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml.h"
#include "data/batch.h"
#include "data/image.h"
#include "data/tokenizer.h"
#include "engine/executor.h"
#include "engine/layout.h"
#include "engine/program.h"
#include "kernels/choice.h"
#include "models/adapter/builder.h"
#include "models/adapter/switches.h"

namespace hyperparallel::models {

// The loss of draft layers (DSpark): a mean over slots, weighed by exp(-slot / decay).
struct DraftLoss {
  double weight = 0;             // 0: the layers are not built
  double cross_entropy = 0.1;    // of the next token
  double distance = 0.9;         // L1, of the draft's distribution from the model's own
  double confidence = 1;         // binary cross-entropy of the confidence logit ...
  bool hard_confidence = false;  // ... against whether the likeliest token is right, not against 1 - L1 / 2
  double decay = 4;              // in slots; 0: all count alike
  int64_t anchors = 512;         // of a document, at most; 0: all positions
};

// Losses beside the cross-entropy, for families that have what they are for; 0 leaves one out.
struct AuxiliaryLosses {
  double z = 0;                    // of the vocabulary's log(sum of exp), squared
  double balance = 0;              // of experts within a sequence
  double indexer = 0;              // Kullback-Leibler divergence of index scores from attention
  bool dense_indexer = false;      // attention and this loss go over all groups that a query sees, before any is chosen
  bool window_in_teacher = false;  // the attention over window, sink and chosen groups is cut to these, not that without a window
  DraftLoss draft = {};
};

// The fastest implementations that may be taken (kernels/choice.h).
struct KernelLimits {
  kernels::Implementation attention = kernels::Implementation::kMega;
  kernels::Implementation gate = kernels::Implementation::kMega;
  kernels::Implementation moe = kernels::Implementation::kMega;
  kernels::Implementation mhc = kernels::Implementation::kMega;
  kernels::Implementation indexer = kernels::Implementation::kMega;
  kernels::Implementation engram = kernels::Implementation::kMega;
};

// The rank whose program it is, and how its segments compute (`kernels` of the configuration).
struct ProgramOptions {
  engine::Layout layout;
  std::vector<RoleOverride> overrides = {};  // parallel.plan_overrides, NOTE [Roles] in builder.h
  int64_t attention_chunk = 128;             // queries per chunk of the reference attention
  int64_t index_chunk_elements = 8 << 20;    // score elements over all heads that an indexer holds at once
  int64_t cross_entropy_chunk = 1024;        // rows per chunk of the vocabulary cross-entropy
  KernelLimits kernels = {};
  at::ScalarType compute = at::kFloat;  // of values, for kernels that not every type has
  AuxiliaryLosses losses = {};
  std::vector<std::string> trainable = {};  // globs over the parameters that learn; empty: all do
  std::filesystem::path table_folder = {};  // of the files of tables (ParameterUse::kTable); empty: they are in memory
};

// Rows of a table (ParameterUse::kTable) that a rank's tokens will look up.
struct TableRequest {
  engine::ParameterId table;
  at::Tensor rows;       // int64, each once, by owner; numbers of the whole table
  at::Tensor send_rows;  // int64 [stage]: how many of them each rank of the stage owns
};

// Which implementation an operation of the program takes, and how often it is called in a forward pass.
struct KernelCall {
  std::string operation, shape;
  kernels::Choice choice;
  int64_t calls = 0;
};

// The program of one rank, and what it needs to know of a micro-batch.
class Model {
 public:
  virtual ~Model() = default;
  virtual const engine::Program& program() const = 0;
  // Of the operations that have several implementations.
  virtual std::vector<KernelCall> kernel_calls() const { return {}; }
  virtual const engine::Layout& layout() const = 0;

  // Every program input of one micro-batch for the rank of `layout()`. `batch` is the whole micro-batch, the same on all cp and
  // tp ranks that share it. `compute`: the type of inputs that are no ids.
  virtual engine::ValueMap inputs(const data::MicroBatch& batch, at::ScalarType compute) const = 0;

  // Optional. What a micro-batch with these inputs asks of tables, in the order of use.
  virtual std::vector<TableRequest> table_requests(const engine::ValueMap& /*inputs*/) const { return {}; }
  // Optional. Metrics of its own, by name, from the inputs of a step's micro-batches.
  virtual std::map<std::string, double> metrics(const std::vector<engine::ValueMap>& /*inputs*/) const { return {}; }
  // Optional. What a loss with Loss::Per::kModelUnits is a mean over: how many of the micro-batch.
  virtual double loss_units(const data::MicroBatch& /*batch*/) const { return 0; }
  // Optional. Metrics from what segments counted in a step, summed over all ranks.
  virtual std::map<std::string, double> counter_metrics(const std::map<std::string, at::Tensor>& /*counters*/) const {
    return {};
  }
  // Optional. Metrics that are seconds of some segments: name of the metric -> glob over names of segments.
  virtual std::map<std::string, std::string> timed_segments() const { return {}; }
};

// How data-dependent sizes, of tokens at experts and of look-ups, spread over the ranks.
enum class Routing {
  kBalanced,  // evenly
  kWorst,     // all to this rank
};

// What a model that takes pictures says of them.
struct PictureInput {
  data::ImageLimits limits;
  int64_t token_id = -1;  // stands in an image span
};

// The pictures of each data-parallel rank's micro-batch in a plan: so many of one size.
struct PlannedPictures {
  int64_t count = 0;
  data::ImagePlan each = {};
};

// One operation of a model at its sizes, as `hyperparallel bench kernels` times it.
struct KernelBenchmark {
  std::string shape;
  // Forward and backward, or forward alone where nothing is derived; each may be called any number of times.
  std::function<void()> ours, library;
  double flops = 0, bytes = 0;  // that a call must at least compute and move
};
// Its data are there while it is.
struct KernelBenchmarkMaker {
  std::string operation;
  double memory_bytes = 0;  // about what it takes
  std::function<KernelBenchmark()> make;
};

// What not every family can do.
enum class Ability { kGeneration, kGoldenCases, kCrop, kReleasedNames };

// One model as its config.json describes it. Immutable.
class Architecture {
 public:
  virtual ~Architecture() = default;
  virtual std::string model_type() const = 0;
  // The whole config.json; parsing it gives an equal architecture (switches aside, which are not in it).
  virtual nlohmann::ordered_json config_json() const = 0;
  // What makes its layers differ, a line each, for `hyperparallel inspect model`; may be empty.
  virtual std::string summary() const = 0;

  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_positions() const = 0;  // the longest sequence that it is made for
  virtual std::optional<PictureInput> pictures() const { return std::nullopt; }

  // The rank's program with its losses: first the sum of the cross-entropies of the scored tokens of the cp rank. Throws
  // ConfigError where a degree of the layout does not fit, naming both numbers and the degrees that do. `tokenizer`: of the data,
  // for families that look at the text of tokens; nullptr where ids are only numbers (plans, benchmarks).
  virtual std::unique_ptr<Model> build(const ProgramOptions& options, const data::Tokenizer* tokenizer) const = 0;

  // FLOPs that a micro-batch needs, for MFU: forward and backward (twice the forward) of the products with the weights that are
  // active for each token, and of attention over the keys each token may see; the head for supervised tokens only. Padding and
  // recomputation do not count.
  virtual double needed_flops(const data::MicroBatch& batch) const = 0;

  // For the plan: the part of the model that a parameter belongs to; rows by symbol of the program's shapes on the rank of
  // `options.layout`, for a micro-batch of so many tokens, those of pictures included; declared parameters that no segment
  // uses yet.
  virtual std::string part_of(const std::string& parameter) const = 0;
  virtual std::map<std::string, int64_t> symbol_sizes(const ProgramOptions& options, int64_t tokens,
                                                      const PlannedPictures& pictures, Routing routing) const = 0;
  virtual std::vector<engine::ParameterSpec> parameters_without_forward() const { return {}; }

  // The operations that have kernels of our own, on random numbers of one row of so many tokens.
  virtual std::vector<KernelBenchmarkMaker> kernel_benchmarks(int64_t /*tokens*/, at::ScalarType /*compute*/) const { return {}; }

  virtual bool can(Ability) const { return false; }
};
using ArchitecturePtr = std::shared_ptr<const Architecture>;

// Throws UsageError, "model_type llama: `eval` needs cached generation, which this family does not have yet", where the family
// cannot do what `asker` needs.
void require(const Architecture& architecture, Ability ability, const std::string& asker);

struct ParseOptions {
  // Accept a file that describes the part for pictures and little of the text model.
  bool allow_vision_only = false;
  // Keys that the caller read from the same map itself: not reported as unknown.
  std::vector<std::string> own_keys = {};
  // What to say about an unknown dotted key, see yaml::MapReader::finish.
  std::function<std::string(const std::string&)> elsewhere = {};
  // Our own keys beside those of config.json.
  ModelSwitches switches = {};
};

// One key of config.json in words.
struct KeyDescription {
  std::string part;  // root, or the map inside it
  std::string key, accepts, default_value;
};

struct Family {
  // Values of `model_type` in config.json, the family's own first.
  std::vector<std::string> model_types;
  // Reads config.json, or the same keys from our YAML. All mistakes go to `problems`, with file, line and nearest key; unknown
  // keys are mistakes if `unknown` says so. Returns something also then, for checks that follow.
  ArchitecturePtr (*parse)(const yaml::Node& node, Problems& problems, yaml::MapReader::Unknown unknown,
                           const ParseOptions& options);
  std::vector<KeyDescription> (*describe_keys)();
};

}  // namespace hyperparallel::models
