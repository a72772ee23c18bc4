// Chat encoding: a conversation becomes the prompt text that DeepSeek-V4.1 is trained on (docs/data.md, The prompt), and its
// token ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace hyperparallel::data {

struct Conversation;  // data/messages.h; it brings JSON along, which few readers of this header need

inline constexpr std::string_view kImagePlaceholder = "<｜deepseek_image｜>";

// What a conversation that does not say it for itself is rendered with.
struct ChatOptions {
  bool thinking = false;
  bool drop_thinking = true;                   // leave out the reasoning of turns before the last user turn
  int reasoning_effort = 75;                   // 1..100, rendered with thinking on
  std::string image_token{kImagePlaceholder};  // stands for a picture; some tokenizer files spell it in another way
};

// The fixed texts around tool schemas and response formats. They are not part of this program: the user names a JSON file with
// the strings `tools_head`, `tools_tail` (before and after the schemas, which are joined by a newline) and
// `response_format_head`. A text that the file lacks makes the messages that need it an error.
struct ToolText {
  std::optional<std::string> tools_head, tools_tail, response_format_head;
  std::string response_format_tail;

  // Throws DataError for a file that cannot be read, is not such an object, or has other keys.
  static ToolText load(const std::string& path);
};

// A place between two characters of the prompt. `exact`: an added token ends or begins there, so no other token crosses it.
struct PromptBorder {
  size_t offset = 0;
  bool exact = false;
};

struct RenderedChat {
  struct Turn {
    PromptBorder begin, end;  // reasoning, content, calls and the end-of-turn token
    std::optional<bool> train;
  };
  std::string text;                     // one ChatOptions::image_token for each picture
  std::vector<std::string> image_urls;  // in the order of their placeholders
  std::vector<Turn> turns;              // assistant turns
  bool ends_with_assistant = false;
};

// Renders the whole conversation. Throws DataError, which begins with `where`: tools or response formats without their texts.
RenderedChat render_chat(const Conversation& conversation, const ChatOptions& options, const ToolText& tool_text,
                         std::string_view where);

struct EncodedChat {
  struct Turn {
    int64_t begin = 0, end = 0;  // token indexes
    std::optional<bool> train;
  };
  std::vector<int64_t> ids;  // [tokens], one id for each picture
  std::vector<Turn> turns;
};

// Ids of the text, which are those of encoding it in one piece, and the borders of its assistant turns.
EncodedChat encode_chat(const RenderedChat& chat, const Tokenizer& tokenizer);

}  // namespace hyperparallel::data
