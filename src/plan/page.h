// The plan's HTML page with style and script. Its placeholder is replaced by the data of report_html.cpp as JSON.
#pragma once

#include <string_view>

namespace hyperparallel::plan {

extern const std::string_view kPlanPage;
inline constexpr std::string_view kPlanPlaceholder = "@PLAN_DATA@";

}  // namespace hyperparallel::plan
