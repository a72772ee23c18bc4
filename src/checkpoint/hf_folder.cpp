#include "checkpoint/hf_folder.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf_json.h"

namespace hyperparallel::checkpoint {

namespace fs = std::filesystem;

namespace {

bool is_quantised(const TensorInfo& info) {
  return !info.scalar_type || (info.dtype == "I8" && info.name.ends_with(".weight"));
}

void check_index(const HfFiles& files, const std::map<std::string, std::string>& weight_map) {
  for (const auto& [name, file] : weight_map) {
    if (!files.shards.at(file)->has(name)) {
      throw CheckpointError("{}: tensor `{}` should lie in {}, which does not hold it", (files.folder / kIndexFile).string(),
                            name, file);
    }
  }
  for (const auto& [file, reader] : files.shards) {
    for (const TensorInfo& info : reader->tensors()) {
      auto named = weight_map.find(info.name);
      if (named == weight_map.end() || named->second != file)
        throw CheckpointError("{}: holds tensor `{}`, which the index places {}", reader->path().string(), info.name,
                              named == weight_map.end() ? "nowhere" : "in " + named->second);
    }
  }
}

}  // namespace

HfFiles::HfFiles(const fs::path& place) : folder(place) {
  if (!fs::is_directory(folder)) throw CheckpointError("{}: is no folder", folder.string());
  if (!fs::exists(folder / "config.json"))
    throw CheckpointError("{}: is no model folder: it has no config.json", folder.string());
  config = file::read(folder / "config.json");
  const fs::path index = folder / kIndexFile;
  if (!fs::exists(index)) {
    if (!fs::exists(folder / kSingleFile))
      throw CheckpointError("{}: holds no weights: neither {} nor {}", folder.string(), kSingleFile, kIndexFile);
    shards[kSingleFile] = std::make_unique<SafetensorsReader>(folder / kSingleFile);
    return;
  }
  const auto weight_map = read_weight_map(index);
  for (const auto& [name, file] : weight_map) {
    if (shards.contains(file)) continue;
    if (!fs::exists(folder / file))
      throw CheckpointError("{}: tensor `{}` should lie in {}, which is missing", index.string(), name, file);
    shards[file] = std::make_unique<SafetensorsReader>(folder / file);
  }
  check_index(*this, weight_map);
}

HfFolder::HfFolder(const fs::path& folder) : files_(folder), tied_(ties_embeddings(config(), folder / "config.json")) {
  for (const auto& [file, reader] : files_.shards) name_tensors(*reader);
  check_experts();
  check_tied();
}

void HfFolder::name_tensors(const SafetensorsReader& shard) {
  for (const TensorInfo& info : shard.tensors()) {
    const std::string name = to_transformers(info.name);
    if (name != info.name) spelling_ = Spelling::kReleased;
    if (is_quantised(info)) {
      throw CheckpointError("{}: tensor `{}` is quantised ({}); quantised weights cannot be loaded yet, only BF16, FP16 and FP32",
                            shard.path().string(), info.name, info.dtype);
    }
    if (name.ends_with(".engram.embed.scale")) continue;  // means something only beside a quantised table
    if (auto expert = parse_expert(name)) {
      add_expert(*expert, {&shard, info.name});
    } else if (places_.emplace(name, std::vector<Place>{{&shard, info.name}}).second) {
      tensors_.emplace(name, TensorSpec{name, *info.scalar_type, info.shape});
    } else {
      throw CheckpointError("{}: tensor `{}` is there twice: in another file, or in both spellings", shard.path().string(),
                            info.name);
    }
  }
}

void HfFolder::add_expert(const ExpertName& name, const Place& place) {
  auto& places = places_[name.own];
  constexpr int64_t kMaxExperts = 1 << 20;  // a damaged number must not become an allocation
  if (name.expert >= kMaxExperts)
    throw CheckpointError("{}: tensor `{}`: expert {} is beyond any model", place.file->path().string(), place.key, name.expert);
  if (static_cast<int64_t>(places.size()) <= name.expert) places.resize(static_cast<size_t>(name.expert) + 1);
  if (std::exchange(places[static_cast<size_t>(name.expert)], place).file)
    throw CheckpointError("{}: tensor `{}` is there twice: in another file, or in both spellings", place.file->path().string(),
                          place.key);
  const TensorInfo& info = place.file->info(place.key);
  auto [found, added] = tensors_.emplace(name.own, TensorSpec{name.own, *info.scalar_type, info.shape});
  if (!added && (found->second.type != *info.scalar_type || found->second.shape != info.shape)) {
    throw CheckpointError("{}: tensor `{}` is {} [{}], other experts of its layer are {} [{}]", place.file->path().string(),
                          place.key, info.dtype, fmt::join(info.shape, ", "), safetensors_dtype(found->second.type),
                          fmt::join(found->second.shape, ", "));
  }
}

void HfFolder::check_experts() {
  for (auto& [own, spec] : tensors_) {
    if (!is_stacked(own)) continue;
    const auto& places = places_.at(own);
    for (size_t expert = 0; expert < places.size(); ++expert) {
      if (!places[expert].file)
        throw CheckpointError("{}: tensor `{}` is missing: there are experts up to {}", folder().string(),
                              expert_name(own, static_cast<int64_t>(expert)), places.size() - 1);
    }
    spec.shape.insert(spec.shape.begin(), static_cast<int64_t>(places.size()));
  }
}

void HfFolder::check_tied() {
  const std::string embedding = "model.embed.weight", head = "lm_head.weight";
  if (!tied_ || !has(embedding)) return;
  if (!has(head)) {
    tensors_.emplace(head, TensorSpec{head, tensors_.at(embedding).type, tensors_.at(embedding).shape});
    places_[head] = places_.at(embedding);
    return;
  }
  const Place &a = places_.at(embedding)[0], &b = places_.at(head)[0];
  if (!std::ranges::equal(a.file->bytes(a.key), b.file->bytes(b.key)))
    throw CheckpointError("{}: `{}` differs from `{}`, but config.json says tie_word_embeddings", folder().string(), b.key,
                          a.key);
}

at::Tensor HfFolder::load(const std::string& own_name) const {
  auto found = tensors_.find(own_name);
  if (found == tensors_.end()) throw CheckpointError("{}: has no tensor `{}`", folder().string(), own_name);
  return load_box(own_name, std::vector<int64_t>(found->second.shape.size(), 0), found->second.shape);
}

at::Tensor HfFolder::load_box(const std::string& own_name, const std::vector<int64_t>& offset,
                              const std::vector<int64_t>& size) const {
  auto found = places_.find(own_name);
  if (found == places_.end()) throw CheckpointError("{}: has no tensor `{}`", folder().string(), own_name);
  if (!is_stacked(own_name)) return found->second[0].file->box(found->second[0].key, offset, size);
  const TensorSpec& spec = tensors_.at(own_name);
  HP_CHECK(offset.size() == spec.shape.size() && size.size() == spec.shape.size(), "box of another rank than `{}`", own_name);
  at::Tensor result = at::empty(size, spec.type);
  for (int64_t row = 0; row < size[0]; ++row) {
    const Place& place = found->second.at(static_cast<size_t>(offset[0] + row));
    result[row].copy_(place.file->box(place.key, {offset.begin() + 1, offset.end()}, {size.begin() + 1, size.end()}));
  }
  return result;
}

}  // namespace hyperparallel::checkpoint
