#include "train/run_model.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <thread>

#include "base/error.h"
#include "data/chat.h"
#include "data/engram_token_map.h"
#include "engine/memory.h"

namespace hyperparallel::train {

using models::tensor_of;
using models::deepseek_v41::ModelBatch;
using models::deepseek_v41::ModelConfig;

void set_up_libtorch(const TrainSection& train, int local_ranks) {
  engine::count_allocations();
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  at::set_num_threads(static_cast<int>(train.threads > 0 ? train.threads : std::max<int64_t>(1, cores / local_ranks)));
  at::globalContext().setDeterministicAlgorithms(train.deterministic, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

models::deepseek_v41::ProgramOptions program_options(const KernelsSection& kernels) {
  models::deepseek_v41::ProgramOptions options;
  if (kernels.attention_chunk > 0) options.attention_chunk = kernels.attention_chunk;
  if (kernels.index_chunk > 0) options.index_chunk_elements = kernels.index_chunk;
  if (kernels.cross_entropy_chunk > 0) options.cross_entropy_chunk = kernels.cross_entropy_chunk;
  return options;
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
  if (const auto& vision = config.model.architecture.vision) {
    options.image_limits = {vision->patch_size, vision->downsample_ratio, vision->min_pixels, vision->max_image_tokens,
                            vision->max_wh_ratio};
    options.image_token_id = config.model.architecture.image_token_id;
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

models::deepseek_v41::BatchOutline outline_of(const data::BatchOutline& batch) {
  std::vector<int64_t> grids, starts;
  for (const data::BatchOutline::Picture& picture : batch.pictures) {
    grids.insert(grids.end(), {picture.rows, picture.columns});
    starts.push_back(picture.start);
  }
  return {batch.tokens, tensor_of(grids).view({-1, 2}), tensor_of(starts)};
}

void add_images(const data::MicroBatch& batch, int64_t pixels, ModelBatch& out) {
  data::BatchOutline own{static_cast<int64_t>(batch.input_ids.size()), {}};
  int64_t patches = 0;
  for (const data::ImagePatches& image : batch.images) {
    patches += image.rows * image.columns;
    own.pictures.push_back({image.rows, image.columns, image.start});
  }
  out.patches = at::empty({patches, pixels}, at::kFloat);
  float* to = out.patches.mutable_data_ptr<float>();
  for (const data::ImagePatches& image : batch.images) to = std::copy(image.patches.begin(), image.patches.end(), to);
  const models::deepseek_v41::BatchOutline outline = outline_of(own);
  out.grids = outline.grids;
  out.image_starts = outline.image_starts;
  for (const data::BatchOutline& other : batch.outlines) out.outlines.push_back(outline_of(other));
}

void check_tokenizer(const Config& config, const data::Tokenizer& tokenizer) {
  const ModelConfig& model = config.model.architecture;
  if (tokenizer.size() > model.text.vocab_size) {
    throw ConfigError("model.vocab_size is {}, the tokenizer {} has {} ids: the model needs a row for each",
                      model.text.vocab_size, tokenizer.path(), tokenizer.size());
  }
}

}  // namespace

engine::ValueMap RunModel::inputs(const data::MicroBatch& batch) const {
  const int64_t tokens = static_cast<int64_t>(batch.input_ids.size());
  ModelBatch out;
  out.ids = tensor_of(batch.input_ids);
  out.targets = tensor_of(batch.labels);
  out.cu_seqlens = tensor_of(batch.cu_seqlens);
  out.image_mask = at::empty({tokens}, at::kBool);
  out.padding = at::empty({tokens}, at::kBool);
  for (int64_t t = 0; t < tokens; ++t) {
    out.image_mask.mutable_data_ptr<bool>()[t] = batch.token_types[t] >= 0;
    out.padding.mutable_data_ptr<bool>()[t] = batch.padding[t] != 0;
  }
  if (const auto& vision = model.config.vision) {
    add_images(batch, 3 * vision->patch_size * vision->patch_size, out);
  } else if (!batch.images.empty()) {
    throw DataError("{}: the sample has a picture, and the model no vision tower (model.vision_config)",
                    batch.samples.empty() ? "batch" : data::to_string(batch.samples.front()));
  }
  if (hasher)
    out.engram_rows =
        models::deepseek_v41::hash_tokens(*hasher, out.ids, out.image_mask.logical_or(out.padding), out.cu_seqlens).rows;
  return prepare_inputs(model, out, compute_type());
}

int64_t RunModel::parameter_count() const {
  int64_t count = 0;
  for (const engine::ParameterSpec& spec : parameters->specs()) count += volume(spec.shape);
  return count;
}

std::unique_ptr<RunModel> build_run_model(const ModelConfig& config, const models::deepseek_v41::ProgramOptions& options,
                                          at::ScalarType compute, std::vector<int32_t> engram_token_map,
                                          const dist::Groups& groups) {
  auto run = std::make_unique<RunModel>(RunModel{build_program(config, options), nullptr, nullptr, {}});
  run->parameters = std::make_unique<engine::ParameterStore>(
      run->model.program.parameters, compute == at::kDouble ? at::kDouble : at::kFloat, compute, options.layout);
  run->executor = std::make_unique<engine::Executor>(run->model.program, *run->parameters, groups);
  if (!config.text.engram_layer_ids.empty()) run->hasher.emplace(config.text, std::move(engram_token_map));
  return run;
}

std::unique_ptr<RunModel> build_run_model(const Config& config, const data::Tokenizer& tokenizer, const Ranks& ranks) {
  check_tokenizer(config, tokenizer);
  const ModelConfig& model = config.model.architecture;
  std::vector<int32_t> map;
  if (!model.text.engram_layer_ids.empty()) {
    map = data::build_engram_token_map(tokenizer).map;
    map.resize(model.text.vocab_size, 0);  // rows of the vocabulary that no token uses never occur
  }
  const auto compute = config.train.dtype == Dtype::kBFloat16  ? at::kBFloat16
                       : config.train.dtype == Dtype::kFloat64 ? at::kDouble
                                                               : at::kFloat;
  models::deepseek_v41::ProgramOptions options = program_options(config.kernels);
  options.layout = ranks.layout;
  return build_run_model(model, options, compute, std::move(map), ranks.groups);
}

namespace {

at::Tensor load_owned(const checkpoint::Checkpoint& source, const std::string& name, const Box& owned) {
  if (owned.size == source.tensors().at(name).shape) return source.load(name);  // verified
  return source.load_box(name, owned.offset, owned.size);
}
at::Tensor load_owned(const checkpoint::HfFolder& source, const std::string& name, const Box& owned) {
  return engine::narrow_to(source.load(name), owned);
}

// `where` names the source in messages.
template <class Source>
void load_from(engine::ParameterStore& parameters, const Source& source, const std::string& where) {
  for (const engine::ParameterSpec& spec : parameters.specs()) {
    if (!source.has(spec.name))
      throw CheckpointError("{}: {} is missing; the model of the configuration has it", where, spec.name);
    if (const auto& saved = source.tensors().at(spec.name).shape; saved != spec.shape) {
      throw CheckpointError("{}: {} has shape [{}], the configuration asks for [{}]", where, spec.name, fmt::join(saved, ", "),
                            fmt::join(spec.shape, ", "));
    }
    const engine::ParameterId id = parameters.find(spec.name);
    parameters.master(id).copy_(load_owned(source, spec.name, parameters.placement(id).owned));
  }
  parameters.masters_changed();
}

}  // namespace

void load_parameters(engine::ParameterStore& parameters, const checkpoint::Checkpoint& checkpoint) {
  load_from(parameters, checkpoint, checkpoint.folder().string());
}

void load_parameters(engine::ParameterStore& parameters, const checkpoint::HfFolder& folder) {
  load_from(parameters, folder, folder.folder().string());
}

}  // namespace hyperparallel::train
