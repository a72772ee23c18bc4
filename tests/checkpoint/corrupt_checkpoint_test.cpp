// Damaged checkpoints: cut off, one bit flipped anywhere, files swapped, deleted or of another step. Found before training.
#include <gmock/gmock.h>

#include <barrier>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/store.h"
#include "support/scratch.h"
#include "support/unsynced_system.h"

namespace hyperparallel::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kShard = "step-00000020/rank-00000.safetensors";

// A run with steps 10 and 20.
class CorruptCheckpoint : public testing::Test {
 protected:
  CorruptCheckpoint() {
    for (int64_t step : {10, 20}) {
      store_.save({step,
                   {{"upper", {4, 3}, {0, 0}, at::full({4, 3}, step)}, {"lower", {5}, {0}, at::arange(5) + step}},
                   {{"loader.json", fmt::format("{{\"position\": {}}}", step)}}});
    }
  }

  std::string fault() {
    try {
      store_.open_verified(false);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "accepted";
  }
  int64_t fallen_back() { return store_.open_verified(true)->step(); }
  void put(const std::string& name, const std::string& bytes) { std::ofstream(run_ / name, std::ios::binary) << bytes; }
  std::string get(const std::string& name) { return file::read(run_ / name); }

  UnsyncedSystem system_;
  file::ScopedSystem scoped_{system_};
  Scratch run_;
  CheckpointStore store_{run_.path()};
};

TEST_F(CorruptCheckpoint, UndamagedOneIsAccepted) {
  EXPECT_EQ(fault(), "accepted");
  EXPECT_EQ(fallen_back(), 20);
}

TEST_F(CorruptCheckpoint, OneBitFlippedInAnyByteOfAnyFileIsFoundAndTheFileNamed) {
  for (const char* name : {"LATEST", "step-00000020/manifest.json", kShard, "step-00000020/loader.json"}) {
    const std::string good = get(name);
    for (size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
      put(name, bad);
      EXPECT_THAT(fault(), HasSubstr((run_ / name).string())) << name << " byte " << at;
    }
    put(name, good);
  }
}

TEST_F(CorruptCheckpoint, TheDamagedTensorIsNamed) {
  std::string bytes = get(kShard);
  const TensorInfo lower = SafetensorsReader(run_ / kShard).info("lower");
  size_t data = SafetensorsReader(run_ / kShard).header().size();
  bytes[data + static_cast<size_t>(lower.offset)] ^= 1;
  put(kShard, bytes);
  EXPECT_THAT(fault(), AllOf(HasSubstr("rank-00000.safetensors"), HasSubstr("`lower`"), testing::Not(HasSubstr("`upper`"))));
  Checkpoint checkpoint = store_.open(20);
  EXPECT_THROW(checkpoint.load("lower"), CheckpointError);
  EXPECT_NO_THROW(checkpoint.load("upper"));
}

TEST_F(CorruptCheckpoint, FilesCutOffAnywhereAreFound) {
  for (const char* name : {"LATEST", "step-00000020/manifest.json", kShard, "step-00000020/loader.json"}) {
    const std::string good = get(name);
    for (size_t size : {size_t{0}, size_t{1}, good.size() / 2, good.size() - 1}) {
      put(name, good.substr(0, size));
      EXPECT_THAT(fault(), HasSubstr((run_ / name).string())) << name << " to " << size;
    }
    put(name, good);
  }
}

TEST_F(CorruptCheckpoint, DeletedFilesAreNamed) {
  for (const char* name : {"step-00000020/manifest.json", kShard, "step-00000020/loader.json"}) {
    const std::string good = get(name);
    file::remove(run_ / name);
    EXPECT_THAT(fault(), HasSubstr(fs::path(name).filename().string())) << name;
    put(name, good);
  }
}

TEST_F(CorruptCheckpoint, FilesOfAnotherStepAreFound) {
  for (const char* name : {"rank-00000.safetensors", "loader.json", "manifest.json"}) {
    const std::string good = get(std::string("step-00000020/") + name);
    put(std::string("step-00000020/") + name, get(std::string("step-00000010/") + name));
    EXPECT_THAT(fault(), HasSubstr("step-00000020")) << name;
    put(std::string("step-00000020/") + name, good);
  }
  put("step-00000020/rank-00001.safetensors", get("step-00000010/rank-00000.safetensors"));
  EXPECT_THAT(fault(), AllOf(HasSubstr("rank-00001.safetensors"), HasSubstr("not in the manifest")));
}

TEST_F(CorruptCheckpoint, AWholeFolderOfAnotherStepIsFound) {
  fs::remove_all(run_ / "step-00000020");
  fs::copy(run_ / "step-00000010", run_ / "step-00000020", fs::copy_options::recursive);
  EXPECT_THAT(fault(), AllOf(HasSubstr("step-00000020"), HasSubstr("step 10")));
}

TEST_F(CorruptCheckpoint, FallsBackOnlyWhenAskedAndSaysSo) {
  put(kShard, get(kShard).substr(0, 100));
  EXPECT_THAT(fault(), HasSubstr(kShard));
  testing::internal::CaptureStdout();
  EXPECT_EQ(fallen_back(), 10);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), AllOf(HasSubstr(kShard), HasSubstr("falling back to step 10")));
}

TEST_F(CorruptCheckpoint, FallsBackPastADamagedPointer) {
  put("LATEST", "step-0000");
  EXPECT_EQ(fallen_back(), 20);
}

TEST_F(CorruptCheckpoint, NothingLeftToFallBackToIsAnError) {
  put(kShard, "");
  put("step-00000010/manifest.json", "{");
  EXPECT_THROW(store_.open_verified(true), CheckpointError);
}

TEST_F(CorruptCheckpoint, ADamagedCheckpointIsReplacedByTheNextSaveOfItsStep) {
  put(kShard, "");
  EXPECT_EQ(fallen_back(), 10);
  store_.save({20, {{"x", {1}, {0}, at::ones({1})}}, {}});
  EXPECT_EQ(fault(), "accepted");
}

// Two ranks save halves of one shape, so the two files differ in nothing but their data and the offset in the tensor's key.
TEST(CorruptShards, SwappedShardsAreFoundAndNamed) {
  Scratch scratch;
  std::barrier barrier(2);
  auto save = [&](int rank) {
    CheckpointStore store(scratch.path(), {.rank = rank, .world = 2, .barrier = [&] { barrier.arrive_and_wait(); }});
    store.save({1, {{"x", {4}, {2 * rank}, at::arange(2) + rank}}, {}});
  };
  std::thread other(save, 1);
  save(0);
  other.join();
  const fs::path folder = scratch / "step-00000001";
  EXPECT_NO_THROW(Checkpoint(folder).verify());
  fs::rename(folder / "rank-00000.safetensors", folder / "aside");
  fs::rename(folder / "rank-00001.safetensors", folder / "rank-00000.safetensors");
  fs::rename(folder / "aside", folder / "rank-00001.safetensors");
  try {
    Checkpoint checkpoint(folder);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank-00000.safetensors"));
  }
}

TEST(CorruptShards, PiecesThatChangedPlacesInOneFileAreFoundAndNamed) {
  Scratch scratch;
  const fs::path folder = scratch / "step-00000001";
  CheckpointStore(scratch.path()).save({1, {{"x", {4}, {0}, at::arange(2)}, {"x", {4}, {2}, at::arange(2) + 9}}, {}});
  const std::string bytes = file::read(folder / "rank-00000.safetensors");
  const size_t first = bytes.size() - 32, second = bytes.size() - 16;
  std::ofstream(folder / "rank-00000.safetensors", std::ios::binary)
      << bytes.substr(0, first) << bytes.substr(second) << bytes.substr(first, 16);
  EXPECT_THROW(Checkpoint(folder).load("x"), CheckpointError);
  try {
    Checkpoint(folder).verify();
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("`x` at [0]"), HasSubstr("`x` at [2]")));
  }
}

}  // namespace
}  // namespace hyperparallel::checkpoint
