#include "data/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data_fixtures.h"

namespace hyperparallel::data {
namespace {

using ::testing::ElementsAre;

std::vector<std::vector<int>> pack(const std::vector<int>& lengths, int64_t row_tokens, int64_t open_rows) {
  Packer<int> packer(row_tokens, open_rows);
  std::deque<PackedRow<int>> rows;
  for (const int length : lengths) packer.add(length, length, rows);
  packer.finish(rows);
  std::vector<std::vector<int>> out;
  for (const auto& row : rows) {
    int64_t tokens = 0;
    for (const int length : row.items) tokens += length;
    EXPECT_EQ(tokens, row.tokens);
    EXPECT_LE(tokens, row_tokens);
    out.push_back(row.items);
  }
  return out;
}

TEST(Packing, ASampleGoesIntoTheOldestRowThatHasRoom) {
  EXPECT_THAT(pack({6, 5, 4, 5, 3}, 10, 4), ElementsAre(ElementsAre(6, 4), ElementsAre(5, 5), ElementsAre(3)));
  EXPECT_THAT(pack({8, 6, 4, 1}, 10, 4), ElementsAre(ElementsAre(6, 4), ElementsAre(8, 1))) << "full rows leave at once";
}

TEST(Packing, TheOldestRowLeavesWhenTooManyAreOpen) {
  EXPECT_THAT(pack({6, 7, 8, 1, 1}, 10, 2), ElementsAre(ElementsAre(6), ElementsAre(7, 1, 1), ElementsAre(8)));
}

TEST(Packing, WithoutOpenRowsEachSampleHasARow) {
  EXPECT_THAT(pack({1, 10, 2}, 10, 0), ElementsAre(ElementsAre(1), ElementsAre(10), ElementsAre(2)));
}

TEST(Packing, NoSampleIsLostOrCutOrTwice) {
  std::vector<int> lengths;
  for (int i = 0; i < 500; ++i) lengths.push_back(1 + i * 7919 % 97);
  std::vector<int> seen;
  for (const auto& row : pack(lengths, 100, 16)) seen.insert(seen.end(), row.begin(), row.end());
  std::ranges::sort(seen);
  std::ranges::sort(lengths);
  EXPECT_EQ(seen, lengths);
}

class MicroBatchTest : public ::testing::Test {
 protected:
  static Sample sample(const std::string& answer, int words, const std::string& picture = "") {
    SampleOptions options;
    options.image_limits = small_images();
    return SampleEncoder(tiny_tokenizer(), options).encode(line_of(answer, words, picture), {"d.jsonl", words + 1});
  }
  const Sample a = sample("red", 0), b = sample("a blue circle", 3, golden_picture("easyvqa-test-1.png")), c = sample("no", 5);
  const int64_t width = a.tokens() + b.tokens() + 7;
  const MicroBatch batch = make_micro_batch({{&a, &b}, {&c}}, width, /*pad_id=*/2, /*patch_size=*/14);
};

TEST_F(MicroBatchTest, DocumentsCoverEveryPositionAndNoneCrossesARow) {
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.seq_len, width);
  for (const size_t size :
       {batch.input_ids.size(), batch.labels.size(), batch.position_ids.size(), batch.token_types.size(), batch.padding.size()}) {
    EXPECT_EQ(static_cast<int64_t>(size), 2 * width);
  }
  EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, a.tokens(), a.tokens() + b.tokens(), width, width + c.tokens(), 2 * width));
  EXPECT_THAT(batch.samples, ElementsAre(a.id, b.id, c.id));
  EXPECT_EQ(batch.supervised_tokens, a.supervised_tokens + b.supervised_tokens + c.supervised_tokens);
}

TEST_F(MicroBatchTest, EachDocumentIsTheSampleItselfSoThatPackingChangesNoLabelAndPositionsRestart) {
  int64_t document = 0;
  for (const Sample* sample : {&a, &b, &c}) {
    if (document == 2) ++document;  // the padding of the first row
    const int64_t begin = batch.cu_seqlens[document], end = batch.cu_seqlens[document + 1];
    ASSERT_EQ(end - begin, sample->tokens());
    for (int64_t t = begin; t < end; ++t) {
      EXPECT_EQ(batch.input_ids[t], sample->input_ids[t - begin]);
      EXPECT_EQ(batch.labels[t], sample->labels[t - begin]);
      EXPECT_EQ(batch.token_types[t], sample->token_types[t - begin]);
      EXPECT_EQ(batch.position_ids[t], t - begin);
      EXPECT_EQ(batch.padding[t], 0);
    }
    EXPECT_EQ(batch.labels[end - 1], kIgnoreLabel) << "no label crosses into the next document";
    ++document;
  }
  for (int64_t t = batch.cu_seqlens[2]; t < batch.cu_seqlens[3]; ++t) {
    EXPECT_EQ(batch.input_ids[t], 2);
    EXPECT_EQ(batch.labels[t], kIgnoreLabel);
    EXPECT_EQ(batch.token_types[t], kSpanText);
    EXPECT_EQ(batch.padding[t], 1);
    EXPECT_EQ(batch.position_ids[t], t - batch.cu_seqlens[2]);
  }
}

TEST_F(MicroBatchTest, PicturesPointAtTheirStartTokenAndHoldTheirPatches) {
  ASSERT_EQ(batch.images.size(), 1u);
  const ImagePatches& image = batch.images[0];
  EXPECT_EQ(batch.token_types[image.start], kSpanStart);
  EXPECT_EQ(image.start, a.tokens() + b.images[0].start);
  EXPECT_EQ(image.rows, b.images[0].plan.patch_rows);
  EXPECT_EQ(image.columns, b.images[0].plan.patch_columns);
  EXPECT_EQ(image.patches, image_patches(b.images[0].canvas, 14));
}

}  // namespace
}  // namespace hyperparallel::data
