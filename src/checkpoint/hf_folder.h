// Hugging Face model folders: config.json beside model.safetensors, or beside shards named by model.safetensors.index.json.
//
// Both spellings of tensor names load (hf_names.h). Callers ask by our own names: stacked experts, and `lm_head.weight` also
// where a tied model stores only the embedding.
#pragma once

#include "base/aten.h"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/hf_names.h"
#include "checkpoint/safetensors.h"

namespace hyperparallel::checkpoint {

// Files beside the weights that make a folder open in other tools; an export copies those that it finds.
inline constexpr const char* kHfCompanions[] = {"generation_config.json",  "tokenizer.json",      "tokenizer_config.json",
                                                "special_tokens_map.json", "chat_template.jinja", "preprocessor_config.json",
                                                "processor_config.json"};

// The files of a folder, opened and checked: only those named by the index, and names in index and files agree both ways.
// Throws CheckpointError naming file and tensor.
struct HfFiles {
  explicit HfFiles(const std::filesystem::path& folder);

  std::filesystem::path folder;
  std::string config;                                                // text of config.json
  std::map<std::string, std::unique_ptr<SafetensorsReader>> shards;  // by file name
};

// A folder whose weights can be loaded: names understood, nothing quantised. Immutable: threads may share it.
class HfFolder {
 public:
  explicit HfFolder(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return files_.folder; }
  const std::string& config() const { return files_.config; }
  bool tied() const { return tied_; }  // tie_word_embeddings of the config
  Spelling spelling() const { return spelling_; }

  // By our names; the unused scales beside float Engram tables are left out.
  const std::map<std::string, TensorSpec>& tensors() const { return tensors_; }
  bool has(const std::string& own_name) const { return tensors_.contains(own_name); }
  at::Tensor load(const std::string& own_name) const;
  // Elements [offset, offset + size) of every dimension; of stacked experts only those asked for are read.
  at::Tensor load_box(const std::string& own_name, const std::vector<int64_t>& offset, const std::vector<int64_t>& size) const;

 private:
  struct Place {
    const SafetensorsReader* file = nullptr;
    std::string key;  // as spelled in the file
  };
  void name_tensors(const SafetensorsReader& shard);
  void add_expert(const ExpertName& name, const Place& place);
  void check_experts();
  void check_tied();

  HfFiles files_;
  bool tied_ = false;
  Spelling spelling_ = Spelling::kTransformers;
  std::map<std::string, TensorSpec> tensors_;
  std::map<std::string, std::vector<Place>> places_;  // by own name; of stacked experts one an expert
};

// Loads a box of a tensor by our name, as Checkpoint::load_box and HfFolder::load_box do.
using BoxLoader =
    std::function<at::Tensor(const std::string& own_name, const std::vector<int64_t>& offset, const std::vector<int64_t>& size)>;

struct HfExport {
  std::vector<TensorSpec> tensors;                // our names; the dtype is that of the file
  BoxLoader load;                                 // called tensor by tensor, expert by expert
  std::string config;                             // text of config.json
  std::map<std::string, std::string> companions;  // other files by name, for example tokenizer.json
  Spelling spelling = Spelling::kTransformers;
  int64_t max_shard_bytes = 5'000'000'000;
};

// Writes the folder, which must not exist yet, and makes it visible whole. With tied embeddings in the config the head is not
// written; without, it must be among the tensors. Throws CheckpointError.
void export_hf(const std::filesystem::path& folder, const HfExport& request);

}  // namespace hyperparallel::checkpoint
