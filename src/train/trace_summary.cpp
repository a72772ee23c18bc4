#include "train/trace_summary.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace hyperparallel::train {
namespace {

struct Span {
  double begin, end;
  std::string category;
};

// Adds the time of a span without those inside it.
void add_own_time(ThreadShares& thread, const std::string& category, double seconds) {
  if (category == "matrix") {
    thread.matrix += seconds;
  } else if (category == "vector") {
    thread.vector += seconds;
  } else if (category == "communication") {
    thread.communication += seconds;
  } else if (category != "plan" && category != "exchange") {
    thread.other += seconds;
  }
}

// Spans of one thread lie within each other or apart.
void add_spans(ThreadShares& thread, std::vector<Span>& spans) {
  std::ranges::sort(spans, [](const Span& a, const Span& b) { return a.begin != b.begin ? a.begin < b.begin : a.end > b.end; });
  std::vector<std::pair<const Span*, double>> open;  // with the time of the spans inside
  const auto close = [&] {
    const auto [span, inside] = open.back();
    open.pop_back();
    add_own_time(thread, span->category, std::max(0.0, span->end - span->begin - inside));
    if (!open.empty()) open.back().second += span->end - span->begin;
  };
  for (const Span& span : spans) {
    while (!open.empty() && open.back().first->end <= span.begin) close();
    open.push_back({&span, 0});
  }
  while (!open.empty()) close();
}

}  // namespace

TraceSummary summarise_trace(const std::filesystem::path& path) {
  const auto refuse = [&](const std::string& why) { return UsageError("{}: {}", path.string(), why); };
  const nlohmann::json trace = nlohmann::json::parse(file::read(path), nullptr, /*allow_exceptions=*/false);
  if (trace.is_discarded()) throw refuse("is no JSON");
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array())
    throw refuse("is no trace: it has no list traceEvents");
  std::map<std::pair<int64_t, int64_t>, std::pair<ThreadShares, std::vector<Span>>> threads;
  double begin = 0, end = 0;
  bool has_spans = false;
  try {
    for (const nlohmann::json& event : trace["traceEvents"]) {
      const std::string phase = event.at("ph");
      if (phase != "X" && !(phase == "M" && event.at("name") == "thread_name")) continue;
      auto& [thread, spans] = threads[{event.at("pid"), event.at("tid")}];
      thread.process = event.at("pid");
      if (phase == "M") {
        thread.name = event.at("args").at("name");
        continue;
      }
      const double first = event.at("ts").get<double>() * 1e-6, last = first + event.at("dur").get<double>() * 1e-6;
      spans.push_back({first, last, event.at("cat")});
      begin = has_spans ? std::min(begin, first) : first, end = has_spans ? std::max(end, last) : last;
      has_spans = true;
    }
  } catch (const nlohmann::json::exception& error) {
    throw refuse(std::string("has an event without ph, pid, tid, ts, dur or cat: ") + error.what());
  }
  TraceSummary summary{end - begin, {}};
  for (auto& [id, found] : threads) {
    auto& [thread, spans] = found;
    if (spans.empty()) continue;
    add_spans(thread, spans);
    thread.waiting = std::max(0.0, summary.seconds - thread.matrix - thread.vector - thread.communication - thread.other);
    summary.threads.push_back(thread);
  }
  return summary;
}

}  // namespace hyperparallel::train
