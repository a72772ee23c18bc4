#include "data/easy_vqa.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "data/image.h"

namespace hyperparallel::data {
namespace {

using nlohmann::json;
using Path = std::filesystem::path;

constexpr int64_t kValidationEvery = 20;  // pictures
constexpr const char* kMarker = "dataset.json";
constexpr const char* kShapeQuestions = "train-shape.jsonl";
constexpr std::array<const char*, 3> kSplits = {"train", "validation", "test"};

bool is_package(const Path& folder) {
  return std::filesystem::exists(folder / "train/questions.json") && std::filesystem::exists(folder / "test/questions.json");
}

std::optional<Path> installed_in(const Path& folder) {
  const Path libraries = folder / ".venv/lib";
  if (!std::filesystem::is_directory(libraries)) return {};
  for (const auto& python : std::filesystem::directory_iterator(libraries)) {
    const Path data = python.path() / "site-packages/easy_vqa/data";
    if (python.path().filename().string().starts_with("python3") && is_package(data)) return data;
  }
  return {};
}

// The package's data folder, `source` itself or inside an unpacked wheel.
Path data_folder(const Path& source) {
  for (const Path& folder : {source, source / "easy_vqa/data"}) {
    if (is_package(folder)) return folder;
  }
  throw DataError(
      "{}: it is neither the data folder of the easy-vqa package (with train/questions.json and test/questions.json) nor "
      "an unpacked wheel of it (with easy_vqa/data)",
      source.string());
}

std::string read_source(const Path& path) {
  try {
    return file::read(path);
  } catch (const file::FileError& error) {
    throw DataError("{}", error.what());
  }
}

struct Question {
  std::string text, answer;
  int64_t picture;
};

std::vector<Question> read_questions(const Path& path) {
  const json root = json::parse(read_source(path), nullptr, false);
  if (!root.is_array()) throw DataError("{}: it must be a JSON array of [question, answer, picture number]", path.string());
  std::vector<Question> questions;
  for (const json& entry : root) {
    const bool valid = entry.is_array() && entry.size() == 3 && entry[0].is_string() && entry[1].is_string() &&
                       entry[2].is_number_unsigned() && easy_vqa_answer_type(entry[1].get<std::string>()) != "other";
    if (!valid) {
      throw DataError("{}: entry {} is {}, it must be [question, one of the 13 answers, picture number]", path.string(),
                      questions.size(), entry.dump());
    }
    questions.push_back({entry[0], entry[1], entry[2]});
  }
  return questions;
}

std::string quoted(const std::string& text) {
  return json(text).dump();
}

// With the spaces of Python's json module, as the sample files have them.
std::string json_line(const std::string& id, const std::string& picture, const Question& question) {
  return fmt::format(
      R"({{"id": {}, "messages": [{{"role": "user", "content": [{{"type": "image_url", "image_url": {{"url": {}}}}}, )"
      R"({{"type": "text", "text": {}}}]}}, {{"role": "assistant", "content": {}}}]}})"
      "\n",
      quoted(id), quoted(picture), quoted(question.text), quoted(question.answer));
}

void copy_picture(const Path& from, const Path& to) {
  const std::string bytes = read_source(from);
  decode_image({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, ExifOrientation::kIgnore, from.string());
  file::append(to, bytes);  // made durable with all others at the end
}

// One split while it is written.
struct SplitText {
  EasyVqaSplit counts;
  std::string lines;

  void add(const std::string& line, const Question& question, bool new_picture) {
    lines += line;
    const std::string_view type = easy_vqa_answer_type(question.answer);
    ++(type == "yes/no" ? counts.yes_no : type == "shape" ? counts.shape : counts.color);
    if (new_picture) ++counts.pictures;
  }
};

// `part` is train or test, as the package names its folders. Pictures are copied, lines go to the splits.
void convert_part(const Path& source, const std::string& part, const Path& out, std::map<std::string, SplitText>& splits) {
  const std::vector<Question> questions = read_questions(source / part / "questions.json");
  std::set<int64_t> copied;
  for (size_t i = 0; i < questions.size(); ++i) {
    const Question& question = questions[i];
    const std::string picture = fmt::format("images/easyvqa-{}-{}.png", part, question.picture);
    const bool new_picture = copied.insert(question.picture).second;
    if (new_picture) copy_picture(source / part / "images" / fmt::format("{}.png", question.picture), out / picture);
    const bool held_out = part == "train" && question.picture % kValidationEvery == kValidationEvery - 1;
    splits[held_out ? "validation" : part].add(json_line(fmt::format("easyvqa-{}-{}", part, i), picture, question), question,
                                               new_picture);
  }
}

void write_shape_questions(const Path& folder) {
  std::string shapes;
  std::istringstream lines(read_source(folder / "train.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json sample = json::parse(line, nullptr, false);
    const bool valid = sample.is_object() && sample.contains("messages") && !sample["messages"].empty();
    if (!valid)
      throw DataError("{}: a line is no sample; remove the folder and prepare it anew", (folder / "train.jsonl").string());
    if (easy_vqa_answer_type(sample["messages"].back().value("content", "")) == "shape") shapes += line + "\n";
  }
  file::write(folder / kShapeQuestions, shapes);
}

std::string marker_text(const std::vector<EasyVqaSplit>& splits) {
  nlohmann::ordered_json root = {{"name", "easy-vqa"}, {"source", "easy-vqa 1.0, MIT, Copyright (c) 2019 Victor Zhou"}};
  for (const EasyVqaSplit& split : splits) {
    root["splits"][split.name] = {
        {"pictures", split.pictures}, {"yes_no", split.yes_no}, {"shape", split.shape}, {"color", split.color}};
  }
  return root.dump(2) + "\n";
}

// Without a trailing slash, so that a suffix can be appended.
Path without_slash(const Path& path) {
  const Path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

}  // namespace

std::string_view easy_vqa_answer_type(std::string_view answer) {
  static const std::map<std::string_view, std::string_view> types = {
      {"yes", "yes/no"},  {"no", "yes/no"},  {"circle", "shape"}, {"rectangle", "shape"}, {"triangle", "shape"},
      {"black", "color"}, {"blue", "color"}, {"brown", "color"},  {"gray", "color"},      {"green", "color"},
      {"red", "color"},   {"teal", "color"}, {"yellow", "color"},
  };
  const auto found = types.find(answer);
  return found == types.end() ? "other" : found->second;
}

std::optional<Path> find_easy_vqa() {
  std::vector<Path> folders = {std::filesystem::current_path()};
  std::error_code failed;
  const Path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  for (Path folder = program.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) folders.push_back(folder);
  for (const Path& folder : folders) {
    if (const auto data = installed_in(folder)) return data;
  }
  return {};
}

std::optional<std::vector<EasyVqaSplit>> prepared_easy_vqa(const Path& out) {
  if (!std::filesystem::exists(out / kMarker)) return {};
  const json marker = json::parse(file::read(out / kMarker), nullptr, false);
  if (!marker.is_object() || marker.value("name", "") != "easy-vqa") return {};
  std::vector<EasyVqaSplit> splits;
  for (const char* name : kSplits) {
    if (!std::filesystem::exists(out / fmt::format("{}.jsonl", name))) return {};
    const json& counts = marker.at("splits").at(name);
    splits.push_back({name, counts.at("pictures"), counts.at("yes_no"), counts.at("shape"), counts.at("color")});
  }
  if (!std::filesystem::exists(out / kShapeQuestions)) write_shape_questions(out);
  return splits;
}

std::vector<EasyVqaSplit> prepare_easy_vqa(const Path& source, const Path& out_folder) {
  const Path data = data_folder(source);
  const Path out = without_slash(out_folder);
  if (std::filesystem::exists(out) && !(std::filesystem::is_directory(out) && std::filesystem::is_empty(out))) {
    throw UsageError("{}: it exists and holds something else than a prepared easy-VQA; name another folder or remove it",
                     out.string());
  }
  const Path partial = out.string() + ".partial";
  if (std::filesystem::exists(partial)) file::remove_tree(partial);
  file::create_folders(partial / "images");

  std::map<std::string, SplitText> texts;
  for (const char* part : {"train", "test"}) convert_part(data, part, partial, texts);
  std::vector<EasyVqaSplit> splits;
  for (const char* name : kSplits) {
    SplitText& text = texts[name];
    text.counts.name = name;
    file::write(partial / fmt::format("{}.jsonl", name), text.lines);
    splits.push_back(text.counts);
  }
  write_shape_questions(partial);
  file::write(partial / kMarker, marker_text(splits));
  file::sync_file_system(partial);
  file::rename(partial, out);
  return splits;
}

}  // namespace hyperparallel::data
