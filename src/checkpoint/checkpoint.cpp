#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "base/file.h"

namespace hyperparallel::checkpoint {
namespace {

constexpr size_t kMaxFaults = 20;

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestFile;
  if (!std::filesystem::exists(path))
    throw CheckpointError("{}: is no complete checkpoint: it has no {}", folder.string(), kManifestFile);
  return parse_manifest(file::read(path), path);
}

void check_size(const std::filesystem::path& path, int64_t expected) {
  std::error_code error;
  auto size = std::filesystem::file_size(path, error);
  if (error) throw CheckpointError("{}: is missing or cannot be read: {}", path.string(), error.message());
  if (static_cast<int64_t>(size) != expected)
    throw CheckpointError("{}: has {} bytes, the manifest says {}: cut off, or of another checkpoint", path.string(), size,
                          expected);
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& folder) : folder_(folder), manifest_(read_manifest(folder)) {
  for (const auto& [name, file] : manifest_.documents) check_size(folder_ / name, file.bytes);
  for (const auto& [name, file] : manifest_.shards) {
    check_size(folder_ / name, file.bytes);
    auto reader = std::make_unique<SafetensorsReader>(folder_ / name);
    if (xxh3(reader->header().data(), reader->header().size()) != file.xxh3)
      throw CheckpointError("{}: its header does not have the checksum in the manifest: damaged, or of another checkpoint",
                            (folder_ / name).string());
    shards_[name] = std::move(reader);
  }
  for (const auto& [name, tensor] : manifest_.tensors) {
    for (const StoredPiece& piece : tensor.pieces) {
      const TensorInfo& info = shard(piece.file).info(piece.key);
      if (info.dtype != tensor.dtype || info.shape != piece.box.size) {
        throw CheckpointError("{}: tensor `{}` is {} [{}], the manifest says {} [{}]", (folder_ / piece.file).string(), piece.key,
                              info.dtype, fmt::join(info.shape, ", "), tensor.dtype, fmt::join(piece.box.size, ", "));
      }
    }
  }
  check_coverage(manifest_);
}

const StoredTensor& Checkpoint::stored(const std::string& name) const {
  auto found = manifest_.tensors.find(name);
  if (found == manifest_.tensors.end()) throw CheckpointError("{}: has no tensor `{}`", folder_.string(), name);
  return found->second;
}

void Checkpoint::check_piece(const std::string& name, const StoredPiece& piece) const {
  auto bytes = shard(piece.file).bytes(piece.key);
  if (xxh3(bytes.data(), bytes.size()) != piece.xxh3) {
    throw CheckpointError("{}: tensor `{}` at [{}] does not have the checksum in the manifest: damaged",
                          (folder_ / piece.file).string(), name, fmt::join(piece.box.offset, ", "));
  }
}

at::Tensor Checkpoint::load(const std::string& name) const {
  const StoredTensor& tensor = stored(name);
  for (const StoredPiece& piece : tensor.pieces) check_piece(name, piece);
  return load_box(name, std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape);
}

at::Tensor Checkpoint::load_box(const std::string& name, const std::vector<int64_t>& offset,
                                const std::vector<int64_t>& size) const {
  const StoredTensor& tensor = stored(name);
  HP_CHECK(offset.size() == tensor.shape.size() && size.size() == tensor.shape.size(), "box of another rank than `{}`", name);
  for (size_t d = 0; d < size.size(); ++d) {
    if (offset[d] < 0 || size[d] < 0 || offset[d] > tensor.shape[d] - size[d]) {
      throw CheckpointError("{}: tensor `{}` has shape [{}]; elements [{}] from [{}] were asked for", folder_.string(), name,
                            fmt::join(tensor.shape, ", "), fmt::join(size, ", "), fmt::join(offset, ", "));
    }
  }
  at::Tensor result = at::empty(size, scalar_type_of(tensor.dtype));
  auto* target = static_cast<uint8_t*>(result.data_ptr());
  const Box wanted{offset, size};
  auto relative = [](std::vector<int64_t> place, const std::vector<int64_t>& origin) {
    for (size_t d = 0; d < place.size(); ++d) place[d] -= origin[d];
    return place;
  };
  for (const StoredPiece& piece : tensor.pieces) {
    auto common = intersect(wanted, piece.box);
    if (!common) continue;
    copy_box(common->size, result.element_size(),
             {shard(piece.file).bytes(piece.key).data(), piece.box.size, relative(common->offset, piece.box.offset)},
             {target, size, relative(common->offset, offset)});
  }
  return result;
}

std::vector<std::string> Checkpoint::documents() const {
  std::vector<std::string> names;
  for (const auto& [name, ignored] : manifest_.documents) names.push_back(name);
  return names;
}

std::string Checkpoint::document(const std::string& name) const {
  auto found = manifest_.documents.find(name);
  if (found == manifest_.documents.end()) throw CheckpointError("{}: has no document `{}`", folder_.string(), name);
  std::string text = file::read(folder_ / name);
  if (xxh3(text.data(), text.size()) != found->second.xxh3)
    throw CheckpointError("{}: does not have the checksum in the manifest: damaged", (folder_ / name).string());
  return text;
}

void Checkpoint::verify() const {
  std::vector<std::string> faults;
  auto collect = [&](auto&& check) {
    try {
      check();
    } catch (const CheckpointError& error) {
      if (faults.size() < kMaxFaults) faults.push_back(error.what());
    }
  };
  for (const std::string& name : documents()) collect([&] { document(name); });
  for (const auto& [name, tensor] : manifest_.tensors) {
    for (const StoredPiece& piece : tensor.pieces) collect([&, &name = name] { check_piece(name, piece); });
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    const std::string file = entry.path().filename().string();
    if (file.ends_with(".safetensors") && !shards_.contains(file))
      collect([&] { throw CheckpointError("{}: is not in the manifest: of another checkpoint?", entry.path().string()); });
  }
  if (!faults.empty()) throw CheckpointError("{}", fmt::join(faults, "\n"));
}

}  // namespace hyperparallel::checkpoint
