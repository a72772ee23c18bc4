#include "checkpoint/manifest.h"

#include <xxhash.h>

#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace hyperparallel::checkpoint {
namespace {

using nlohmann::ordered_json;

constexpr const char* kFormat = "hyperparallel-checkpoint";
constexpr int kVersion = 1;
constexpr std::string_view kChecksumKey = "\"xxh3\": \"";  // its first occurrence; nothing but `{` and spaces comes before it
constexpr size_t kChecksumDigits = 16;

// Position of the checksum's digits, or npos.
size_t checksum_place(std::string_view text) {
  size_t key = text.find(kChecksumKey);
  if (key == std::string_view::npos || text.size() < key + kChecksumKey.size() + kChecksumDigits) return std::string_view::npos;
  return text.find_first_not_of("{\n ") == key ? key + kChecksumKey.size() : std::string_view::npos;
}

uint64_t parse_hex(const ordered_json& value) {
  const auto& digits = value.get_ref<const std::string&>();
  uint64_t number = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
  if (error != std::errc() || end != digits.data() + digits.size()) throw CheckpointError("`{}` is no checksum", digits);
  return number;
}

// Files lie in the checkpoint's own folder, so a manifest cannot lead elsewhere.
void check_plain_name(const std::string& file) {
  if (file.empty() || file[0] == '.' || file.find('/') != std::string::npos)
    throw CheckpointError("`{}` is no plain file name", file);
}

ordered_json files_to_json(const std::map<std::string, StoredFile>& files, const char* checksum) {
  ordered_json json = ordered_json::object();
  for (const auto& [name, file] : files) json[name] = {{"bytes", file.bytes}, {checksum, hex(file.xxh3)}};
  return json;
}

std::map<std::string, StoredFile> files_from_json(const ordered_json& json, const char* checksum) {
  std::map<std::string, StoredFile> files;
  for (const auto& [name, file] : json.items()) {
    check_plain_name(name);
    files[name] = {file.at("bytes").get<int64_t>(), parse_hex(file.at(checksum))};
  }
  return files;
}

StoredTensor tensor_from_json(const std::string& name, const ordered_json& json,
                              const std::map<std::string, StoredFile>& shards) {
  StoredTensor tensor{json.at("dtype").get<std::string>(), json.at("shape").get<std::vector<int64_t>>(), {}};
  for (const auto& piece : json.at("pieces")) {
    StoredPiece stored{piece.at("file").get<std::string>(),
                       piece.at("key").get<std::string>(),
                       {piece.at("offset").get<std::vector<int64_t>>(), piece.at("size").get<std::vector<int64_t>>()},
                       parse_hex(piece.at("xxh3"))};
    if (!shards.contains(stored.file)) throw CheckpointError("tensor `{}` lies in `{}`, which is not listed", name, stored.file);
    tensor.pieces.push_back(std::move(stored));
  }
  return tensor;
}

Manifest manifest_from_json(const ordered_json& json) {
  if (int version = json.at("version").get<int>(); version != kVersion)
    throw CheckpointError("format version {}; this program reads version {}", version, kVersion);
  Manifest manifest;
  manifest.step = json.at("step").get<int64_t>();
  manifest.shards = files_from_json(json.at("shards"), "header_xxh3");
  manifest.documents = files_from_json(json.at("documents"), "xxh3");
  for (const auto& [name, tensor] : json.at("tensors").items())
    manifest.tensors[name] = tensor_from_json(name, tensor, manifest.shards);
  return manifest;
}

bool inside(const Box& box, const std::vector<int64_t>& shape) {
  if (box.offset.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.offset[d] < 0 || box.size[d] < 0 || box.offset[d] > shape[d] - box.size[d]) return false;
  }
  return true;
}

}  // namespace

uint64_t xxh3(const void* bytes, size_t size) {
  return XXH3_64bits(bytes, size);
}

Checksum::Checksum() : state_(XXH3_createState()) {
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_));
}
Checksum::~Checksum() {
  XXH3_freeState(static_cast<XXH3_state_t*>(state_));
}
void Checksum::add(const void* bytes, size_t size) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), bytes, size);
}
uint64_t Checksum::value() const {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_));
}

std::string hex(uint64_t value) {
  return fmt::format("{:016x}", value);
}

std::string to_text(const Manifest& manifest) {
  ordered_json tensors = ordered_json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    ordered_json pieces = ordered_json::array();
    for (const StoredPiece& piece : tensor.pieces) {
      pieces.push_back({{"file", piece.file},
                        {"key", piece.key},
                        {"offset", piece.box.offset},
                        {"size", piece.box.size},
                        {"xxh3", hex(piece.xxh3)}});
    }
    tensors[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"pieces", pieces}};
  }
  ordered_json json = {{"xxh3", hex(0)},
                       {"format", kFormat},
                       {"version", kVersion},
                       {"step", manifest.step},
                       {"shards", files_to_json(manifest.shards, "header_xxh3")},
                       {"documents", files_to_json(manifest.documents, "xxh3")},
                       {"tensors", tensors}};
  std::string text = json.dump(1) + "\n";
  text.replace(checksum_place(text), kChecksumDigits, hex(xxh3(text.data(), text.size())));
  return text;
}

Manifest parse_manifest(std::string_view text, const std::filesystem::path& path) {
  std::string zeroed(text);
  size_t place = checksum_place(text);
  if (place == std::string_view::npos) throw CheckpointError("{}: is no manifest of a checkpoint, or damaged", path.string());
  zeroed.replace(place, kChecksumDigits, hex(0));
  if (text.substr(place, kChecksumDigits) != hex(xxh3(zeroed.data(), zeroed.size())))
    throw CheckpointError("{}: is damaged: its text does not have the checksum that it names", path.string());
  try {
    return manifest_from_json(ordered_json::parse(text));
  } catch (const ordered_json::exception& error) {
    throw CheckpointError("{}: is no manifest of a checkpoint: {}", path.string(), error.what());
  } catch (const CheckpointError& error) {
    throw CheckpointError("{}: {}", path.string(), error.what());
  }
}

bool has_manifest(const std::filesystem::path& folder) {
  char start[256] = {};  // the format entry is the second
  std::ifstream(folder / kManifestFile, std::ios::binary).read(start, sizeof start);
  return std::string_view(start, sizeof start).find(kFormat) != std::string_view::npos;
}

void merge(Manifest& into, const Manifest& part) {
  if (into.step != part.step) throw CheckpointError("ranks save different steps: {} and {}", into.step, part.step);
  for (auto [target, source] : {std::pair(&into.shards, &part.shards), std::pair(&into.documents, &part.documents)}) {
    for (const auto& [name, file] : *source) {
      if (!target->emplace(name, file).second) throw CheckpointError("two ranks save a file `{}`", name);
    }
  }
  for (const auto& [name, tensor] : part.tensors) {
    auto [found, added] = into.tensors.emplace(name, tensor);
    if (added) continue;
    StoredTensor& target = found->second;
    if (target.dtype != tensor.dtype || target.shape != tensor.shape) {
      throw CheckpointError("ranks disagree on tensor `{}`: {} [{}] and {} [{}]", name, target.dtype,
                            fmt::join(target.shape, ", "), tensor.dtype, fmt::join(tensor.shape, ", "));
    }
    target.pieces.insert(target.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
  }
}

void check_coverage(const Manifest& manifest) {
  for (const auto& [name, tensor] : manifest.tensors) {
    int64_t elements = 0;
    for (size_t i = 0; i < tensor.pieces.size(); ++i) {
      const Box& box = tensor.pieces[i].box;
      if (!inside(box, tensor.shape)) {
        throw CheckpointError("tensor `{}`: piece of size [{}] at [{}] lies outside of shape [{}]", name,
                              fmt::join(box.size, ", "), fmt::join(box.offset, ", "), fmt::join(tensor.shape, ", "));
      }
      for (size_t j = 0; j < i; ++j) {
        if (intersect(box, tensor.pieces[j].box)) {
          throw CheckpointError("tensor `{}`: the pieces at [{}] and [{}] overlap", name,
                                fmt::join(tensor.pieces[j].box.offset, ", "), fmt::join(box.offset, ", "));
        }
      }
      elements += volume(box.size);
    }
    if (elements != volume(tensor.shape)) {
      throw CheckpointError("tensor `{}`: its pieces hold {} of {} elements of shape [{}]", name, elements, volume(tensor.shape),
                            fmt::join(tensor.shape, ", "));
    }
  }
}

}  // namespace hyperparallel::checkpoint
