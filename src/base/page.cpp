#include "base/page.h"

#include "base/error.h"

namespace hyperparallel {

std::string fill_page(std::string_view page, std::string_view placeholder, std::string json) {
  // Inside a script element only `</` and `<!--` could end the text early.
  for (size_t at = 0; (at = json.find('<', at)) != json.npos; at += 6) json.replace(at, 1, "\\u003c");
  const size_t place = page.find(placeholder);
  HP_CHECK(place != page.npos, "the page has no `{}`", placeholder);
  std::string filled(page.substr(0, place));
  filled += json;
  filled += page.substr(place + placeholder.size());
  return filled;
}

}  // namespace hyperparallel
