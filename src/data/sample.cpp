#include "data/sample.h"

#include <algorithm>
#include <filesystem>

#include "data/image_url.h"
#include "data/messages.h"

namespace hyperparallel::data {

std::string to_string(const SampleId& id) {
  return fmt::format("{}:{}", id.file, id.line);
}

SampleEncoder::SampleEncoder(const Tokenizer& tokenizer, SampleOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)) {
  for (const char* token : {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜System｜>", "<｜User｜>", "<｜Assistant｜>",
                            "<think>", "</think>"}) {
    tokenizer.required_id(token);
  }
  pad_id_ = tokenizer.required_id("<｜▁pad▁｜>");
  image_token_id_ = options_.image_token_id ? options_.image_token_id : tokenizer.token_to_id(kImagePlaceholder);
  if (image_token_id_) {
    if (*image_token_id_ < 0 || *image_token_id_ >= tokenizer.size() || !tokenizer.is_added(*image_token_id_)) {
      throw DataError("{}: the image token id {} is none of its added tokens", tokenizer.path(), *image_token_id_);
    }
    options_.chat.image_token = tokenizer.stored_string(*image_token_id_);
  }
}

RenderedChat SampleEncoder::render(const Conversation& conversation, std::string_view where) const {
  return render_chat(conversation, options_.chat, options_.tool_text, where);
}

Sample SampleEncoder::encode(std::string_view line, const SampleId& id) const {
  const std::string where = to_string(id);
  const RenderedChat chat = render(parse_conversation(line, where), where);
  const EncodedChat encoded = encode_chat(chat, tokenizer_);
  const std::string folder = std::filesystem::path(id.file).parent_path().string();
  return assemble(chat, encoded, load_images(chat, folder, id), /*must_train=*/true, id);
}

Sample SampleEncoder::encode_prompt(Conversation conversation, const std::string& folder, const SampleId& id) const {
  if (conversation.messages.back().role == Role::kAssistant) conversation.messages.pop_back();
  if (conversation.messages.empty()) throw DataError("{}: nothing comes before the assistant's turn", to_string(id));
  const RenderedChat chat = render(conversation, to_string(id));
  Sample sample = assemble(chat, encode_chat(chat, tokenizer_), load_images(chat, folder, id), /*must_train=*/false, id);
  sample.labels.assign(sample.input_ids.size(), kIgnoreLabel);
  sample.supervised_tokens = 0;
  return sample;
}

std::vector<SampleImage> SampleEncoder::load_images(const RenderedChat& chat, const std::string& folder,
                                                    const SampleId& id) const {
  std::vector<SampleImage> images;
  for (const std::string& url : chat.image_urls) images.push_back(load_image(url, folder, images.size() + 1, id));
  return images;
}

SampleImage SampleEncoder::load_image(const std::string& url, const std::string& folder, size_t number,
                                      const SampleId& id) const {
  SampleImage image;
  image.name = image_name(url);
  try {
    const RgbImage picture = decode_image(read_image_url(url, folder), options_.exif, image.name);
    image.source_width = picture.width;
    image.source_height = picture.height;
    image.plan = plan_image(picture.width, picture.height, options_.image_limits);
    image.canvas = fit_image(picture, image.plan);
  } catch (const DataError& error) {
    throw ImageError("{}: image {} ({}): {}", to_string(id), number, image.name, error.what());
  }
  return image;
}

Sample SampleEncoder::assemble(const RenderedChat& chat, const EncodedChat& encoded, std::vector<SampleImage> images,
                               bool must_train, const SampleId& id) const {
  const std::string where = to_string(id);
  if (must_train && !chat.ends_with_assistant)
    throw DataError("{}: the last message must be the assistant's to be trained on", where);
  const auto is_image = [&](int64_t token) { return image_token_id_ && token == *image_token_id_; };
  const auto placeholders = static_cast<size_t>(std::ranges::count_if(encoded.ids, is_image));
  if (placeholders != images.size()) {
    throw DataError("{}: {} image tokens for {} pictures; the tokenizer {} needs {} as one token, and no text may spell it",
                    where, placeholders, images.size(), tokenizer_.path(), options_.chat.image_token);
  }

  Sample sample;
  sample.id = id;
  std::vector<int64_t> position;  // of each encoded token and of the end, after pictures have grown to their spans
  for (const int64_t token : encoded.ids) {
    position.push_back(sample.tokens());
    if (!is_image(token)) {
      sample.input_ids.push_back(token);
      sample.token_types.push_back(kSpanText);
      continue;
    }
    SampleImage& image = images[sample.images.size()];
    image.start = sample.tokens();
    const std::vector<int32_t> types = span_types(image.plan);
    sample.input_ids.insert(sample.input_ids.end(), types.size(), token);
    sample.token_types.insert(sample.token_types.end(), types.begin(), types.end());
    sample.images.push_back(std::move(image));
  }
  position.push_back(sample.tokens());

  sample.labels.assign(sample.input_ids.size(), kIgnoreLabel);
  for (size_t i = 0; i < encoded.turns.size(); ++i) {
    const EncodedChat::Turn& turn = encoded.turns[i];
    const bool last = i + 1 == encoded.turns.size() && chat.ends_with_assistant;
    if (!turn.train.value_or(last || options_.supervise == Supervise::kAll)) continue;
    for (int64_t t = std::max<int64_t>(position[turn.begin], 1); t < position[turn.end]; ++t) {
      if (sample.token_types[t] != kSpanText) continue;
      sample.labels[t - 1] = sample.input_ids[t];  // NOTE [Label shift]: here, once, before any packing, truncation or split
      ++sample.supervised_tokens;
    }
  }
  if (must_train && sample.supervised_tokens == 0) throw DataError("{}: no token of this line is trained on", where);
  return sample;
}

SampleEncoder::Outcome SampleEncoder::load(const std::function<std::string()>& read, const SampleId& id) const {
  Outcome outcome;
  try {
    outcome.sample = encode(read(), id);
  } catch (const ImageError& error) {
    if (options_.bad_image == BadInput::kError)
      throw ImageError("{} (data.bad_image: skip leaves such samples out)", error.what());
    return {Outcome::Kind::kBadImage, {}, error.what()};
  } catch (const DataError& error) {
    if (options_.bad_line == BadInput::kError) throw DataError("{} (data.bad_line: skip leaves such lines out)", error.what());
    return {Outcome::Kind::kBadLine, {}, error.what()};
  }
  const int64_t tokens = outcome.sample.tokens();
  if (options_.max_tokens == 0 || tokens <= options_.max_tokens) return outcome;
  outcome.message =
      fmt::format("{}: the sample has {} tokens, more than the {} of a row", to_string(id), tokens, options_.max_tokens);
  if (options_.over_long == OverLong::kError) throw DataError("{} (data.over_long: drop or truncate goes on)", outcome.message);
  if (options_.over_long == OverLong::kTruncate) {
    truncate_sample(outcome.sample, options_.max_tokens);
    if (outcome.sample.supervised_tokens > 0) return outcome;
    outcome.message += "; what is trained on lies behind the cut";
  }
  return {Outcome::Kind::kOverLong, {}, outcome.message};
}

void truncate_sample(Sample& sample, int64_t max_tokens) {
  const int64_t tokens = sample.tokens();
  if (tokens <= max_tokens) return;
  int64_t keep = max_tokens;
  while (!sample.images.empty() && sample.images.back().start + sample.images.back().plan.tokens > keep) {
    keep = std::min(keep, sample.images.back().start);
    sample.images.pop_back();
  }
  sample.input_ids.resize(keep);
  sample.labels.resize(keep);
  sample.token_types.resize(keep);
  if (keep > 0) sample.labels.back() = kIgnoreLabel;  // its target has been cut off
  sample.truncated_tokens += tokens - keep;
  sample.supervised_tokens = std::ranges::count_if(sample.labels, [](int64_t label) { return label != kIgnoreLabel; });
}

}  // namespace hyperparallel::data
