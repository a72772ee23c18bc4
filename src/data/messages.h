// A conversation in the messages form of the OpenAI API: one JSON object a line of a JSONL file.
//
//   {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}},
//                                              {"type": "text", "text": "What shape is this?"}]},
//                 {"role": "assistant", "content": "a circle"}]}
//
// Beside `messages` a line may say `thinking`, `drop_thinking`, `reasoning_effort` and `image_sizes`; other keys beside it are
// the user's own. Inside a message an unknown key is an error, because it would change what is trained on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/json_text.h"

namespace hyperparallel::data {

enum class Role { kSystem, kUser, kAssistant, kTool, kLatestReminder };

struct ContentBlock {
  bool is_image = false;
  std::string text;  // or the picture's url
};

struct ToolCall {
  std::string id;
  std::string name;       // with its namespace: `ns::name`
  OrderedJson arguments;  // an object, or whatever the line says (often a string of JSON)
};

struct Message {
  Role role = Role::kUser;
  std::vector<ContentBlock> content;
  std::string reasoning_content;
  std::vector<ToolCall> tool_calls;
  std::string tool_call_id;
  std::vector<OrderedJson> tools;   // function schemas, `name` with its namespace
  OrderedJson response_format;      // null: none
  std::optional<std::string> task;  // action, query, authority, domain, title or read_url
  bool wo_eos = false;              // the assistant's turn is unfinished: no end-of-turn token
  std::optional<bool> train;        // assistant turns only: train on this turn or not, whatever `supervise` says
};

struct Conversation {
  std::vector<Message> messages;  // at least one
  std::optional<bool> thinking, drop_thinking;
  std::optional<int> reasoning_effort;                                  // 1..100
  std::optional<std::vector<std::pair<int64_t, int64_t>>> image_sizes;  // width, height of each picture in prompt order
};

// Parses one line. Throws DataError, which begins with `where` and names the key, for a line that is not such a conversation.
Conversation parse_conversation(std::string_view line, std::string_view where);
Conversation conversation_from_json(const OrderedJson& line, std::string_view where);

// 1..100 from a number or from low | high | max (50, 75, 100). Throws DataError, which begins with `where`, for anything else.
int parse_reasoning_effort(const OrderedJson& value, std::string_view where);

}  // namespace hyperparallel::data
