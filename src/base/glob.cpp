#include "base/glob.h"

#include <fnmatch.h>

#include <cctype>

namespace hyperparallel {

bool glob_matches(const std::string& glob, const std::string& text) {
  return fnmatch(glob.c_str(), text.c_str(), 0) == 0;
}

std::string without_numbers(const std::string& name) {
  std::string text;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool digit =
        std::isdigit(static_cast<unsigned char>(name[i])) != 0 && i > 0 && (name[i - 1] == '.' || text.ends_with('*'));
    if (!digit) {
      text += name[i];
    } else if (!text.ends_with('*')) {
      text += '*';
    }
  }
  return text;
}

}  // namespace hyperparallel
