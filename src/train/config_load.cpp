// Reading a configuration: the file, the overrides over it, the typed fields, the rules between them.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "models/families/families.h"
#include "train/config.h"
#include "train/config_check.h"
#include "train/config_keys.h"
#include "train/config_listing.h"
#include "train/config_override.h"

namespace hyperparallel::train {
namespace {

using yaml::MapReader;
using yaml::Node;

// What other tools call our sections.
constexpr std::pair<const char*, const char*> kOtherNames[] = {{"training", "train"},
                                                               {"dataset", "data"},
                                                               {"dataloader", "data"},
                                                               {"activation_checkpoint", "recompute"},
                                                               {"metrics", "logging"},
                                                               {"profiling", "profile"},
                                                               {"lr_scheduler", "optimizer.schedule"},
                                                               {"parallelism", "parallel"},
                                                               {"checkpointing", "checkpoint"}};

// Another place for an unknown key: a section under its usual name, or the sections that know the last word of it.
std::string elsewhere(const std::string& dotted) {
  for (const auto& [other, ours] : kOtherNames)
    if (dotted == other) return fmt::format("it is called {} here", ours);
  const std::string word = dotted.substr(dotted.rfind('.') + 1);
  std::vector<std::string> places;
  for (const ListedKey& key : list_keys({})) {
    if (key.key.ends_with("." + word)) places.push_back(key.key);
  }
  return places.empty() ? "" : fmt::format("did you mean {}?", fmt::join(places, " or "));
}

Path resolve(const Node& node, const std::string& text) {
  if (text.empty()) return {};
  const Path base = node.verbatim ? Path() : Path(node.file).parent_path();
  return std::filesystem::absolute(base / text).lexically_normal();
}

// One field from one node; a mistake goes to `problems` and leaves the field alone.
class FieldReader {
 public:
  FieldReader(Problems& problems, const Accept& accept) : problems_(problems), accept_(accept) {}

  void read(const Node& node, int64_t& field) const { store(yaml::to_integer(node, problems_, accept_.range), field); }
  void read(const Node& node, double& field) const { store(yaml::to_number(node, problems_, accept_.range), field); }
  void read(const Node& node, bool& field) const { store(yaml::to_boolean(node, problems_), field); }
  void read(const Node& node, std::string& field) const { store(yaml::to_text(node, problems_), field); }
  void read(const Node& node, Path& field) const {
    if (std::optional<std::string> text = yaml::to_text(node, problems_)) field = resolve(node, *text);
  }

  template <class T>
  requires std::is_enum_v<T>
  void read(const Node& node, T& field) const {
    std::optional<std::string> text = yaml::to_text(node, problems_);
    if (!text) return;
    const auto names = choices(field);
    const auto found = std::find(names.begin(), names.end(), *text);
    if (found != names.end()) {
      field = static_cast<T>(found - names.begin());
    } else {
      problems_.error(node.complaint(fmt::format("expected {}, found {}", fmt::join(names, ", "), node.found())));
    }
  }

  template <class T>
  void read(const Node& node, std::optional<T>& field) const {
    const size_t mistakes = problems_.errors().size();
    T value{};
    read(node, value);
    if (problems_.errors().size() == mistakes) field = value;
  }

  template <class T>
  void read(const Node& node, std::vector<T>& field) const {
    if (node.kind != Node::Kind::kList) {
      problems_.error(node.complaint(fmt::format("expected a list, found {}", node.found())));
      return;
    }
    field.clear();
    for (const Node& item : node.items) read(item, field.emplace_back());
  }

  // A data file may be given as its path alone.
  void read(const Node& node, DataSource& source) const {
    if (node.kind == Node::Kind::kScalar) return read(node, source.path);
    read_entry(node, source);
    if (node.kind == Node::Kind::kMap && source.path.empty()) problems_.error(node.complaint("path is required"));
  }
  template <class T>
  requires Is<T, OptimizerGroup> || Is<T, PlanOverride>
  void read(const Node& node, T& entry) const {
    read_entry(node, entry);
    if (node.kind == Node::Kind::kMap && entry.match.empty()) problems_.error(node.complaint("match is required"));
  }

  void read(const Node& node, BatchStage& stage) const {
    read_entry(node, stage);
    if (node.kind == Node::Kind::kMap && (!node.find("until_step") || !node.find("global_batch_size")))
      problems_.error(node.complaint("until_step and global_batch_size are required"));
  }
  void read(const Node& node, LengthStage& stage) const {
    read_entry(node, stage);
    if (node.kind == Node::Kind::kMap && (!node.find("until_step") || !node.find("seq_len")))
      problems_.error(node.complaint("until_step and seq_len are required"));
  }
  void read(const Node& node, NamedSchedule& schedule) const {
    read_entry(node, schedule);
    if (node.kind == Node::Kind::kMap && schedule.name.empty()) problems_.error(node.complaint("name is required"));
  }

 private:
  template <class T>
  static void store(std::optional<T> value, auto& field) {
    if (value) field = *value;
  }

  template <class T>
  void read_entry(const Node& node, T& entry) const;

  Problems& problems_;
  const Accept& accept_;
};

// Reads the keys of one map, and of the maps inside it.
class SectionReader {
 public:
  SectionReader(const Node& node, Problems& problems, std::map<std::string, std::string>* sources)
      : reader_(node, problems), sources_(sources) {}

  template <class T>
  void operator()(const char* name, T& field, const Accept& accept, const char*) {
    const Node* node = reader_.get(name);
    if (!node) return check_left_out(name, field);
    FieldReader(reader_.problems(), accept).read(*node, field);
    if (sources_) (*sources_)[node->key] = node->where();
  }

  template <class T>
  void section(const char* name, T& field, const char*) {
    const Node* node = reader_.get(name);
    if (!node) return;
    SectionReader inner(*node, reader_.problems(), sources_);
    visit_keys(inner, field);
    inner.finish(field);
  }

  template <class T>
  void finish(T&) {
    reader_.finish(MapReader::Unknown::kError, {}, elsewhere);
  }

  // What our switches leave of the model section is the architecture, inline or by `config`.
  void finish(ModelSection& model);

 private:
  models::ArchitecturePtr read_model_file(const ModelSection& model);

  // A key without a value is the default only where "null" is how the default is written.
  template <class T>
  void check_left_out(const char* name, const T&) {
    const Node* node = reader_.node().find(name);
    constexpr bool may_be_null = std::is_same_v<T, Path> || requires(T t) {
      t.has_value();
    };
    if (node && !may_be_null) reader_.problems().error(node->complaint("has no value; without the key it is the default"));
  }

  MapReader reader_;
  std::map<std::string, std::string>* sources_;
};

template <class T>
void FieldReader::read_entry(const Node& node, T& entry) const {
  SectionReader reader(node, problems_, nullptr);
  visit_keys(reader, entry);
  reader.finish(entry);
}

void SectionReader::finish(ModelSection& model) {
  Problems& problems = reader_.problems();
  const std::vector<std::string> own_keys = reader_.known();
  std::vector<const Node*> inline_keys;
  for (const auto& [name, entry] : reader_.node().entries) {
    if (std::find(own_keys.begin(), own_keys.end(), name) == own_keys.end()) inline_keys.push_back(&entry);
  }
  if (!model.config.empty()) {
    for (const Node* key : inline_keys) {
      const std::string place = elsewhere(key->key);
      problems.error(place.empty() ? key->complaint("model.config names the keys of the model; give one or the other")
                                   : fmt::format("{}: unknown key {}; {}", key->where(), key->key, place));
    }
    model.architecture = read_model_file(model);
  } else if (inline_keys.empty()) {
    reader_.complain("config", "is required, or the keys of the model inline");
  } else {
    model.architecture = models::parse_architecture(reader_.node(), problems, MapReader::Unknown::kError,
                                                    {.own_keys = own_keys, .elsewhere = elsewhere, .switches = model.switches});
  }
}

models::ArchitecturePtr SectionReader::read_model_file(const ModelSection& model) {
  if (!std::filesystem::is_regular_file(model.config)) {
    reader_.complain("config", fmt::format("{} is no file", model.config.string()));
    return nullptr;
  }
  const Node node = yaml::read_yaml_file(model.config.string(), reader_.problems());
  if (node.is_null()) return nullptr;
  return models::parse_architecture(node, reader_.problems(), MapReader::Unknown::kWarning, {.switches = model.switches});
}

Config read_config(const Node& root, Problems& problems) {
  Config config;
  SectionReader reader(root, problems, &config.sources);
  visit_keys(reader, config);
  reader.finish(config);
  return config;
}

}  // namespace

Config config_of_overrides(const std::vector<std::string>& overrides, const std::vector<std::string>& sections) {
  Problems problems;
  Node root;
  root.kind = Node::Kind::kMap;
  root.file = "command line";
  apply_overrides(root, overrides, problems);
  for (const auto& [section, node] : root.entries) {
    if (std::find(sections.begin(), sections.end(), section) != sections.end()) continue;
    problems.error(fmt::format("command line: --{}.*: not used here; accepted: --{}.*", section, fmt::join(sections, ".*, --")));
  }
  const Config config = read_config(root, problems);
  check_config(config, root, {}, problems);
  problems.throw_if_any();
  return config;
}

Config load_config(const Path& path, const std::vector<std::string>& overrides, const LoadOptions& options) {
  Problems problems;
  Node root = yaml::read_yaml_file(path.string(), problems);
  if (root.is_null()) {
    if (problems.errors().empty()) problems.error(fmt::format("{}: is empty", path.string()));
    problems.throw_if_any();
  }
  apply_overrides(root, overrides, problems);
  const Config config = read_config(root, problems);
  if (const Node* model = root.find("model"); !model || model->is_null()) {
    problems.error(fmt::format("{}: model: is required: model.config, or the keys of the model", path.string()));
  }
  check_config(config, root, options, problems);
  problems.throw_if_any();
  return config;
}

}  // namespace hyperparallel::train
