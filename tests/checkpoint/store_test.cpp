#include "checkpoint/store.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <barrier>
#include <cstdlib>
#include <future>

#include "base/error.h"
#include "base/file.h"
#include "support/faulty_system.h"
#include "support/scratch.h"

namespace hyperparallel::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

Piece whole(const std::string& name, const at::Tensor& tensor) {
  return {name, tensor.sizes().vec(), std::vector<int64_t>(static_cast<size_t>(tensor.dim()), 0), tensor};
}

// A small checkpoint whose every value tells its step.
Save save_of(int64_t step) {
  return {step,
          {whole("weight", at::full({3, 2}, step)), whole("count", at::scalar_tensor(step, at::kLong))},
          {{"loader.json", std::to_string(step)}}};
}

void expect_step(const Checkpoint& checkpoint, int64_t step) {
  checkpoint.verify();
  EXPECT_EQ(checkpoint.step(), step);
  EXPECT_TRUE(at::equal(checkpoint.load("weight"), at::full({3, 2}, step)));
  EXPECT_EQ(checkpoint.load("count").item<int64_t>(), step);
  EXPECT_EQ(checkpoint.document("loader.json"), std::to_string(step));
}

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Store, SavedTensorsAndDocumentsComeBack) {
  Scratch scratch;
  std::vector<Piece> pieces;
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kLong, at::kBool, at::kByte})
    pieces.push_back(whole(at::toString(type), at::arange(6).reshape({2, 3}).t().to(type)));
  pieces.push_back(whole("scalar", at::scalar_tensor(2.5, at::kDouble)));
  pieces.push_back(whole("empty", at::empty({0, 4})));
  CheckpointStore store(scratch / "run");
  store.save({7, pieces, {{"config.yaml", "a: 1\n"}, {"rng.json", "{}"}}});

  EXPECT_THAT(store.latest(), Optional(7));
  auto checkpoint = store.open_verified(false);
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(checkpoint->tensors().size(), pieces.size());
  for (const Piece& piece : pieces) {
    at::Tensor read = checkpoint->load(piece.name);
    EXPECT_EQ(read.scalar_type(), piece.tensor.scalar_type()) << piece.name;
    EXPECT_EQ(read.sizes(), piece.tensor.sizes()) << piece.name;
    EXPECT_TRUE(at::equal(read, piece.tensor)) << piece.name;
  }
  EXPECT_EQ(checkpoint->document("config.yaml"), "a: 1\n");
  EXPECT_THAT(entries(scratch / "run"), ElementsAre("LATEST", "step-00000007"));
  EXPECT_THAT(entries(scratch / "run/step-00000007"),
              ElementsAre("config.yaml", "manifest.json", "rank-00000.safetensors", "rng.json"));
}

TEST(Store, EmptyFolderHasNothingToResumeFrom) {
  Scratch scratch;
  CheckpointStore store(scratch / "run");
  EXPECT_EQ(store.latest(), std::nullopt);
  EXPECT_FALSE(store.open_verified(true));
  EXPECT_FALSE(fs::exists(scratch / "run"));
}

TEST(Store, SameStateGivesTheSameBytes) {
  Scratch scratch;
  for (const char* run : {"1", "2"}) CheckpointStore(scratch / run).save(save_of(5));
  for (const std::string& name : entries(scratch / "1/step-00000005"))
    EXPECT_EQ(file::read(scratch / "1/step-00000005" / name), file::read(scratch / "2/step-00000005" / name)) << name;
}

// Saves on `world` ranks, each of which holds the rows [rows * r / world, rows * (r + 1) / world).
void save_by_rows(const fs::path& folder, const at::Tensor& tensor, int world) {
  std::barrier barrier(world);
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      int64_t begin = tensor.size(0) * rank / world, end = tensor.size(0) * (rank + 1) / world;
      CheckpointStore store(folder, {.rank = rank, .world = world, .barrier = [&] { barrier.arrive_and_wait(); }});
      store.save({1,
                  {{"table", tensor.sizes().vec(), {begin, 0}, tensor.slice(0, begin, end)}},
                  {{fmt::format("loader-{}.json", rank), "{}"}}});
    }));
  }
  for (auto& rank : ranks) rank.get();
}

TEST(Store, RowsSavedOnAnyNumberOfRanksLoadOnAnyOther) {
  at::Tensor table = at::arange(1003 * 3).reshape({1003, 3});
  for (int saved : {1, 2, 3, 4}) {
    Scratch scratch;
    save_by_rows(scratch / "run", table, saved);
    Checkpoint checkpoint = CheckpointStore(scratch / "run").open(1);
    EXPECT_EQ(checkpoint.tensors().at("table").pieces.size(), saved);
    EXPECT_EQ(checkpoint.documents().size(), saved);
    EXPECT_TRUE(at::equal(checkpoint.load("table"), table));
    for (int64_t loaded : {1, 3, 4, 5}) {
      for (int64_t rank = 0; rank < loaded; ++rank) {
        int64_t begin = 1003 * rank / loaded, size = 1003 * (rank + 1) / loaded - begin;
        EXPECT_TRUE(
            at::equal(checkpoint.load_box("table", {begin, 1}, {size, 2}), table.slice(0, begin, begin + size).slice(1, 1, 3)));
      }
    }
  }
}

TEST(Store, ARankWithoutRowsIsFine) {
  Scratch scratch;
  at::Tensor table = at::arange(4).reshape({2, 2});
  save_by_rows(scratch / "run", table, 4);
  EXPECT_TRUE(at::equal(CheckpointStore(scratch / "run").open(1).load("table"), table));
}

TEST(Store, PiecesThatDoNotCoverATensorOnceAreRefused) {
  Scratch scratch;
  CheckpointStore store(scratch / "run");
  auto piece = [](std::vector<int64_t> shape, std::vector<int64_t> offset, int64_t rows) {
    return Piece{"table", std::move(shape), std::move(offset), at::zeros({rows, 2})};
  };
  auto message = [&](std::vector<Piece> pieces) -> std::string {
    try {
      store.save({1, std::move(pieces), {}});
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "saved";
  };
  EXPECT_THAT(message({piece({4, 2}, {0, 0}, 2)}), HasSubstr("`table`: its pieces hold 4 of 8"));
  EXPECT_THAT(message({piece({4, 2}, {0, 0}, 3), piece({4, 2}, {2, 0}, 2)}), HasSubstr("overlap"));
  EXPECT_THAT(message({piece({4, 2}, {3, 0}, 2)}), HasSubstr("outside"));
  EXPECT_EQ(message({piece({4, 2}, {0, 0}, 2), piece({4, 2}, {2, 0}, 2)}), "saved");
  EXPECT_THAT(entries(scratch / "run"), ElementsAre("LATEST", "step-00000001"));
}

TEST(Store, RetentionKeepsTheLatestAndTheLowestVal) {
  Scratch scratch;
  CheckpointStore store(scratch / "run", {.keep_latest_k = 2});
  for (int64_t step : {10, 20, 30, 40}) {
    Save save = save_of(step);
    save.lowest_val = step == 20;
    store.save(save);
  }
  EXPECT_THAT(store.steps(), ElementsAre(20, 30, 40));
  EXPECT_THAT(store.lowest_val(), Optional(20));
  expect_step(store.open(20), 20);
  Save better = save_of(50);
  better.lowest_val = true;
  store.save(better);
  EXPECT_THAT(store.steps(), ElementsAre(40, 50));
}

TEST(Store, FoldersThatAreNotOursAreNeverRemoved) {
  Scratch scratch;
  for (const char* name : {"step-00000001", "step-00000002.inprogress", "step-00000003.deleting", "step-00000004.old", "notes"}) {
    file::create_folders(scratch / name);
    file::write(scratch / name / "mine.txt", "x");
  }
  file::create_folders(scratch / "elsewhere");
  fs::create_symlink(scratch / "elsewhere", scratch / "step-00000005");
  CheckpointStore store(scratch.path(), {.keep_latest_k = 1});
  store.save(save_of(10));
  store.save(save_of(20));
  int kept = 0;
  for (const auto& entry : fs::recursive_directory_iterator(scratch.path())) kept += entry.path().filename() == "mine.txt";
  EXPECT_EQ(kept, 5);
  EXPECT_TRUE(fs::is_symlink(scratch / "step-00000005"));
  EXPECT_THAT(store.steps(), ElementsAre(20));
}

TEST(Store, StepsOfAnAbandonedFutureDoNotPushOutNewOnes) {
  Scratch scratch;
  CheckpointStore store(scratch / "run", {.keep_latest_k = 2});
  store.save(save_of(100));
  store.save(save_of(200));
  store.save(save_of(50));
  EXPECT_THAT(store.latest(), Optional(50));
  EXPECT_THAT(store.steps(), ElementsAre(50, 100, 200));
}

TEST(Store, SavingAStepAgainReplacesIt) {
  Scratch scratch;
  CheckpointStore store(scratch / "run");
  store.save(save_of(10));
  Save other = save_of(10);
  other.documents["loader.json"] = "again";
  store.save(other);
  EXPECT_EQ(store.open(10).document("loader.json"), "again");
  EXPECT_THAT(entries(scratch / "run"), ElementsAre("LATEST", "step-00000010"));
}

TEST(Store, AsyncSaveWritesTheStateOfTheCall) {
  Scratch scratch;
  CheckpointStore store(scratch / "run");
  Save save = save_of(10);
  at::Tensor weight = save.pieces[0].tensor;
  store.save_async(save);
  weight.fill_(-1);
  store.wait();
  expect_step(store.open(10), 10);
}

TEST(Store, FailureOfAnAsyncSaveIsThrownByTheNextCall) {
  Scratch scratch;
  FaultySystem system(scratch.path());
  file::ScopedSystem scoped(system);
  CheckpointStore store(scratch / "run");
  system.fail_at(12, ENOSPC);
  store.save_async(save_of(10));
  try {
    store.save_async(save_of(20));
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("step 10"), HasSubstr("No space left")));
  }
  store.save_async(save_of(30));
  store.wait();
  EXPECT_THAT(store.latest(), Optional(30));
}

// A disk so slow that anything may happen meanwhile: no write comes back.
class StuckSystem : public file::System {
 public:
  ssize_t write(int, const void*, size_t) override {
    reached.set_value();
    for (;;) pause();
  }
  std::promise<void> reached;
};

// Known pain: the pointer moved and the older checkpoint went before the asynchronous write was durable.
TEST(StoreDeathTest, KilledWhileAnAsyncSaveIsUnderWayThePreviousOneIsStillLatest) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The child runs this test from its start again, so the folder's name comes from what both know.
  const char* known = getenv("HP_TEST_RUN");
  Scratch scratch;
  if (!known) setenv("HP_TEST_RUN", (scratch / "run").c_str(), 1);
  const fs::path run = getenv("HP_TEST_RUN");
  EXPECT_EXIT(
      {
        CheckpointStore store(run, {.keep_latest_k = 1});
        store.save(save_of(10));
        StuckSystem stuck;
        file::ScopedSystem scoped(stuck);
        store.save_async(save_of(20));
        stuck.reached.get_future().wait();
        raise(SIGKILL);
      },
      testing::KilledBySignal(SIGKILL), "");
  unsetenv("HP_TEST_RUN");
  CheckpointStore store(run, {.keep_latest_k = 1});
  EXPECT_THAT(store.latest(), Optional(10));
  expect_step(*store.open_verified(false), 10);
  store.save(save_of(20));
  expect_step(*store.open_verified(false), 20);
  EXPECT_THAT(entries(run), ElementsAre("LATEST", "step-00000020"));
}

TEST(StoreFaults, InterruptedCallsAndShortWritesDoNotMatter) {
  Scratch scratch;
  FaultySystem system(scratch.path());
  file::ScopedSystem scoped(system);
  system.disturb(true);
  CheckpointStore store(scratch / "run", {.keep_latest_k = 1});
  store.save(save_of(10));
  store.save(save_of(20));
  expect_step(*store.open_verified(false), 20);
}

// After one failing call a save either throws and leaves what was, or has worked; the next save works and leaves no litter.
TEST(StoreFaults, AFailureAtAnyFileCallLosesNothing) {
  for (int call = 1;; ++call) {
    SCOPED_TRACE(call);
    Scratch scratch;
    FaultySystem system(scratch.path());
    file::ScopedSystem scoped(system);
    CheckpointStore store(scratch / "run", {.keep_latest_k = 1});
    store.save(save_of(10));
    system.restart_count();
    system.fail_at(call, call % 2 ? ENOSPC : EIO);
    bool saved = true;
    try {
      store.save(save_of(20));
    } catch (const CheckpointError& error) {
      saved = false;
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("step 20"), HasSubstr(scratch.path().string())));
    }
    auto checkpoint = store.open_verified(false);
    ASSERT_TRUE(checkpoint);
    expect_step(*checkpoint, saved ? 20 : checkpoint->step());
    if (system.count() < call) break;
    store.save(save_of(30));
    expect_step(*store.open_verified(false), 30);
    EXPECT_THAT(entries(scratch / "run"), ElementsAre("LATEST", "step-00000030"));
  }
}

// Saves 10, then crashes at call `call` of saving `second`; whatever the disk kept, a complete checkpoint is latest, the run
// goes on and ends with a clean folder. Returns whether the save was over before the call.
bool crash_at(int call, int64_t second, Survives survives) {
  Scratch scratch;
  FaultySystem system(scratch.path());
  file::ScopedSystem scoped(system);
  StoreOptions options{.keep_latest_k = 1};
  CheckpointStore(scratch / "run", options).save(save_of(10));
  system.restart_count();
  system.crash_at(call);
  bool saved = true;
  try {
    CheckpointStore(scratch / "run", options).save(save_of(second));
  } catch (const CheckpointError&) {
    saved = false;
  }
  bool over = system.count() < call;
  system.recover(survives);

  CheckpointStore store(scratch / "run", options);
  auto checkpoint = store.open_verified(false);
  if (!checkpoint) {
    ADD_FAILURE() << "no checkpoint is left";
    return true;
  }
  EXPECT_THAT(checkpoint->step(), testing::AnyOf(10, second));
  EXPECT_TRUE(!saved || checkpoint->step() == second);
  expect_step(*checkpoint, checkpoint->step());
  store.save(save_of(30));
  expect_step(*store.open_verified(false), 30);
  EXPECT_THAT(entries(scratch / "run"), ElementsAre("LATEST", "step-00000030"));
  return over;
}

TEST(StoreFaults, ACrashAtAnyFileCallLeavesACompleteCheckpoint) {
  for (int64_t second : {20, 10}) {  // a new step, and the same again
    for (Survives survives : {Survives::kNothing, Survives::kEntries, Survives::kEverything}) {
      for (int call = 1;; ++call) {
        SCOPED_TRACE(fmt::format("step {}, survives {}, call {}", second, static_cast<int>(survives), call));
        if (crash_at(call, second, survives)) break;
      }
    }
  }
}

TEST(StoreFaults, ACrashInTheFirstSaveLeavesNothingToResumeFromOrAllOfIt) {
  for (int call = 1;; ++call) {
    SCOPED_TRACE(call);
    Scratch scratch;
    FaultySystem system(scratch.path());
    file::ScopedSystem scoped(system);
    system.crash_at(call);
    try {
      CheckpointStore(scratch / "run").save(save_of(10));
    } catch (const CheckpointError&) {
    }
    bool over = system.count() < call;
    system.recover(Survives::kNothing);
    CheckpointStore store(scratch / "run");
    if (auto checkpoint = store.open_verified(false)) expect_step(*checkpoint, 10);
    store.save(save_of(20));
    expect_step(*store.open_verified(false), 20);
    if (over) break;
  }
}

}  // namespace
}  // namespace hyperparallel::checkpoint
