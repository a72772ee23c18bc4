// A strict reader for YAML and JSON configuration that remembers where every value stands.
//
// `parse_yaml` and `read_yaml_file` give a tree of plain `Node`s (JSON is YAML, so one reader serves both). Typed getters convert
// nothing silently: `"1e-4"` in quotes or `yes` is no number. Every mistake is added to `Problems`, so that a user sees all at
// once:
//
//     Problems problems;
//     yaml::Node root = yaml::read_yaml_file(path, problems);
//     yaml::MapReader reader(root, problems);
//     reader.read("steps", steps, {.min = 1});
//     reader.finish();             // keys that nobody asked for are errors, with the nearest known key
//     problems.throw_if_any();     // one ConfigError that lists everything
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hyperparallel {

// Everything that is wrong with one configuration.
class Problems {
 public:
  void error(std::string message) { errors_.push_back(std::move(message)); }
  void warn(std::string message) { warnings_.push_back(std::move(message)); }
  const std::vector<std::string>& errors() const { return errors_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Logs the warnings, then throws one ConfigError listing every error, if there are any.
  void throw_if_any() const;

 private:
  std::vector<std::string> errors_, warnings_;
};

// The known word nearest to `word` by edit distance (a swap of neighbours counts once), or one that it begins with or is the
// beginning of; empty when none is near.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

namespace yaml {

struct Node {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string text;                                   // of a scalar
  bool quoted = false;                                // the scalar stood in quotes: it is text, never a number or a boolean
  bool verbatim = false;                              // the scalar came from the command line: it may also serve as text as it is
  std::string file;                                   // "command line" for overrides
  int line = 0;                                       // from 1; 0 when there is none
  std::string key;                                    // dotted, for example optimizer.schedule.kind or data.train[1].path
  std::vector<Node> items;                            // of a list
  std::vector<std::pair<std::string, Node>> entries;  // of a map, in file order

  bool is_null() const { return kind == Kind::kNull; }
  const Node* find(std::string_view name) const;  // entry of a map, or null
  Node* find(std::string_view name);
  std::string where() const;  // "tiny.yaml:3" or "command line"
  // "tiny.yaml:3: train.steps: message"
  std::string complaint(std::string_view message) const;
  // The value in words, for messages: `the number 3`, `the text "a"`, `a list`.
  std::string found() const;
};

// Parses YAML or JSON text. Syntax errors and duplicate keys go to `problems`; the root's key is `key`.
Node parse_yaml(std::string_view text, const std::string& file, Problems& problems, const std::string& key = "");
// Same from a file; a file that cannot be read is a problem too.
Node read_yaml_file(const std::string& path, Problems& problems, const std::string& key = "");

// Bounds of a number, both inclusive unless `above` is set (then `min` itself is excluded).
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above = false;
  std::string describe() const;  // "at least 1", "from 0 to 1", "above 0"; empty without bounds
};

// Typed getters: the value, or nothing after adding a problem that says what was found and what is accepted.
std::optional<int64_t> to_integer(const Node& node, Problems& problems, const Range& range = {});
std::optional<double> to_number(const Node& node, Problems& problems, const Range& range = {});
std::optional<bool> to_boolean(const Node& node, Problems& problems);
std::optional<std::string> to_text(const Node& node, Problems& problems);
std::optional<std::vector<int64_t>> to_integers(const Node& node, Problems& problems, const Range& range = {});

// Reads the keys of one map and knows which were asked for.
class MapReader {
 public:
  // A node that is no map is a problem (null counts as an empty map).
  MapReader(const Node& node, Problems& problems);

  // The entry, or null when it is absent or null; from now on the key is known.
  const Node* get(const std::string& name);
  // Reads into `out` and returns whether the key was there and right. An absent or null key leaves `out` alone.
  bool read(const std::string& name, int64_t& out, const Range& range = {});
  bool read(const std::string& name, double& out, const Range& range = {});
  bool read(const std::string& name, bool& out);
  bool read(const std::string& name, std::string& out);
  bool read(const std::string& name, std::vector<int64_t>& out, const Range& range = {});
  // Marks a key as known without reading it.
  void ignore(const std::string& name) { known_.push_back(name); }
  // Adds a problem at the key, or at the map when the key is absent.
  void complain(const std::string& name, const std::string& message);

  enum class Unknown { kError, kWarning };
  // Reports the keys that were never asked for, each with the nearest known one (of `also_known` too). Where `elsewhere` finds
  // something to say about a dotted key, for example the section that it belongs to, that is said instead.
  void finish(Unknown policy = Unknown::kError, const std::vector<std::string>& also_known = {},
              const std::function<std::string(const std::string&)>& elsewhere = {});
  const std::vector<std::string>& known() const { return known_; }
  const Node& node() const { return node_; }
  Problems& problems() { return problems_; }

 private:
  const Node& node_;
  Problems& problems_;
  std::vector<std::string> known_;
};

}  // namespace yaml
}  // namespace hyperparallel
