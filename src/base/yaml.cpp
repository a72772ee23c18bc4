#include "base/yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace hyperparallel {

void Problems::throw_if_any() const {
  for (const std::string& warning : warnings_) log::warn("{}", warning);
  if (errors_.empty()) return;
  if (errors_.size() == 1) throw ConfigError("{}", errors_[0]);
  throw ConfigError("{} errors in the configuration:\n  {}", errors_.size(), fmt::join(errors_, "\n  "));
}

namespace {

// Optimal string alignment distance.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 2);
  for (const std::string& candidate : known) {
    if (size_t distance = edit_distance(word, candidate);
        distance < best_distance || (distance == best_distance && best.empty())) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (!best.empty()) return best;
  for (const std::string& candidate : known) {
    const bool begins = candidate.starts_with(word) || word.starts_with(candidate);
    if (begins && candidate.size() > best.size()) best = candidate;
  }
  return best;
}

namespace yaml {
namespace {

constexpr int kMaxDepth = 64;
constexpr int64_t kMaxNodes = 1'000'000;

bool parse_number(std::string_view text, double& value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

bool is_boolean(std::string_view text) {
  for (std::string_view word : {"true", "True", "TRUE", "false", "False", "FALSE"})
    if (text == word) return true;
  return false;
}

bool is_null_word(std::string_view text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

// Copies yaml-cpp's graph into a tree of Nodes.
class Converter {
 public:
  Converter(const std::string& file, Problems& problems) : file_(file), problems_(problems) {}

  Node convert(const YAML::Node& source, const std::string& key, int depth) {
    Node node;
    node.file = file_;
    node.line = source.Mark().line + 1;
    node.key = key;
    if (depth > kMaxDepth || ++count_ > kMaxNodes) {
      if (!too_large_) problems_.error(node.complaint("nested too deeply, or an alias that contains itself"));
      too_large_ = true;
      return node;
    }
    if (source.IsScalar()) {
      node.quoted = source.Tag() == "!" || source.Tag() == "tag:yaml.org,2002:str";
      node.text = source.Scalar();
      node.kind = !node.quoted && is_null_word(node.text) ? Node::Kind::kNull : Node::Kind::kScalar;
    } else if (source.IsSequence()) {
      node.kind = Node::Kind::kList;
      for (const YAML::Node& item : source) {
        node.items.push_back(convert(item, fmt::format("{}[{}]", key, node.items.size()), depth + 1));
      }
    } else if (source.IsMap()) {
      node.kind = Node::Kind::kMap;
      for (const auto& entry : source) add_entry(node, entry.first, entry.second, depth);
    }
    return node;
  }

 private:
  void add_entry(Node& map, const YAML::Node& name_node, const YAML::Node& value, int depth) {
    if (!name_node.IsScalar()) {
      problems_.error(fmt::format("{}:{}: {} has a key that is no word", file_, name_node.Mark().line + 1, map.key));
      return;
    }
    const std::string& name = name_node.Scalar();
    std::string key = map.key.empty() ? name : map.key + "." + name;
    Node child = convert(value, key, depth + 1);
    child.line = name_node.Mark().line + 1;
    if (const Node* earlier = map.find(name)) {
      problems_.error(child.complaint(fmt::format("duplicate key, given before in line {}", earlier->line)));
    } else {
      map.entries.emplace_back(name, std::move(child));
    }
  }

  std::string file_;
  Problems& problems_;
  int64_t count_ = 0;
  bool too_large_ = false;
};

}  // namespace

const Node* Node::find(std::string_view name) const {
  for (const auto& [key_name, value] : entries)
    if (key_name == name) return &value;
  return nullptr;
}

Node* Node::find(std::string_view name) {
  return const_cast<Node*>(std::as_const(*this).find(name));
}

std::string Node::where() const {
  return line > 0 ? fmt::format("{}:{}", file, line) : file;
}

std::string Node::complaint(std::string_view message) const {
  return key.empty() ? fmt::format("{}: {}", where(), message) : fmt::format("{}: {}: {}", where(), key, message);
}

std::string Node::found() const {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a map of keys";
    case Kind::kScalar:
      break;
  }
  double number;
  if (quoted) return fmt::format("the text \"{}\" in quotes", text);
  if (parse_number(text, number)) return fmt::format("the number {}", text);
  if (is_boolean(text)) return fmt::format("the boolean {}", text);
  return fmt::format("the text \"{}\"", text);
}

namespace {

// What a line that YAML refuses often has: a tab, or a glob without quotes.
std::string hint_of(std::string_view text, int line) {
  for (; line > 0 && text.find('\n') != text.npos; --line) text.remove_prefix(text.find('\n') + 1);
  text = text.substr(0, text.find('\n'));
  const size_t begin = text.find_first_not_of(" \t");
  if (text.substr(0, begin).find('\t') != text.npos) return "; the line is indented with a tab, which YAML refuses: use spaces";
  for (size_t star = text.find('*'); star != text.npos; star = text.find('*', star + 1)) {
    if (star > 0 && std::string_view(" :[{,").find(text[star - 1]) != std::string_view::npos)
      return "; a value that begins with * needs quotes: \"*...\"";
  }
  return "";
}

}  // namespace

Node parse_yaml(std::string_view text, const std::string& file, Problems& problems, const std::string& key) {
  Node root;
  root.file = file;
  root.key = key;
  try {
    std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.size() > 1) problems.error(fmt::format("{}: holds {} documents, expected one", file, documents.size()));
    if (!documents.empty()) root = Converter(file, problems).convert(documents[0], key, 0);
  } catch (const YAML::Exception& exception) {
    problems.error(fmt::format("{}:{}: column {}: {}{}", file, exception.mark.line + 1, exception.mark.column + 1, exception.msg,
                               hint_of(text, exception.mark.line)));
  }
  return root;
}

Node read_yaml_file(const std::string& path, Problems& problems, const std::string& key) {
  try {
    return parse_yaml(file::read(path), path, problems, key);
  } catch (const file::FileError& error) {
    problems.error(error.what());
  }
  Node root;
  root.file = path;
  root.key = key;
  return root;
}

std::string Range::describe() const {
  if (std::isfinite(min) && std::isfinite(max)) return fmt::format("{} {:g} to {:g}", above ? "above" : "from", min, max);
  if (std::isfinite(min)) return fmt::format("{} {:g}", above ? "above" : "at least", min);
  if (std::isfinite(max)) return fmt::format("at most {:g}", max);
  return "";
}

namespace {

// "expected a whole number at least 1, found ..."

std::nullopt_t refuse(const Node& node, Problems& problems, std::string_view expected, const Range& range,
                      std::string_view hint = "") {
  std::string bounds = range.describe();
  problems.error(node.complaint(
      fmt::format("expected {}{}{}, found {}{}", expected, bounds.empty() ? "" : " ", bounds, node.found(), hint)));
  return std::nullopt;
}

bool inside(double value, const Range& range) {
  return value >= range.min && value <= range.max && !(range.above && value == range.min);
}

std::string_view quotes_hint(const Node& node) {
  double number;
  if (node.kind == Node::Kind::kScalar && node.quoted && parse_number(node.text, number)) return "; remove the quotes";
  return "";
}

}  // namespace

std::optional<int64_t> to_integer(const Node& node, Problems& problems, const Range& range) {
  constexpr std::string_view kExpected = "a whole number";
  if (node.kind != Node::Kind::kScalar || node.quoted) return refuse(node, problems, kExpected, range, quotes_hint(node));
  std::string_view text = node.text;
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t value = 0;
  auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size() || !inside(static_cast<double>(value), range)) {
    return refuse(node, problems, kExpected, range);
  }
  return value;
}

std::optional<double> to_number(const Node& node, Problems& problems, const Range& range) {
  double value = 0;
  if (node.kind != Node::Kind::kScalar || node.quoted || !parse_number(node.text, value) || !inside(value, range)) {
    return refuse(node, problems, "a number", range, quotes_hint(node));
  }
  return value;
}

std::optional<bool> to_boolean(const Node& node, Problems& problems) {
  if (node.kind != Node::Kind::kScalar || node.quoted || !is_boolean(node.text)) {
    return refuse(node, problems, "true or false", {});
  }
  return node.text[0] == 't' || node.text[0] == 'T';
}

std::optional<std::string> to_text(const Node& node, Problems& problems) {
  double number;
  if (node.kind != Node::Kind::kScalar) return refuse(node, problems, "text", {});
  if (!node.quoted && !node.verbatim && (parse_number(node.text, number) || is_boolean(node.text))) {
    return refuse(node, problems, "text", {}, "; put it in quotes if text is meant");
  }
  return node.text;
}

std::optional<std::vector<int64_t>> to_integers(const Node& node, Problems& problems, const Range& range) {
  if (node.kind != Node::Kind::kList) return refuse(node, problems, "a list of whole numbers", {});
  std::vector<int64_t> values;
  bool complete = true;
  for (const Node& item : node.items) {
    if (std::optional<int64_t> value = to_integer(item, problems, range)) {
      values.push_back(*value);
    } else {
      complete = false;
    }
  }
  return complete ? std::optional(values) : std::nullopt;
}

MapReader::MapReader(const Node& node, Problems& problems) : node_(node), problems_(problems) {
  if (node.kind != Node::Kind::kMap && !node.is_null()) {
    problems.error(node.complaint(fmt::format("expected keys and values, found {}", node.found())));
  }
}

const Node* MapReader::get(const std::string& name) {
  known_.push_back(name);
  const Node* entry = node_.find(name);
  return entry && !entry->is_null() ? entry : nullptr;
}

namespace {

template <class T>
bool store(std::optional<T> value, T& out) {
  if (value) out = std::move(*value);
  return value.has_value();
}

}  // namespace

bool MapReader::read(const std::string& name, int64_t& out, const Range& range) {
  const Node* entry = get(name);
  return entry && store(to_integer(*entry, problems_, range), out);
}

bool MapReader::read(const std::string& name, double& out, const Range& range) {
  const Node* entry = get(name);
  return entry && store(to_number(*entry, problems_, range), out);
}

bool MapReader::read(const std::string& name, bool& out) {
  const Node* entry = get(name);
  return entry && store(to_boolean(*entry, problems_), out);
}

bool MapReader::read(const std::string& name, std::string& out) {
  const Node* entry = get(name);
  return entry && store(to_text(*entry, problems_), out);
}

bool MapReader::read(const std::string& name, std::vector<int64_t>& out, const Range& range) {
  const Node* entry = get(name);
  return entry && store(to_integers(*entry, problems_, range), out);
}

void MapReader::complain(const std::string& name, const std::string& message) {
  if (const Node* entry = node_.find(name)) {
    problems_.error(entry->complaint(message));
  } else {
    std::string key = node_.key.empty() ? name : node_.key + "." + name;
    problems_.error(fmt::format("{}: {}: {}", node_.where(), key, message));
  }
}

void MapReader::finish(Unknown policy, const std::vector<std::string>& also_known,
                       const std::function<std::string(const std::string&)>& elsewhere) {
  std::vector<std::string> candidates = known_;
  candidates.insert(candidates.end(), also_known.begin(), also_known.end());
  for (const auto& [name, entry] : node_.entries) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    std::string hint = elsewhere ? elsewhere(entry.key) : "";
    const std::string nearest = nearest_word(name, candidates);
    if (name == "<<") hint = "merging of maps is not supported";
    if (hint.empty() && !nearest.empty()) hint = fmt::format("the nearest known key is {}", nearest);
    const std::string message = fmt::format("{}: unknown key {}{}{}", entry.where(), entry.key, hint.empty() ? "" : "; ", hint);
    policy == Unknown::kError ? problems_.error(message) : problems_.warn(message + ", ignored");
  }
}

}  // namespace yaml
}  // namespace hyperparallel
