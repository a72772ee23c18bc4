#include "data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "data_fixtures.h"

namespace hyperparallel::data {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A micro-batch as text: two are equal where these are.
std::string text_of(const MicroBatch& batch) {
  std::string text =
      fmt::format("{} {} {} {} {} {} {} {} {}\n", batch.rows, batch.seq_len, fmt::join(batch.input_ids, ","),
                  fmt::join(batch.labels, ","), fmt::join(batch.position_ids, ","), fmt::join(batch.token_types, ","),
                  fmt::join(batch.cu_seqlens, ","), fmt::join(batch.padding, ","), batch.supervised_tokens);
  for (const ImagePatches& image : batch.images) {
    double sum = 0;
    for (size_t i = 0; i < image.patches.size(); ++i) sum += image.patches[i] * static_cast<double>(1 + i % 1009);
    text += fmt::format("image {} {} {} {}\n", image.rows, image.columns, image.start, sum);
  }
  for (const SampleId& id : batch.samples) text += to_string(id) + "\n";
  return text;
}

class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() {
    std::string a, b;
    for (int i = 0; i < 11; ++i) {
      const std::string picture = i % 4 == 1 ? golden_picture(fmt::format("easyvqa-train-{}.png", i % 3)) : "";
      a += line_of(fmt::format("a{}", i), i * 5 % 7, picture) + "\n";
    }
    for (int i = 0; i < 7; ++i) b += line_of(fmt::format("b{}", i), i) + "\n";
    a_ = write(folder_, "a.jsonl", a);
    b_ = write(folder_, "b.jsonl", b);
  }

  LoaderOptions options() const {
    LoaderOptions options;
    options.files = {{a_}, {b_, 3.0}};
    options.files[0].weight = 4.0;
    options.sample.image_limits = small_images();
    options.seq_len = 48;
    options.rows = 2;
    options.open_rows = 3;
    options.seed = 5;
    options.workers = 2;
    return options;
  }

  static std::vector<std::string> batches(Loader& loader, int count) {
    std::vector<std::string> out;
    for (int i = 0; i < count; ++i) {
      auto batch = loader.next();
      if (!batch) break;
      out.push_back(text_of(*batch));
    }
    return out;
  }
  static std::vector<std::string> batches(const LoaderOptions& options, int count) {
    Loader loader(tiny_tokenizer(), options);
    return batches(loader, count);
  }
  // Lines of the samples of a whole pass, in order.
  static std::vector<std::string> samples(const LoaderOptions& options, int count = 1000) {
    Loader loader(tiny_tokenizer(), options);
    std::vector<std::string> ids;
    for (int i = 0; i < count; ++i) {
      const auto batch = loader.next();
      if (!batch) break;
      for (const SampleId& id : batch->samples)
        ids.push_back(std::filesystem::path(id.file).stem().string() + std::to_string(id.line));
    }
    return ids;
  }

  Scratch folder_;
  std::string a_, b_;
};

constexpr int kBatches = 30;  // several epochs

TEST_F(LoaderTest, TheOrderDoesNotDependOnWorkersOrPrefetching) {
  LoaderOptions with = options();
  const auto expected = batches(with, kBatches);
  for (const int64_t workers : {0, 1, 4}) {
    for (const int64_t prefetch : {0, 1, 5}) {
      with.workers = workers;
      with.prefetch_batches = prefetch;
      EXPECT_EQ(batches(with, kBatches), expected) << workers << " workers, " << prefetch << " batches ahead";
    }
  }
}

TEST_F(LoaderTest, ResumingAtEveryPositionContinuesTheSameStream) {
  for (const bool packing : {true, false}) {
    LoaderOptions with = options();
    with.packing = packing;
    Loader whole(tiny_tokenizer(), with);
    std::vector<json> states = {whole.state()};
    std::vector<std::string> expected;
    std::vector<LoaderCounters> counters;
    for (int i = 0; i < kBatches; ++i) {
      expected.push_back(text_of(*whole.next()));
      states.push_back(whole.state());
      counters.push_back(whole.counters());
    }
    EXPECT_GT(whole.epoch(), 3.0) << "the run crosses borders of epochs";
    for (int at = 0; at < kBatches; ++at) {
      with.workers = at % 4;  // other numbers of workers than the run that was stopped
      Loader resumed(tiny_tokenizer(), with);
      resumed.restore(json::parse(states[at].dump()));
      EXPECT_EQ(resumed.state(), states[at]);
      for (int i = at; i < std::min(at + 6, kBatches); ++i) {
        ASSERT_EQ(text_of(*resumed.next()), expected[i]) << "resumed at " << at << ", batch " << i;
        ASSERT_EQ(resumed.state(), states[i + 1]) << "resumed at " << at << ", batch " << i;
        ASSERT_EQ(resumed.counters(), counters[i]);
      }
    }
  }
}

TEST_F(LoaderTest, RowsGrowAndResumingBeforeAtAndAfterThatContinuesTheSameStream) {
  const auto length_of = [](int batch) { return batch < 6 ? 32 : batch < 11 ? 40 : 48; };
  for (const OverLong policy : {OverLong::kDrop, OverLong::kTruncate}) {
    LoaderOptions with = options();
    with.sample.over_long = policy;
    Loader whole(tiny_tokenizer(), with);
    std::vector<json> states;
    std::vector<std::string> expected;
    for (int i = 0; i < 20; ++i) {
      whole.set_seq_len(length_of(i));
      states.push_back(whole.state());
      const MicroBatch batch = *whole.next();
      EXPECT_EQ(batch.seq_len, length_of(i));
      expected.push_back(text_of(batch));
    }
    for (int at = 0; at < 20; ++at) {
      Loader resumed(tiny_tokenizer(), with);
      resumed.set_seq_len(length_of(at));
      resumed.restore(json::parse(states[at].dump()));
      for (int i = at; i < std::min(at + 6, 20); ++i) {
        resumed.set_seq_len(length_of(i));
        ASSERT_EQ(text_of(*resumed.next()), expected[i]) << "resumed at " << at << ", batch " << i;
      }
    }
  }
}

TEST_F(LoaderTest, RewindingGivesTheSameBatchesAgainFromAnywhereAndAfterTheEnd) {
  for (const int64_t workers : {0, 2}) {
    LoaderOptions with = options();
    with.workers = workers;
    with.repeat = with.shuffle = false;
    Loader loader(tiny_tokenizer(), with);
    const json start = loader.state();
    const std::string first = text_of(*loader.next());
    std::vector<std::string> rest;
    while (const auto batch = loader.next()) rest.push_back(text_of(*batch));
    ASSERT_GT(rest.size(), 1u);
    loader.rewind();
    EXPECT_EQ(loader.state(), start);
    EXPECT_EQ(text_of(*loader.next()), first);
    loader.rewind();
    EXPECT_EQ(text_of(*loader.next()), first);
    for (const std::string& batch : rest) ASSERT_EQ(text_of(*loader.next()), batch);
  }
}

TEST_F(LoaderTest, SecondAndThirdResumeGoOnFromTheirOwnPosition) {
  const auto expected = batches(options(), 15);
  json state;
  std::vector<std::string> seen;
  for (int run = 0; run < 3; ++run) {
    Loader loader(tiny_tokenizer(), options());
    if (run > 0) loader.restore(state);
    for (const std::string& batch : batches(loader, 5)) seen.push_back(batch);
    state = loader.state();
  }
  EXPECT_EQ(seen, expected);
}

TEST_F(LoaderTest, RestoringAfterBatchesWerePrefetchedStartsAtTheState) {
  Loader loader(tiny_tokenizer(), options());
  const json start = loader.state();
  const auto first = batches(loader, 6);
  loader.restore(start);
  EXPECT_EQ(batches(loader, 6), first);
}

TEST_F(LoaderTest, AnotherWorldReadsTheSameRows) {
  // Rows of all ranks, in global order, and a state that another world goes on from.
  const auto rows = [&](int64_t world, int64_t rows_each, int steps, const json& from, json* state) {
    std::vector<std::unique_ptr<Loader>> ranks;
    for (int64_t rank = 0; rank < world; ++rank) {
      LoaderOptions with = options();
      with.rank = rank;
      with.world = world;
      with.rows = rows_each;
      ranks.push_back(std::make_unique<Loader>(tiny_tokenizer(), with));
      if (!from.is_null()) ranks.back()->restore(from);
    }
    std::vector<std::string> out;
    for (int step = 0; step < steps; ++step) {
      for (auto& rank : ranks) {
        const auto batch = rank->next();
        for (int64_t row = 0; row < batch->rows; ++row) {
          const auto begin = batch->input_ids.begin() + row * batch->seq_len;
          out.push_back(fmt::format("{}", fmt::join(begin, begin + batch->seq_len, ",")));
        }
      }
    }
    for (auto& rank : ranks) EXPECT_EQ(rank->state()["position"]["ready"], ranks[0]->state()["position"]["ready"]);
    if (state) *state = ranks[0]->state();
    return out;
  };
  const auto expected = rows(1, 1, 24, nullptr, nullptr);
  EXPECT_EQ(rows(1, 4, 6, nullptr, nullptr), expected);
  EXPECT_EQ(rows(3, 2, 4, nullptr, nullptr), expected);
  json state;
  auto mixed = rows(2, 3, 2, nullptr, &state);
  for (const std::string& row : rows(4, 1, 3, state, nullptr)) mixed.push_back(row);
  EXPECT_EQ(mixed, expected);
}

TEST_F(LoaderTest, EveryRankKnowsWhereThePicturesOfAllRanksLie) {
  int64_t pictures = 0;
  for (const bool packing : {true, false}) {
    std::vector<std::unique_ptr<Loader>> ranks;
    for (int64_t rank = 0; rank < 3; ++rank) {
      LoaderOptions with = options();
      with.rank = rank;
      with.world = 3;
      with.packing = packing;
      with.repeat = false;  // the last ranks come to have nothing but padding
      ranks.push_back(std::make_unique<Loader>(tiny_tokenizer(), with));
    }
    while (auto first = ranks[0]->next()) {
      std::vector<MicroBatch> batches{std::move(*first), ranks[1]->next().value(), ranks[2]->next().value()};
      std::vector<BatchOutline> expected;
      for (const MicroBatch& batch : batches) {
        expected.push_back({static_cast<int64_t>(batch.input_ids.size()), {}});
        for (const ImagePatches& image : batch.images)
          expected.back().pictures.push_back({image.rows, image.columns, image.start});
        pictures += static_cast<int64_t>(batch.images.size());
      }
      for (const MicroBatch& batch : batches) EXPECT_EQ(batch.outlines, expected);
    }
  }
  EXPECT_GT(pictures, 0);
}

TEST_F(LoaderTest, AnEpochHoldsEverySampleOnceAndIsShuffledAnew) {
  LoaderOptions with = options();
  with.files = {{a_}};
  with.packing = false;
  with.rows = 11;
  const auto three = samples(with, 3);
  ASSERT_EQ(three.size(), 33u);
  std::vector<std::vector<std::string>> epochs;
  for (int i = 0; i < 3; ++i) epochs.emplace_back(three.begin() + 11 * i, three.begin() + 11 * (i + 1));
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  for (auto epoch : epochs) {
    std::ranges::sort(epoch);
    EXPECT_EQ(std::ranges::adjacent_find(epoch), epoch.end());
  }
  with.seed = 6;
  EXPECT_NE(samples(with, 1), epochs[0]);
}

TEST_F(LoaderTest, FilesAreMixedByTheirWeights) {
  LoaderOptions with = options();
  with.packing = false;
  with.rows = 1;
  for (int taken = 1; taken <= 70; taken += 6) {
    int from_a = 0;
    const auto ids = samples(with, taken);
    for (const std::string& id : ids) from_a += id.starts_with("a");
    EXPECT_NEAR(from_a, taken * 4.0 / 7.0, 1.0);
  }
  with.files = {{a_}, {b_}};  // by their length: one pass through both takes all of both
  with.rows = 18;
  auto pass = samples(with, 1);
  std::ranges::sort(pass);
  EXPECT_EQ(std::ranges::adjacent_find(pass), pass.end());
}

TEST_F(LoaderTest, ValidationReadsEverySampleOnceInTheOrderOfTheFiles) {
  LoaderOptions with = options();
  with.shuffle = with.repeat = with.packing = false;
  with.rows = 4;
  std::vector<std::string> expected;
  for (int i = 1; i <= 11; ++i) expected.push_back("a" + std::to_string(i));
  for (int i = 1; i <= 7; ++i) expected.push_back("b" + std::to_string(i));
  EXPECT_EQ(samples(with), expected);
  with.packing = true;
  auto packed = samples(with);
  std::ranges::sort(packed);
  std::ranges::sort(expected);
  EXPECT_EQ(packed, expected);

  with.packing = false;
  Loader loader(tiny_tokenizer(), with);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(loader.next()->rows, 4);
  EXPECT_EQ(loader.next()->rows, 2) << "the rest";
  EXPECT_FALSE(loader.next());
  EXPECT_FALSE(loader.next());
  Loader resumed(tiny_tokenizer(), with);
  resumed.restore(loader.state());
  EXPECT_FALSE(resumed.next());
}

TEST_F(LoaderTest, RanksWithoutRowsAtTheEndGetAPaddingBatch) {
  LoaderOptions with = options();
  with.shuffle = with.repeat = with.packing = false;
  with.files = {{b_}};
  with.world = 2;
  with.rows = 3;
  for (with.rank = 0; with.rank < 2; ++with.rank) {
    Loader loader(tiny_tokenizer(), with);
    EXPECT_EQ(loader.next()->rows, 3);
    const auto last = loader.next();
    ASSERT_TRUE(last);
    EXPECT_EQ(last->samples.size(), with.rank == 0 ? 1u : 0u);
    EXPECT_EQ(last->supervised_tokens > 0, with.rank == 0);
    EXPECT_FALSE(loader.next());
  }
}

TEST_F(LoaderTest, AChangedFileIsRefusedByName) {
  Loader loader(tiny_tokenizer(), options());
  loader.next();
  const json state = loader.state();
  std::string bytes = test::read_file(b_);
  std::string changed = bytes;
  changed[changed.find("b3")] = 'c';
  write(folder_, "b.jsonl", changed);
  EXPECT_THAT(data_error([&] { Loader(tiny_tokenizer(), options()).restore(state); }),
              AllOf(HasSubstr(b_), HasSubstr("has changed")));
  write(folder_, "b.jsonl", bytes + line_of("more", 1) + "\n");
  EXPECT_THAT(data_error([&] { Loader(tiny_tokenizer(), options()).restore(state); }),
              AllOf(HasSubstr(b_), HasSubstr("has changed")));

  const std::string moved = write(folder_, "moved.jsonl", bytes);
  LoaderOptions with = options();
  with.files[1].path = moved;
  EXPECT_EQ(data_error([&] { Loader(tiny_tokenizer(), with).restore(state); }), "accepted") << "a moved file is the same file";
}

TEST_F(LoaderTest, AStateUnderOtherSettingsOrDamagedIsRefused) {
  const json state = Loader(tiny_tokenizer(), options()).state();
  LoaderOptions with = options();
  with.seed = 6;
  EXPECT_THAT(data_error([&] { Loader(tiny_tokenizer(), with).restore(state); }),
              HasSubstr("saved with seed 5, the configuration says 6"));
  with = options();
  with.files.pop_back();
  EXPECT_THAT(data_error([&] { Loader(tiny_tokenizer(), with).restore(state); }), HasSubstr("2 data files"));
  Loader loader(tiny_tokenizer(), options());
  for (const char* key : {"version", "settings", "files", "position"}) {
    json broken = state;
    broken.erase(key);
    EXPECT_THAT(data_error([&] { loader.restore(broken); }), HasSubstr("damaged")) << key;
  }
  json broken = state;
  broken["position"]["open"] = {{{0, 99}}};
  EXPECT_THAT(data_error([&] { loader.restore(broken); }), HasSubstr("damaged"));
  broken["position"]["open"] = "x";
  EXPECT_THAT(data_error([&] { loader.restore(broken); }), HasSubstr("damaged"));
  EXPECT_EQ(batches(loader, 3), batches(options(), 3)) << "a refused state leaves the loader as it was";
}

TEST_F(LoaderTest, AnOverLongLineAmongShortOnesIsDroppedCountedAndTheRunGoesOn) {
  std::string bytes;
  for (int i = 0; i < 6; ++i) bytes += line_of("short", i == 3 ? 50'000 : 2) + "\n";
  LoaderOptions with = options();
  with.files = {{write(folder_, "long.jsonl", bytes)}};
  with.repeat = with.shuffle = false;
  with.seq_len = 1024;
  EXPECT_THAT(samples(with), ElementsAre("long1", "long2", "long3", "long5", "long6"));
  Loader loader(tiny_tokenizer(), with);
  log::init();
  ::testing::internal::CaptureStderr();
  while (loader.next()) {
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("long.jsonl:4"));
  EXPECT_EQ(loader.counters().samples_dropped, 1);
  EXPECT_EQ(loader.counters().samples, 5);

  with.sample.over_long = OverLong::kError;
  EXPECT_THAT(data_error([&] { samples(with); }), HasSubstr("long.jsonl:4"));
}

TEST_F(LoaderTest, BadLinesAndPicturesAreCountedOrStopTheRunWhenTheirTurnComes) {
  const std::string bytes = line_of("one", 1) + "\n{\n" + line_of("two", 1, "absent.png") + "\n" + line_of("three", 1) + "\n";
  LoaderOptions with = options();
  with.files = {{write(folder_, "bad.jsonl", bytes)}};
  with.repeat = with.shuffle = with.packing = false;
  with.rows = 1;
  with.sample.bad_line = with.sample.bad_image = BadInput::kSkip;
  Loader skipping(tiny_tokenizer(), with);
  while (skipping.next()) {
  }
  EXPECT_EQ(skipping.counters().bad_lines, 1);
  EXPECT_EQ(skipping.counters().bad_images, 1);
  EXPECT_EQ(skipping.counters().samples, 2);

  with.sample.bad_line = BadInput::kError;
  Loader strict(tiny_tokenizer(), with);
  EXPECT_TRUE(strict.next()) << "the good line before it is delivered";
  for (int again = 0; again < 2; ++again) EXPECT_THAT(data_error([&] { strict.next(); }), HasSubstr("bad.jsonl:2"));
}

TEST_F(LoaderTest, DataWithoutAnyUsableSampleIsAnErrorAndNoEndlessLoop) {
  LoaderOptions with = options();
  with.seq_len = 4;
  EXPECT_THAT(data_error([&] { samples(with); }), HasSubstr("none of 18 samples can be trained on"));
  with.repeat = false;
  EXPECT_THAT(data_error([&] { samples(with); }), HasSubstr("none of 18 samples can be trained on"));
}

TEST_F(LoaderTest, CountersTellWhatWasDelivered) {
  Loader loader(tiny_tokenizer(), options());
  int64_t tokens = 0, supervised = 0, padding = 0;
  for (int i = 0; i < 5; ++i) {
    const auto batch = loader.next();
    for (const uint8_t pad : batch->padding) (pad ? padding : tokens) += 1;
    for (const int64_t label : batch->labels) supervised += label != kIgnoreLabel;
    EXPECT_EQ(loader.counters().tokens, tokens);
    EXPECT_EQ(loader.counters().tokens_padding, padding);
    EXPECT_EQ(loader.counters().tokens_supervised, supervised);
  }
}

}  // namespace
}  // namespace hyperparallel::data
