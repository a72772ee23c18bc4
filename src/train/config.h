// The typed configuration of a run: sections of a YAML file, dotted overrides of the command line, checked before anything heavy.
//
// Every key is one member here, with its default, and one line in config_keys.h, with range, unit and help. From those come
// parsing,
// `--print-config`, `--help SECTION` and docs/configuration.md. Command line wins over file, file over default. Relative paths in
// a file start at the file's folder, on the command line at the current folder; a loaded Config holds absolute paths.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/sample.h"
#include "models/adapter/family.h"
#include "optim/groups.h"
#include "optim/schedule.h"

namespace hyperparallel::train {

using Path = std::filesystem::path;

// Choices of one key; `choices` gives the names, in the order of the enum.
using Exif = data::ExifOrientation;
constexpr auto choices(Exif) {
  return std::array{"apply", "ignore"};
}
using models::EngramStorage;
constexpr auto choices(EngramStorage) {
  return std::array{"device", "host", "mmap"};
}
using data::Supervise;
constexpr auto choices(Supervise) {
  return std::array{"last", "all"};
}
using data::OverLong;
constexpr auto choices(OverLong) {
  return std::array{"drop", "truncate", "error"};
}
using data::BadInput;
constexpr auto choices(BadInput) {
  return std::array{"skip", "error"};
}
using optim::ScheduleKind;
constexpr auto choices(ScheduleKind) {
  return std::array{"constant", "linear_floor", "linear_to_min", "cosine", "wsd_cosine", "wsd_linear"};
}
using optim::WarmupFrom;
constexpr auto choices(WarmupFrom) {
  return std::array{"start", "one"};
}
enum class CpShard { kContiguous, kBalanced };
constexpr auto choices(CpShard) {
  return std::array{"contiguous", "balanced"};
}
using Kernel = kernels::Implementation;
enum class RecomputeMode { kNone, kFull, kSelective };
constexpr auto choices(RecomputeMode) {
  return std::array{"none", "full", "selective"};
}
enum class OptimizerName { kAdamW, kMuon };
constexpr auto choices(OptimizerName) {
  return std::array{"adamw", "muon"};
}
using optim::Rule;
constexpr auto choices(Rule) {
  return std::array{"adamw", "muon", "sinkhorn", "sparse_adam"};
}
enum class Dtype { kFloat32, kBFloat16, kFloat64 };
constexpr auto choices(Dtype) {
  return std::array{"float32", "bfloat16", "float64"};
}
enum class NonFinite { kError, kSkip };
constexpr auto choices(NonFinite) {
  return std::array{"error", "skip"};
}

struct ModelSection {
  Path config;   // as given; the keys that were read from it are in `architecture`
  Path weights;  // empty: random start
  models::ModelSwitches switches;
  Path engram_folder;
  models::ArchitecturePtr architecture;  // null only before it was read
};

struct DataSource {
  Path path;
  double weight = 0.0;
};

struct ImageSection {
  Exif exif = Exif::kApply;
};

struct DataSection {
  Path tokenizer;
  std::vector<DataSource> train, validation, test;
  int64_t seq_len = 1024;
  ImageSection image;
  Supervise supervise = Supervise::kLast;
  OverLong over_long = OverLong::kDrop;
  BadInput bad_line = BadInput::kError;
  BadInput bad_image = BadInput::kError;
  bool packing = true;
  bool shuffle = true;
  int64_t workers = 1;
  Path tool_text;
  bool thinking = false;
  bool drop_thinking = true;
  bool allow_http = false;
};

struct PlanOverride {
  std::string match, role;
};

struct ParallelSection {
  int64_t fsdp_replicate = 1;
  int64_t fsdp_shard = -1;
  bool reshard_after_forward = true;
  int64_t tp = 1;
  bool sequence_parallel = false;
  int64_t cp = 1;
  CpShard cp_shard = CpShard::kContiguous;
  int64_t ep = 1;
  int64_t pp = 1;
  int64_t vision_ulysses = -1;
  double timeout = 600;
  std::vector<PlanOverride> plan_overrides;
};

struct KernelsSection {
  Kernel attention = Kernel::kMega;
  Kernel indexer = Kernel::kMega;
  Kernel gate = Kernel::kMega;
  Kernel moe = Kernel::kMega;
  Kernel mhc = Kernel::kMega;
  Kernel engram = Kernel::kMega;
  int64_t attention_chunk = 0;
  int64_t index_chunk = 0;
  int64_t cross_entropy_chunk = 0;
};

struct RecomputeSection {
  RecomputeMode mode = RecomputeMode::kNone;
  int64_t every = 1;
  std::vector<std::string> keep, regather, offload;
  Path offload_folder;
};

struct OptimizerGroup {
  std::string match;
  std::optional<Rule> optimizer;
  std::optional<double> lr_scale;
  std::optional<double> weight_decay;
  std::optional<std::string> schedule;
};

// The learning rate of each step; the forms of tests/golden/optim/schedules.json.
struct ScheduleSection {
  ScheduleKind kind = ScheduleKind::kConstant;
  int64_t warmup_steps = 0;
  WarmupFrom warmup_counts_from = WarmupFrom::kOne;
  double start_lr = 0.0;
  double min_lr = 0.0;
  int64_t total_steps = 0;  // 0: train.steps
  double decay_ratio = 1.0;
  int64_t stable_until = 0;
  int64_t decay_until = 0;  // 0: total_steps
};

// One of optimizer.schedules, for the groups that name it.
struct NamedSchedule : ScheduleSection {
  std::string name;
  double lr = 0.0;  // 0: optimizer.lr
};

// Of what may be rounded beside FP32 masters.
enum class StateDtype { kFloat32, kBFloat16 };
constexpr auto choices(StateDtype) {
  return std::array{"float32", "bfloat16"};
}

enum class StateStorage { kMemory, kMmap };
constexpr auto choices(StateStorage) {
  return std::array{"memory", "mmap"};
}

struct MuonSection {
  double momentum = 0.95;
  double update_scale = 0.18;
  bool head_wise = true;
  StateDtype dtype = StateDtype::kFloat32;
};

struct SinkhornSection {
  double momentum = 0.95;
  double update_scale = 0.18;
  int64_t steps = 11;
  double threshold = 1e-3;
};

struct SparseAdamSection {
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
};

struct OptimizerSection {
  OptimizerName name = OptimizerName::kAdamW;
  double lr = 3e-4;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-20;
  double weight_decay = 0.1;
  StateDtype moments = StateDtype::kFloat32;
  StateStorage state_storage = StateStorage::kMemory;
  Path state_folder;
  MuonSection muon;
  SinkhornSection sinkhorn;
  SparseAdamSection sparse_adam;
  std::vector<OptimizerGroup> groups;
  ScheduleSection schedule;
  std::vector<NamedSchedule> schedules;
  double max_norm = 1.0;
  double router_bias_rate = 1e-3;
};

enum class Teacher { kCompressed, kWindow };
constexpr auto choices(Teacher) {
  return std::array{"compressed", "window"};
}

enum class ConfidenceTarget { kSoft, kHard };
constexpr auto choices(ConfidenceTarget) {
  return std::array{"soft", "hard"};
}
struct DraftLossSection {
  double weight = 0.0;
  double cross_entropy = 0.1;
  double distance = 0.9;
  double confidence = 1.0;
  ConfidenceTarget confidence_target = ConfidenceTarget::kSoft;
  double decay = 4.0;
  int64_t anchors = 512;
};

struct LossSection {
  double z = 0.0;
  double balance = 1e-4;
  double indexer = 1.0;
  Teacher indexer_teacher = Teacher::kCompressed;
  bool indexer_dense = false;
  DraftLossSection draft;
};

// One stage of a batch ramp.
struct BatchStage {
  int64_t until_step = 0;
  int64_t global_batch_size = 0;
};

// One stage of a length ramp.
struct LengthStage {
  int64_t until_step = 0;
  int64_t seq_len = 0;
};

struct TrainSection {
  int64_t steps = 1000;
  Path output;
  bool restart = false;
  int64_t seed = 42;
  int64_t local_batch_size = 1;
  int64_t global_batch_size = 1;
  std::vector<BatchStage> batch_ramp;
  std::vector<LengthStage> length_ramp;
  std::vector<std::string> trainable;
  LossSection loss;
  Dtype dtype = Dtype::kFloat32;
  int64_t threads = 0;
  bool deterministic = true;
  double max_seconds = 0.0;
  NonFinite non_finite = NonFinite::kError;
  int64_t max_skips = 3;
};

struct ValidationSection {
  int64_t interval = 0;
  int64_t steps = 0;
  int64_t generate_samples = 4;
  int64_t max_new_tokens = 32;
};

struct CheckpointSection {
  int64_t interval = 0;
  int64_t keep_latest_k = 2;
  bool async_mode = true;
  int64_t load_step = -1;
  bool fall_back = false;
  bool export_hf = false;
};

struct LoggingSection {
  int64_t interval = 1;
  bool tensorboard = true;
};

struct ProfileSection {
  int64_t start = 1;
  int64_t steps = 0;
  bool kernels = false;
  bool memory = true;
};

struct DebugSection {
  bool check_ledger = false;
  bool check_contracts = false;
  int64_t dump_batches = 0;
};

struct Config {
  ModelSection model;
  DataSection data;
  ParallelSection parallel;
  KernelsSection kernels;
  RecomputeSection recompute;
  OptimizerSection optimizer;
  TrainSection train;
  ValidationSection validation;
  CheckpointSection checkpoint;
  LoggingSection logging;
  ProfileSection profile;
  DebugSection debug;

  // The learning rates of the run, with total_steps and decay_until filled in; then those of optimizer.schedules, likewise.
  std::vector<optim::Schedule> schedules() const;
  // Rows of the step with that number, from 1: of the batch ramp, or train.global_batch_size.
  int64_t batch_size(int64_t step) const;
  // Tokens of a row of that step: of the length ramp, or data.seq_len.
  int64_t seq_len(int64_t step) const;

  std::map<std::string, std::string> sources;  // dotted key -> "tiny.yaml:3" or "command line", of what was given

  // Equal values; where they came from does not matter.
  bool operator==(const Config& other) const;
};

struct LoadOptions {
  bool for_training = false;  // what a training run cannot do without must be there: tokenizer, data, output folder
};

// Reads `path` and applies `overrides` ("--train.steps=10", "--train.steps", "10", "--train.restart", "--data.no-shuffle"; a list
// as [a,b] or by repeating the option). Throws one ConfigError that lists every mistake: unknown and duplicate keys, types,
// ranges, rules between keys, what this version has not finished.
Config load_config(const Path& path, const std::vector<std::string>& overrides = {}, const LoadOptions& options = {});

// The same without a file, for a command that uses a few sections: an override of a section that is not named is a mistake.
Config config_of_overrides(const std::vector<std::string>& overrides, const std::vector<std::string>& sections);

// The whole configuration as YAML that loads to an equal Config. `with_sources` adds where each given value came from as
// comments.
std::string to_yaml(const Config& config, bool with_sources = false);

// All keys of a section with type, default and meaning; without a name, the list of sections. Throws UsageError for an unknown
// one.
std::string help_text(const std::string& section = "");

// The page docs/configuration.md.
std::string configuration_page();

// Splits the arguments of a command: CONFIG and overrides are loaded. `--help [SECTION]` and `--print-config` are served here, on
// standard output: then nothing is returned and the command has finished. `usage` is the first line of the help, for example
// "hyperparallel train CONFIG". Throws UsageError and ConfigError.
std::optional<Config> config_from_arguments(const std::vector<std::string>& arguments, const std::string& usage,
                                            const LoadOptions& options = {});

}  // namespace hyperparallel::train
