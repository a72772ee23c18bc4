// Errors. Two kinds: HP_CHECK for our own bugs, and typed exceptions for what the user can mend.
//
// A user-facing message says what is wrong, where (file, line, key), what was found and what is accepted.
// Every typed exception carries the exit code that the program ends with (docs/configuration.md lists them).
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace hyperparallel {

enum class ExitCode : int {
  kFinished = 0,
  kBug = 1,         // our own mistake, or an error we cannot classify
  kUsage = 2,       // command line or configuration; a path that cannot be read or written
  kData = 3,        // training data, tokenizer, images
  kCheckpoint = 4,  // checkpoint or model files
  kNonFinite = 5,   // loss or gradient norm is not finite
  kPeer = 6,        // a peer is lost or timed out
  kOutOfMemory = 7,
  kCheckFailed = 8,  // a check such as `verify` does not hold
  kStopped = 16,     // stopped on request with a checkpoint: run it again
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

#define HP_DEFINE_ERROR(Name, exit_code)                                        \
  class Name : public Error {                                                   \
   public:                                                                      \
    template <class... Args>                                                    \
    explicit Name(fmt::format_string<Args...> format, Args&&... args)           \
        : Error(exit_code, fmt::format(format, std::forward<Args>(args)...)) {} \
  }
HP_DEFINE_ERROR(InternalError, ExitCode::kBug);
HP_DEFINE_ERROR(UsageError, ExitCode::kUsage);            // command line
HP_DEFINE_ERROR(ConfigError, ExitCode::kUsage);           // YAML and model configuration
HP_DEFINE_ERROR(DataError, ExitCode::kData);              // JSONL, tokenizer, chat, image
HP_DEFINE_ERROR(CheckpointError, ExitCode::kCheckpoint);  // safetensors, checkpoint folders, model files
HP_DEFINE_ERROR(NonFiniteError, ExitCode::kNonFinite);
HP_DEFINE_ERROR(PeerError, ExitCode::kPeer);  // another rank is lost, late or does something else
#undef HP_DEFINE_ERROR

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
}

// HP_CHECK(condition, "format {}", values...): an invariant of this program. Failing is our bug and throws InternalError.
#define HP_CHECK(condition, ...)                                                                         \
  do {                                                                                                   \
    if (!(condition)) [[unlikely]]                                                                       \
      ::hyperparallel::detail::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)

}  // namespace hyperparallel
