#include "train/answers.h"

#include <map>

#include "base/error.h"
#include "checkpoint/store.h"
#include "models/deepseek_v41/adapter.h"

namespace hyperparallel::train {

Prompt prompt_of(const data::Sample& sample, int64_t patch_size) {
  Prompt prompt;
  prompt.ids = sample.input_ids;
  for (const int32_t type : sample.token_types) prompt.image.push_back(type != data::kSpanText);
  std::vector<at::Tensor> patches;
  std::vector<int64_t> grids;
  for (const data::SampleImage& image : sample.images) {
    const std::vector<float> values = data::image_patches(image.canvas, patch_size);
    patches.push_back(at::tensor(values, at::kFloat).view({-1, 3 * patch_size * patch_size}));
    grids.insert(grids.end(), {image.plan.patch_rows, image.plan.patch_columns});
    prompt.image_starts.push_back(image.start);
  }
  if (!patches.empty()) {
    prompt.patches = at::cat(patches);
    prompt.grids = at::tensor(grids, at::kLong).view({-1, 2});
  }
  return prompt;
}

void answer_all(RunModel& model, const data::Tokenizer& tokenizer, GenerateOptions options,
                const std::function<std::optional<data::Sample>()>& next,
                const std::function<void(int64_t, const std::string&)>& done) {
  const int64_t end_of_turn = tokenizer.required_id("<｜end▁of▁sentence｜>");
  options.stop_ids.push_back(end_of_turn);
  require(*model.architecture, models::Ability::kGeneration, "answering");
  const auto& built = models::deepseek_v41::v41_model(*model.model);
  const auto& vision = built.model.config.vision;
  Generator generator(built.model.config, *model.parameters, built.hasher ? &*built.hasher : nullptr, options,
                      built.model.options);
  std::map<int64_t, std::vector<int64_t>> answers;
  bool more = true;
  while (more || !generator.idle()) {
    while (more && static_cast<int64_t>(generator.waiting()) < options.max_sequences) {
      const std::optional<data::Sample> sample = next();
      more = sample.has_value();
      if (!more) break;
      if (!sample->images.empty() && !vision) {
        throw DataError("{}: the prompt has a picture, and the model no vision tower (model.vision_config)",
                        data::to_string(sample->id));
      }
      generator.add(prompt_of(*sample, vision ? vision->patch_size : 1));
    }
    for (const Generator::Token& token : generator.step()) {
      std::vector<int64_t>& ids = answers[token.sequence];
      const bool has_text = token.id < tokenizer.size();  // a model may have more words than its tokenizer
      if (token.id != end_of_turn && has_text) ids.push_back(token.id);
      if (!token.last) continue;
      done(token.sequence, trimmed(tokenizer.decode(ids)));
      answers.erase(token.sequence);
    }
  }
}

// A checkpoint of ours holds the model's config.json too.
bool is_hf_folder(const std::filesystem::path& path) {
  return std::filesystem::exists(path / "config.json") && !std::filesystem::exists(path / checkpoint::kManifestFile);
}

std::filesystem::path resolve_weights(const std::filesystem::path& path) {
  if (is_hf_folder(path)) return path;
  return checkpoint::resolve_checkpoint(path);
}

std::filesystem::path load_weights(engine::ParameterStore& parameters, const std::filesystem::path& path) {
  const std::filesystem::path folder = resolve_weights(path);
  if (is_hf_folder(folder)) {
    load_parameters(parameters, checkpoint::HfFolder(folder));
  } else {
    load_parameters(parameters, checkpoint::Checkpoint(folder));
  }
  return folder;
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n\f\v";
  const size_t first = text.find_first_not_of(kSpace);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

}  // namespace hyperparallel::train
