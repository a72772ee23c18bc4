// `hyperparallel inspect checkpoint PATH`: what a checkpoint of ours, a Hugging Face folder or a safetensors file holds.
#include "base/aten.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "arguments.h"
#include "base/error.h"
#include "checkpoint/convert.h"
#include "inspect.h"

namespace hyperparallel {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

// One line of the table: a tensor, or all tensors that differ only by numbers in their names.
struct Row {
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t count = 0, bytes = 0;
};
using Table = std::map<std::pair<std::string, std::string>, Row>;  // by name, then dtype and shape

std::string with_stars(const std::string& name) {
  std::string pattern;
  bool number = false;
  for (size_t i = 0; i < name.size(); ++i) {
    bool digit = std::isdigit(static_cast<unsigned char>(name[i])) && (number || i == 0 || name[i - 1] == '.');
    if (digit && !number) pattern += '*';
    if (!digit) pattern += name[i];
    number = digit;
  }
  return pattern;
}

std::string size_text(int64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"KB", "MB", "GB", "TB"}) {
    if (value < 1000) break;
    value /= 1000;
    unit = next;
  }
  return fmt::format("{:.1f} {}", value, unit);
}

// Collects tensors and prints them with totals.
class Listing {
 public:
  explicit Listing(bool all) : all_(all) {}

  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape, int64_t bytes) {
    Row& row = table_[{all_ ? name : with_stars(name), fmt::format("{} {}", dtype, fmt::join(shape, ","))}];
    row.dtype = dtype;
    row.shape = shape;
    ++row.count;
    row.bytes += bytes;
    ++tensors_;
    elements_ += volume(shape);
    bytes_ += bytes;
  }

  void print() const {
    size_t width = 6;
    for (const auto& [key, row] : table_) width = std::max(width, key.first.size());
    fmt::print("\n{:<{}}  {:>6}  {:<8}  {:>10}  shape\n", "tensor", width, "count", "dtype", "size");
    for (const auto& [key, row] : table_) {
      fmt::print("{:<{}}  {:>6}  {:<8}  {:>10}  [{}]\n", key.first, width, row.count, row.dtype, size_text(row.bytes),
                 fmt::join(row.shape, ", "));
    }
    fmt::print("\ntotal        {} tensors, {} elements, {}\n", tensors_, elements_, size_text(bytes_));
  }

 private:
  bool all_;
  Table table_;
  int64_t tensors_ = 0, elements_ = 0, bytes_ = 0;
};

void add_file(Listing& listing, const SafetensorsReader& reader) {
  for (const TensorInfo& info : reader.tensors()) listing.add(info.name, info.dtype, info.shape, info.bytes);
}

// The sizes of the model that a config.json describes; what it does not say is left out.
void print_config(const std::string& text) {
  const auto config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return;
  const auto& inner = config.contains("text_config") ? config["text_config"] : config;
  std::vector<std::string> parts;
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "n_routed_experts", "num_experts_per_tok", "vocab_size"}) {
    if (inner.contains(key)) parts.push_back(fmt::format("{} {}", key, inner[key].dump()));
  }
  fmt::print("model        {}{}\n", config.value("model_type", "of unknown type"),
             config.contains("vision_config") ? ", with vision" : "");
  if (!parts.empty()) fmt::print("config       {}\n", fmt::join(parts, ", "));
}

// Throws CheckpointError naming the first tensors that hold infinities or NaN.
class FiniteCheck {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.is_floating_point()) return;
    int64_t bad = tensor.numel() - at::isfinite(tensor).sum().item<int64_t>();
    if (bad > 0 && faults_.size() < 20)
      faults_.push_back(fmt::format("tensor `{}` holds {} values that are not finite", name, bad));
  }
  void finish() const {
    if (!faults_.empty()) throw CheckpointError("{}", fmt::join(faults_, "\n"));
    fmt::print("verify       every value is finite\n");
  }

 private:
  std::vector<std::string> faults_;
};

void check_file(FiniteCheck& check, const SafetensorsReader& reader) {
  for (const TensorInfo& info : reader.tensors()) {
    if (info.scalar_type) check.add(info.name, reader.tensor(info.name));
  }
}

void inspect_file(const fs::path& path, bool all, bool verify) {
  SafetensorsReader reader(path);
  fmt::print("file         {}\n", path.string());
  for (const auto& [key, value] : reader.metadata()) fmt::print("metadata     {}: {}\n", key, value);
  Listing listing(all);
  add_file(listing, reader);
  listing.print();
  if (!verify) return;
  FiniteCheck check;
  check_file(check, reader);
  check.finish();
}

void inspect_hf(const fs::path& path, bool all, bool verify) {
  HfFiles files(path);
  fmt::print("folder       {}: Hugging Face, {} file{}; names in index and files agree\n", path.string(), files.shards.size(),
             files.shards.size() == 1 ? "" : "s");
  print_config(files.config);
  Listing listing(all);
  for (const auto& [name, shard] : files.shards) add_file(listing, *shard);
  listing.print();
  if (!verify) return;
  FiniteCheck check;
  for (const auto& [name, shard] : files.shards) check_file(check, *shard);
  check.finish();
}

void inspect_ours(const fs::path& path, bool all, bool verify) {
  const fs::path folder = resolve_checkpoint(path);
  Checkpoint checkpoint(folder);
  fmt::print("checkpoint   {}: step {}\n", folder.string(), checkpoint.step());
  if (folder != path) {
    CheckpointStore store(checkpoints_folder(path));
    fmt::print("steps        {}\n", fmt::join(store.steps(), ", "));
    if (auto best = store.lowest_val()) fmt::print("lowest val   step {}\n", *best);
  }
  if (checkpoint.has_document(kModelConfigDocument)) print_config(checkpoint.document(kModelConfigDocument));
  fmt::print("documents    {}\n", fmt::join(checkpoint.documents(), ", "));
  Listing listing(all);
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    int64_t width = static_cast<int64_t>(at::elementSize(scalar_type_of(tensor.dtype)));
    listing.add(name, tensor.dtype, tensor.shape, volume(tensor.shape) * width);
  }
  listing.print();
  if (!verify) return;
  checkpoint.verify();
  fmt::print("verify       every checksum holds\n");
  FiniteCheck check;
  for (const auto& [name, tensor] : checkpoint.tensors()) check.add(name, checkpoint.load(name));
  check.finish();
}

}  // namespace

int inspect_checkpoint(const std::vector<std::string>& arguments) {
  fs::path path;
  bool all = false, verify = false;
  CLI::App app("Shows what a checkpoint, a Hugging Face folder or a safetensors file holds", "hyperparallel inspect checkpoint");
  app.add_option("PATH", path, "a run's folder, one step's folder, a Hugging Face folder, or a .safetensors file")->required();
  app.add_flag("--all", all, "one line a tensor, also where names differ only by a number");
  app.add_flag("--verify", verify, "read everything: checksums, and values that are not finite");
  if (!parse_arguments(app, arguments)) return static_cast<int>(ExitCode::kFinished);

  if (!fs::exists(path)) throw CheckpointError("{}: does not exist", path.string());
  if (!fs::is_directory(path)) {
    inspect_file(path, all, verify);
  } else if (fs::exists(path / kManifestFile) || !fs::exists(path / "config.json") ||
             CheckpointStore(checkpoints_folder(path)).latest()) {
    inspect_ours(path, all, verify);
  } else {
    inspect_hf(path, all, verify);
  }
  return static_cast<int>(ExitCode::kFinished);
}

}  // namespace hyperparallel
