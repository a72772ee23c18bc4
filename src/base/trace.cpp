#include "base/trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/file.h"

namespace hyperparallel::trace {
namespace detail {

std::atomic<bool> recording{false};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace detail

namespace {

struct Span {
  std::string name;
  const char* category;
  int64_t start_ns, end_ns;
};

struct CounterPoint {
  std::string name, series;
  int64_t time_ns;
  double value;
};

// What one thread recorded. It outlives its thread, so that short-lived workers appear in the trace.
struct ThreadBuffer {
  std::mutex mutex;
  int id = 0;
  std::string thread_name;
  std::vector<Span> spans;
  std::vector<CounterPoint> counters;
};

struct Recorder {
  std::mutex mutex;
  int64_t start_ns = 0;
  int next_id = 1;
  std::vector<std::shared_ptr<ThreadBuffer>> buffers;
};

Recorder& recorder() {
  static Recorder instance;
  return instance;
}

ThreadBuffer& this_thread() {
  thread_local std::shared_ptr<ThreadBuffer> buffer = [] {
    auto made = std::make_shared<ThreadBuffer>();
    std::lock_guard lock(recorder().mutex);
    made->id = recorder().next_id++;
    made->thread_name = "thread " + std::to_string(made->id);
    recorder().buffers.push_back(made);
    return made;
  }();
  return *buffer;
}

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The events of one buffer as JSON objects, each after a comma and a line break. Times are microseconds since `origin_ns`.
void append_events(const ThreadBuffer& buffer, int64_t origin_ns, std::string& out) {
  const int process = getpid();
  auto microseconds = [&](int64_t time_ns) { return static_cast<double>(time_ns - origin_ns) * 1e-3; };
  fmt::format_to(std::back_inserter(out),
                 ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}", process,
                 buffer.id, json_string(buffer.thread_name));
  for (const Span& span : buffer.spans) {
    if (span.start_ns < origin_ns) continue;  // began in an earlier recording
    fmt::format_to(std::back_inserter(out),
                   ",\n{{\"ph\":\"X\",\"name\":{},\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f}}}",
                   json_string(span.name), span.category, process, buffer.id, microseconds(span.start_ns),
                   static_cast<double>(span.end_ns - span.start_ns) * 1e-3);
  }
  for (const CounterPoint& point : buffer.counters) {
    fmt::format_to(std::back_inserter(out), ",\n{{\"ph\":\"C\",\"name\":{},\"pid\":{},\"ts\":{:.3f},\"args\":{{{}:{}}}}}",
                   json_string(point.name), process, microseconds(point.time_ns), json_string(point.series), point.value);
  }
}

}  // namespace

namespace detail {

void record_span(std::string&& name, const char* category, int64_t start_ns, int64_t end_ns) {
  ThreadBuffer& buffer = this_thread();
  std::lock_guard lock(buffer.mutex);
  if (enabled()) buffer.spans.push_back({std::move(name), category, start_ns, end_ns});
}

void record_counter(std::string_view name, const char* series, double value) {
  ThreadBuffer& buffer = this_thread();
  std::lock_guard lock(buffer.mutex);
  if (enabled()) buffer.counters.push_back({std::string(name), series, now_ns(), value});
}

}  // namespace detail

void start() {
  std::lock_guard lock(recorder().mutex);
  // Buffers of threads that have ended are held by the recorder alone.
  std::erase_if(recorder().buffers, [](const auto& buffer) { return buffer.use_count() == 1; });
  for (const auto& buffer : recorder().buffers) {
    std::lock_guard buffer_lock(buffer->mutex);
    buffer->spans.clear();
    buffer->counters.clear();
  }
  recorder().start_ns = detail::now_ns();
  detail::recording = true;
}

void stop(const std::filesystem::path& path) {
  detail::recording = false;
  std::string out = fmt::format(
      "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"args\":{{\"name\":"
      "\"hyperparallel\"}}}}",
      getpid());
  {
    std::lock_guard lock(recorder().mutex);
    for (const auto& buffer : recorder().buffers) {
      std::lock_guard buffer_lock(buffer->mutex);
      if (buffer->spans.empty() && buffer->counters.empty()) continue;
      append_events(*buffer, recorder().start_ns, out);
    }
  }
  out += "\n]}\n";
  file::write(path, out);
}

void set_thread_name(std::string_view name) {
  ThreadBuffer& buffer = this_thread();
  std::lock_guard lock(buffer.mutex);
  buffer.thread_name = name;
}

}  // namespace hyperparallel::trace
