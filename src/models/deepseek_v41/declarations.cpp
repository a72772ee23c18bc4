#include "models/deepseek_v41/declarations.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "kernels/attention/fused.h"
#include "models/adapter/builder.h"
#include "models/deepseek_v41/program.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::ParameterSpec;

std::vector<ParameterSpec> draft_parameters(const ModelConfig& config) {
  if (config.text.num_nextn_predict_layers == 0) return {};
  ProgramOptions options;
  options.losses.draft.weight = 1;
  std::vector<ParameterSpec> specs = build_program(config, options).program.parameters;
  std::erase_if(specs, [](const ParameterSpec& spec) { return part_of(spec.name) != "draft"; });
  return specs;
}

std::string part_of(const std::string& parameter) {
  if (parameter.starts_with("mtp.")) return "draft";
  if (parameter.starts_with("vision.")) return "vision";
  if (parameter.starts_with("aligner.")) return "aligner";
  if (parameter.starts_with("image_")) return "delimiters";
  return parameter.find(".engram.") != std::string::npos ? "engram" : "backbone";
}

std::map<std::string, int64_t> parameters_by_part(const ModelConfig& config) {
  std::map<std::string, int64_t> counts;
  const auto add = [&](const std::vector<ParameterSpec>& specs) {
    for (const ParameterSpec& spec : specs) counts[part_of(spec.name)] += volume(spec.shape);
  };
  add(build_program(config, {}).program.parameters);
  add(draft_parameters(config));
  return counts;
}

namespace {

// Rows that a rank's experts meet; of them those of other ranks; and those that leave for experts elsewhere.
void add_expert_rows(const std::string& name, int64_t choices, int64_t ranks, int64_t senders,
                     std::map<std::string, int64_t>& sizes) {
  const int64_t own = choices / ranks;
  sizes[name + ".received"] = choices * senders;
  sizes[name + ".arranged"] = ranks > 1 ? choices * senders : 0;
  sizes[name + ".foreign"] = choices * senders - own;
  sizes[name + ".leaving"] = choices - own;
  sizes[name + ".own"] = own;
}

// One document in the row: as many anchors as it may have.
void add_draft_sizes(const TextConfig& text, const ProgramOptions& options, int64_t tokens, int64_t senders,
                     std::map<std::string, int64_t>& sizes) {
  const engine::Layout& layout = options.layout;
  const int64_t most = options.losses.draft.anchors, anchors = most > 0 ? std::min(most, tokens) : tokens,
                own = layout.part(anchors, "cp"), rows = own * text.draft.block_size, shard = layout.part(rows, "tp"),
                choices = shard * text.draft.num_experts_per_tok, window = text.sliding_window;
  const bool is_cut = layout.size("cp") > 1;
  sizes["draft.tokens"] = rows;
  sizes["draft.shard"] = shard;
  sizes["draft.shard.choices"] = choices;
  sizes["draft.window.keys"] = std::min(sizes.at("tokens") + (is_cut ? window : 0), own * window);
  sizes["draft.loss.rows"] = std::min(options.cross_entropy_chunk, rows);
  for (const char* end : {".sent", ".received"}) {
    sizes[std::string("draft.model_hidden.halo") + end] = is_cut ? text.draft.block_size - 1 : 0;
    for (int64_t stage = 0; stage < text.num_nextn_predict_layers; ++stage)
      sizes[fmt::format("mtp.{}.attn.window_halo{}", stage, end)] = is_cut ? window : 0;
  }
  for (int64_t stage = 0; stage < text.num_nextn_predict_layers; ++stage) {
    add_expert_rows(fmt::format("mtp.{}.ffn", stage), choices, layout.size("ep"), senders, sizes);
  }
}

void add_picture_sizes(const VisionConfig& vision, const engine::Layout& layout, const PlannedPictures& pictures,
                       std::map<std::string, int64_t>& sizes) {
  const int64_t members = layout.size("vision"), groups = layout.size("stage") / members;
  const int64_t all = pictures.count * (layout.size("stage") / layout.size("sample"));
  const int64_t in_group = all / groups + (all % groups > 0 ? 1 : 0);
  const auto patches = [&](int64_t count) { return count * pictures.each.patch_rows * pictures.each.patch_columns; };
  const int64_t own = layout.part(patches(in_group), "vision");
  sizes["patches"] = own;
  sizes["patches.sent"] = layout.part(patches(pictures.count), "sample");
  sizes["patch_heads"] = own * vision.num_attention_heads;
  sizes["head_patches"] = patches(in_group) * layout.part(vision.num_attention_heads, "vision");
  sizes["aligned"] = layout.part(in_group * pictures.each.llm_rows * pictures.each.llm_columns, "vision");
  sizes["span_tokens"] = sizes["spans.sent"] = layout.part(in_group * pictures.each.tokens, "vision");
  sizes["spans.received"] = layout.part(pictures.count * pictures.each.tokens, "sample");
  sizes["images"] = in_group;
  // Parts end within a row of windows: at most that row.
  const int64_t row = vision.downsample_ratio * pictures.each.patch_columns;
  for (const char* end : {".sent", ".received"})
    sizes["vision.neighbours" + std::string(end)] = members > 1 ? std::min(own, row) : 0;
}

}  // namespace

std::map<std::string, int64_t> symbol_sizes(const ModelConfig& config, const ProgramOptions& options, int64_t tokens,
                                            const PlannedPictures& pictures, Routing routing) {
  const TextConfig& text = config.text;
  const engine::Layout& layout = options.layout;
  const int64_t cp = layout.size("cp"), own = layout.part(tokens, "cp"), shard = layout.part(own, "tp"),
                window = text.sliding_window;
  const int64_t halo = cp > 1 ? (layout.balanced ? 2 : 1) * (window - 1) : 0, choices = shard * text.num_experts_per_tok;
  const int64_t senders = routing == Routing::kWorst ? layout.size("ep") : 1;  // ranks whose rows all come here
  std::map<std::string, int64_t> sizes{{"tokens", own}, {"shard", shard}, {"choices", choices}, {"window.keys", own + halo}};
  const std::set<int64_t> ratios(text.compress_ratios.begin(), text.compress_ratios.end());
  int64_t groups_seen = 0;
  for (int64_t ratio : ratios) {
    if (ratio == 0) continue;
    const std::string groups = "groups." + std::to_string(ratio);
    sizes[groups] = own / ratio;
    // Of the groups that the parts of the rank's queries see; queries come in order, the rank's last of all.
    const int64_t parts = kernels::attention::gradient_parts(own, tokens / ratio, text.head_dim, sizeof(float));
    sizes[groups + ".seen"] = tokens / ratio * parts - (parts - 1) * own / (2 * ratio);
    sizes[groups + ".gathered"] = tokens / ratio;
    groups_seen = std::max(groups_seen, tokens / ratio);
    for (const char* end : {".sent", ".received"}) sizes[groups + end] = cp > 1 ? ratio - 1 : 0;
  }
  for (const char* end : {".sent", ".received"}) sizes[std::string("window") + end] = halo;
  for (int64_t layer = 0; layer < text.num_hidden_layers; ++layer) {
    const std::string name = layer_name(layer), attn = name + ".attn", ratio = std::to_string(text.ratio(layer));
    for (const char* end : {".sent", ".received"}) {
      sizes[attn + ".window_halo" + end] = halo;
      sizes[attn + ".group_halo" + end] = cp > 1 ? std::max<int64_t>(0, text.ratio(layer) - 1) : 0;
    }
    const int64_t chosen = text.ratio(layer) > 0 ? std::min(text.index_topk, tokens / text.ratio(layer)) : 0;
    sizes[attn + ".k"] = chosen;
    add_expert_rows(name + ".ffn", choices, layout.size("ep"), senders, sizes);
    sizes[name + ".engram.asked"] =
        shard * text.engram_columns() * (routing == Routing::kWorst ? layout.size(config.engram_axis()) : 1);
    sizes[name + ".engram.unique"] = shard * text.engram_columns();
  }
  sizes["sequences"] = 1;
  sizes["candidate_blocks"] =
      text.candidate_block_size == 0 ? 0 : std::min(text.candidate_topk_blocks, groups_seen / text.candidate_block_size + 1);
  for (size_t i = 0; i < text.engram_layer_ids.size(); ++i) {
    sizes[fmt::format("engram.{}.unique", i)] = sizes[fmt::format("engram.{}.places", i)] = shard * text.engram_columns();
  }
  // Of the work of some segments, not of values.
  sizes["attention.rows"] = std::min(options.attention_chunk, own);
  sizes["attention.keys"] = std::min(options.attention_chunk + window - 1, own + halo);
  sizes["loss.rows"] = std::min(options.cross_entropy_chunk, own);
  const int64_t scored = std::max<int64_t>(1, layout.part(text.index_n_heads, "tp") * groups_seen);
  sizes["index.rows"] = std::clamp<int64_t>(options.index_chunk_elements / scored, 1, std::min<int64_t>(256, own));
  sizes["index.sum_rows"] = std::clamp<int64_t>(options.index_chunk_elements / std::max<int64_t>(1, groups_seen), 1, own);
  if (options.losses.draft.weight > 0) add_draft_sizes(text, options, tokens, senders, sizes);
  if (!config.vision) return sizes;
  add_picture_sizes(*config.vision, layout, pictures, sizes);
  return sizes;
}

}  // namespace hyperparallel::models::deepseek_v41
