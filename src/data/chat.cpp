#include "data/chat.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "data/messages.h"

namespace hyperparallel::data {
namespace {

constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
constexpr std::string_view kSystem = "<｜System｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kLatestReminder = "<｜latest_reminder｜>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

// Collects the prompt and remembers where turns begin and end.
class PromptWriter {
 public:
  // An added token.
  void marker(std::string_view token) {
    if (!borders_.empty() && borders_.back()->offset == text_.size()) borders_.back()->exact = true;
    text_ += token;
    after_marker_ = true;
  }
  void text(std::string_view text) {
    if (text.empty()) return;
    text_ += text;
    after_marker_ = false;
  }
  // Sets `border` to the present place. It must stay where it is until the writer is done.
  void border(PromptBorder& border) {
    border = {text_.size(), after_marker_};
    borders_.push_back(&border);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  bool after_marker_ = false;
  std::vector<PromptBorder*> borders_;
};

// A user turn as it is rendered: blocks of text, pictures, and tool results.
struct Part {
  ContentBlock block;
  std::vector<ContentBlock> tool_result;
  std::string tool_call_id;
  bool is_tool_result = false;
};

// A message after tool results and consecutive user messages have been folded into one user turn.
struct Turn {
  Role role;
  const Message* message;  // of a folded turn the first one: its `task` counts
  std::vector<Part> parts;
  std::optional<std::string> task;
};

std::vector<Turn> fold_turns(const std::vector<Message>& messages) {
  std::vector<Turn> turns;
  for (const Message& message : messages) {
    const bool tool = message.role == Role::kTool;
    const bool user = tool || message.role == Role::kUser;
    const bool joins = user && !turns.empty() && turns.back().role == Role::kUser && (tool || !turns.back().task);
    if (!joins) turns.push_back({user ? Role::kUser : message.role, &message, {}, tool ? std::nullopt : message.task});
    if (tool) {
      turns.back().parts.push_back({{}, message.content, message.tool_call_id, true});
    } else {
      for (const ContentBlock& block : message.content) turns.back().parts.push_back({block, {}, {}, false});
    }
  }
  return turns;
}

// Puts the tool results of each user turn, in the places they have, into the order of the calls before it.
void sort_tool_results(std::vector<Turn>& turns) {
  std::unordered_map<std::string, size_t> order;  // of the last assistant turn with calls
  const auto place = [&](const Part& part) {
    const auto found = order.find(part.tool_call_id);
    return found == order.end() ? 0 : found->second;
  };
  for (Turn& turn : turns) {
    if (turn.role == Role::kAssistant && !turn.message->tool_calls.empty()) {
      order.clear();
      for (size_t i = 0; i < turn.message->tool_calls.size(); ++i) {
        if (const std::string& id = turn.message->tool_calls[i].id; !id.empty()) order[id] = i;
      }
    } else if (turn.role == Role::kUser) {
      std::vector<Part> results;
      for (const Part& part : turn.parts) {
        if (part.is_tool_result) results.push_back(part);
      }
      std::ranges::stable_sort(results, {}, place);
      auto next = results.begin();
      for (Part& part : turn.parts) {
        if (part.is_tool_result) part = std::move(*next++);
      }
    }
  }
}

// Arguments as an object. A string of JSON is opened, also a doubly encoded one; what is no object then becomes one parameter.
OrderedJson argument_object(const OrderedJson& given) {
  OrderedJson arguments = given;
  for (int i = 0; i < 2 && arguments.is_string(); ++i) {
    try {
      arguments = parse_json(arguments.get<std::string>(), "arguments");
    } catch (const DataError&) {
      break;
    }
  }
  return arguments.is_object() ? arguments : OrderedJson{{"arguments", given}};
}

std::string render_tool_calls(const std::vector<ToolCall>& calls) {
  std::string out = "\n\n<｜DSML｜ calls>\n";
  for (const ToolCall& call : calls) {
    out += fmt::format("<｜DSML｜ invoke name=\"{}\">\n", call.name);
    std::string_view separator;
    const OrderedJson arguments = argument_object(call.arguments);  // items() does not keep a temporary alive
    for (const auto& [name, value] : arguments.items()) {
      const bool text = value.is_string();
      out += fmt::format("{}<｜DSML｜ parameter name=\"{}\" string=\"{}\">{}</｜DSML｜ parameter>", separator, name, text,
                         text ? value.get<std::string>() : python_json(value));
      separator = "\n";
    }
    out += "\n</｜DSML｜ invoke>\n";
  }
  return out + "</｜DSML｜ calls>";
}

class ChatRenderer {
 public:
  ChatRenderer(const Conversation& conversation, const ChatOptions& options, const ToolText& tool_text, std::string_view where)
      : thinking_(conversation.thinking.value_or(options.thinking)),
        effort_(conversation.reasoning_effort.value_or(options.reasoning_effort)),
        image_token_(options.image_token),
        tool_text_(tool_text),
        where_(where),
        turns_(fold_turns(conversation.messages)) {
    sort_tool_results(turns_);
    const bool tools = std::ranges::any_of(conversation.messages, [](const Message& message) { return !message.tools.empty(); });
    drop_thinking_ = conversation.drop_thinking.value_or(options.drop_thinking) && !tools;
    for (size_t i = 0; i < turns_.size(); ++i) {
      if (asks(i)) last_question_ = static_cast<int64_t>(i);
    }
  }

  RenderedChat render() {
    chat_.turns.reserve(turns_.size());  // the writer points at the borders inside
    writer_.marker(kBos);
    if (thinking_ || turns_[0].role == Role::kSystem) writer_.marker(kSystem);
    if (thinking_) {
      writer_.text(
          fmt::format("Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n", effort_));
    }
    for (size_t i = 0; i < turns_.size(); ++i) {
      render_turn(i);
      render_header(i);
    }
    chat_.ends_with_assistant = turns_.back().role == Role::kAssistant;
    chat_.text = writer_.take();
    return std::move(chat_);
  }

 private:
  // Whether an answer is asked for after turn i: user turns, and system turns but for the first.
  bool asks(size_t i) const { return turns_[i].role == Role::kUser || (turns_[i].role == Role::kSystem && i > 0); }
  // Whether the answer after turn i, or the answer i itself, keeps its reasoning.
  bool reasons(size_t i) const { return thinking_ && (!drop_thinking_ || static_cast<int64_t>(i) >= last_question_); }

  void render_turn(size_t i) {
    const Turn& turn = turns_[i];
    switch (turn.role) {
      case Role::kSystem:
        if (i > 0) writer_.marker(kSystem);
        render_parts(turn);
        render_declarations(*turn.message);
        break;
      case Role::kAssistant:
        render_assistant(i);
        break;
      case Role::kLatestReminder:
        writer_.marker(kLatestReminder);
        render_parts(turn);
        break;
      default:
        writer_.marker(kUser);
        render_parts(turn);
    }
  }

  void render_blocks(const std::vector<ContentBlock>& blocks) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (i > 0) writer_.text("\n\n");
      render_block(blocks[i]);
    }
  }

  void render_block(const ContentBlock& block) {
    if (block.is_image) {
      writer_.marker(image_token_);
      chat_.image_urls.push_back(block.text);
    } else {
      writer_.text(block.text);
    }
  }

  void render_parts(const Turn& turn) {
    for (size_t i = 0; i < turn.parts.size(); ++i) {
      if (i > 0) writer_.text("\n\n");
      const Part& part = turn.parts[i];
      if (part.is_tool_result) {
        writer_.text("<tool_result>");
        render_blocks(part.tool_result);
        writer_.text("</tool_result>");
      } else {
        render_block(part.block);
      }
    }
  }

  const std::string& fixed_text(const std::optional<std::string>& text, const char* what, const char* key) const {
    if (!text) {
      throw DataError(
          "{}: the messages declare {}, whose fixed text `{}` is not part of this program; name a file that has it "
          "(data.tool_text, --tool-text)",
          where_, what, key);
    }
    return *text;
  }

  // Tools and response format of a system turn.
  void render_declarations(const Message& message) {
    if (!message.tools.empty()) {
      writer_.text("\n\n" + fixed_text(tool_text_.tools_head, "tools", "tools_head"));
      std::string_view separator;
      for (const OrderedJson& tool : message.tools) {
        writer_.text(separator);
        writer_.text(python_json(tool));
        separator = "\n";
      }
      writer_.text(fixed_text(tool_text_.tools_tail, "tools", "tools_tail"));
    }
    if (!message.response_format.empty()) {
      writer_.text("\n\n" + fixed_text(tool_text_.response_format_head, "a response format", "response_format_head"));
      writer_.text(python_json(message.response_format));
      writer_.text(tool_text_.response_format_tail);
    }
  }

  void render_assistant(size_t i) {
    const Turn& turn = turns_[i];
    auto& border = chat_.turns.emplace_back();
    border.train = turn.message->train;
    writer_.border(border.begin);
    const bool task_answer = i > 0 && turns_[i - 1].task;
    if (reasons(i) && !task_answer) {
      writer_.text(turn.message->reasoning_content);
      writer_.marker(kThinkEnd);
    }
    render_parts(turn);
    if (!turn.message->tool_calls.empty()) writer_.text(render_tool_calls(turn.message->tool_calls));
    if (!turn.message->wo_eos) writer_.marker(kEos);
    writer_.border(border.end);
  }

  // What stands between turn i and the answer to it.
  void render_header(size_t i) {
    const bool last = i + 1 == turns_.size();
    if (!last && turns_[i + 1].role != Role::kAssistant && turns_[i + 1].role != Role::kLatestReminder) return;
    const std::optional<std::string>& task = turns_[i].task;
    if (!task && !asks(i)) return;
    if (!task || *task == "action") {
      writer_.marker(kAssistant);
      writer_.marker((task ? thinking_ : reasons(i)) ? kThink : kThinkEnd);
    }
    if (task) writer_.marker(fmt::format("<｜{}｜>", *task));
  }

  bool thinking_, drop_thinking_ = true;
  int effort_;
  const std::string& image_token_;
  const ToolText& tool_text_;
  std::string_view where_;
  std::vector<Turn> turns_;
  int64_t last_question_ = -1;
  PromptWriter writer_;
  RenderedChat chat_;
};

}  // namespace

ToolText ToolText::load(const std::string& path) {
  std::string text;
  try {
    text = file::read(path);
  } catch (const file::FileError& error) {
    throw DataError("{}; a JSON file with tools_head, tools_tail and response_format_head is needed", error.what());
  }
  const OrderedJson json = parse_json(text, path);
  if (!json.is_object()) throw DataError("{}: an object is needed, found {}", path, json.type_name());
  ToolText result;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) throw DataError("{}: {}: a string is needed, found {}", path, key, value.type_name());
    if (key == "tools_head") {
      result.tools_head = value.get<std::string>();
    } else if (key == "tools_tail") {
      result.tools_tail = value.get<std::string>();
    } else if (key == "response_format_head") {
      result.response_format_head = value.get<std::string>();
    } else if (key == "response_format_tail") {
      result.response_format_tail = value.get<std::string>();
    } else {
      throw DataError("{}: unknown key `{}`; accepted are tools_head, tools_tail, response_format_head, response_format_tail",
                      path, key);
    }
  }
  return result;
}

RenderedChat render_chat(const Conversation& conversation, const ChatOptions& options, const ToolText& tool_text,
                         std::string_view where) {
  HP_CHECK(!conversation.messages.empty(), "a conversation has messages");
  return ChatRenderer(conversation, options, tool_text, where).render();
}

EncodedChat encode_chat(const RenderedChat& chat, const Tokenizer& tokenizer) {
  const std::string_view text = chat.text;
  EncodedChat encoded;
  size_t done = 0;  // bytes of the text that `ids` covers
  const auto token_index = [&](const PromptBorder& border) {
    const std::vector<int64_t> ids = tokenizer.encode(text.substr(done, border.offset - done));
    if (!border.exact) return static_cast<int64_t>(encoded.ids.size() + ids.size());
    encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
    done = border.offset;
    return static_cast<int64_t>(encoded.ids.size());
  };
  for (const RenderedChat::Turn& turn : chat.turns) {
    const int64_t begin = token_index(turn.begin);
    encoded.turns.push_back({begin, token_index(turn.end), turn.train});
  }
  const std::vector<int64_t> rest = tokenizer.encode(text.substr(done));
  encoded.ids.insert(encoded.ids.end(), rest.begin(), rest.end());
  return encoded;
}

}  // namespace hyperparallel::data
