#include "base/trace.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

namespace hyperparallel {
namespace {

class Trace : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  nlohmann::json stopped() {
    trace::stop(path_);
    return nlohmann::json::parse(std::ifstream(path_)).at("traceEvents");
  }
  static std::vector<nlohmann::json> of_phase(const nlohmann::json& events, const std::string& phase) {
    std::vector<nlohmann::json> found;
    for (const auto& event : events) {
      if (event.at("ph") == phase) found.push_back(event);
    }
    return found;
  }

  std::filesystem::path path_ = testing::TempDir() + "hyperparallel-trace-" + std::to_string(getpid()) + ".json";
};

TEST_F(Trace, SpansNestAndCarryNameAndCategory) {
  trace::start();
  {
    trace::Scope outer("layers.3.\"attend\"", "segment");
    trace::Scope inner("softmax", "kernel");
  }
  const auto spans = of_phase(stopped(), "X");
  ASSERT_EQ(spans.size(), 2);
  const auto &inner = spans[0], &outer = spans[1];
  EXPECT_EQ(outer.at("name"), "layers.3.\"attend\"");
  EXPECT_EQ(outer.at("cat"), "segment");
  EXPECT_EQ(inner.at("tid"), outer.at("tid"));
  EXPECT_LE(outer.at("ts").get<double>(), inner.at("ts").get<double>());
  EXPECT_LE(inner.at("ts").get<double>() + inner.at("dur").get<double>(),
            outer.at("ts").get<double>() + outer.at("dur").get<double>() + 0.01);
}

TEST_F(Trace, NothingIsRecordedBeforeStartOrAcrossRecordings) {
  { trace::Scope before("before", "segment"); }
  trace::start();
  { trace::Scope first("first", "segment"); }
  stopped();
  trace::counter("memory", "resident", 1);
  trace::start();
  trace::counter("memory", "resident", 5);
  const auto events = stopped();
  EXPECT_TRUE(of_phase(events, "X").empty());
  ASSERT_EQ(of_phase(events, "C").size(), 1);
  EXPECT_EQ(of_phase(events, "C")[0].at("args").at("resident"), 5);
}

TEST_F(Trace, ThreadsAreNamedAndKeptAfterTheirEnd) {
  trace::start();
  auto work = [](const char* name) {
    trace::set_thread_name(name);
    for (int i = 0; i < 1000; ++i) trace::Scope scope(name, "data");
  };
  std::thread first(work, "data 0"), second(work, "data 1");
  first.join();
  second.join();
  const auto events = stopped();
  EXPECT_EQ(of_phase(events, "X").size(), 2000);
  std::map<int, std::string> names;
  for (const auto& event : of_phase(events, "M")) {
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
  }
  EXPECT_EQ(names.size(), 2);
  for (const auto& span : of_phase(events, "X")) EXPECT_EQ(names.at(span.at("tid")), span.at("name"));
}

TEST_F(Trace, ThreadsMayRecordWhileTheRecordingEnds) {
  std::atomic<bool> done = false;
  std::thread worker([&] {
    while (!done) trace::Scope scope("busy", "kernel");
  });
  for (int round = 0; round < 5; ++round) {
    trace::start();
    stopped();
  }
  done = true;
  worker.join();
}

}  // namespace
}  // namespace hyperparallel
