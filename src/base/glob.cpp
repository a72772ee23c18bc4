#include "base/glob.h"

#include <fnmatch.h>

namespace hyperparallel {

bool glob_matches(const std::string& glob, const std::string& text) {
  return fnmatch(glob.c_str(), text.c_str(), 0) == 0;
}

}  // namespace hyperparallel
