// The report's HTML page with style and script. Its placeholder is replaced by report_data() as JSON.
#pragma once

#include <string_view>

namespace hyperparallel::train {

extern const std::string_view kReportPage;
inline constexpr std::string_view kReportPlaceholder = "@REPORT_DATA@";

}  // namespace hyperparallel::train
