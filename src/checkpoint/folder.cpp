#include "checkpoint/folder.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/manifest.h"

namespace hyperparallel::checkpoint {

namespace fs = std::filesystem;

void begin_folder(const fs::path& folder) {
  if (fs::exists(folder)) throw CheckpointError("{}: is in the way and not ours to remove", folder.string());
  file::create_folders(folder);
  file::append(folder / kMarker, "");  // in one call: no temporary file that could stay behind
}

void remove_ours(const fs::path& folder) {
  const char* mark = has_manifest(folder) ? kManifestFile : kMarker;
  if (fs::exists(folder / mark) || fs::is_empty(folder)) {
    file::remove_tree(folder, mark);
  } else {
    log::warn("{} is left alone: it has no manifest of ours", folder.string());
  }
}

void abandon_folder(const fs::path& folder) noexcept {
  try {
    if (fs::exists(folder)) remove_ours(folder);
  } catch (const std::exception& error) {
    log::warn("{} stays behind: {}", folder.string(), error.what());
  }
}

}  // namespace hyperparallel::checkpoint
