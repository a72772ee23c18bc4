// Answers of a model to encoded prompts: samples in, texts out, many at once.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "data/sample.h"
#include "train/generate.h"
#include "train/run_model.h"

namespace hyperparallel::train {

// The prompt of a sample (data::SampleEncoder::encode_prompt); its pictures are cut into patches here.
Prompt prompt_of(const data::Sample& sample, int64_t patch_size);

// Answers the samples that `next` gives until it gives none. `done(i, text)` gets the answer to the i-th of them as soon as it is
// whole, in any order: decoded, without the end-of-turn token (always among the stop ids) and surrounding white space.
void answer_all(RunModel& model, const data::Tokenizer& tokenizer, GenerateOptions options,
                const std::function<std::optional<data::Sample>()>& next,
                const std::function<void(int64_t, const std::string&)>& done);

// Loads the weights that `path` means: a checkpoint of ours, the latest one of a folder of checkpoints or of a run's folder, or a
// Hugging Face folder. Returns the folder they came from. Throws CheckpointError.
std::filesystem::path load_weights(engine::ParameterStore& parameters, const std::filesystem::path& path);
// That folder alone.
std::filesystem::path resolve_weights(const std::filesystem::path& path);
bool is_hf_folder(const std::filesystem::path& path);

std::string trimmed(const std::string& text);  // without ASCII white space at both ends

}  // namespace hyperparallel::train
