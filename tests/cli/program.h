// Runs the built program and keeps what it said.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace hyperparallel {

// A new empty folder, removed with all that is in it at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "hyperparallel-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct ProgramResult {
  int code = -1;  // exit code, or 128 + signal
  std::string output, error;
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// `hyperparallel ARGUMENTS`, given to a shell, in the folder `where`.
inline ProgramResult run_program(const std::string& arguments, const std::filesystem::path& where = HP_SOURCE_DIR) {
  const TemporaryFolder folder;
  const std::filesystem::path output = folder.path() / "output", error = folder.path() / "error";
  const std::string command = "cd '" + where.string() + "' && '" HP_BINARY_DIR "/hyperparallel' " + arguments + " > " +
                              output.string() + " 2> " + error.string();
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_text(output), read_text(error)};
}

}  // namespace hyperparallel
