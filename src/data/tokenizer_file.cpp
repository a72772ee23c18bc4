#include "data/tokenizer_file.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace hyperparallel::data {
namespace {

using Json = nlohmann::json;

// GPT-2's split, which `ByteLevel` applies by itself when `use_regex` is true.
constexpr const char* kByteLevelSplit = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class Reader {
 public:
  explicit Reader(const std::string& path) { file_.path = path; }

  TokenizerFile read() {
    Json root;
    try {
      root = Json::parse(file::read(file_.path));
    } catch (const file::FileError& error) {
      throw DataError("tokenizer: {}", error.what());
    } catch (const Json::parse_error& error) {
      throw DataError("{}: not a JSON file: {}", file_.path, error.what());
    }
    try {
      read_root(root);
    } catch (const Json::exception& error) {  // a value of the wrong type, or a missing key
      throw DataError("{}: not a tokenizer.json: {}", file_.path, error.what());
    }
    return std::move(file_);
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const Json& found, std::string_view accepted) const {
    throw DataError("{}: `{}` is {}, which is not supported; accepted: {}", file_.path, key, found.dump(), accepted);
  }

  void require_false(const Json& object, const std::string& where, const char* key) const {
    const auto value = object.find(key);
    if (value != object.end() && *value != false) refuse(where + "." + key, *value, "false");
  }

  void require_empty(const Json& object, const std::string& where, const char* key) const {
    const auto value = object.find(key);
    if (value != object.end() && !value->is_null() && *value != "" && *value != 0.0) refuse(where + key, *value, "null");
  }

  void read_root(const Json& root) {
    require_empty(root, "", "truncation");
    require_empty(root, "", "padding");
    read_normalizer(root.value("normalizer", Json()));
    read_pre_tokenizer(root.value("pre_tokenizer", Json()), "pre_tokenizer");
    if (!byte_level_) refuse("pre_tokenizer", root.value("pre_tokenizer", Json()), "a pre-tokenizer that ends in ByteLevel");
    const Json decoder = root.value("decoder", Json());
    if (!decoder.is_object() || decoder.at("type") != "ByteLevel") refuse("decoder", decoder, "a ByteLevel decoder");
    read_model(root.at("model"));
    read_added_tokens(root.value("added_tokens", Json::array()));
  }

  void read_normalizer(const Json& normalizer) const {
    if (normalizer.is_null()) return;
    if (normalizer.at("type") == "Sequence" && normalizer.at("normalizers").empty()) return;
    refuse("normalizer", normalizer, "null or an empty Sequence");
  }

  void read_pre_tokenizer(const Json& step, const std::string& where) {
    if (step.is_null()) return;
    const std::string type = step.at("type");
    if (byte_level_) refuse(where, step, "nothing after ByteLevel");
    if (type == "Sequence") {
      const Json& steps = step.at("pretokenizers");
      for (size_t i = 0; i < steps.size(); ++i) read_pre_tokenizer(steps[i], fmt::format("{}.pretokenizers[{}]", where, i));
    } else if (type == "Split") {
      if (step.at("behavior") != "Isolated") refuse(where + ".behavior", step.at("behavior"), "\"Isolated\"");
      require_false(step, where, "invert");
      const Json& pattern = step.at("pattern");
      if (!pattern.contains("Regex")) refuse(where + ".pattern", pattern, "{\"Regex\": ...}");
      file_.splits.push_back(pattern.at("Regex"));
    } else if (type == "ByteLevel") {
      require_false(step, where, "add_prefix_space");
      if (step.value("use_regex", true)) file_.splits.push_back(kByteLevelSplit);
      byte_level_ = true;
    } else {
      refuse(where + ".type", step.at("type"), "Sequence, Split, ByteLevel");
    }
  }

  void read_model(const Json& model) {
    if (model.value("type", "BPE") != "BPE") refuse("model.type", model.at("type"), "\"BPE\"");
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) require_empty(model, "model.", key);
    file_.ignore_merges = model.value("ignore_merges", false);
    const Json& vocabulary = model.at("vocab");
    file_.vocabulary.reserve(vocabulary.size());
    for (const auto& [token, id] : vocabulary.items()) file_.vocabulary.emplace_back(token, checked_id(id, "model.vocab", token));
    const Json& merges = model.at("merges");
    file_.merges.reserve(merges.size());
    for (const Json& merge : merges) read_merge(merge);
  }

  int64_t checked_id(const Json& id, std::string_view where, std::string_view token) const {
    constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;
    if (id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() <= kMaxId) return id.get<int64_t>();
    throw DataError("{}: `{}`: id of `{}` is {}; accepted: an integer from 0 to {}", file_.path, where, token, id.dump(), kMaxId);
  }

  // "a b" or ["a", "b"].
  void read_merge(const Json& merge) {
    if (merge.is_array() && merge.size() == 2) {
      file_.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      return;
    }
    const auto* text = merge.get_ptr<const std::string*>();
    const size_t space = text ? text->find(' ') : std::string::npos;
    if (space == std::string::npos || text->find(' ', space + 1) != std::string::npos) {
      refuse(fmt::format("model.merges[{}]", file_.merges.size()), merge, "\"left right\" or [\"left\", \"right\"]");
    }
    file_.merges.emplace_back(text->substr(0, space), text->substr(space + 1));
  }

  void read_added_tokens(const Json& tokens) {
    for (const Json& token : tokens) {
      const std::string where = fmt::format("added_tokens[{}]", file_.added_tokens.size());
      for (const char* key : {"single_word", "lstrip", "rstrip"}) require_false(token, where, key);
      AddedToken added;
      added.content = token.at("content");
      added.id = checked_id(token.at("id"), where, added.content);
      added.special = token.value("special", false);
      added.normalized = token.value("normalized", !added.special);
      if (added.content.empty()) refuse(where + ".content", token.at("content"), "a text that is not empty");
      file_.added_tokens.push_back(std::move(added));
    }
  }

  TokenizerFile file_;
  bool byte_level_ = false;
};

}  // namespace

TokenizerFile read_tokenizer_file(const std::string& path) {
  return Reader(path).read();
}

}  // namespace hyperparallel::data
