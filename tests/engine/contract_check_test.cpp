// What replicated values and gradients promise, and that a region that breaks it is named.
#include "engine/contract_check.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "dist/thread_comm.h"

namespace hyperparallel::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

enum class Lie { kNone, kValue, kGradient, kParameter, kState };

// Two tp ranks: a replicated value enters a region, is summed when it leaves, and is used alike behind it.
std::string error_of(Lie lie) {
  std::string message = "none";
  try {
    dist::run_ranks(2, {}, [&](dist::World& world) {
      const double own = lie != Lie::kNone && world.rank() == 1 ? 1.5 : 1.0;
      ProgramBuilder b;
      const ValueId x = b.input("x", ValueKind::kDifferentiable, {"tokens", 2}, /*wants_gradient=*/true);
      const ParameterId gain = b.parameter({"gain", {2}, ParameterUse::kLeaf, false, Initialiser::fill(1.0)}),
                        bias = b.parameter({"bias", {2}, ParameterUse::kState, false, Initialiser::fill(1.0)});
      b.close_unit("all");
      b.begin_region("layer 0");
      const ValueId inside = b.exchange("inside", ExchangeKind::kEnter, "tp", x), part = b.value("part", {"tokens", 2});
      b.segment("work", {inside}, {part}, {gain},
                [=](SegmentRun& run) { run.make(part, run.read(inside) * run.parameter(gain)); });
      const ValueId outside = b.exchange("outside", ExchangeKind::kAllReduce, "tp", part), loss = b.value("loss", {});
      b.segment("end", {outside}, {loss}, {bias}, [=](SegmentRun& run) {
        run.make(loss, (run.read(outside) * run.parameter(bias)).sum() * (lie == Lie::kGradient ? own : 1.0));
      });
      b.end_region();
      b.loss({loss, "loss"});
      const Program program = std::move(b).build();

      dist::MeshDegrees degrees;
      degrees.tp = 2;
      Layout layout;
      layout.mesh = dist::Mesh(2, degrees);
      layout.rank = world.rank();
      ParameterStore store(program.parameters, at::kFloat, at::kFloat, layout);
      store.initialise(1);
      if (lie == Lie::kParameter) store.master(gain).mul_(own);
      if (lie == Lie::kState) store.master(bias).mul_(own);
      Executor executor(program, store, dist::make_groups(world, layout.mesh));
      ContractCheck check;
      executor.add_observer(check);
      ScheduleOptions options;
      options.axis_sizes = {{"tp", 2}};
      executor.run(build_schedule(program, options), {{{x.index, at::full({3, 2}, lie == Lie::kValue ? own : 1.0)}}}, {{1.0}});
    });
  } catch (const Error& error) {
    message = error.what();
  }
  return message;
}

TEST(ContractCheck, PassesARunThatKeepsThem) {
  EXPECT_EQ(error_of(Lie::kNone), "none");
}

TEST(ContractCheck, NamesTheValueItsRegionAndTheRank) {
  EXPECT_THAT(error_of(Lie::kValue), AllOf(HasSubstr("region layer 0, launch inside #0"), HasSubstr("value `x`"),
                                           HasSubstr("should be the same on the ranks of tp; on rank 1 it is not")));
}

TEST(ContractCheck, NamesTheGradient) {
  EXPECT_THAT(error_of(Lie::kGradient),
              AllOf(HasSubstr("region layer 0, launch transpose outside #0"), HasSubstr("the gradient of `outside`")));
}

TEST(ContractCheck, NamesTheParameter) {
  EXPECT_THAT(error_of(Lie::kParameter), AllOf(HasSubstr("before the step"), HasSubstr("parameter gain")));
  EXPECT_THAT(error_of(Lie::kState), AllOf(HasSubstr("before the step"), HasSubstr("parameter bias")));
}

}  // namespace
}  // namespace hyperparallel::engine
