// Samples: one conversation as tokens, labels and pictures, ready for packing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/batch.h"
#include "data/chat.h"
#include "data/image.h"
#include "data/tokenizer.h"

namespace hyperparallel::data {

enum class Supervise { kLast, kAll };              // which assistant turns are trained on where the line does not say
enum class OverLong { kDrop, kTruncate, kError };  // what becomes of a sample longer than max_tokens
enum class BadInput { kSkip, kError };             // what becomes of a line or a picture that cannot be read

struct SampleOptions {
  ChatOptions chat;
  ToolText tool_text;
  Supervise supervise = Supervise::kLast;
  int64_t max_tokens = 0;  // of one sample; 0: no limit
  OverLong over_long = OverLong::kDrop;
  BadInput bad_line = BadInput::kError;
  BadInput bad_image = BadInput::kError;
  ImageLimits image_limits;
  ExifOrientation exif = ExifOrientation::kApply;
  std::optional<int64_t> image_token_id;  // default: the tokenizer's id of kImagePlaceholder; sets chat.image_token
};

struct SampleImage {
  std::string name;  // for messages
  int64_t source_width = 0, source_height = 0;
  int64_t start = 0;  // index of the START token
  ImagePlan plan;
  RgbImage canvas;  // resized and padded; empty where only the plan was asked for
};

struct Sample {
  SampleId id;
  std::vector<int64_t> input_ids;  // [tokens]; image spans hold the image token id
  std::vector<int64_t> labels;     // [tokens]; shifted: the token after the position, where that is trained on, else kIgnoreLabel
  std::vector<int32_t> token_types;  // [tokens]; SpanType
  std::vector<SampleImage> images;   // by rising start
  int64_t supervised_tokens = 0;
  int64_t truncated_tokens = 0;  // cut off at the end

  int64_t tokens() const { return static_cast<int64_t>(input_ids.size()); }
};

// A picture could not be read, decoded or fitted.
class ImageError : public DataError {
  using DataError::DataError;
};

// Turns lines into samples. Const calls may come from several threads at once.
class SampleEncoder {
 public:
  // `tokenizer` must outlive the encoder. Throws DataError where the tokenizer lacks a token of the chat format, or where
  // image_token_id is none of its added tokens.
  SampleEncoder(const Tokenizer& tokenizer, SampleOptions options);

  // The sample of one line of `file`; relative picture paths count from the file's folder. Throws DataError, which begins with
  // FILE:LINE, for a line that is no conversation, does not end with an assistant turn or has nothing to train on, and
  // ImageError for a picture. Length is not checked.
  Sample encode(std::string_view line, const SampleId& id) const;
  // What the model is given to answer: `conversation` without its last assistant turn, if it ends with one. No label is set.
  // Relative picture paths count from `folder`. Throws as `encode` does.
  Sample encode_prompt(Conversation conversation, const std::string& folder, const SampleId& id) const;
  // Renders a conversation with these options.
  RenderedChat render(const Conversation& conversation, std::string_view where) const;
  // The sample of an encoded conversation whose pictures are planned: one of `images` for each image token, in order. Their
  // `start` is set here. Throws DataError where the numbers differ, or where `must_train` and nothing can be trained on.
  Sample assemble(const RenderedChat& chat, const EncodedChat& encoded, std::vector<SampleImage> images, bool must_train,
                  const SampleId& id) const;

  // Outcome of one line under the policies of the options.
  struct Outcome {
    enum class Kind { kSample, kBadLine, kBadImage, kOverLong };
    Kind kind = Kind::kSample;
    Sample sample;        // only for kSample
    std::string message;  // why there is none, with FILE:LINE; also set for a truncated sample
  };
  // Reads a line with `read` and applies the policies: throws DataError only where they say error.
  Outcome load(const std::function<std::string()>& read, const SampleId& id) const;

  void set_max_tokens(int64_t tokens) { options_.max_tokens = tokens; }  // while no other thread uses the encoder

  const Tokenizer& tokenizer() const { return tokenizer_; }
  const SampleOptions& options() const { return options_; }
  int64_t pad_id() const { return pad_id_; }

 private:
  std::vector<SampleImage> load_images(const RenderedChat& chat, const std::string& folder, const SampleId& id) const;
  SampleImage load_image(const std::string& url, const std::string& folder, size_t number, const SampleId& id) const;

  const Tokenizer& tokenizer_;
  SampleOptions options_;
  std::optional<int64_t> image_token_id_;
  int64_t pad_id_ = 0;
};

// Cuts a sample to `max_tokens`. A picture that would be cut goes whole, with all that follows it.
void truncate_sample(Sample& sample, int64_t max_tokens);

std::string to_string(const SampleId& id);  // FILE:LINE

}  // namespace hyperparallel::data
