// The predicted memory of a step against what runs really take.
#include "plan/memory.h"

#include <gmock/gmock.h>

#include <fstream>

#include "engine/memory.h"
#include "plan/messages.h"
#include "support/scratch.h"
#include "train/layout_plan.h"
#include "train/trainer.h"

namespace hyperparallel::plan {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTokens = 2560;      // more than a chunk of the loss, beside pictures
constexpr int64_t kSmall = 2'000'000;  // segments that take less bytes do not matter

// A tiny model on text alone, of which every row is full.
class PlanMemory : public testing::Test {
 protected:
  PlanMemory() {
    std::ofstream file(scratch_.path() / "text.jsonl");
    for (int line = 0; line < 256; ++line) {
      std::string words;
      for (int i = 0; i < 500; ++i) words += fmt::format("{} ", (line * 131 + i * i) % 997);
      file << R"({"messages": [{"role": "user", "content": "count"}, {"role": "assistant", "content": ")" << words << "\"}]}\n";
    }
  }

  // A document of so many pictures of 544 x 544 pixels, and of text.
  void add_pictures(int64_t count) const {
    std::ofstream file(scratch_.path() / "pictures.jsonl");
    file << R"({"messages": [{"role": "user", "content": [)";
    for (int64_t i = 0; i < count; ++i)
      file << R"({"type": "image_url", "image_url": {"url": ")" HP_SOURCE_DIR R"(/tests/golden/data/images/square-544.png"}}, )";
    file << R"({"type": "text", "text": "count"}]}, {"role": "assistant", "content": ")" << std::string(2 * kTokens, 'a')
         << "\"}]}\n";
  }

  train::Config config(std::vector<std::string> overrides, const std::string& file = "tiny.yaml",
                       const std::string& data = "text.jsonl") const {
    for (const std::string& extra :
         {std::string("--train.output=/nonexistent"), std::string("--train.threads=1"), std::string("--train.steps=1"),
          std::string("--train.local_batch_size=1"), fmt::format("--data.seq_len={}", kTokens), std::string("--data.workers=0"),
          std::string("--data.over_long=truncate"), std::string("--validation.interval=0"),
          fmt::format("--data.train=[{}]", (scratch_.path() / data).string())})
      overrides.push_back(extra);
    return train::load_config(fs::path(HP_SOURCE_DIR) / "configs" / file, overrides);
  }

 private:
  Scratch scratch_;
};

// Bytes of each segment's first forward and first backward.
struct Bytes {
  int64_t kept = 0, forward = 0, backward = 0;  // alive afterwards; at most, beyond what was alive before
};
class Watch : public engine::ActionObserver {
 public:
  void on_action_begin(const engine::Executor&, const engine::Action&) override {
    before_ = engine::allocated_bytes();
    engine::reset_peak_allocated_bytes();
  }
  void on_action_end(const engine::Executor&, const engine::Action& action) override {
    Bytes& bytes = found[action.index];
    const int64_t most = engine::peak_allocated_bytes() - before_;
    if (action.kind == engine::ActionKind::kForward) {
      bytes.forward = most;
      bytes.kept = engine::allocated_bytes() - before_;
    }
    if (action.kind == engine::ActionKind::kBackward) bytes.backward = most;
  }
  std::map<int, Bytes> found;

 private:
  int64_t before_ = 0;
};

TEST_F(PlanMemory, SegmentsHoldWhatTheirFootprintsSay) {
  struct Case {
    const char *file, *dtype;
    int64_t pictures;
  };
  for (const auto& [file, dtype, count] :
       {Case{"tiny.yaml", "float32", 0}, Case{"tiny.yaml", "bfloat16", 0}, Case{"tiny.yaml", "float32", 24},
        Case{"tiny.yaml", "bfloat16", 24}, Case{"llama_tiny.yaml", "float32", 0}, Case{"llama_tiny.yaml", "bfloat16", 0}}) {
    SCOPED_TRACE(fmt::format("{}, {} pictures", file, count));
    models::PlannedPictures pictures;
    if (count > 0) {
      const auto limits = this->config({}, file).model.architecture->pictures()->limits;
      pictures = {count, data::plan_image(544, 544, limits)};
      add_pictures(count);
    }
    const train::Config config = this->config({"--train.global_batch_size=1", fmt::format("--train.dtype={}", dtype)}, file,
                                              count > 0 ? "pictures.jsonl" : "text.jsonl");
    train::Trainer trainer(config);
    Watch watch;
    trainer.model().executor->add_observer(watch);
    trainer.run();
    PlanRequest request;
    const engine::Program& program = trainer.model().program();
    request.program = &program;
    request.symbols =
        config.model.architecture->symbol_sizes(trainer.model().options, kTokens, pictures, models::Routing::kBalanced);
    request.compute_bytes = std::string(dtype) == "bfloat16" ? 2 : 4;
    const Messages sizes(request);
    int64_t all_kept = 0, all_planned = 0;
    for (const auto& [index, bytes] : watch.found) {
      if (index >= static_cast<int>(program.segments.size())) continue;
      const engine::Segment& segment = program.segments[index];
      int64_t makes = 0, raw = 0;
      for (engine::ValueId id : segment.makes) makes += sizes.bytes_of(id);
      // A second contribution to a gradient begins a sum in the math type.
      const auto is_sum = [&](engine::ValueId id) {
        int derived_before = 0;
        for (size_t other = index + 1; other < program.segments.size(); ++other)
          derived_before += program.has_backward[other] && std::ranges::count(program.segments[other].reads, id) > 0 ? 1 : 0;
        return derived_before == 1 && request.compute_bytes != request.master_bytes;
      };
      for (engine::ValueId id : segment.reads) {
        if (!program.needs_gradient[id.index]) continue;
        raw += sizes.bytes_of(id);
        if (is_sum(id)) raw += sizes.elements_of(program.values[id.index].shape) * request.master_bytes;
      }
      const int64_t kept = makes + (program.has_backward[index] ? sizes.bytes_of(segment.footprint.saved) : 0);
      const int64_t forward = kept + sizes.bytes_of(segment.footprint.forward),
                    backward = std::max(raw, sizes.bytes_of(segment.footprint.backward));
      all_kept += bytes.kept;
      all_planned += kept;
      const auto near = [&](const char* what, int64_t planned, int64_t measured, double least, double most) {
        if (measured < kSmall) return;
        const double ratio = static_cast<double>(planned) / static_cast<double>(measured);
        EXPECT_TRUE(least <= ratio && ratio <= most)
            << segment.name << " in " << dtype << ", " << what << ": planned " << planned << ", measured " << measured;
      };
      near("forward", forward, bytes.forward, 0.75, 1.35);
      near("backward", backward, bytes.backward, 0.6, 1.7);
    }
    EXPECT_NEAR(static_cast<double>(all_planned) / static_cast<double>(all_kept), 1, 0.05) << dtype;
  }
}

// The parts of the memory at the peak, by what is kept.
TEST_F(PlanMemory, RecomputeAndShardsTakeFromWhereTheySay) {
  const MemoryParts none = train::plan_of(config({"--train.global_batch_size=1"}), 1).step.at_peak,
                    full = train::plan_of(config({"--train.global_batch_size=1", "--recompute.mode=full"}), 1).step.at_peak,
                    shards = train::plan_of(config({"--train.global_batch_size=4"}), 4).step.at_peak;
  EXPECT_LT(full.graphs + full.values, 0.4 * static_cast<double>(none.graphs + none.values));
  EXPECT_EQ(full.state, none.state);
  EXPECT_LT(shards.state, 0.3 * static_cast<double>(none.state));
  EXPECT_EQ(none.copies, 0);  // the masters serve
  EXPECT_GT(shards.copies + shards.messages, 0);
}

TEST_F(PlanMemory, TheWorstRoutingTakesMore) {
  const train::Config config = this->config({"--parallel.ep=4", "--train.global_batch_size=4"});
  const Plan balanced = train::plan_of(config, 4), worst = train::plan_of(config, 4, models::Routing::kWorst);
  EXPECT_EQ(worst.symbols.at("layers.2.ffn.received"), 4 * balanced.symbols.at("layers.2.ffn.received"));
  EXPECT_GT(worst.step.at_peak.total(), 1.2 * static_cast<double>(balanced.step.at_peak.total()));
}

}  // namespace
}  // namespace hyperparallel::plan
