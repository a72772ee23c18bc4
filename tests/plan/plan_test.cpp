// The plan against known totals, and against what runs hold.
#include "plan/plan.h"

#include <gmock/gmock.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "dist/thread_comm.h"
#include "train/layout_plan.h"
#include "train/trainer.h"

namespace hyperparallel::plan {
namespace {

Plan plan_of(const std::string& config_file, int ranks, std::vector<std::string> overrides = {}) {
  return train::plan_of(train::load_config(std::filesystem::path(HP_SOURCE_DIR) / config_file, overrides), ranks);
}

TEST(Plan, TotalsOfTheReleasedModelAreThePublishedOnes) {
  for (const int ranks : {16, 128, 2048}) {
    const Plan plan = plan_of("configs/released.yaml", ranks);
    EXPECT_EQ(plan.total(), 763205315794);
    EXPECT_THAT(plan.total_by_part(), testing::ElementsAre(std::pair("aligner", 73410560), std::pair("backbone", 551566180464),
                                                           std::pair("delimiters", 15360), std::pair("draft", 14225362530),
                                                           std::pair("engram", 196928504320), std::pair("vision", 411842560)));
    ASSERT_EQ(plan.ranks.size(), static_cast<size_t>(ranks));
    // Every element is somewhere, those that tp does not cut on all of its ranks; and no rank holds much more than another.
    int64_t held = 0, most = 0;
    for (const RankMemory& memory : plan.ranks) {
      held += memory.parameters;
      most = std::max(most, memory.parameters);
    }
    EXPECT_GE(held / 4, plan.total() - plan.total_by_part().at("draft"));
    EXPECT_LT(static_cast<double>(most), 1.03 * static_cast<double>(held) / ranks);
  }
}

TEST(Plan, IsPrintedAsTableAndAsJson) {
  const Plan plan = plan_of("configs/tiny.yaml", 4, {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=4"});
  const auto json = nlohmann::json::parse(to_json(plan));
  EXPECT_EQ(json.at("parameters").at("total"), plan.total());
  EXPECT_EQ(json.at("ranks"), 4);
  EXPECT_EQ(json.at("memory").at("ranks").size(), 4u);
  EXPECT_THAT(to_table(plan), testing::AllOf(testing::HasSubstr("model.layers.*.attn.wq_b.weight"),
                                             testing::HasSubstr("dim 0 over tp"), testing::HasSubstr("all-to-all")));
  std::set<std::string> kinds;
  for (const auto& collective : json.at("collectives")) kinds.insert(collective.at("kind"));
  EXPECT_THAT(kinds, testing::IsSupersetOf({"all-gather", "reduce-scatter", "all-reduce", "all-to-all"}));
}

// An exchange's events on the time line, in order.
std::vector<TimelineEvent> events_of(const Plan& plan, const std::string& name) {
  std::vector<TimelineEvent> events;
  for (const TimelineEvent& event : plan.timeline) {
    if (event.name == name) events.push_back(event);
  }
  return events;
}

TEST(Plan, TheTimeLineShowsWhatOverlaps) {
  const Plan plan = plan_of("configs/tiny.yaml", 4, {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=4"});
  const auto keys = events_of(plan, "layers.1.attn.index_keys"), queries = events_of(plan, "layers.1.attn.queries"),
             gather = events_of(plan, "layers.2.gather");
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[1].kind, "reduce-scatter");
  const Plan still = plan_of("configs/tiny.yaml", 4, {"--parallel.cp=2", "--parallel.ep=4", "--train.loss.indexer=0"});
  EXPECT_EQ(events_of(still, "layers.1.attn.index_keys").size(), 1u);  // no loss, no gradient
  ASSERT_EQ(queries.size(), 2u);
  EXPECT_EQ(keys[0].kind, "all-gather");
  EXPECT_EQ(keys[0].axis, "cp");
  EXPECT_EQ(keys[0].lane, "critical");
  EXPECT_EQ(plan.regions.at(keys[0].region), "layers.1");
  EXPECT_GT(keys[0].bytes, 0);
  EXPECT_LE(keys[0].begin, queries[0].begin);  // under way while queries are projected
  EXPECT_GE(keys[0].end, queries[0].end);
  EXPECT_EQ(queries[0].kind, "forward");
  EXPECT_EQ(queries[1].kind, "backward");
  ASSERT_EQ(gather.size(), 2u);  // for forward and for backward
  EXPECT_EQ(gather[0].lane, "bulk");
  EXPECT_LT(gather[0].begin, gather[0].end);
}

TEST(Plan, ThePageIsCompleteInItselfAndHoldsThePlan) {
  const Plan plan = plan_of("configs/tiny.yaml", 4, {"--parallel.tp=2", "--parallel.cp=2"});
  const std::string page = to_html(plan, "<b>tiny</b> on 4 ranks");
  for (const char* elsewhere : {"src=", "<link", "@import", "https:", "url("})
    EXPECT_EQ(page.find(elsewhere), page.npos) << elsewhere;
  const std::string open = "<script id=\"data\" type=\"application/json\">";
  const size_t begin = page.find(open) + open.size(), end = page.find("</script>", begin);
  const auto data = nlohmann::json::parse(page.substr(begin, end - begin));
  EXPECT_EQ(data.at("title"), "<b>tiny</b> on 4 ranks");
  EXPECT_EQ(data.at("total"), plan.total());
  EXPECT_EQ(data.at("mesh").at("ranks").size(), 4u);
  EXPECT_EQ(data.at("timeline").at("events").size(), plan.timeline.size());
  EXPECT_EQ(data.at("memory").at("ranks").size(), 4u);
}

TEST(Plan, ThePageFoldsALargeMesh) {
  const std::string page = to_html(plan_of("configs/released.yaml", 2048), "released");
  EXPECT_LT(page.size(), 1u << 20);
  EXPECT_NE(page.find("\"rank\":2047"), page.npos);
  EXPECT_EQ(page.find("\"rank\":1000,"), page.npos);
}

TEST(Plan, OneRankSendsNothing) {
  EXPECT_TRUE(plan_of("configs/tiny.yaml", 1).collectives.empty());
}

TEST(Plan, RefusesADegreeThatDoesNotFit) {
  try {
    plan_of("configs/tiny.yaml", 4, {"--parallel.tp=4"});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("parallel.tp 4 does not divide num_attention_heads 6; accepted: 1, 2"));
  }
}

// What a run really holds, by rank.
TEST(Plan, MemoryOfRunsIsWhatWasPlanned) {
  const std::pair<int, std::vector<std::string>> layouts[] = {
      {1, {}},
      {2, {"--parallel.tp=2"}},
      {4, {"--parallel.cp=2", "--parallel.ep=4"}},
      {4, {"--parallel.fsdp_replicate=2", "--parallel.fsdp_shard=2", "--parallel.ep=2"}},
      {4, {"--parallel.tp=2", "--parallel.cp=2", "--parallel.sequence_parallel=true"}},
      {4, {"--parallel.tp=2", "--parallel.ep=2", "--optimizer.name=muon", "--optimizer.moments=bfloat16"}},
      {8, {"--parallel.tp=2", "--parallel.ep=4"}}};
  for (const auto& [ranks, overrides] : layouts) {
    std::vector<std::string> all = overrides;
    for (const char* extra : {"--train.output=/nonexistent", "--train.threads=1", "--train.steps=3", "--train.local_batch_size=1",
                              "--train.global_batch_size=8", "--validation.interval=0"})
      all.emplace_back(extra);
    const Plan plan = plan_of("configs/tiny.yaml", ranks, all);
    const train::Config config = train::load_config(std::filesystem::path(HP_SOURCE_DIR) / "configs/tiny.yaml", all);
    struct Held : train::TrainerCallback {
      explicit Held(RankMemory& memory) : memory(memory) {}
      void on_gradients(train::Trainer& trainer, int64_t) override {
        trainer.request_stop("test");
        engine::ParameterStore& store = *trainer.model().parameters;
        for (const engine::ParameterSpec& spec : store.specs()) {
          const engine::ParameterId id = store.find(spec.name);
          memory.parameters += static_cast<int64_t>(store.master(id).nbytes());
          if (store.gradient(id).defined()) memory.gradients += static_cast<int64_t>(store.gradient(id).nbytes());
        }
        for (const optim::StateTensor& state : trainer.optimizer().state()) {
          if (state.value.dim() > 0) memory.optimizer += static_cast<int64_t>(state.value.nbytes());
        }
      }
      RankMemory& memory;
    };
    std::vector<RankMemory> held(ranks);
    dist::run_ranks(ranks, {}, [&](dist::World& world) {
      train::Trainer trainer(config, &world);
      trainer.add(std::make_unique<Held>(held[world.rank()]));
      trainer.run();
    });
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(held[rank].parameters, plan.ranks[rank].parameters) << ranks << " ranks, rank " << rank;
      EXPECT_EQ(held[rank].gradients, plan.ranks[rank].gradients) << ranks << " ranks, rank " << rank;
      EXPECT_EQ(held[rank].optimizer, plan.ranks[rank].optimizer) << ranks << " ranks, rank " << rank;
    }
  }
}

}  // namespace
}  // namespace hyperparallel::plan
