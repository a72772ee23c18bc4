// A configuration as YAML, the help of a section, and the documentation page.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/families/families.h"
#include "train/config.h"
#include "train/config_listing.h"

namespace hyperparallel::train {
namespace {

using Json = nlohmann::ordered_json;

std::string leaf(const std::string& dotted) {
  return dotted.substr(dotted.rfind('.') + 1);
}
int64_t depth(const std::string& dotted) {
  return std::count(dotted.begin(), dotted.end(), '.');
}
std::string indent(int64_t levels) {
  return std::string(2 * levels, ' ');
}

// Maps as blocks, everything else on its line: JSON values are YAML.
void write_block(const Json& map, int64_t levels, std::string& out) {
  for (const auto& [key, value] : map.items()) {
    if (value.is_object() && !value.empty()) {
      out += fmt::format("{}{}:\n", indent(levels), key);
      write_block(value, levels + 1, out);
    } else {
      out += fmt::format("{}{}: {}\n", indent(levels), key, value.dump());
    }
  }
}

// The keys of the architecture, which to_yaml writes inline.
std::string architecture_block(const Config& config, bool with_sources) {
  std::string out;
  if (with_sources && !config.model.config.empty())
    out += fmt::format("{}# keys of {}\n", indent(1), config.model.config.string());
  if (config.model.architecture) write_block(config.model.architecture->config_json(), 1, out);
  return out;
}

std::vector<ListedKey> keys_of(const std::string& section) {
  std::vector<ListedKey> keys = list_keys({});
  std::erase_if(keys, [&](const ListedKey& key) { return key.key != section && !key.key.starts_with(section + "."); });
  return keys;
}

std::string default_text(const ListedKey& key) {
  return key.value == "null" ? "none" : key.value;
}

constexpr const char* kPageHead = R"(# Configuration

<!-- Written by `hyperparallel docs configuration`; change src/train/config_keys.h instead. -->

A run is described by one YAML file: `hyperparallel train CONFIG.yaml`. Every key can be overridden on the command line by its dotted
name: `--train.steps=10` or `--train.steps 10`, `--train.restart` and `--data.no-shuffle` for switches, `--data.train=[a.jsonl,b.jsonl]`
or `--data.train a.jsonl --data.train b.jsonl` for lists. The command line wins over the file, the file over the default.

- Relative paths in a file start at the folder of that file, on the command line at the current folder.
- Nothing is converted silently: `"1e-4"` in quotes or `yes` is no number. Unknown and duplicate keys are errors that name file, line and
  the nearest key. All errors are shown at once, before anything heavy, and the program ends with code 2.
- `--print-config` prints the whole resolved configuration and where each given value came from; `--help SECTION` explains a section. The
  resolved configuration is kept in the output folder and in each checkpoint, and can be used as a file itself.
- The keys of the model's `config.json` keep their Hugging Face names. `model.config` names such a file, or its keys stand inline in
  `model`, either flat or in `text_config` and `vision_config`.

Exit codes: 0 finished, 1 a bug of this program, 2 usage, configuration or a path that cannot be read or written, 3 data, 4 checkpoint or model files, 5 loss or gradient norm not
finite, 6 peer lost, 7 out of memory, 8 a check such as `verify` does not hold, 16 stopped on request with a checkpoint: run it again. With
`--ranks`, 128 + n: signal n ended a rank.
)";

std::string escape_table(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

// The tables of the keys of config.json.
std::string model_tables() {
  std::string out =
      "\n## Keys of `config.json`\nIn the file of `model.config`, or inline in `model`. `model_type` chooses the family of "
      "models, "
      "without it the first below. Keys that the model does not use "
      "(`architectures`, "
      "`quantization_config`, ...) are ignored; other unknown keys are warnings in a file and errors inline.\n";
  for (const models::Family& family : models::families()) {
    out += fmt::format("\n### {}\n", family.model_types.front());
    std::string part;
    for (const models::KeyDescription& key : family.describe_keys()) {
      if (key.part != part) out += fmt::format("\n| {} | accepts | default |\n|---|---|---|\n", key.part);
      part = key.part;
      out += fmt::format("| `{}` | {} | {} |\n", key.key, key.accepts, key.default_value);
    }
  }
  return out;
}

}  // namespace

std::string to_yaml(const Config& config, bool with_sources) {
  std::string out;
  for (const ListedKey& key : list_keys(config)) {
    if (key.key == "model.config") continue;  // its keys stand inline
    if (key.key == "data") out += architecture_block(config, with_sources);
    if (key.is_section) {
      out += fmt::format("{}{}:\n", indent(depth(key.key)), leaf(key.key));
      continue;
    }
    const auto source = config.sources.find(key.key);
    const bool noted = with_sources && source != config.sources.end();
    out += fmt::format("{}{}: {}{}\n", indent(depth(key.key)), leaf(key.key), key.value,
                       noted ? fmt::format("  # {}", source->second) : "");
  }
  return out;
}

bool Config::operator==(const Config& other) const {
  return to_yaml(*this) == to_yaml(other);
}

std::string help_text(const std::string& section) {
  std::string out;
  if (section.empty()) {
    out = "Sections:\n";
    for (const ListedKey& key : list_keys({})) {
      if (depth(key.key) == 0) out += fmt::format("  {:<12} {}\n", key.key, key.help);
    }
    return out + "`--help SECTION` explains the keys of a section.\n";
  }
  const std::vector<ListedKey> keys = keys_of(section);
  if (keys.empty()) {
    std::vector<std::string> names;
    for (const ListedKey& key : list_keys({}))
      if (key.is_section) names.push_back(key.key);
    const std::string nearest = nearest_word(section, names);
    throw UsageError("--help {}: no such section{}", section, nearest.empty() ? "" : fmt::format("; the nearest is {}", nearest));
  }
  for (const ListedKey& key : keys) {
    if (key.is_section) {
      out += fmt::format("{}: {}\n", key.key, key.help);
    } else {
      out += fmt::format("  --{}  ({}; default {})\n      {}\n", key.key, key.type, default_text(key), key.help);
    }
  }
  return out;
}

std::string configuration_page() {
  std::string out = kPageHead;
  for (const ListedKey& key : list_keys({})) {
    if (key.is_section) {
      out += fmt::format("\n{} `{}`\n{}\n\n| key | accepts | default | meaning |\n|---|---|---|---|\n",
                         depth(key.key) == 0 ? "##" : "###", key.key, key.help);
    } else {
      out +=
          fmt::format("| `{}` | {} | `{}` | {} |\n", key.key, escape_table(key.type), default_text(key), escape_table(key.help));
    }
  }
  return out + model_tables();
}

}  // namespace hyperparallel::train
