#include "models/deepseek_v41/adapter.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/engram_token_map.h"
#include "models/deepseek_v41/declarations.h"
#include "models/deepseek_v41/draft_batch.h"
#include "models/deepseek_v41/engram_metrics.h"
#include "models/deepseek_v41/flops.h"
#include "models/deepseek_v41/kernel_benchmarks.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

const char* mode_name(LayerMode mode) {
  switch (mode) {
    case LayerMode::kWindow:
      return "window";
    case LayerMode::kFull:
      return "full";
    case LayerMode::kReindex:
      return "reindex";
    case LayerMode::kReuse:
      return "reuse";
  }
  return "?";
}

std::string layer_lines(const TextConfig& text) {
  std::string lines;
  for (int64_t layer = 0; layer < text.num_hidden_layers; ++layer) {
    lines += fmt::format("  layer {:<3} {:<8}", layer, mode_name(text.mode(layer)));
    if (text.ratio(layer) > 0) {
      lines += fmt::format(" ratio {}, KV of layer {}, choice of layer {}", text.ratio(layer), text.kv_source(layer),
                           text.index_source(layer));
    }
    lines += fmt::format("{}{}\n", layer == text.candidate_source_layer_id ? ", candidate source" : "",
                         text.engram_index(layer) ? ", Engram" : "");
  }
  return lines;
}

// The class of each id of the vocabulary for the n-grams of Engram. Without a tokenizer any classes do: rows are looked up all
// over the tables.
std::vector<int32_t> token_classes(const TextConfig& text, const data::Tokenizer* tokenizer) {
  std::vector<int32_t> classes;
  if (text.engram_layer_ids.empty()) return classes;
  if (tokenizer != nullptr) {
    classes = data::build_engram_token_map(*tokenizer).map;
    classes.resize(text.vocab_size, 0);  // rows of the vocabulary that no token uses never occur
    return classes;
  }
  for (int64_t id = 0; id < text.vocab_size; ++id)
    classes.push_back(static_cast<int32_t>(id % text.engram_compressed_vocab_size));
  return classes;
}

class V41Architecture : public Architecture {
 public:
  explicit V41Architecture(ModelConfig given) : config(std::move(given)) {}

  std::string model_type() const override { return "deepseek_v41"; }
  nlohmann::ordered_json config_json() const override { return to_hf_json(config); }
  std::string summary() const override { return layer_lines(config.text); }
  int64_t vocab_size() const override { return config.text.vocab_size; }
  int64_t max_positions() const override { return config.text.max_position_embeddings; }
  std::optional<PictureInput> pictures() const override {
    if (!config.vision) return std::nullopt;
    const VisionConfig& vision = *config.vision;
    return PictureInput{
        {vision.patch_size, vision.downsample_ratio, vision.min_pixels, vision.max_image_tokens, vision.max_wh_ratio},
        config.image_token_id};
  }
  std::unique_ptr<Model> build(const models::ProgramOptions& options, const data::Tokenizer* tokenizer) const override {
    return std::make_unique<V41Model>(config, ProgramOptions{options}, token_classes(config.text, tokenizer));
  }
  double needed_flops(const data::MicroBatch& batch) const override { return deepseek_v41::needed_flops(config, batch); }
  std::string part_of(const std::string& parameter) const override { return deepseek_v41::part_of(parameter); }
  std::map<std::string, int64_t> symbol_sizes(const models::ProgramOptions& options, int64_t tokens,
                                              const PlannedPictures& pictures, Routing routing) const override {
    return deepseek_v41::symbol_sizes(config, ProgramOptions{options}, tokens, pictures, routing);
  }
  std::vector<engine::ParameterSpec> parameters_without_forward() const override { return draft_parameters(config); }
  std::vector<KernelBenchmarkMaker> kernel_benchmarks(int64_t tokens, at::ScalarType compute) const override {
    return deepseek_v41::kernel_benchmarks(config.text, tokens, compute);
  }
  bool can(Ability) const override { return true; }

  const ModelConfig config;
};

ArchitecturePtr parse(const yaml::Node& node, Problems& problems, yaml::MapReader::Unknown unknown, const ParseOptions& options) {
  ModelConfig config = parse_model_config(node, problems, unknown, options);
  config.switches = options.switches;
  return std::make_shared<V41Architecture>(std::move(config));
}

BatchOutline outline_of(const data::BatchOutline& batch) {
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
  const BatchOutline outline = outline_of(own);
  out.grids = outline.grids;
  out.image_starts = outline.image_starts;
  for (const data::BatchOutline& other : batch.outlines) out.outlines.push_back(outline_of(other));
}

}  // namespace

V41Model::V41Model(const ModelConfig& config, const ProgramOptions& options, std::vector<int32_t> token_map)
    : model(build_program(config, options)) {
  if (!config.text.engram_layer_ids.empty()) hasher.emplace(config.text, std::move(token_map));
}

ModelBatch V41Model::tokens_of(const data::MicroBatch& batch) const {
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
  if (model.inputs.draft.ids.valid()) out.anchors = choose_anchors(out, model.options.losses.draft.anchors);
  return out;
}

ModelBatch V41Model::batch_of(const data::MicroBatch& batch) const {
  ModelBatch out = tokens_of(batch);
  if (const auto& vision = model.config.vision) add_images(batch, 3 * vision->patch_size * vision->patch_size, out);
  if (hasher) out.engram_rows = hash_tokens(*hasher, out.ids, out.image_mask.logical_or(out.padding), out.cu_seqlens).rows;
  return out;
}

engine::ValueMap V41Model::inputs(const data::MicroBatch& batch, at::ScalarType compute) const {
  return prepare_inputs(model, batch_of(batch), compute);
}

std::vector<TableRequest> V41Model::table_requests(const engine::ValueMap& inputs) const {
  std::vector<TableRequest> requests;
  for (const ModelInputs::Engram& layer : model.inputs.engram) {
    if (layer.table.valid()) requests.push_back({layer.table, inputs.at(layer.rows.index), inputs.at(layer.send_rows.index)});
  }
  return requests;
}

std::map<std::string, double> V41Model::metrics(const std::vector<engine::ValueMap>& inputs) const {
  if (!hasher) return {};
  return {{"engram/hit_rows", static_cast<double>(engram_hit_rows(model.inputs, inputs))}};
}

double V41Model::loss_units(const data::MicroBatch& batch) const {
  if (!model.inputs.draft.ids.valid()) return 0;
  return draft_units(model.config.text, model.options.losses.draft, tokens_of(batch));
}

std::map<std::string, double> V41Model::counter_metrics(const std::map<std::string, at::Tensor>& counters) const {
  std::map<std::string, double> metrics;
  const auto found = counters.find("draft.slots");  // [2, block size]: scored, and of these hit
  if (found == counters.end()) return metrics;
  const at::Tensor slots = found->second.contiguous();
  const int64_t block = slots.size(1), *count = slots.const_data_ptr<int64_t>();
  double scored = 0, hit = 0;
  for (int64_t k = 0; k < block; ++k) {
    const auto of = static_cast<double>(count[k]), right = static_cast<double>(count[block + k]);
    scored += of, hit += right;
    if (of > 0) metrics[fmt::format("draft/hit_rate/slot.{}", k)] = right / of;
  }
  if (scored > 0) metrics["draft/hit_rate"] = hit / scored;
  return metrics;
}

std::map<std::string, std::string> V41Model::timed_segments() const {
  if (!hasher) return {};
  return {{"engram/lookup(s)", "*.engram.lookup"}};
}

Family family() {
  return {{"deepseek_v41", "deepseek_v41_text"}, parse, describe_keys};
}

const ModelConfig& config_of(const Architecture& architecture) {
  const auto* own = dynamic_cast<const V41Architecture*>(&architecture);
  HP_CHECK(own != nullptr, "{} is no deepseek_v41", architecture.model_type());
  return own->config;
}

const V41Model& v41_model(const Model& model) {
  const auto* own = dynamic_cast<const V41Model*>(&model);
  HP_CHECK(own != nullptr, "a model of another family");
  return *own;
}

}  // namespace hyperparallel::models::deepseek_v41
