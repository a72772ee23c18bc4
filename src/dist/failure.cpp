#include "dist/failure.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <new>
#include <system_error>

namespace hyperparallel::dist {

Failure current_failure() {
  try {
    throw;
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (const std::bad_alloc&) {
    return {ExitCode::kOutOfMemory, "out of memory"};
  } catch (const c10::Error& error) {
    return {ExitCode::kBug, error.what_without_backtrace()};
  } catch (const std::system_error& error) {  // of folders and streams: a path that cannot be used, a full disk
    return {ExitCode::kUsage, error.what()};
  } catch (const std::exception& error) {
    return {ExitCode::kBug, error.what()};
  } catch (...) {
    return {ExitCode::kBug, "an exception of unknown type"};
  }
}

std::string with_rank(int rank, const std::string& message) {
  return message.starts_with(fmt::format("rank {},", rank)) ? message : fmt::format("rank {}: {}", rank, message);
}

}  // namespace hyperparallel::dist
