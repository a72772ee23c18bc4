// Export of a model to a Hugging Face folder.
#include <map>
#include <vector>

#include "base/box.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/hf_json.h"

namespace hyperparallel::checkpoint {
namespace {

namespace fs = std::filesystem;

// A tensor of the files: the box of one of ours that it holds.
struct Entry {
  TensorSpec spec;  // name as spelled in the file
  std::string own_name;
  Box box;
  int64_t expert = -1;  // row of the stack; -1: the whole tensor

  int64_t bytes() const { return volume(spec.shape) * static_cast<int64_t>(at::elementSize(spec.type)); }
};

std::vector<Entry> entries_of(const HfExport& request, bool tied) {
  std::vector<Entry> entries;
  auto spell = [&](const std::string& name) { return request.spelling == Spelling::kReleased ? to_released(name) : name; };
  for (const TensorSpec& tensor : request.tensors) {
    if (tied && tensor.name == "lm_head.weight") continue;
    const Box whole{std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape};
    if (!is_stacked(tensor.name)) {
      entries.push_back({{spell(tensor.name), tensor.type, tensor.shape}, tensor.name, whole});
      continue;
    }
    for (int64_t expert = 0; expert < tensor.shape.at(0); ++expert) {
      Box row = whole;
      row.offset[0] = expert;
      row.size[0] = 1;
      entries.push_back({{spell(expert_name(tensor.name, expert)), tensor.type, {tensor.shape.begin() + 1, tensor.shape.end()}},
                         tensor.name,
                         row,
                         expert});
    }
  }
  return entries;
}

// In the given order; a tensor larger than a shard may be has one of its own.
std::vector<std::vector<Entry>> split_into_shards(std::vector<Entry> entries, int64_t max_bytes) {
  std::vector<std::vector<Entry>> shards(1);
  int64_t filled = 0;
  for (Entry& entry : entries) {
    if (!shards.back().empty() && filled + entry.bytes() > max_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += entry.bytes();
    shards.back().push_back(std::move(entry));
  }
  return shards;
}

void write_shard(const fs::path& path, const std::vector<Entry>& entries, const BoxLoader& load) {
  std::map<std::string, const Entry*> by_name;
  std::vector<TensorSpec> specs;
  for (const Entry& entry : entries) {
    by_name[entry.spec.name] = &entry;
    specs.push_back(entry.spec);
  }
  write_safetensors(path, std::move(specs), [&](const std::string& name, const Take& take) {
    const Entry& entry = *by_name.at(name);
    at::Tensor tensor = load(entry.own_name, entry.box.offset, entry.box.size);
    take(entry.expert < 0 ? tensor : tensor.squeeze(0));
  });
}

void write_folder(const fs::path& folder, const HfExport& request, bool tied) {
  const auto shards = split_into_shards(entries_of(request, tied), request.max_shard_bytes);
  std::map<std::string, std::string> weight_map;
  int64_t bytes = 0, parameters = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shards.size() == 1 ? kSingleFile : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_shard(folder / name, shards[i], request.load);
    for (const Entry& entry : shards[i]) {
      weight_map[entry.spec.name] = name;
      bytes += entry.bytes();
      parameters += volume(entry.spec.shape);
    }
  }
  if (shards.size() > 1) file::write(folder / kIndexFile, index_text(weight_map, bytes, parameters));
  for (const auto& [name, text] : request.companions) file::write(folder / name, text);
  file::write(folder / "config.json", request.config);
}

}  // namespace

void export_hf(const fs::path& target, const HfExport& request) {
  const fs::path folder = target.filename().empty() ? target.parent_path() : target;  // without a trailing slash
  if (fs::exists(folder / kMarker)) remove_ours(folder);
  if (fs::exists(folder)) throw CheckpointError("{}: exists already; an export makes a new folder", folder.string());
  const bool tied = ties_embeddings(request.config, folder / "config.json");
  auto holds = [&](const char* name) {
    return std::ranges::any_of(request.tensors, [&](const TensorSpec& tensor) { return tensor.name == name; });
  };
  if (!tied && holds("model.embed.weight") && !holds("lm_head.weight"))
    throw CheckpointError("{}: there is no lm_head.weight to export, and the config does not say tie_word_embeddings",
                          folder.string());

  const fs::path unfinished = folder.string() + ".inprogress";
  if (fs::exists(unfinished)) remove_ours(unfinished);
  try {
    begin_folder(unfinished);
    write_folder(unfinished, request, tied);
    file::rename(unfinished, folder);
    file::remove(folder / kMarker);  // until now the next export to this place would begin anew
    file::sync_folder(folder);
  } catch (const file::FileError& error) {
    abandon_folder(unfinished);
    throw CheckpointError("the export to {} was not written: {}", folder.string(), error.what());
  } catch (...) {
    abandon_folder(unfinished);
    throw;
  }
}

}  // namespace hyperparallel::checkpoint
