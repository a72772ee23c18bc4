// Any layout, same loss: the tiny model trained on thread ranks in many layouts against one rank.
#include <set>

#include "parity/run.h"

namespace hyperparallel::parity {
namespace {

class Parity : public testing::TestWithParam<Layout> {};

TEST_P(Parity, EqualsOneRank) {
  const Outcome found = run(GetParam());
  expect_first_step(found, GetParam().data);
  expect_later_steps(GetParam(), found);
}

// Rounding aside, a layout is one rank exactly.
TEST(ParityInDouble, EqualsOneRank) {
  expect_same_in_double(
      {"",
       4,
       {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=4", "--parallel.sequence_parallel=true", "--recompute.mode=full"}});
}

const auto kName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Matrix, Parity, testing::ValuesIn(matrix_layouts()), kName);

// Beyond the table: parameters that stay gathered, degrees that are no powers of two, more ranks than experts.
std::vector<Layout> others() {
  std::vector<Layout> layouts{{"Dp2WithoutResharding", 2, {"--parallel.reshard_after_forward=false"}, {}}};
  if (!run_all()) return layouts;
  return {layouts[0],
          {"Dp2Tp2Cp3MoreRanksThanExperts", 12, {"--parallel.tp=2", "--parallel.cp=3"}, {}},
          {"Cp3Ep3EveryOtherLayerRecomputed",
           3,
           {"--parallel.cp=3", "--parallel.ep=3", "--recompute.mode=full", "--recompute.every=2"},
           {}}};
}
INSTANTIATE_TEST_SUITE_P(Others, Parity, testing::ValuesIn(others()), kName);

// Pictures from 1 to 576 patches, some rows without, one sample a row: with two data-parallel ranks the first micro-batch has
// pictures on one of them, the second on none. With the usual eps: an mHC element's first gradient is 1e-10 of the largest, so
// that rounding decides its sign. The tower has three heads.
std::vector<Layout> picture_layouts() {
  const Data pictures{"--data.train=[" HP_SOURCE_DIR "/tests/parity/pictures.jsonl]",
                      "--data.packing=false",
                      "--data.shuffle=false",
                      "--data.seq_len=" + std::to_string(train::load_config(HP_SOURCE_DIR "/configs/tiny.yaml").data.seq_len),
                      "--train.steps=2",
                      "--optimizer.eps=1e-8"};
  return {
      {"Dp2Alone", 2, {"--parallel.vision_ulysses=1"}, {}, pictures},
      {"Dp2Ulysses2", 2, {"--parallel.vision_ulysses=2"}, {}, pictures},
      {"Cp3Ulysses3", 3, {"--parallel.cp=3", "--parallel.vision_ulysses=3"}, {}, pictures},
      {"Dp4Ulysses4",
       4,
       {"--parallel.vision_ulysses=4", "--recompute.mode=full", "--recompute.regather=[vision.*.to_heads]"},
       {},
       pictures},
      {"Tp2Cp2Alone", 4, {"--parallel.tp=2", "--parallel.cp=2", "--parallel.vision_ulysses=1"}, {}, pictures},
      {"Dp2Tp2Cp2Ep4Ulysses8",
       8,
       {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=4", "--parallel.cp_shard=balanced", "--parallel.vision_ulysses=8"},
       {},
       pictures},
      {"Dp2Tp2Cp3Ulysses4AcrossMicroBatches",
       12,
       {"--parallel.tp=2", "--parallel.cp=3", "--parallel.sequence_parallel=true", "--parallel.vision_ulysses=4"},
       {},
       pictures},
  };
}
INSTANTIATE_TEST_SUITE_P(Pictures, Parity, testing::ValuesIn(picture_layouts()), kName);

// Those that are many runs dear: each set of data has seven runs of one rank to compare with.
std::vector<Layout> in_whole_runs(std::vector<Layout> layouts) {
  return run_all() ? std::move(layouts) : std::vector<Layout>();
}

// The mix of update rules that the model declares, and all losses at once.
std::vector<Layout> everything_layouts() {
  return {{"Tp2Ep4Sp", 4, {"--parallel.tp=2", "--parallel.ep=4", "--parallel.sequence_parallel=true"}, {}, kEverything},
          {"Hsdp2Cp2Ep2RecomputedTablesInFiles",
           4,
           {"--parallel.fsdp_replicate=2", "--parallel.cp=2", "--parallel.ep=2", "--recompute.mode=full",
            "--model.engram_storage=mmap"},
           {},
           kEverything}};
}
INSTANTIATE_TEST_SUITE_P(Everything, Parity, testing::ValuesIn(everything_layouts()), kName);

// Update rules that need rows, columns or matrices as a whole, alone: the declared mix, and one that turns it around.
std::vector<Layout> update_layouts() {
  const Data declared{"--optimizer.name=muon"};
  const Data turned{
      "--optimizer.name=muon", "--optimizer.muon.head_wise=false",
      "--optimizer.groups=[{match: '*.engram.embed.weight', optimizer: muon}, {match: model.embed.weight, optimizer: adamw}, "
      "{match: '*.wq_?.weight', optimizer: sinkhorn, lr_scale: 0.5}, {match: '*.compressor.wkv.weight', optimizer: sinkhorn}, "
      "{match: '*.hc_*_fn', optimizer: adamw, weight_decay: 0}]"};
  return in_whole_runs({
      {"DeclaredDp2", 2, {}, {}, declared},
      {"DeclaredTp2Ep4Sp", 4, {"--parallel.tp=2", "--parallel.ep=4", "--parallel.sequence_parallel=true"}, {}, declared},
      {"DeclaredHsdp2Cp2Ep2",
       4,
       {"--parallel.fsdp_replicate=2", "--parallel.cp=2", "--parallel.ep=2", "--recompute.mode=full"},
       {},
       declared},
      {"TurnedTp2Ep2", 4, {"--parallel.tp=2", "--parallel.ep=2"}, {}, turned},
      {"TurnedHsdp2Dp4", 4, {"--parallel.fsdp_replicate=2"}, {}, turned},
  });
}
INSTANTIATE_TEST_SUITE_P(Updates, Parity, testing::ValuesIn(update_layouts()), kName);

// Engram tables whose rows have one owner each, in memory and in files.
std::vector<Layout> table_layouts() {
  return {{"SparseAdamTp2Cp2Ep2",
           4,
           {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=2", "--recompute.mode=full"},
           {},
           kSparseTables},
          {"SparseAdamHsdp2Dp4InFiles", 4, {"--parallel.fsdp_replicate=2", "--model.engram_storage=mmap"}, {}, kSparseTables}};
}
INSTANTIATE_TEST_SUITE_P(Tables, Parity, testing::ValuesIn(table_layouts()), kName);

std::vector<Layout> balanced_table_layouts() {
  const Data balanced{"--model.engram_storage=host", "--optimizer.name=muon"};
  return in_whole_runs({{"Tp2Cp3Ep6SpInFiles",
                         6,
                         {"--parallel.tp=2", "--parallel.cp=3", "--parallel.ep=6", "--parallel.sequence_parallel=true",
                          "--model.engram_storage=mmap"},
                         {},
                         balanced}});
}
INSTANTIATE_TEST_SUITE_P(BalancedTables, Parity, testing::ValuesIn(balanced_table_layouts()), kName);

// The dense stage of the indexer: nothing is chosen, and nothing else learns. The seed is one with which no product of a query
// and a group is 0 within rounding: there the gradient of a head jumps.
std::vector<Layout> dense_layouts() {
  const Data dense{"--train.loss.indexer_dense", "--train.trainable=['*.attn.indexer.*']", "--train.seed=1"};
  return {{"Tp2Cp2Balanced",
           4,
           {"--parallel.tp=2", "--parallel.cp=2", "--parallel.cp_shard=balanced", "--recompute.mode=full"},
           {},
           dense}};
}
INSTANTIATE_TEST_SUITE_P(DenseIndexer, Parity, testing::ValuesIn(dense_layouts()), kName);

TEST(ParityInDouble, TablesOutsideOfDeviceMemoryMoveAsThoseInside) {
  expect_same_in_double({"",
                         2,
                         {"--parallel.tp=2", "--model.engram_storage=host"},
                         {},
                         {"--optimizer.groups=[{match: '*.engram.embed.weight', optimizer: sinkhorn}]"}});
}

// Draft layers beside the model, with anchors on both sides of every border.
std::vector<Layout> draft_layouts() {
  const Data drafts{"--train.loss.draft.weight=0.5", "--train.loss.draft.anchors=29"};
  return in_whole_runs(
      {{"Tp2Cp2Ep4Sp",
        4,
        {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=4", "--parallel.sequence_parallel=true", "--recompute.mode=full"},
        {},
        drafts},
       {"Dp2Cp2BalancedEp2", 4, {"--parallel.cp=2", "--parallel.ep=2", "--parallel.cp_shard=balanced"}, {}, drafts},
       {"Hsdp2Tp2WholeVocabulary",
        4,
        {"--parallel.fsdp_replicate=2", "--parallel.tp=2",
         "--parallel.plan_overrides=[{match: model.embed.weight, role: replicated}, {match: lm_head.weight, role: replicated}, "
         "{match: '*.markov_head.*', role: replicated}]"},
        {},
        drafts}});
}
INSTANTIATE_TEST_SUITE_P(Drafts, Parity, testing::ValuesIn(draft_layouts()), kName);

TEST(ParityModel, ChoicesOfStepOneAreNoTies) {
  for (const auto& [name, rows] : exact().choices) {
    for (const auto& [row, choice] : rows) EXPECT_TRUE(choice.equal(one_rank().choices.at(name).at(row))) << name << " " << row;
  }
  std::set<std::string> kinds;
  for (const auto& [name, rows] : exact().choices) kinds.insert(name.substr(name.rfind('.') + 1));
  EXPECT_THAT(kinds, testing::ElementsAre("candidate_blocks", "expert_ids", "topk"));
}

TEST(ParityModel, BatchesHaveDocumentsOfTextAndPicturesPackedAndOneAcrossEveryBorder) {
  class Look : public train::TrainerCallback {
   public:
    void on_batches(train::Trainer&, int64_t step, const std::vector<data::MicroBatch>& batches) override {
      if (step > 1) return;
      for (const data::MicroBatch& batch : batches) {
        packed_ += batch.samples.size() > 1 && !batch.images.empty() && batch.images.size() < batch.samples.size();
        const int64_t tokens = batch.cu_seqlens.back(), shards = 16;  // balanced over 8 ranks
        for (size_t d = 0; d + 1 < batch.cu_seqlens.size(); ++d) {
          across_ += batch.cu_seqlens[d] < engine::part_begin(tokens, shards, 1) &&
                     batch.cu_seqlens[d + 1] > engine::part_begin(tokens, shards, shards - 1) &&
                     batch.padding[batch.cu_seqlens[d]] == 0;
        }
      }
    }
    void on_train_end(train::Trainer&) override {
      EXPECT_GT(packed_, 0);
      EXPECT_GT(across_, 0);
    }

   private:
    int packed_ = 0, across_ = 0;
  };
  RunOptions options;
  options.callbacks = [] {
    std::vector<std::unique_ptr<train::TrainerCallback>> callbacks;
    callbacks.push_back(std::make_unique<Look>());
    callbacks.push_back(stop_after(1));
    return callbacks;
  };
  run({"", 1, {}, {}}, options);
}

TEST(ParityLayouts, ACoverHasEveryPairAndIsAlwaysTheSame) {
  const std::vector<Layout> all = all_layouts(4), cover = pairwise_cover(all);
  EXPECT_LT(cover.size(), all.size() / 4);
  const auto pairs = [](const std::vector<Layout>& layouts) {
    std::set<std::tuple<size_t, std::string, size_t, std::string>> found;
    for (const Layout& layout : layouts) {
      for (size_t i = 0; i < layout.traits.size(); ++i) {
        for (size_t j = 0; j < i; ++j) found.emplace(j, layout.traits[j], i, layout.traits[i]);
      }
    }
    return found;
  };
  EXPECT_EQ(pairs(cover), pairs(all));
  const std::vector<Layout> again = pairwise_cover(all_layouts(4));
  ASSERT_EQ(again.size(), cover.size());
  for (size_t i = 0; i < cover.size(); ++i) EXPECT_EQ(again[i].name, cover[i].name);
  std::set<std::string> names;
  for (const Layout& layout : all) EXPECT_TRUE(names.insert(layout.name).second) << layout.name;
}

}  // namespace
}  // namespace hyperparallel::parity
