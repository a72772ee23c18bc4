// Self-contained HTML pages that draw from data inside them.
#pragma once

#include <string>
#include <string_view>

namespace hyperparallel {

// `page` with JSON text in place of `placeholder`, which stands in a script element. Throws InternalError where it is missing.
std::string fill_page(std::string_view page, std::string_view placeholder, std::string json);

}  // namespace hyperparallel
