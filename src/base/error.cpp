#include "base/error.h"

#include <string_view>

namespace hyperparallel::detail {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::string_view path(file);
  if (auto position = path.rfind("/src/"); position != path.npos) path.remove_prefix(position + 1);
  throw InternalError("{}:{}: check `{}` failed: {}", path, line, condition, message);
}

}  // namespace hyperparallel::detail
