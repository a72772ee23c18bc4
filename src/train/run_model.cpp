#include "train/run_model.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/hf_names.h"
#include "data/chat.h"
#include "dist/hardware_threads.h"
#include "engine/memory.h"

namespace hyperparallel::train {

void set_up_libtorch(const TrainSection& train, const dist::World* world) {
  engine::count_allocations();
  const int own =
      world != nullptr ? world->hardware_threads() : dist::share_of_hardware_threads({dist::allowed_hardware_threads()}, 0);
  at::set_num_threads(train.threads > 0 ? static_cast<int>(train.threads) : own);
  at::globalContext().setDeterministicAlgorithms(train.deterministic, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  at::globalContext().setFlushDenormal(true);  // on threads that start later, too: runtime/run.cpp says why
}

namespace {

// Commands that train nothing may have no output.
Path table_folder(const Config& config) {
  if (!config.model.engram_folder.empty()) return config.model.engram_folder;
  return config.train.output.empty() ? std::filesystem::temp_directory_path() : config.train.output;
}

}  // namespace

void choose_kernels(const KernelsSection& kernels, models::ProgramOptions& options) {
  if (kernels.attention_chunk > 0) options.attention_chunk = kernels.attention_chunk;
  if (kernels.index_chunk > 0) options.index_chunk_elements = kernels.index_chunk;
  if (kernels.cross_entropy_chunk > 0) options.cross_entropy_chunk = kernels.cross_entropy_chunk;
  options.kernels = {kernels.attention, kernels.gate, kernels.moe, kernels.mhc, kernels.indexer, kernels.engram};
}

models::ProgramOptions program_options(const Config& config, const engine::Layout& layout) {
  models::ProgramOptions options;
  options.layout = layout;
  for (const PlanOverride& entry : config.parallel.plan_overrides) options.overrides.push_back({entry.match, entry.role});
  choose_kernels(config.kernels, options);
  options.compute = scalar_type(config.train.dtype);
  const LossSection& loss = config.train.loss;
  options.trainable = config.train.trainable;
  if (config.model.switches.engram_storage == EngramStorage::kMmap) options.table_folder = table_folder(config);
  const DraftLossSection& draft = loss.draft;
  options.losses = {loss.z,
                    loss.balance,
                    loss.indexer,
                    loss.indexer_dense,
                    loss.indexer_teacher == Teacher::kWindow,
                    {draft.weight, draft.cross_entropy, draft.distance, draft.confidence,
                     draft.confidence_target == ConfidenceTarget::kHard, draft.decay, draft.anchors}};
  return options;
}

at::ScalarType scalar_type(Dtype dtype) {
  return dtype == Dtype::kBFloat16 ? at::kBFloat16 : dtype == Dtype::kFloat64 ? at::kDouble : at::kFloat;
}

engine::RecomputePolicy recompute_policy(const RecomputeSection& recompute) {
  engine::RecomputePolicy policy;
  policy.mode = recompute.mode == RecomputeMode::kNone   ? engine::RecomputePolicy::Mode::kNone
                : recompute.mode == RecomputeMode::kFull ? engine::RecomputePolicy::Mode::kFull
                                                         : engine::RecomputePolicy::Mode::kSelective;
  policy.every = static_cast<int>(recompute.every);
  policy.keep = recompute.keep;
  policy.regather = recompute.regather;
  policy.offload = recompute.offload;
  return policy;
}

std::vector<engine::Action> make_schedule(const engine::Program& program, const engine::ScheduleOptions& options) {
  if (const auto unmatched = engine::unmatched_globs(program, options.recompute); !unmatched.empty())
    throw ConfigError("these globs match nothing in the program: recompute.{}", fmt::join(unmatched, ", recompute."));
  return engine::build_schedule(program, options);
}

data::SampleOptions sample_options(const Config& config) {
  data::SampleOptions options;
  options.chat.thinking = config.data.thinking;
  options.chat.drop_thinking = config.data.drop_thinking;
  if (!config.data.tool_text.empty()) options.tool_text = data::ToolText::load(config.data.tool_text.string());
  options.supervise = config.data.supervise;
  options.max_tokens = config.data.seq_len;
  options.over_long = config.data.over_long;
  options.bad_line = config.data.bad_line;
  options.bad_image = config.data.bad_image;
  options.exif = config.data.image.exif;
  if (const auto pictures = config.model.architecture->pictures()) {
    options.image_limits = pictures->limits;
    options.image_token_id = pictures->token_id;
  }
  return options;
}

data::LoaderOptions loader_options(const Config& config, const std::vector<DataSource>& files, bool repeat, const Ranks& ranks) {
  data::LoaderOptions options;
  options.rank = ranks.layout.coordinate("dp");
  options.world = ranks.layout.size("dp");
  for (const DataSource& source : files) options.files.push_back({source.path.string(), source.weight});
  options.sample = sample_options(config);
  options.seq_len = config.data.seq_len;
  options.rows = config.train.local_batch_size;
  options.packing = config.data.packing;
  options.shuffle = repeat && config.data.shuffle;
  options.repeat = repeat;
  options.seed = static_cast<uint64_t>(config.train.seed);
  options.workers = config.data.workers;
  return options;
}

namespace {

void check_tokenizer(const Config& config, const data::Tokenizer& tokenizer) {
  const int64_t words = config.model.architecture->vocab_size();
  if (tokenizer.size() > words) {
    throw ConfigError("model.vocab_size is {}, the tokenizer {} has {} ids: the model needs a row for each", words,
                      tokenizer.path(), tokenizer.size());
  }
}

}  // namespace

engine::ValueMap RunModel::inputs(const data::MicroBatch& batch) const {
  if (!batch.images.empty() && !architecture->pictures()) {
    throw DataError("{}: the sample has a picture, and the model no vision tower (model.vision_config)",
                    batch.samples.empty() ? "batch" : data::to_string(batch.samples.front()));
  }
  return model->inputs(batch, compute_type());
}

int64_t RunModel::parameter_count() const {
  int64_t count = 0;
  for (const engine::ParameterSpec& spec : parameters->specs()) count += volume(spec.shape);
  return count;
}

std::unique_ptr<RunModel> build_run_model(models::ArchitecturePtr architecture, const models::ProgramOptions& options,
                                          at::ScalarType compute, const data::Tokenizer* tokenizer, const dist::Groups& groups) {
  auto run = std::make_unique<RunModel>();
  run->architecture = std::move(architecture);
  run->options = options;
  run->options.compute = compute;
  run->model = run->architecture->build(run->options, tokenizer);
  if (!options.table_folder.empty()) file::create_folders(options.table_folder);
  run->parameters =
      std::make_unique<engine::ParameterStore>(run->program().parameters, compute == at::kDouble ? at::kDouble : at::kFloat,
                                               compute, options.layout, options.table_folder);
  run->executor = std::make_unique<engine::Executor>(run->program(), *run->parameters, groups);
  return run;
}

std::unique_ptr<RunModel> build_run_model(const Config& config, const data::Tokenizer& tokenizer, const Ranks& ranks) {
  check_tokenizer(config, tokenizer);
  return build_run_model(config.model.architecture, program_options(config, ranks.layout), scalar_type(config.train.dtype),
                         &tokenizer, ranks.groups);
}

namespace {

at::Tensor load_owned(const checkpoint::Checkpoint& source, const std::string& name, const Box& owned) {
  if (owned.size == source.tensors().at(name).shape) return source.load(name);  // verified
  return source.load_box(name, owned.offset, owned.size);
}
at::Tensor load_owned(const checkpoint::HfFolder& source, const std::string& name, const Box& owned) {
  return source.load_box(name, owned.offset, owned.size);
}

// `where` names the source in messages. Draft layers are often added to a model that was trained without.
template <class Source>
int64_t load_from(engine::ParameterStore& parameters, const Source& source, const std::string& where) {
  int64_t fresh = 0;
  for (const engine::ParameterSpec& spec : parameters.specs()) {
    if (!source.has(spec.name) && checkpoint::is_draft(spec.name)) {
      ++fresh;
      continue;
    }
    if (!source.has(spec.name))
      throw CheckpointError("{}: {} is missing; the model of the configuration has it", where, spec.name);
    if (const auto& saved = source.tensors().at(spec.name).shape; saved != spec.shape) {
      throw CheckpointError("{}: {} has shape [{}], the configuration asks for [{}]", where, spec.name, fmt::join(saved, ", "),
                            fmt::join(spec.shape, ", "));
    }
    const engine::ParameterId id = parameters.find(spec.name);
    const Box& owned = parameters.placement(id).owned;
    parameters.set_master(id, [&](int64_t offset, int64_t size) {
      Box box = owned;
      if (!box.size.empty()) box.offset[0] += offset, box.size[0] = size;
      return load_owned(source, spec.name, box);
    });
  }
  parameters.masters_changed();
  return fresh;
}

}  // namespace

int64_t load_parameters(engine::ParameterStore& parameters, const checkpoint::Checkpoint& checkpoint) {
  return load_from(parameters, checkpoint, checkpoint.folder().string());
}

int64_t load_parameters(engine::ParameterStore& parameters, const checkpoint::HfFolder& folder) {
  return load_from(parameters, folder, folder.folder().string());
}

}  // namespace hyperparallel::train
