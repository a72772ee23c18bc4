#include "models/families/families.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "models/deepseek_v41/adapter.h"
#include "models/llama/adapter.h"

namespace hyperparallel::models {

const std::vector<Family>& families() {
  static const std::vector<Family> all = {deepseek_v41::family(), llama::family()};
  return all;
}

ArchitecturePtr parse_architecture(const yaml::Node& node, Problems& problems, yaml::MapReader::Unknown unknown,
                                   const ParseOptions& options) {
  const yaml::Node* entry = node.kind == yaml::Node::Kind::kMap ? node.find("model_type") : nullptr;
  if (entry == nullptr || entry->is_null()) return families().front().parse(node, problems, unknown, options);
  const std::optional<std::string> type = yaml::to_text(*entry, problems);
  if (!type) return nullptr;
  std::vector<std::string> known;
  for (const Family& family : families()) {
    if (std::ranges::count(family.model_types, *type) > 0) return family.parse(node, problems, unknown, options);
    known.insert(known.end(), family.model_types.begin(), family.model_types.end());
  }
  problems.error(entry->complaint(fmt::format("no family has {}; accepted: {}", *type, fmt::join(known, ", "))));
  return nullptr;
}

ArchitecturePtr read_architecture(const std::string& path, const ParseOptions& options) {
  Problems problems;
  const yaml::Node node = yaml::read_yaml_file(path, problems);
  problems.throw_if_any();
  ArchitecturePtr architecture = parse_architecture(node, problems, yaml::MapReader::Unknown::kWarning, options);
  problems.throw_if_any();
  return architecture;
}

}  // namespace hyperparallel::models
