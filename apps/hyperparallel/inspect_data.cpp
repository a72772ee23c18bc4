// `hyperparallel inspect data FILE.jsonl`: a person reads which tokens are trained on and how pictures are cut.
#include <algorithm>

#include "arguments.h"
#include "base/error.h"
#include "data/json_text.h"
#include "data/jsonl.h"
#include "inspect.h"
#include "sample_arguments.h"

namespace hyperparallel {
namespace {

struct Totals {
  int64_t samples = 0, bad = 0, tokens = 0, supervised = 0, longest = 0;
};

// A token's text on one line. Part of a character is shown as the tokenizer file spells it.
std::string token_text(const data::Tokenizer& tokenizer, int64_t id) {
  const std::string text = tokenizer.decode({&id, 1});
  if (text.find("\xEF\xBF\xBD") != std::string::npos) return tokenizer.stored_string(id) + "  (bytes)";
  std::string quoted = data::python_json(text);  // escapes line ends and control characters
  return quoted.substr(1, quoted.size() - 2);
}

void print_image(const data::SampleImage& image, size_t number, int64_t id) {
  const data::ImagePlan& plan = image.plan;
  fmt::print(
      "  {:>11}  {:>6}         [picture {}: {}, {} x {} pixels -> {} x {}, {} x {} patches, {} rows x {} columns of tokens]\n",
      fmt::format("{}-{}", image.start, image.start + plan.tokens - 1), id, number, image.name, image.source_width,
      image.source_height, plan.width, plan.height, plan.patch_rows, plan.patch_columns, plan.llm_rows, plan.llm_columns);
}

void print_sample(const data::Sample& sample, const data::Tokenizer& tokenizer) {
  fmt::print("{}: {} tokens, {} trained on, {} picture{}\n", data::to_string(sample.id), sample.tokens(),
             sample.supervised_tokens, sample.images.size(), sample.images.size() == 1 ? "" : "s");
  fmt::print("  {:>11}  {:>6}  {:<5}  {}\n", "position", "id", "train", "token");
  size_t image = 0;
  for (int64_t t = 0; t < sample.tokens(); ++t) {
    if (image < sample.images.size() && t == sample.images[image].start) {
      print_image(sample.images[image], image + 1, sample.input_ids[t]);
      t += sample.images[image++].plan.tokens - 1;
      continue;
    }
    const bool trained = t > 0 && sample.labels[t - 1] != data::kIgnoreLabel;  // labels are shifted
    fmt::print("  {:>11}  {:>6}  {:<5}  {}\n", t, sample.input_ids[t], trained ? "yes" : "",
               token_text(tokenizer, sample.input_ids[t]));
  }
  fmt::print("\n");
}

}  // namespace

int inspect_data(const std::vector<std::string>& arguments) {
  SampleArguments with;
  std::string path, exif = "apply";
  int64_t first = 1, limit = 5;
  CLI::App app("Shows the tokens of samples: which are trained on, and how pictures are cut", "hyperparallel inspect data");
  app.add_option("FILE", path, "a JSONL file of conversations")->required();
  add_sample_arguments(app, with);
  app.add_option("--exif", exif, "apply or ignore the EXIF orientation")
      ->check(CLI::IsMember({"apply", "ignore"}))
      ->capture_default_str();
  app.add_option("--line", first, "line to begin with")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--limit", limit, "samples to show; 0 shows all")->check(CLI::NonNegativeNumber)->capture_default_str();
  if (!parse_arguments(app, arguments)) return static_cast<int>(ExitCode::kFinished);

  const data::Tokenizer tokenizer = data::Tokenizer::load(with.tokenizer);
  data::SampleOptions options = sample_options(with);
  options.exif = exif == "apply" ? data::ExifOrientation::kApply : data::ExifOrientation::kIgnore;
  const data::SampleEncoder encoder(tokenizer, options);
  const data::JsonlFile file(path);

  Totals totals;
  for (int64_t i = 0; i < file.samples() && (limit == 0 || totals.samples + totals.bad < limit); ++i) {
    const data::SampleId id{path, file.line_number(i)};
    if (id.line < first) continue;
    try {
      const data::Sample sample = encoder.encode(file.read(i), id);
      print_sample(sample, tokenizer);
      ++totals.samples;
      totals.tokens += sample.tokens();
      totals.supervised += sample.supervised_tokens;
      totals.longest = std::max(totals.longest, sample.tokens());
    } catch (const DataError& error) {
      fmt::print("{}\n\n", error.what());
      ++totals.bad;
    }
  }
  fmt::print("{} of {} samples shown, {} refused; {} tokens, {} trained on ({:.1f} %), the longest sample has {}\n",
             totals.samples + totals.bad, file.samples(), totals.bad, totals.tokens, totals.supervised,
             totals.tokens > 0 ? 100.0 * static_cast<double>(totals.supervised) / static_cast<double>(totals.tokens) : 0.0,
             totals.longest);
  return static_cast<int>(totals.bad > 0 ? ExitCode::kData : ExitCode::kFinished);
}

}  // namespace hyperparallel
