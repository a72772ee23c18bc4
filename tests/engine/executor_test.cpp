#include "engine/executor.h"

#include "base/error.h"
#include "engine/memory.h"
#include "engine/memory_profile.h"
#include "toy_program.h"

namespace hyperparallel::engine {
namespace {

using namespace hyperparallel::test;
using Mode = RecomputePolicy::Mode;

// Allocations are counted from the first tensor on.
[[maybe_unused]] const bool counted = (count_allocations(), true);

constexpr double kSeeds[] = {0.25, 0.125};

struct Result {
  std::vector<std::vector<double>> losses;
  Tensors gradients;  // by parameter
  at::Tensor start_gradient;
  std::map<std::string, at::Tensor> counters;
};

std::vector<std::vector<double>> seeds_of(size_t micro_batches) {
  return {micro_batches, {kSeeds[0], kSeeds[1]}};
}

Result run_step(const Toy& toy, ParameterStore& store, const ScheduleOptions& options, const std::vector<ValueMap>& batches) {
  store.clear_gradients();
  Executor executor(toy.program, store);
  executor.run(build_schedule(toy.program, options), batches, seeds_of(batches.size()));
  EXPECT_EQ(executor.ledger().live_bytes(), 0);
  EXPECT_GT(executor.ledger().peak_bytes(), 0);
  Result result{executor.losses(), {}, {}, executor.counters()};
  for (size_t i = 0; i < store.size(); ++i) result.gradients.push_back(store.gradient({static_cast<int32_t>(i)}));
  if (auto it = executor.input_gradients().find(toy.start.index); it != executor.input_gradients().end())
    result.start_gradient = it->second;
  return result;
}

ParameterStore store_of(const Toy& toy, at::ScalarType master = at::kDouble, at::ScalarType compute = at::kDouble) {
  ParameterStore store(toy.program.parameters, master, compute);
  store.initialise(5);
  return store;
}

void expect_same(const Result& a, const Result& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  for (size_t i = 0; i < a.gradients.size(); ++i) EXPECT_SAME_BITS(a.gradients[i], b.gradients[i]) << what << ", parameter " << i;
  EXPECT_SAME_BITS(a.start_gradient, b.start_gradient) << what;
  ASSERT_EQ(a.counters.size(), b.counters.size()) << what;
  for (const auto& [name, counts] : a.counters) EXPECT_SAME_BITS(counts, b.counters.at(name)) << what;
}

class ExecutorSizes : public ::testing::TestWithParam<int64_t> {};

TEST_P(ExecutorSizes, LossesAndGradientsEqualPlainAutograd) {
  const Toy toy;
  ParameterStore store = store_of(toy);
  const ValueMap batch = toy.batch(GetParam());
  const Result ours = run_step(toy, store, {}, {batch});

  Tensors leaves;
  for (size_t i = 0; i < store.size(); ++i)
    leaves.push_back(store.master({static_cast<int32_t>(i)}).detach().clone().requires_grad_(true));
  const at::Tensor start = batch.at(toy.start.index).clone().requires_grad_(true);
  const at::Tensor loss = Toy::plain(leaves, batch.at(toy.ids.index), batch.at(toy.targets.index), start, {kSeeds[0], kSeeds[1]});
  leaves.push_back(start);
  Tensors expected = torch::autograd::grad({loss}, leaves, {}, std::nullopt, false, /*allow_unused=*/true);

  EXPECT_NEAR(kSeeds[0] * ours.losses[0][0] + kSeeds[1] * ours.losses[0][1], loss.item<double>(),
              1e-12 * (1 + std::abs(loss.item<double>())));
  EXPECT_CLOSE(ours.start_gradient, expected.back(), 1e-13);
  for (size_t i = 0; i < store.size(); ++i) {
    if (store.spec({static_cast<int32_t>(i)}).use == ParameterUse::kState) {
      EXPECT_FALSE(ours.gradients[i].defined());
      continue;
    }
    ASSERT_TRUE(ours.gradients[i].defined()) << store.spec({static_cast<int32_t>(i)}).name;
    EXPECT_CLOSE(ours.gradients[i], expected[i], 1e-13) << store.spec({static_cast<int32_t>(i)}).name;
  }
  EXPECT_EQ(ours.counters.at("loads").sum().item<int64_t>(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Tokens, ExecutorSizes, ::testing::Values(0, 1, 2, 13, 64));

TEST(ExecutorRecompute, EveryMixGivesTheBitsOfNone) {
  const Toy toy;
  ParameterStore store = store_of(toy, at::kFloat, at::kFloat);
  const std::vector<ValueMap> batches{toy.batch(13, 0, at::kFloat), toy.batch(7, 1, at::kFloat)};
  const auto run = [&](RecomputePolicy policy, bool release) {
    return with_threads(1, [&] { return run_step(toy, store, {policy, 2, true, release}, batches); });
  };
  const Result none = run({}, false);
  EXPECT_EQ(none.counters.at("loads").sum().item<int64_t>(), 20);
  for (bool release : {false, true}) {
    expect_same(run({}, release), none, "none");
    for (int every : {1, 2, 3}) {
      expect_same(run({Mode::kFull, every, {}}, release), none, "full, every " + std::to_string(every));
      for (const std::vector<std::string>& keep :
           {std::vector<std::string>{}, {"*"}, {"shared"}, {"s*", "computed"}, {"mix?d", "scores"}}) {
        expect_same(run({Mode::kSelective, every, keep}, release), none, "selective, every " + std::to_string(every));
      }
    }
  }
}

TEST(ExecutorRecompute, RunsTheRegionsAgainAndNothingElse) {
  const Toy toy;
  const auto count = [&](const RecomputePolicy& policy, const std::string& line) {
    const std::string text = "\n" + describe(toy.program, build_schedule(toy.program, {policy, 1}));
    int found = 0;
    for (size_t at = text.find("\n" + line); at != std::string::npos; at = text.find("\n" + line, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count({}, "recompute"), 0);
  EXPECT_EQ(count({Mode::kFull, 1, {}}, "recompute"), 5);
  EXPECT_EQ(count({Mode::kFull, 1, {}}, "recompute embed"), 0);
  EXPECT_EQ(count({Mode::kFull, 1, {}}, "recompute loss"), 0);
  EXPECT_EQ(count({Mode::kFull, 1, {}}, "launch rows"), 1);  // its result is held
  EXPECT_EQ(count({Mode::kFull, 1, {}}, "launch transpose rows"), 1);
  EXPECT_EQ(count({}, "backward"), 7);
}

TEST(ExecutorRecompute, AChoiceIsMadeOnceAndGivenAgain) {
  Toy toy;
  ParameterStore store = store_of(toy);
  run_step(toy, store, {{Mode::kFull, 1, {}}, 2}, {toy.batch(13), toy.batch(5, 1)});
  EXPECT_EQ(toy.choices, 2);
}

TEST(ExecutorRecompute, KeepsLessMemoryThanNone) {
  const Toy toy(64);
  ParameterStore store = store_of(toy, at::kFloat, at::kFloat);
  const auto peak = [&](const RecomputePolicy& policy) {
    Executor executor(toy.program, store);
    executor.run(build_schedule(toy.program, {policy, 1}), {toy.batch(512, 0, at::kFloat)}, seeds_of(1));
    return executor.ledger().peak_bytes();
  };
  EXPECT_LT(peak({Mode::kFull, 1, {}}), peak({}));
}

TEST(ExecutorRecompute, WhatIsRegatheredIsExchangedAgainAndNotHeld) {
  const Toy toy;
  ParameterStore store = store_of(toy);
  ScheduleOptions held{{Mode::kFull, 1}, 1}, regathered{{Mode::kFull, 1, {}, {"rows"}}, 1};
  held.axis_sizes = regathered.axis_sizes = {{"ep", 2}};
  const auto launches = [&](const ScheduleOptions& options) {
    return std::ranges::count_if(build_schedule(toy.program, options), [&](const Action& action) {
      return action.kind == ActionKind::kLaunch && toy.program.exchanges[action.index].name == "rows";
    });
  };
  EXPECT_EQ(launches(held), 1);
  EXPECT_EQ(launches(regathered), 2);
  const std::vector<ValueMap> batch{toy.batch(13)};
  expect_same(run_step(toy, store, regathered, batch), run_step(toy, store, {}, batch), "regathered");
}

TEST(ExecutorOffload, ValuesRestInAFileAndComeBackWithTheSameBits) {
  const Toy toy;
  ParameterStore store = store_of(toy, at::kFloat, at::kFloat);
  const std::vector<ValueMap> batches{toy.batch(13, 0, at::kFloat), toy.batch(0, 1, at::kFloat), toy.batch(7, 2, at::kFloat)};
  const Result none = run_step(toy, store, {{}, 3}, batches);
  for (int distance : {1, 2}) {
    for (const RecomputePolicy& policy : {RecomputePolicy{Mode::kFull, 1, {}, {}, {"*"}, distance},
                                          RecomputePolicy{Mode::kSelective, 2, {"s*"}, {}, {"*"}, distance},
                                          RecomputePolicy{Mode::kFull, 1, {}, {}, {"stream"}, distance}}) {
      const std::vector<Action> schedule = build_schedule(toy.program, {policy, 3});
      store.clear_gradients();
      Executor executor(toy.program, store);
      executor.offload_to(::testing::TempDir());
      for (int step = 0; step < 2; ++step) {  // the second finds places that the first left
        store.clear_gradients();
        executor.clear_counters();
        executor.run(schedule, batches, seeds_of(3));
      }
      EXPECT_FALSE(executor.exchanging());
      EXPECT_GT(executor.offload()->written_bytes(), 0);
      Result result{executor.losses(), {}, executor.input_gradients().at(toy.start.index), executor.counters()};
      for (size_t i = 0; i < store.size(); ++i) result.gradients.push_back(store.gradient({static_cast<int32_t>(i)}));
      expect_same(result, none, describe(toy.program, schedule));
    }
  }
}

TEST(ExecutorOffload, SetsOutAfterTheLastUseAndIsBackBeforeTheNext) {
  const Toy toy;
  std::vector<std::string> lines;
  for (const Action& action : build_schedule(toy.program, {{Mode::kFull, 1, {}, {}, {"stream"}, 2}, 1})) {
    const bool moves = action.kind >= ActionKind::kLaunchOffload;
    const bool runs =
        action.kind == ActionKind::kForward || action.kind == ActionKind::kRecompute || action.kind == ActionKind::kBackward;
    if (moves || runs) lines.push_back(describe(toy.program, action));
  }
  const auto at = [&](const std::string& line) { return std::ranges::find(lines, line) - lines.begin(); };
  EXPECT_EQ(lines[at("forward mix #0") + 1], "launch offload stream #0");  // its last reader
  EXPECT_EQ(lines[at("wait offload stream #0") - 1], "forward loss #0");   // two segments on
  EXPECT_EQ(lines[at("wait fetch stream #0") + 1], "recompute mix #0");    // its next reader
  EXPECT_EQ(at("wait fetch stream #0") - at("launch fetch stream #0"), 3);
}

TEST(ExecutorOffload, AFileThatCannotBeMadeIsNamed) {
  const Toy toy;
  ParameterStore store = store_of(toy);
  Executor executor(toy.program, store);
  try {
    executor.offload_to("/proc/nowhere");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("/proc/nowhere: cannot be given a scratch file"));
  }
}

TEST(ExecutorLedger, LiveBytesEqualCountedAllocations) {
  Toy toy(64);
  ParameterStore store = store_of(toy, at::kFloat, at::kFloat);
  const ValueMap batch = toy.batch(512, 0, at::kFloat);
  int64_t given = 0;
  for (const auto& [id, tensor] : batch) given += static_cast<int64_t>(tensor.storage().nbytes());
  for (const RecomputePolicy& policy :
       {RecomputePolicy{}, RecomputePolicy{Mode::kFull, 1, {}}, RecomputePolicy{Mode::kSelective, 2, {"shared"}}}) {
    Executor executor(toy.program, store);
    store.clear_gradients();
    for (size_t i = 0; i < store.size(); ++i) store.slot({static_cast<int32_t>(i)});
    const int64_t before = allocated_bytes() - given;
    int probes = 0;
    toy.probe = [&] {
      const int64_t live = allocated_bytes() - before;
      EXPECT_NEAR(static_cast<double>(executor.ledger().live_bytes()), static_cast<double>(live),
                  0.01 * static_cast<double>(live) + 2048)
          << "probe " << probes;
      ++probes;
    };
    executor.run(build_schedule(toy.program, {policy, 1}), {batch}, seeds_of(1));
    EXPECT_EQ(probes, policy.mode == Mode::kNone ? 7 : 12);
    EXPECT_LE(allocated_bytes() - before,
              given + static_cast<int64_t>(batch.at(toy.start.index).nbytes()) + 2048);  // and the gradient of `start`
  }
}

TEST(MemoryProfileOfSegments, TellsTheHighestBytesWhileEachRan) {
  Toy toy(64);
  ParameterStore store = store_of(toy, at::kFloat, at::kFloat);
  Executor executor(toy.program, store);
  MemoryProfile profile;
  executor.add_observer(profile);
  constexpr int64_t kExtra = 32 << 20;
  int probes = 0;
  toy.probe = [&] {
    if (++probes == 2) at::empty({kExtra}, at::kByte);  // in `share`, gone when it ends
  };
  reset_peak_allocated_bytes();
  executor.run(build_schedule(toy.program, {{}, 2}), {toy.batch(512, 0, at::kFloat), toy.batch(512, 1, at::kFloat)}, seeds_of(2));
  EXPECT_GE(peak_allocated_bytes(), kExtra);  // the peak of the whole is kept
  const std::vector<SegmentMemory> rows = profile.segments();
  ASSERT_EQ(rows.size(), 2 * toy.program.segments.size());
  EXPECT_EQ(rows[0].segment, "share");
  EXPECT_EQ(rows[0].pass, "forward");
  EXPECT_EQ(rows[0].runs, 2);
  EXPECT_GE(rows[0].own_bytes, kExtra);
  for (size_t i = 1; i < rows.size(); ++i) {
    EXPECT_LT(rows[i].own_bytes, kExtra / 2) << rows[i].pass << " " << rows[i].segment;
    EXPECT_LE(rows[i].highest_bytes, rows[i - 1].highest_bytes);
  }
  executor.remove_observer(profile);
  executor.run(build_schedule(toy.program, {}), {toy.batch(8, 0, at::kFloat)}, seeds_of(1));
  EXPECT_EQ(profile.segments()[0].runs, 2);
}

TEST(ExecutorSchedule, ReleasesAValueBehindItsLastReader) {
  const Toy toy;
  ScheduleOptions forward_only;
  forward_only.backward = false;
  EXPECT_EQ(describe(toy.program, build_schedule(toy.program, forward_only)),
            "launch gather embed\nwait gather embed\nlaunch gather layer 0\nforward embed #0\nrelease unit embed\n"
            "release ids #0\nrelease start #0\n"
            "wait gather layer 0\nlaunch gather experts\nforward share #0\nforward route #0\nrelease unit layer 0\n"
            "launch rows #0\nrelease row_count #0\nrelease sent #0\nwait rows #0\n"
            "wait gather experts\nlaunch gather layer 2\nforward experts #0\nrelease unit experts\nrelease offsets #0\n"
            "release scores #0\nrelease rows #0\nrelease side_loss #0\n"
            "forward mix #0\nrelease stream #0\nrelease order #0\nrelease computed #0\n"
            "wait gather layer 2\nlaunch gather head\nforward up #0\nrelease unit layer 2\nrelease shared #0\n"
            "release mixed #0\nwait gather head\nforward loss #0\nrelease unit head\nrelease targets #0\nrelease hidden #0\n"
            "release loss #0\n");
}

TEST(ExecutorSchedule, ForwardOnlyGivesTheLossesAndNoGradient) {
  const Toy toy;
  ParameterStore store = store_of(toy);
  const ValueMap batch = toy.batch(13);
  const Result full = run_step(toy, store, {}, {batch});
  store.clear_gradients();
  ScheduleOptions options;
  options.backward = false;
  Executor executor(toy.program, store);
  executor.run(build_schedule(toy.program, options), {batch}, {});
  EXPECT_EQ(executor.losses(), full.losses);
  for (size_t i = 0; i < store.size(); ++i) EXPECT_FALSE(store.gradient({static_cast<int32_t>(i)}).defined());
}

TEST(ExecutorSchedule, UnmatchedGlobsAreTold) {
  const Toy toy;
  EXPECT_EQ(unmatched_globs(toy.program, {Mode::kSelective, 1, {"shar*", "nothing*", "?ixed"}, {"shared", "rows"}, {"none"}}),
            (std::vector<std::string>{"keep: `nothing*`", "regather: `shared`", "offload: `none`"}));
}

TEST(ExecutorStep, MicroBatchesAccumulate) {
  const Toy toy;
  ParameterStore store = store_of(toy);
  const ValueMap first = toy.batch(13, 0), second = toy.batch(5, 1);
  const Result a = run_step(toy, store, {}, {first}), b = run_step(toy, store, {}, {second}),
               both = run_step(toy, store, {{}, 2}, {first, second});
  EXPECT_EQ(both.losses, (std::vector<std::vector<double>>{a.losses[0], b.losses[0]}));
  for (size_t i = 0; i < store.size(); ++i) {
    if (!a.gradients[i].defined()) continue;
    EXPECT_CLOSE(both.gradients[i], a.gradients[i] + b.gradients[i], 1e-14);
  }
  EXPECT_SAME_BITS(both.counters.at("loads"), a.counters.at("loads") + b.counters.at("loads"));
}

TEST(ExecutorStep, FrozenParametersGetNoGradientAndChangeNoOther) {
  const Toy toy;
  ParameterStore store = store_of(toy);
  const ValueMap batch = toy.batch(13);
  const Result all = run_step(toy, store, {}, {batch});
  for (size_t frozen = 0; frozen < store.size(); ++frozen) {
    const ParameterId id{static_cast<int32_t>(frozen)};
    const bool was = store.trainable(id);
    store.set_trainable(id, false);
    const Result result = run_step(toy, store, {}, {batch});
    EXPECT_FALSE(result.gradients[frozen].defined()) << store.spec(id).name;
    for (size_t i = 0; i < store.size(); ++i) {
      if (i == frozen) continue;
      EXPECT_SAME_BITS(result.gradients[i], all.gradients[i]);
    }
    store.set_trainable(id, was);
  }
  for (size_t i = 0; i < store.size(); ++i) store.set_trainable({static_cast<int32_t>(i)}, false);
  const Result none = run_step(toy, store, {}, {batch});
  EXPECT_EQ(none.losses, all.losses);
  EXPECT_SAME_BITS(none.start_gradient, all.start_gradient);
  for (const at::Tensor& gradient : none.gradients) EXPECT_FALSE(gradient.defined());
}

TEST(ExecutorStep, Bfloat16ComputesWithFloatSlotsNearTheFloatGradients) {
  const Toy toy;
  ParameterStore wide = store_of(toy, at::kFloat, at::kFloat), low = store_of(toy, at::kFloat, at::kBFloat16);
  for (size_t i = 0; i < wide.size(); ++i) {  // weights that BF16 holds exactly, so that the same experts are chosen
    const ParameterId id{static_cast<int32_t>(i)};
    for (ParameterStore* store : {&wide, &low}) store->master(id).copy_(store->master(id).to(at::kBFloat16));
  }
  ValueMap batch = toy.batch(13, 0, at::kBFloat16), wide_batch = batch;
  wide_batch[toy.start.index] = batch.at(toy.start.index).to(at::kFloat);
  const Result a = run_step(toy, wide, {}, {wide_batch}), b = run_step(toy, low, {}, {batch});
  ASSERT_TRUE(at::equal(a.counters.at("loads"), b.counters.at("loads")));
  for (size_t i = 0; i < wide.size(); ++i) {
    if (!a.gradients[i].defined()) continue;
    EXPECT_EQ(b.gradients[i].scalar_type(), at::kFloat);
    EXPECT_CLOSE(b.gradients[i], a.gradients[i], 0.05) << wide.spec({static_cast<int32_t>(i)}).name;
  }
}

TEST(ExecutorStep, TwoRunsGiveTheSameBits) {
  const Toy toy;
  ParameterStore store = store_of(toy, at::kFloat, at::kFloat);
  const ValueMap batch = toy.batch(61, 0, at::kFloat);
  expect_same(run_step(toy, store, {}, {batch}), run_step(toy, store, {}, {batch}), "again");
}

// A program of one segment `code` from x [tokens, 2] to y [tokens, 2] and a choice c [tokens], with a weight and a leaf.
struct Single {
  ValueId x, y, c, unread;
  ParameterId weight, leaf, foreign;
  Program program;

  explicit Single(const std::function<void(SegmentRun&, const Single&)>& code) {
    ProgramBuilder b;
    x = b.input("x", ValueKind::kDifferentiable, {"tokens", 2}, true);
    unread = b.input("unread", ValueKind::kDifferentiable, {"tokens", 2});
    weight = Toy::add_parameter(b, "weight", {2, 2}, ParameterUse::kWeight),
    leaf = Toy::add_parameter(b, "leaf", {2}, ParameterUse::kLeaf);
    foreign = Toy::add_parameter(b, "foreign", {2}, ParameterUse::kLeaf);
    b.close_unit("all");
    y = b.value("y", {"tokens", 2}), c = b.choice("c", {"tokens"});
    b.segment("only", {x}, {y, c}, {weight, leaf}, [=, this](SegmentRun& run) { code(run, *this); });
    program = std::move(b).build();
  }

  std::string error(const at::Tensor& given = at::ones({3, 2}), const at::Tensor& other = at::ones({3, 2})) const {
    ParameterStore store(program.parameters, at::kFloat, at::kFloat);
    Executor executor(program, store);
    try {
      executor.run(build_schedule(program, {}), {{{x.index, given}, {unread.index, other}}}, {{}});
    } catch (const InternalError& error) {
      EXPECT_EQ(executor.ledger().live_values(), 0u);  // the next step starts from nothing
      return error.what();
    }
    return "";
  }
};

void good(SegmentRun& run, const Single& s) {
  run.make(s.y, run.read(s.x) * 2);
  run.make(s.c, at::zeros({run.read(s.x).size(0)}, at::kLong));
}

TEST(ExecutorErrors, ASegmentThatBreaksItsDeclarationIsNamed) {
  const auto expect = [](const std::string& part, const std::function<void(SegmentRun&, const Single&)>& code) {
    const std::string error = Single(code).error();
    EXPECT_NE(error.find(part), std::string::npos) << "`" << part << "` is not in: " << error;
  };
  EXPECT_EQ(Single(good).error(), "");
  expect("reads `unread` without declaring it", [](SegmentRun& run, const Single& s) { run.read(s.unread); });
  expect("makes `x` without declaring it", [](SegmentRun& run, const Single& s) { run.make(s.x, at::ones({3, 2})); });
  expect("makes `y` twice", [](SegmentRun& run, const Single& s) { good(run, s), run.make(s.y, at::ones({3, 2})); });
  expect("did not make `c`", [](SegmentRun& run, const Single& s) { run.make(s.y, run.read(s.x) * 2); });
  expect("`y` is declared [tokens, 2] and came as [4, 2]", [](SegmentRun& run, const Single& s) {
    run.make(s.y, at::ones({4, 2}));
  });
  expect("`y` is declared [tokens, 2] and came as [3]", [](SegmentRun& run, const Single& s) { run.make(s.y, at::ones({3})); });
  expect("discrete `c` requires grad", [](SegmentRun& run, const Single& s) { run.make(s.c, run.read(s.x).select(1, 0)); });
  expect("uses foreign without declaring it", [](SegmentRun& run, const Single& s) { run.parameter(s.foreign); });
  expect("uses the weight weight as a plain tensor", [](SegmentRun& run, const Single& s) { run.parameter(s.weight); });
  expect("changed its input `x` in place", [](SegmentRun& run, const Single& s) {
    at::NoGradGuard no_grad;
    at::Tensor(run.read(s.x)).add_(1);
    good(run, s);
  });
}

TEST(ExecutorErrors, InputsThatAreMissingOrDoNotFitAreNamed) {
  const Single single(good);
  EXPECT_NE(single.error(at::ones({3, 3})).find("`x` is declared [tokens, 2] and came as [3, 3]"), std::string::npos);
  EXPECT_NE(single.error(at::ones({3, 2}), at::ones({4, 2})).find("`unread` is declared [tokens, 2] and came as [4, 2]"),
            std::string::npos);
  ParameterStore store(single.program.parameters, at::kFloat, at::kFloat);
  Executor executor(single.program, store);
  EXPECT_THROW(executor.run(build_schedule(single.program, {}), {{{single.x.index, at::ones({3, 2})}}}, {{}}), InternalError);
  EXPECT_EQ(executor.ledger().live_values(), 0u);
}

TEST(ProgramErrors, AWrongOrderIsRefusedWhileBuilding) {
  const auto code = [](SegmentRun&) {};
  const auto refuses = [](const std::string& part, const std::function<void(ProgramBuilder&)>& build) {
    ProgramBuilder b;
    try {
      build(b);
      std::move(b).build();
    } catch (const InternalError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      return;
    }
    ADD_FAILURE() << "not refused: " << part;
  };
  refuses("reads `v` before it is there", [&](ProgramBuilder& b) { b.segment("s", {b.value("v", {1})}, {}, {}, code); });
  refuses("value `v` is declared and never made", [&](ProgramBuilder& b) { b.value("v", {1}); });
  refuses("makes `v`, which exists already", [&](ProgramBuilder& b) {
    const ValueId v = b.value("v", {1});
    b.segment("s", {}, {v}, {}, code);
    b.segment("t", {}, {v}, {}, code);
  });
  refuses("two values are called `v`", [&](ProgramBuilder& b) {
    b.segment("s", {}, {b.value("v", {1}), b.choice("v", {1})}, {}, code);
  });
  refuses("uses `v` before it is there",
          [&](ProgramBuilder& b) { b.launch("e", ExchangeKind::kAllReduce, "cp", b.value("v", {1})); });
  refuses("reads `e` before it is there", [&](ProgramBuilder& b) {
    b.segment("s", {b.launch("e", ExchangeKind::kAllReduce, "cp", b.input("v", ValueKind::kDiscrete, {1}))}, {}, {}, code);
  });
  refuses("value `e` is declared and never made",
          [&](ProgramBuilder& b) { b.launch("e", ExchangeKind::kAllReduce, "cp", b.input("v", ValueKind::kDiscrete, {1})); });
  refuses("is not an exchange under way", [&](ProgramBuilder& b) {
    const ValueId e = b.launch("e", ExchangeKind::kAllReduce, "cp", b.input("v", ValueKind::kDiscrete, {1}));
    b.wait(e);
    b.wait(e);
  });
  refuses("is not an exchange under way", [&](ProgramBuilder& b) { b.wait(b.input("v", ValueKind::kDiscrete, {1})); });
  refuses("parameter p belongs to no unit", [&](ProgramBuilder& b) { Toy::add_parameter(b, "p", {1}, ParameterUse::kLeaf); });
}

}  // namespace
}  // namespace hyperparallel::engine
