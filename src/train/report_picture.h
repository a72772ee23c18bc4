// Pictures inside the report.
#pragma once

#include <filesystem>
#include <string>

namespace hyperparallel::train {

// The picture as a data URI: small PNG, JPEG, GIF and WebP files as they are, others decoded and shrunk to at most 384 pixels a
// side as PNG. `reference` is a path, absolute or relative to `folder`, a file:// URL of an absolute path, or a data URI, which
// is returned unchanged. Empty where there is no readable picture (a warning names it).
std::string picture_data_uri(const std::string& reference, const std::filesystem::path& folder);

}  // namespace hyperparallel::train
