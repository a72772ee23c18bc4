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

}  // namespace hyperparallel::dist
