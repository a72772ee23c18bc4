// Folders that become visible whole: written under another name with a marker inside, then renamed.
#pragma once

#include <filesystem>

namespace hyperparallel::checkpoint {

inline constexpr const char* kMarker = "INPROGRESS";  // in a folder that is still being written

void begin_folder(const std::filesystem::path& folder);  // makes it, with the marker; CheckpointError when it exists
// Removes a folder that holds the marker or a manifest of ours (that one last), or nothing. Any other is left, with a warning.
void remove_ours(const std::filesystem::path& folder);
// Frees what a failed writer has left, as far as that is possible now; does not throw.
void abandon_folder(const std::filesystem::path& folder) noexcept;

}  // namespace hyperparallel::checkpoint
