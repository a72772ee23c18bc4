// A new empty folder for a test's files, removed with all that is in it at the end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace hyperparallel::testing {

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

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  // Writes a file in the folder and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream stream(path_ / name, std::ios::binary);
    stream << bytes;
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace hyperparallel::testing
