#include "train/tensorboard.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/scratch.h"

namespace hyperparallel::train {
namespace {

StepMetrics metrics_of(int64_t step) {
  return {.step = step,
          .loss = 1.0 / static_cast<double>(step),
          .grad_norm = 2,
          .lr = 1e-3,
          .seconds = 0.5,
          .extra = {{"validation_metrics/loss", 4.5}}};
}

// The payloads of all frames; fails the test where a frame or a checksum is wrong.
std::vector<std::string> payloads(const std::filesystem::path& path) {
  const std::string bytes = file::read(path);
  std::vector<std::string> found;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    uint32_t length_crc = 0, crc = 0;
    EXPECT_LE(at + 12, bytes.size());
    std::memcpy(&length, bytes.data() + at, 8);
    std::memcpy(&length_crc, bytes.data() + at + 8, 4);
    EXPECT_EQ(length_crc, masked_crc32c(bytes.substr(at, 8)));
    EXPECT_LE(at + 16 + length, bytes.size());
    found.push_back(bytes.substr(at + 12, length));
    std::memcpy(&crc, bytes.data() + at + 12 + length, 4);
    EXPECT_EQ(crc, masked_crc32c(found.back()));
    at += 16 + length;
  }
  return found;
}

TEST(Crc32c, PublishedValuesHold) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720 B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(TensorBoard, FramesAndChecksumsAreSound) {
  const Scratch scratch;
  TensorBoardFile sink(scratch / "tb", 0);
  sink.write(metrics_of(1));
  sink.write(metrics_of(300));
  const auto events = payloads(sink.path());
  ASSERT_THAT(events, testing::SizeIs(4));
  EXPECT_THAT(events[0], testing::EndsWith("brain.Event:2"));
  EXPECT_THAT(events[2], testing::HasSubstr("loss_metrics/global_avg_loss"));
  EXPECT_THAT(events[3], testing::HasSubstr(std::string("\x10\xac\x02", 3)));  // field 2, step 300 as a varint
}

// All scalars of a folder as TensorBoard's own package reads them: {tag: [[step, value], ...]}; null without that package.
nlohmann::json read_by_tensorboard(const std::filesystem::path& folder) {
  const char* given = std::getenv("HYPERPARALLEL_PYTHON");
  const std::string python = given ? given : HP_SOURCE_DIR "/.venv/bin/python3";
  if (std::system((python + " -c 'import tensorboard' >/dev/null 2>&1").c_str()) != 0) return nullptr;
  const auto script = folder.parent_path() / "read.py", result = folder.parent_path() / "read.json";
  file::write(script, R"(import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
tags = events.Tags()["scalars"]
json.dump({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in tags}, open(sys.argv[2], "w"))
)");
  const std::string command = fmt::format("{} {} {} {} 2>&1", python, script.string(), folder.string(), result.string());
  EXPECT_EQ(std::system(command.c_str()), 0);
  return nlohmann::json::parse(file::read(result));
}

TEST(TensorBoard, ItsOwnPackageReadsTheScalars) {
  const Scratch scratch;
  TensorBoardFile sink(scratch / "tb", 0);
  for (int64_t step = 1; step <= 3; ++step) sink.write(metrics_of(step));
  const auto scalars = read_by_tensorboard(scratch / "tb");
  if (scalars.is_null()) GTEST_SKIP() << "the Python package tensorboard is not installed";
  EXPECT_EQ(scalars.at("loss_metrics/global_avg_loss"), nlohmann::json::parse("[[1, 1.0], [2, 0.5], [3, 0.3333333432674408]]"));
  for (const auto& [name, value] : dashboard_scalars(metrics_of(3)))
    EXPECT_FLOAT_EQ(scalars.at(name).back()[1].get<float>(), static_cast<float>(value));
}

TEST(TensorBoard, ResumedRunReplacesLaterSteps) {
  const Scratch scratch;
  const auto folder = scratch / "tb";
  {
    TensorBoardFile sink(folder, 0);
    for (int64_t step = 1; step <= 5; ++step) sink.write(metrics_of(step));
    // As if the first process had begun earlier.
    std::filesystem::rename(sink.path(), folder / "events.out.tfevents.0000000001.host.1");
  }
  TensorBoardFile resumed(folder, 3);
  StepMetrics other = metrics_of(4);
  other.loss = 9;
  resumed.write(other);
  const auto scalars = read_by_tensorboard(folder);
  if (scalars.is_null()) GTEST_SKIP() << "the Python package tensorboard is not installed";
  EXPECT_EQ(scalars.at("loss_metrics/global_avg_loss").size(), 4);
  EXPECT_EQ(scalars.at("loss_metrics/global_avg_loss").back(), nlohmann::json::parse("[4, 9.0]"));
}

}  // namespace
}  // namespace hyperparallel::train
