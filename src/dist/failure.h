// What an exception that ends a rank tells the other ranks and the launcher.
#pragma once

#include <string>

#include "base/error.h"

namespace hyperparallel::dist {

struct Failure {
  ExitCode code;
  std::string message;
};

// Of the exception that is being handled.
Failure current_failure();

// The message with its rank in front, once: messages of waits begin with "rank 2, group" already.
std::string with_rank(int rank, const std::string& message);

}  // namespace hyperparallel::dist
