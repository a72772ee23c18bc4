#include "train/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/store.h"

namespace hyperparallel::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAside = "before-restart";
// What a run writes into its folder.
constexpr const char* kOfARun[] = {"checkpoints", "metrics.jsonl", "tb",       "traces",     "report.html",
                                   "eval.json",   "samples.json",  "run.json", "config.yaml"};

}  // namespace

OutputLock::OutputLock(const fs::path& output) {
  std::error_code error;
  fs::create_directories(output, error);
  if (error || !fs::is_directory(output))
    throw UsageError("train.output: {} cannot be a folder: {}", output.string(), error ? error.message() : "it is a file");
  if (fs::exists(output / "model.safetensors") || fs::exists(output / "model.safetensors.index.json"))
    throw UsageError("train.output: {} is a Hugging Face folder; name another one", output.string());
  const fs::path path = output / ".lock";
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw UsageError("train.output: {} cannot be written in: {}", output.string(), std::strerror(errno));
  char holder[32] = {};
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (read(descriptor_, holder, sizeof holder - 1) < 0) holder[0] = 0;
    close(descriptor_);
    throw UsageError("train.output: process {} trains into {} now; wait for it or name another folder", holder, output.string());
  }
  const std::string self = std::to_string(getpid());
  if (ftruncate(descriptor_, 0) != 0 || write(descriptor_, self.data(), self.size()) < 0)
    log::warn("{} cannot be written: {}", path.string(), std::strerror(errno));
}

OutputLock::~OutputLock() {
  close(descriptor_);
}

namespace {

fs::path aside_folder(const fs::path& output, int which) {
  return output / (which == 1 ? kAside : fmt::format("{}-{}", kAside, which));
}

}  // namespace

std::vector<fs::path> runs_set_aside(const fs::path& output) {
  std::vector<fs::path> folders;
  while (fs::exists(aside_folder(output, static_cast<int>(folders.size()) + 1)))
    folders.push_back(aside_folder(output, static_cast<int>(folders.size()) + 1));
  return folders;
}

void set_aside(const fs::path& output) {
  const fs::path checkpoints = output / "checkpoints";
  const bool keep = fs::is_directory(checkpoints) && checkpoint::CheckpointStore(checkpoints).latest().has_value();
  const fs::path aside = aside_folder(output, static_cast<int>(runs_set_aside(output).size()) + 1);
  if (keep) fs::create_directories(aside);
  for (const char* name : kOfARun) {
    if (!fs::exists(output / name)) continue;
    if (keep) {
      fs::rename(output / name, aside / name);
    } else {
      fs::remove_all(output / name);
    }
  }
}

void forget_set_aside(const fs::path& output) {
  for (const fs::path& folder : runs_set_aside(output)) fs::remove_all(folder);
}

}  // namespace hyperparallel::train
