// The folder of a run's checkpoints: saving, at once or in the background, retention, and finding the one to resume from.
//
// NOTE [Checkpoint commit protocol]
//   step-00000100.inprogress/   first the marker INPROGRESS, then rank files and documents, then manifest.json; all synced.
//   step-00000100/              The folder is renamed (one of that step from before moves to step-00000100.old first),
//   LATEST                      is replaced by rename, and only now
//   step-N.deleting/            what retention no longer keeps is renamed so and removed, its manifest last.
// A crash at any point leaves LATEST naming a complete checkpoint, or no LATEST where none was ever complete. Leftovers are
// removed by the next save. A folder without our manifest or marker is never removed, unless it is empty.
#pragma once

#include "base/aten.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"

namespace hyperparallel::checkpoint {

struct RowSource {
  std::vector<int64_t> size;
  at::ScalarType type;
  std::function<void(const Take&)> give;
};

// A box of a global tensor that this rank saves. Each element of a tensor is saved by exactly one rank.
struct Piece {
  std::string name;
  std::vector<int64_t> global_shape, offset;
  at::Tensor tensor;  // any device; its shape is the size of the box
  // Instead of `tensor`: rows too many to be copied, given in parts while they are written. A save that has such pieces is never
  // asynchronous.
  std::optional<RowSource> rows = {};
};

// Texts saved beside the tensors, by file name: letters, digits, `.`, `_`, `-`. Ranks save different names.
using Documents = std::map<std::string, std::string>;

struct Save {
  int64_t step = 0;
  std::vector<Piece> pieces;
  Documents documents;
  bool lowest_val = false;  // LOWEST_VAL names this step from now on, and retention keeps it
};

struct StoreOptions {
  int64_t keep_latest_k = 0;  // 0 keeps all; the one in LOWEST_VAL is kept besides
  int rank = 0;
  int world = 1;
  // Called on all ranks, from the thread that saves, where all must have come this far; must throw when a rank is lost.
  std::function<void()> barrier = [] {};
};

// Functions that change the folder are called by all ranks, reading ones by any. Not thread-safe; one store a folder.
class CheckpointStore {
 public:
  explicit CheckpointStore(std::filesystem::path folder, StoreOptions options = {});
  ~CheckpointStore();  // waits for a save under way and logs its failure
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  // Returns when the checkpoint is durable and is LATEST. Throws CheckpointError when it could not be saved; the former stays.
  void save(const Save& save);
  // Copies the tensors and returns; a thread writes them. With pieces of `rows` it is `save`. Waits for the one before. A failure
  // is thrown by the next call of save, save_async or wait.
  void save_async(Save save);
  void wait();
  // How long the last save that ended took, up to being durable; 0: none yet.
  double last_save_seconds() const { return last_save_seconds_; }

  // The step in LATEST; where there is no LATEST, the highest complete step. None: nothing was ever saved here.
  std::optional<int64_t> latest() const;
  std::optional<int64_t> lowest_val() const;
  std::vector<int64_t> steps() const;  // complete ones, ascending
  Checkpoint open(int64_t step) const;

  // The latest checkpoint with every checksum verified, for resuming; none when there is none. When it is damaged: throws, or
  // with `fall_back` logs what is wrong and takes the newest undamaged one before it.
  std::optional<Checkpoint> open_verified(bool fall_back) const;

 private:
  void write(const Save& save);
  void write_and_commit(const Save& save) const;
  Manifest write_rank(const std::filesystem::path& folder, const Save& save) const;
  std::string merge_ranks(const std::filesystem::path& folder) const;
  void commit(const Save& save) const;
  void retain(int64_t step) const;
  void remove_leftovers() const;
  std::filesystem::path step_folder(int64_t step, const char* suffix = "") const;
  std::filesystem::path locate(int64_t step) const;
  std::optional<int64_t> read_pointer(const char* name) const;
  void write_pointer(const char* name, int64_t step) const;

  std::filesystem::path folder_;
  StoreOptions options_;
  std::thread writer_;
  std::exception_ptr failure_;
  std::atomic<double> last_save_seconds_{0};
};

// The folder of checkpoints that a path means: RUN/checkpoints for a run's folder, else the path itself.
std::filesystem::path checkpoints_folder(const std::filesystem::path& path);
// The checkpoint that a path means: its own folder, or the latest one of a run's folder or of a folder of checkpoints.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

}  // namespace hyperparallel::checkpoint
