#include "checkpoint/store.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/trace.h"
#include "checkpoint/folder.h"

namespace hyperparallel::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLatest = "LATEST";
constexpr const char* kLowestVal = "LOWEST_VAL";
constexpr const char* kInProgress = ".inprogress";
constexpr const char* kOld = ".old";
constexpr const char* kDeleting = ".deleting";

std::string step_name(int64_t step) {
  return fmt::format("step-{:08}", step);
}
std::string rank_name(int rank, const char* extension) {
  return fmt::format("rank-{:05}.{}", rank, extension);
}

// The step of `step-00000100` followed by `suffix`; none for any other name.
std::optional<int64_t> parse_step(std::string_view name, std::string_view suffix = "") {
  if (!name.starts_with("step-") || !name.ends_with(suffix)) return std::nullopt;
  std::string_view digits = name.substr(5, name.size() - 5 - std::min(suffix.size(), name.size() - 5));
  int64_t step = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  bool whole = error == std::errc() && end == digits.data() + digits.size();
  return whole && name == step_name(step) + std::string(suffix) ? std::optional(step) : std::nullopt;
}

bool is_folder(const fs::path& path) {
  return fs::is_directory(fs::symlink_status(path));
}

// Steps of the folders with this suffix, ascending.
std::vector<int64_t> list_steps(const fs::path& folder, std::string_view suffix = "") {
  std::vector<int64_t> steps;
  if (!fs::exists(folder)) return steps;
  for (const auto& entry : fs::directory_iterator(folder)) {
    auto step = parse_step(entry.path().filename().string(), suffix);
    if (step && is_folder(entry.path())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void check_document_name(const std::string& name) {
  bool plain = !name.empty() && name[0] != '.' && !name.starts_with("rank-") && name != kManifestFile && name != kMarker &&
               name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == std::string::npos;
  HP_CHECK(plain, "`{}` cannot be the name of a document", name);
}

std::vector<int64_t> size_of(const Piece& piece) {
  return piece.rows ? piece.rows->size : piece.tensor.sizes().vec();
}

std::string key_of(const Piece& piece) {
  if (size_of(piece) == piece.global_shape) return piece.name;
  return fmt::format("{}@{}", piece.name, fmt::join(piece.offset, ","));
}

}  // namespace

CheckpointStore::CheckpointStore(fs::path folder, StoreOptions options)
    : folder_(std::move(folder)), options_(std::move(options)) {}

CheckpointStore::~CheckpointStore() {
  try {
    wait();
  } catch (const std::exception& error) {
    log::error("{}", error.what());
  }
}

fs::path CheckpointStore::step_folder(int64_t step, const char* suffix) const {
  return folder_ / (step_name(step) + suffix);
}

// --- Saving ---

void CheckpointStore::save(const Save& save) {
  wait();
  write(save);
}

void CheckpointStore::save_async(Save save) {
  wait();
  if (std::ranges::any_of(save.pieces, [](const Piece& piece) { return piece.rows.has_value(); })) return write(save);
  for (Piece& piece : save.pieces)
    piece.tensor = piece.tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true).contiguous();
  writer_ = std::thread([this, save = std::move(save)] {
    trace::set_thread_name("checkpoint");
    try {
      write(save);
    } catch (...) {
      failure_ = std::current_exception();
    }
  });
}

void CheckpointStore::wait() {
  if (writer_.joinable()) writer_.join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void CheckpointStore::write(const Save& save) {
  auto failed = [&](const std::exception& error) {
    if (options_.rank == 0) abandon_folder(step_folder(save.step, kInProgress));
    return CheckpointError("the checkpoint of step {} was not saved in {}: {}", save.step, folder_.string(), error.what());
  };
  try {
    trace::Scope scope("write checkpoint", "checkpoint");
    const double begin = monotonic_seconds();
    write_and_commit(save);
    last_save_seconds_ = monotonic_seconds() - begin;
  } catch (const file::FileError& error) {
    throw failed(error);
  } catch (const CheckpointError& error) {
    throw failed(error);
  } catch (const fs::filesystem_error& error) {
    throw failed(error);
  }
}

void CheckpointStore::write_and_commit(const Save& save) const {
  const fs::path folder = step_folder(save.step, kInProgress);
  if (options_.rank == 0) {
    file::create_folders(folder_);
    remove_leftovers();
    begin_folder(folder);
  }
  options_.barrier();
  file::write(folder / rank_name(options_.rank, "json"), to_text(write_rank(folder, save)));
  options_.barrier();
  if (options_.rank == 0) {
    const std::string manifest = merge_ranks(folder);
    file::write(folder / kManifestFile, manifest);
    file::remove(folder / kMarker);
    file::sync_folder(folder);
    commit(save);
    retain(save.step);
  }
  options_.barrier();
}

Manifest CheckpointStore::write_rank(const fs::path& folder, const Save& save) const {
  Manifest part;
  part.step = save.step;
  const std::string shard = rank_name(options_.rank, "safetensors");
  std::vector<TensorSpec> specs;
  std::map<std::string, std::pair<const Piece*, StoredPiece*>> by_key;
  for (const Piece& piece : save.pieces) {
    const std::vector<int64_t> size = size_of(piece);
    if (volume(size) == 0 && volume(piece.global_shape) > 0) continue;  // a rank with no rows of this one
    const at::ScalarType type = piece.rows ? piece.rows->type : piece.tensor.scalar_type();
    specs.push_back({key_of(piece), type, size});
    StoredTensor& stored = part.tensors[piece.name];
    stored.dtype = safetensors_dtype(type);
    stored.shape = piece.global_shape;
    stored.pieces.reserve(save.pieces.size());  // what by_key points to stays
    stored.pieces.push_back({shard, key_of(piece), {piece.offset, size}, 0});
    by_key[key_of(piece)] = {&piece, &stored.pieces.back()};
  }
  const std::string header = write_safetensors(folder / shard, std::move(specs), [&](const std::string& key, const Take& take) {
    const auto& [piece, stored] = by_key.at(key);
    Checksum sum;
    const Take add = [&](const at::Tensor& given) {
      const at::Tensor tensor = given.detach().to(at::kCPU).contiguous();
      sum.add(tensor.const_data_ptr(), tensor.nbytes());
      take(tensor);
    };
    piece->rows ? piece->rows->give(add) : add(piece->tensor);
    stored->xxh3 = sum.value();
  });
  part.shards[shard] = {static_cast<int64_t>(fs::file_size(folder / shard)), xxh3(header.data(), header.size())};
  for (const auto& [name, text] : save.documents) {
    check_document_name(name);
    file::write(folder / name, text);
    part.documents[name] = {static_cast<int64_t>(text.size()), xxh3(text.data(), text.size())};
  }
  return part;
}

std::string CheckpointStore::merge_ranks(const fs::path& folder) const {
  std::optional<Manifest> whole;
  for (int rank = 0; rank < options_.world; ++rank) {
    const fs::path path = folder / rank_name(rank, "json");
    Manifest part = parse_manifest(file::read(path), path);
    if (whole) {
      merge(*whole, part);
    } else {
      whole = std::move(part);
    }
    file::remove(path);
  }
  check_coverage(*whole);
  return to_text(*whole);
}

// See NOTE [Checkpoint commit protocol].
void CheckpointStore::commit(const Save& save) const {
  const fs::path place = step_folder(save.step), old = step_folder(save.step, kOld);
  if (fs::exists(place)) file::rename(place, old);
  file::rename(step_folder(save.step, kInProgress), place);
  write_pointer(kLatest, save.step);
  if (save.lowest_val) write_pointer(kLowestVal, save.step);
  if (fs::exists(old)) remove_ours(old);
}

// Steps after this one are of a run that was given up from there on: they are neither counted nor touched.
void CheckpointStore::retain(int64_t step) const {
  if (options_.keep_latest_k <= 0) return;
  std::vector<int64_t> candidates = steps();
  std::erase_if(candidates, [&](int64_t other) { return other > step; });
  std::optional<int64_t> best = lowest_val();
  int64_t surplus = static_cast<int64_t>(candidates.size()) - options_.keep_latest_k;
  for (int64_t i = 0; i < surplus; ++i) {
    if (candidates[i] == best) continue;
    file::rename(step_folder(candidates[i]), step_folder(candidates[i], kDeleting));
    remove_ours(step_folder(candidates[i], kDeleting));
  }
}

void CheckpointStore::remove_leftovers() const {
  for (int64_t step : list_steps(folder_, kOld)) {
    if (fs::exists(step_folder(step))) {
      remove_ours(step_folder(step, kOld));
    } else {
      file::rename(step_folder(step, kOld), step_folder(step));  // the crash came before its successor took the place
    }
  }
  for (const char* suffix : {kInProgress, kDeleting}) {
    for (int64_t step : list_steps(folder_, suffix)) remove_ours(step_folder(step, suffix));
  }
}

// --- Pointers: `step-00000100 <xxh3 of that name>` ---

void CheckpointStore::write_pointer(const char* name, int64_t step) const {
  const std::string target = step_name(step);
  file::write(folder_ / name, fmt::format("{} {}\n", target, hex(xxh3(target.data(), target.size()))));
}

std::optional<int64_t> CheckpointStore::read_pointer(const char* name) const {
  const fs::path path = folder_ / name;
  if (!fs::exists(path)) return std::nullopt;
  const std::string text = file::read(path);
  const std::string target = text.substr(0, text.find(' '));
  auto step = parse_step(target);
  if (!step || text != fmt::format("{} {}\n", target, hex(xxh3(target.data(), target.size()))))
    throw CheckpointError("{}: is damaged: it does not name a step with its checksum", path.string());
  return step;
}

std::optional<int64_t> CheckpointStore::lowest_val() const {
  return read_pointer(kLowestVal);
}

std::optional<int64_t> CheckpointStore::latest() const {
  if (auto step = read_pointer(kLatest)) return step;
  std::vector<int64_t> complete = steps();
  return complete.empty() ? std::nullopt : std::optional(complete.back());
}

// --- Reading ---

fs::path CheckpointStore::locate(int64_t step) const {
  const fs::path place = step_folder(step), old = step_folder(step, kOld);
  return !fs::exists(place) && fs::exists(old) ? old : place;
}

std::vector<int64_t> CheckpointStore::steps() const {
  std::set<int64_t> complete;
  for (const char* suffix : {"", kOld}) {
    for (int64_t step : list_steps(folder_, suffix)) {
      if (has_manifest(step_folder(step, suffix))) complete.insert(step);
    }
  }
  return {complete.begin(), complete.end()};
}

Checkpoint CheckpointStore::open(int64_t step) const {
  const fs::path folder = locate(step);
  Checkpoint checkpoint(folder);
  if (checkpoint.step() != step) throw CheckpointError("{}: is the checkpoint of step {}", folder.string(), checkpoint.step());
  return checkpoint;
}

std::optional<Checkpoint> CheckpointStore::open_verified(bool fall_back) const {
  std::optional<int64_t> step;
  std::string fault;
  auto attempt = [&](auto&& find) -> std::optional<Checkpoint> {
    try {
      step = find();
      if (!step) return std::nullopt;
      Checkpoint checkpoint = open(*step);
      checkpoint.verify();
      return checkpoint;
    } catch (const CheckpointError& error) {
      fault = error.what();
      if (!fall_back && steps().size() < 2) throw;
      if (!fall_back) throw CheckpointError("{}; checkpoint.fall_back would continue from an older one", fault);
      log::warn("{}", fault);
      return std::nullopt;
    }
  };
  auto found = attempt([&] { return latest(); });
  if (found || fault.empty()) return found;
  std::vector<int64_t> others = steps();
  if (step) std::erase_if(others, [before = *step](int64_t other) { return other >= before; });
  for (auto other = others.rbegin(); other != others.rend(); ++other) {
    found = attempt([&] { return std::optional(*other); });
    if (!found) continue;
    log::warn("the latest checkpoint is damaged: falling back to step {}", *other);
    return found;
  }
  throw CheckpointError("{}: no undamaged checkpoint is left to fall back to; last fault: {}", folder_.string(), fault);
}

fs::path checkpoints_folder(const fs::path& path) {
  return fs::is_directory(path / "checkpoints") ? path / "checkpoints" : path;
}

fs::path resolve_checkpoint(const fs::path& path) {
  if (fs::exists(path / kManifestFile)) return path;
  CheckpointStore store(checkpoints_folder(path));
  auto step = store.latest();
  if (!step) throw CheckpointError("{}: holds no checkpoint: neither {} nor {}", path.string(), kManifestFile, kLatest);
  return store.open(*step).folder();
}

}  // namespace hyperparallel::checkpoint
