#include "train/config_override.h"

#include <fmt/format.h>

#include <set>

#include "train/config_listing.h"

namespace hyperparallel::train {
namespace {

using yaml::Node;

const ListedKey* find_key(const std::string& dotted) {
  static const std::vector<ListedKey> all = list_keys({});
  for (const ListedKey& key : all)
    if (key.key == dotted) return &key;
  return nullptr;
}

// "--data.no-shuffle" -> "data.shuffle"; empty when it is no such flag.
std::string negated_flag(const std::string& dotted) {
  const size_t dot = dotted.rfind('.');
  if (dot == std::string::npos || !dotted.substr(dot + 1).starts_with("no-")) return "";
  std::string key = dotted.substr(0, dot + 1) + dotted.substr(dot + 4);
  const ListedKey* known = find_key(key);
  return known && known->is_boolean ? key : "";
}

std::string name_of(const std::string& argument) {
  return argument.substr(2, argument.find('=') - 2);
}

bool is_flag(const std::string& dotted) {
  const ListedKey* known = find_key(dotted);
  return (known && known->is_boolean) || !negated_flag(dotted).empty();
}

void mark_as_command_line(Node& node) {
  node.file = "command line";
  node.line = 0;
  node.verbatim = true;
  for (Node& item : node.items) mark_as_command_line(item);
  for (auto& [name, entry] : node.entries) mark_as_command_line(entry);
}

// The value as a node: lists, maps and quoted text as YAML, everything else as it stands.
Node value_node(const std::string& key, const std::string& text, Problems& problems) {
  Node node;
  if (!text.empty() && std::string("[{\"'").find(text[0]) != std::string::npos) {
    node = yaml::parse_yaml(text, "command line", problems, key);
  } else {
    node.kind = text == "null" || text == "~" ? Node::Kind::kNull : Node::Kind::kScalar;
    node.text = text;
    node.key = key;
  }
  mark_as_command_line(node);
  return node;
}

// The node at `dotted`, made with the maps above it where needed; null below something that is no map.
Node* make_node(Node& root, const std::string& dotted) {
  Node* node = &root;
  for (size_t begin = 0; begin <= dotted.size();) {
    const size_t end = std::min(dotted.find('.', begin), dotted.size());
    const std::string name = dotted.substr(begin, end - begin);
    begin = end + 1;
    if (node->is_null()) node->kind = Node::Kind::kMap;
    if (node->kind != Node::Kind::kMap) return nullptr;
    Node* child = node->find(name);
    if (!child) {
      Node fresh;
      fresh.file = "command line";
      fresh.key = dotted.substr(0, end);
      node->entries.emplace_back(name, fresh);
      child = &node->entries.back().second;
    }
    node = child;
  }
  return node;
}

class Overrides {
 public:
  Overrides(Node& root, Problems& problems) : root_(root), problems_(problems) {}

  void set(const std::string& dotted, const std::string& text) {
    Node value = value_node(dotted, text, problems_);
    Node* place = make_node(root_, dotted);
    if (!place) return;  // reading the section reports it
    const ListedKey* known = find_key(dotted);
    if (known && known->is_list) {
      value = as_list(std::move(value));
      if (!seen_.insert(dotted).second) {  // a repeated option adds to the list
        place->items.insert(place->items.end(), value.items.begin(), value.items.end());
        return;
      }
    }
    *place = std::move(value);
  }

 private:
  static Node as_list(Node value) {
    if (value.kind == Node::Kind::kList || value.is_null()) return value;
    Node list;
    list.kind = Node::Kind::kList;
    list.key = value.key;
    mark_as_command_line(list);
    list.items.push_back(std::move(value));
    return list;
  }

  Node& root_;
  Problems& problems_;
  std::set<std::string> seen_;
};

}  // namespace

bool is_override(const std::string& argument) {
  return argument.starts_with("--") && name_of(argument).find('.') != std::string::npos;
}

bool takes_value(const std::string& argument, const std::string* next) {
  if (argument.find('=') != std::string::npos || !next || next->starts_with("--")) return false;
  const std::string name = name_of(argument);
  return !is_flag(name) || (negated_flag(name).empty() && (*next == "true" || *next == "false"));
}

void apply_overrides(Node& root, const std::vector<std::string>& overrides, Problems& problems) {
  Overrides tree(root, problems);
  for (size_t i = 0; i < overrides.size(); ++i) {
    const std::string& argument = overrides[i];
    if (!is_override(argument)) {
      problems.error(fmt::format("command line: {}: expected --section.key=value", argument));
      continue;
    }
    const std::string name = name_of(argument), positive = negated_flag(name);
    const std::string* next = i + 1 < overrides.size() ? &overrides[i + 1] : nullptr;
    if (const size_t equals = argument.find('='); equals != std::string::npos) {
      if (!positive.empty()) {
        problems.error(fmt::format("command line: --{} takes no value; say --{}={}", name, positive, "false"));
      } else {
        tree.set(name, argument.substr(equals + 1));
      }
    } else if (takes_value(argument, next)) {
      tree.set(name, *next);
      ++i;
    } else if (is_flag(name)) {
      tree.set(positive.empty() ? name : positive, positive.empty() ? "true" : "false");
    } else if (find_key(name)) {
      problems.error(fmt::format("command line: --{} needs a value", name));
    } else {
      tree.set(name, "");
    }
  }
}

}  // namespace hyperparallel::train
