// Where tests find their data: the golden fixtures of the repository, and files that scripts/fetch_test_data.py fetches.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace hyperparallel::test {

inline std::string golden(const std::string& name) {
  return std::string(HP_SOURCE_DIR "/tests/golden/") + name;
}

// Throws with a hint when the file has not been fetched: a test without its data fails, it is never skipped.
inline std::string fetched(const std::string& name) {
  const char* folder = std::getenv("HYPERPARALLEL_TEST_DATA");
  const std::string path = (folder ? std::string(folder) : std::string(HP_SOURCE_DIR "/build/test-data")) + "/" + name;
  if (!std::filesystem::exists(path)) throw std::runtime_error(path + " is missing: run scripts/fetch_test_data.py");
  return path;
}

inline std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot open " + path);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

inline std::vector<nlohmann::json> read_json_lines(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error("cannot open " + path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace hyperparallel::test
