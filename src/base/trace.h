// A recorder of what each thread did when, written as a Chrome trace (open it in Perfetto, ui.perfetto.dev, or chrome://tracing).
//
//   trace::Scope scope("layers.3.attend", "segment");   // a span from here to the end of the block
//   trace::counter("memory", "resident", bytes);        // a point of a curve
//
// Any thread may call anything here. While no recording runs, a Scope or counter costs one relaxed load. While one runs, a thread
// appends to a buffer of its own, whose lock only the end of the recording contends for.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace hyperparallel::trace {

namespace detail {
extern std::atomic<bool> recording;
int64_t now_ns();  // monotonic
void record_span(std::string&& name, const char* category, int64_t start_ns, int64_t end_ns);
void record_counter(std::string_view name, const char* series, double value);
}  // namespace detail

inline bool enabled() {
  return detail::recording.load(std::memory_order_relaxed);
}

// Drops what an earlier recording left and starts a new one.
void start();

// Ends the recording and writes it to `path`, whole or not at all. Spans still open are left out. Throws file::FileError.
void stop(const std::filesystem::path& path);

// Names the calling thread in traces ("data 0"), also for recordings that start later.
void set_thread_name(std::string_view name);

// A span from construction to destruction. `category` must be a literal: segment, kernel, data, checkpoint, optimizer.
class Scope {
 public:
  Scope(std::string_view name, const char* category) {
    if (!enabled()) [[likely]]
      return;
    name_ = name;
    category_ = category;
    start_ns_ = detail::now_ns();
  }
  ~Scope() {
    if (category_) detail::record_span(std::move(name_), category_, start_ns_, detail::now_ns());
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  std::string name_;
  const char* category_ = nullptr;  // null: not recording
  int64_t start_ns_ = 0;
};

// A point of the curve `series` in the track `name`; both are literals or live at least until the call returns.
inline void counter(std::string_view name, const char* series, double value) {
  if (enabled()) [[unlikely]]
    detail::record_counter(name, series, value);
}

}  // namespace hyperparallel::trace
