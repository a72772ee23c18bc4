#include "plan/report_text.h"

#include <fmt/format.h>

namespace hyperparallel::plan {

std::string bytes_text(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 1e9) return fmt::format("{:.2f} GB", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.2f} MB", value / 1e6);
  return fmt::format("{:.1f} kB", value / 1e3);
}

std::string with_commas(int64_t number) {
  if (number < 1000) return std::to_string(number);
  return fmt::format("{},{:03}", with_commas(number / 1000), number % 1000);
}

}  // namespace hyperparallel::plan
