// `hyperparallel render`: conversations from standard input become prompts, token ids and labels on standard output.
//
// A line in: `messages`, and where wanted `thinking`, `drop_thinking`, `reasoning_effort`, `id`, and `image_sizes` ([width,
// height] of each picture in prompt order; the pictures themselves are not read). A line out for each: `prompt`, `prompt_sha256`,
// `ids` (one for each picture), `length` (with pictures grown to their spans), `spans` ([start, length, rows, columns]); with
// --sft also `label_start`, `supervised`, `padded_length` (the next even number) and `supervised_text`. A refused line gives
// `error` and `why`.
#include "render.h"

#include <openssl/evp.h>

#include <array>
#include <cstdio>
#include <iostream>

#include "arguments.h"
#include "base/error.h"
#include "data/messages.h"
#include "sample_arguments.h"

namespace hyperparallel {
namespace {

using data::OrderedJson;

std::string sha256(const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  HP_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1, "SHA-256 failed");
  return fmt::format("{:02x}", fmt::join(digest.begin(), digest.begin() + size, ""));
}

std::vector<data::SampleImage> planned_images(const data::Conversation& conversation, size_t count,
                                              const data::ImageLimits& limits, const std::string& where) {
  std::vector<data::SampleImage> images;
  const size_t sizes = conversation.image_sizes ? conversation.image_sizes->size() : 0;
  if (sizes != count) {
    throw DataError("{}: image_sizes: {} [width, height] pairs for {} pictures; one for each is needed", where, sizes, count);
  }
  for (size_t i = 0; i < count; ++i) {
    const auto [width, height] = (*conversation.image_sizes)[i];
    try {
      images.emplace_back().plan = data::plan_image(width, height, limits);
    } catch (const DataError& error) {
      throw DataError("{}: image_sizes[{}]: {}", where, i, error.what());
    }
  }
  return images;
}

void add_labels(const data::Sample& sample, const data::Tokenizer& tokenizer, OrderedJson& out) {
  int64_t label_start = -1;
  std::vector<int64_t> targets;
  for (int64_t t = 0; t < sample.tokens(); ++t) {
    if (sample.labels[t] == data::kIgnoreLabel) continue;
    if (label_start < 0) label_start = t + 1;  // labels are shifted: this one is the token at t + 1
    targets.push_back(sample.labels[t]);
  }
  out["label_start"] = label_start;
  out["supervised"] = sample.supervised_tokens;
  out["padded_length"] = (sample.tokens() + 1) / 2 * 2;
  out["supervised_text"] = tokenizer.decode(targets);
}

void render_line(const OrderedJson& line, const data::SampleEncoder& encoder, bool sft, const data::SampleId& id,
                 OrderedJson& out) {
  const std::string where = data::to_string(id);
  const data::Conversation conversation = data::conversation_from_json(line, where);
  const data::RenderedChat chat = encoder.render(conversation, where);
  const data::EncodedChat encoded = data::encode_chat(chat, encoder.tokenizer());
  auto images = planned_images(conversation, chat.image_urls.size(), encoder.options().image_limits, where);
  const data::Sample sample = encoder.assemble(chat, encoded, std::move(images), sft, id);
  out["prompt"] = chat.text;
  out["prompt_sha256"] = sha256(chat.text);
  out["ids"] = encoded.ids;
  out["length"] = sample.tokens();
  out["spans"] = OrderedJson::array();
  for (const data::SampleImage& image : sample.images) {
    out["spans"].push_back({image.start, image.plan.tokens, image.plan.llm_rows, image.plan.llm_columns});
  }
  if (sft) add_labels(sample, encoder.tokenizer(), out);
}

}  // namespace

int render(const std::vector<std::string>& arguments) {
  SampleArguments with;
  bool sft = false;
  CLI::App app(
      "Reads conversations, one JSON object a line, from standard input and writes prompt, token ids and picture spans of each. "
      "A line "
      "that is refused gives {\"error\": true, \"why\": ...}, and the program ends with code 3.",
      "hyperparallel render");
  add_sample_arguments(app, with);
  app.add_flag("--sft", sft, "write labels too, and refuse what cannot be trained on");
  if (!parse_arguments(app, arguments)) return static_cast<int>(ExitCode::kFinished);

  const data::Tokenizer tokenizer = data::Tokenizer::load(with.tokenizer);
  const data::SampleEncoder encoder(tokenizer, sample_options(with));
  std::ios::sync_with_stdio(false);
  bool refused = false;
  data::SampleId id{"standard input", 0};
  for (std::string text; std::getline(std::cin, text);) {
    ++id.line;
    auto out = OrderedJson::object();
    try {
      const OrderedJson line = data::parse_json(text, data::to_string(id));
      if (line.is_object() && line.contains("id")) out["id"] = line["id"];
      auto rendered = out;
      render_line(line, encoder, sft, id, rendered);
      out = std::move(rendered);
    } catch (const DataError& error) {
      fmt::print(stderr, "error: {}\n", error.what());
      out["error"] = refused = true;
      out["why"] = error.what();
    }
    fmt::print("{}\n", data::python_json(out));
  }
  if (std::fflush(stdout) != 0) throw DataError("standard output: cannot write");
  return static_cast<int>(refused ? ExitCode::kData : ExitCode::kFinished);
}

}  // namespace hyperparallel
