#include "data/messages.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "data/chat.h"

namespace hyperparallel::data {
namespace {

constexpr std::array<std::pair<std::string_view, Role>, 5> kRoles = {{{"system", Role::kSystem},
                                                                      {"user", Role::kUser},
                                                                      {"assistant", Role::kAssistant},
                                                                      {"tool", Role::kTool},
                                                                      {"latest_reminder", Role::kLatestReminder}}};
constexpr std::array<std::string_view, 6> kTasks = {"action", "query", "authority", "domain", "title", "read_url"};
constexpr std::array<std::string_view, 12> kMessageKeys = {"role",   "content", "reasoning_content", "tool_calls", "tool_call_id",
                                                           "tools",  "task",    "response_format",   "wo_eos",     "train",
                                                           "weight", "name"};

// The member `key`, or null where it is absent or null.
const OrderedJson* find(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const OrderedJson& require_object(const OrderedJson& value, std::string_view where) {
  if (!value.is_object()) throw DataError("{}: an object is needed, found {}", where, value.type_name());
  return value;
}

const OrderedJson& require_list(const OrderedJson& value, std::string_view where) {
  if (!value.is_array()) throw DataError("{}: a list is needed, found {}", where, value.type_name());
  return value;
}

const std::string& require_string(const OrderedJson& value, std::string_view where) {
  if (!value.is_string()) throw DataError("{}: a string is needed, found {}", where, value.type_name());
  return value.get_ref<const std::string&>();
}

bool require_bool(const OrderedJson& value, std::string_view where) {
  if (!value.is_boolean()) throw DataError("{}: true or false is needed, found {}", where, value.type_name());
  return value.get<bool>();
}

const std::string& require_text(const OrderedJson& value, std::string_view where) {
  const std::string& text = require_string(value, where);
  if (text.find(kImagePlaceholder) != std::string::npos) {
    throw DataError("{}: the text holds the literal image placeholder {}; pictures are image_url blocks", where,
                    kImagePlaceholder);
  }
  return text;
}

// The url of an image block: {"type": "image_url", "image_url": {"url": ...}}, with a plain string in place of the object,
// or {"type": "image"} with one of `url`, `source`, `data`.
std::string image_source(const OrderedJson& block, bool image_url, std::string_view where) {
  std::string source;
  if (image_url) {
    if (const OrderedJson* value = find(block, "image_url")) {
      const OrderedJson* url =
          value->is_string() ? value : find(require_object(*value, fmt::format("{}.image_url", where)), "url");
      if (url) source = require_string(*url, fmt::format("{}.image_url.url", where));
    }
  } else {
    for (const char* key : {"url", "source", "data"}) {
      const OrderedJson* value = find(block, key);
      if (value && source.empty()) source = require_string(*value, fmt::format("{}.{}", where, key));
    }
  }
  if (source.empty()) throw DataError("{}: the image block has no source; give image_url.url", where);
  return source;
}

std::vector<ContentBlock> parse_content(const OrderedJson& content, std::string_view where) {
  if (content.is_string()) return {{false, require_text(content, where)}};
  if (!content.is_array()) throw DataError("{}: a string or a list of blocks is needed, found {}", where, content.type_name());
  std::vector<ContentBlock> blocks;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", where, i);
    const OrderedJson& block = require_object(content[i], at);
    const OrderedJson* type = find(block, "type");
    const std::string name = type ? require_string(*type, at + ".type") : "";
    if (name == "text") {
      const OrderedJson* text = find(block, "text");
      if (!text) throw DataError("{}: the text block has no `text`", at);
      blocks.push_back({false, require_text(*text, at + ".text")});
    } else if (name == "image_url" || name == "image") {
      blocks.push_back({true, image_source(block, name == "image_url", at)});
    } else {
      throw DataError("{}.type: found `{}`; accepted are text and image_url", at, name);
    }
  }
  return blocks;
}

// A tool's name with its namespace. The namespace may stand in the name (`ns::name`), or as a string or an object with a `name`.
std::string qualified_name(const std::string& name, const OrderedJson* space, std::string_view where) {
  std::string prefix, bare = name;
  if (space) {
    const OrderedJson* text = space->is_object() ? find(*space, "name") : space;
    if (!text) throw DataError("{}.namespace: the object has no `name`", where);
    prefix = require_string(*text, fmt::format("{}.namespace", where));
  }
  if (const auto at = name.find("::"); at != std::string::npos) {
    if (space && prefix != name.substr(0, at)) throw DataError("{}: `{}` is declared in the namespace `{}`", where, name, prefix);
    prefix = name.substr(0, at);
    bare = name.substr(at + 2);
  } else if (!space) {
    return name;
  }
  if (bare.find("::") != std::string::npos || prefix.find("::") != std::string::npos) {
    throw DataError("{}: `{}` in the namespace `{}`: a name has at most one `::`", where, name, prefix);
  }
  return prefix + "::" + bare;
}

// The schema that the prompt shows for one declared tool: its `function` with the namespace drawn into name and description.
OrderedJson parse_tool(const OrderedJson& tool, const std::string& where) {
  const OrderedJson* function = find(require_object(tool, where), "function");
  if (!function) throw DataError("{}: the tool has no `function`", where);
  OrderedJson schema = require_object(*function, where + ".function");
  const OrderedJson* name = find(schema, "name");
  if (!name) throw DataError("{}.function: the function has no `name`", where);
  const OrderedJson* outer = find(tool, "namespace");
  const OrderedJson space = outer ? *outer : schema.value("namespace", OrderedJson());
  schema["name"] = qualified_name(require_string(*name, where + ".function.name"), space.is_null() ? nullptr : &space, where);
  schema.erase("namespace");
  if (const OrderedJson* text = space.is_object() ? find(space, "description") : nullptr) {
    const OrderedJson* own = find(schema, "description");
    const std::string tail = own ? require_string(*own, where + ".function.description") : "";
    const std::string& head = require_string(*text, where + ".namespace.description");
    if (!head.empty()) schema["description"] = head + "\n" + tail;
  }
  return schema;
}

ToolCall parse_tool_call(const OrderedJson& value, const std::string& where) {
  const OrderedJson* function = find(require_object(value, where), "function");
  if (!function) throw DataError("{}: the call has no `function`", where);
  require_object(*function, where + ".function");
  const OrderedJson* name = find(*function, "name");
  const OrderedJson* arguments = find(*function, "arguments");
  if (!name || !arguments) throw DataError("{}.function: `name` and `arguments` are needed", where);
  const OrderedJson* space = find(value, "namespace");
  if (!space) space = find(*function, "namespace");
  const OrderedJson* id = find(value, "id");
  if (!id) id = find(*function, "id");
  return {.id = id ? require_string(*id, where + ".id") : "",
          .name = qualified_name(require_string(*name, where + ".function.name"), space, where),
          .arguments = *arguments};
}

// `train` (true or false) or `weight` (0 or 1); they may not disagree.
std::optional<bool> parse_train(const OrderedJson& value, Role role, const std::string& where) {
  std::optional<bool> train;
  if (const OrderedJson* flag = find(value, "train")) train = require_bool(*flag, where + ".train");
  if (const OrderedJson* weight = find(value, "weight")) {
    if (!weight->is_number() || (*weight != 0 && *weight != 1)) {
      throw DataError("{}.weight: 0 or 1 is needed, found {}", where, weight->dump());
    }
    if (train && *train != (*weight == 1)) throw DataError("{}: `train` and `weight` contradict each other", where);
    train = *weight == 1;
  }
  if (train && *train && role != Role::kAssistant) throw DataError("{}: only an assistant turn can be trained on", where);
  return train;
}

void check_keys(const OrderedJson& message, const std::string& where) {
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null() && std::ranges::find(kMessageKeys, key) == kMessageKeys.end()) {
      throw DataError("{}: unknown key `{}`; accepted are {}", where, key, fmt::join(kMessageKeys, ", "));
    }
  }
}

Role parse_role(const OrderedJson& message, const std::string& where) {
  const OrderedJson* role = find(message, "role");
  const std::string name = role ? require_string(*role, where + ".role") : "";
  const auto known = std::ranges::find(kRoles, name, &std::pair<std::string_view, Role>::first);
  if (known == kRoles.end()) {
    throw DataError("{}.role: found `{}`; accepted are system, user, assistant, tool, latest_reminder", where, name);
  }
  return known->second;
}

// Parts that only an assistant turn has.
void parse_assistant(const OrderedJson& value, Message& message, const std::string& where) {
  if (const OrderedJson* reasoning = find(value, "reasoning_content")) {
    message.reasoning_content = require_text(*reasoning, where + ".reasoning_content");
  }
  if (const OrderedJson* calls = find(value, "tool_calls")) {
    require_list(*calls, where + ".tool_calls");
    for (size_t i = 0; i < calls->size(); ++i) {
      message.tool_calls.push_back(parse_tool_call((*calls)[i], fmt::format("{}.tool_calls[{}]", where, i)));
    }
  }
  if (message.role != Role::kAssistant && (!message.reasoning_content.empty() || !message.tool_calls.empty())) {
    throw DataError("{}: only an assistant message has reasoning_content or tool_calls", where);
  }
}

Message parse_message(const OrderedJson& value, const std::string& where) {
  require_object(value, where);
  check_keys(value, where);
  Message message;
  message.role = parse_role(value, where);
  parse_assistant(value, message, where);
  if (const OrderedJson* tools = find(value, "tools")) {
    require_list(*tools, where + ".tools");
    for (size_t i = 0; i < tools->size(); ++i) {
      message.tools.push_back(parse_tool((*tools)[i], fmt::format("{}.tools[{}]", where, i)));
    }
  }
  if (const OrderedJson* format = find(value, "response_format")) {
    message.response_format = require_object(*format, where + ".response_format");
  }
  const OrderedJson* content = find(value, "content");
  if (content) {
    message.content = parse_content(*content, where + ".content");
  } else if (message.tool_calls.empty() && message.tools.empty() && message.response_format.is_null()) {
    throw DataError("{}: the message has no `content`", where);
  }
  if (const OrderedJson* id = find(value, "tool_call_id")) message.tool_call_id = require_string(*id, where + ".tool_call_id");
  if (const OrderedJson* unfinished = find(value, "wo_eos")) message.wo_eos = require_bool(*unfinished, where + ".wo_eos");
  if (const OrderedJson* task = find(value, "task")) {
    message.task = require_string(*task, where + ".task");
    if (std::ranges::find(kTasks, *message.task) == kTasks.end()) {
      throw DataError("{}.task: found `{}`; accepted are {}", where, *message.task, fmt::join(kTasks, ", "));
    }
  }
  message.train = parse_train(value, message.role, where);
  return message;
}

std::vector<std::pair<int64_t, int64_t>> parse_image_sizes(const OrderedJson& sizes, const std::string& where) {
  std::vector<std::pair<int64_t, int64_t>> parsed;
  for (const OrderedJson& size : require_list(sizes, where)) {
    if (!size.is_array() || size.size() != 2 || !size[0].is_number_integer() || !size[1].is_number_integer()) {
      throw DataError("{}: [width, height] pairs are needed, found {}", where, size.dump());
    }
    parsed.emplace_back(size[0].get<int64_t>(), size[1].get<int64_t>());
  }
  return parsed;
}

}  // namespace

int parse_reasoning_effort(const OrderedJson& value, std::string_view where) {
  if (value == "low") return 50;
  if (value == "high") return 75;
  if (value == "max") return 100;
  if (value.is_number_integer() && value >= 1 && value <= 100) return value.get<int>();
  throw DataError("{}: found {}; accepted are a whole number from 1 to 100, low, high and max", where, python_json(value));
}

Conversation conversation_from_json(const OrderedJson& line, std::string_view where) {
  require_object(line, where);
  const OrderedJson* messages = find(line, "messages");
  if (!messages) throw DataError("{}: the line has no `messages`", where);
  require_list(*messages, fmt::format("{}: messages", where));
  if (messages->empty()) throw DataError("{}: there are no messages", where);
  if (find(line, "tools") || find(line, "response_format")) {
    throw DataError("{}: `tools` and `response_format` stand in the system message that declares them, not beside `messages`",
                    where);
  }
  Conversation conversation;
  for (size_t i = 0; i < messages->size(); ++i) {
    conversation.messages.push_back(parse_message((*messages)[i], fmt::format("{}: messages[{}]", where, i)));
  }
  const auto flag = [&](const char* key) -> std::optional<bool> {
    const OrderedJson* value = find(line, key);
    return value ? std::optional(require_bool(*value, fmt::format("{}: {}", where, key))) : std::nullopt;
  };
  conversation.thinking = flag("thinking");
  conversation.drop_thinking = flag("drop_thinking");
  if (const OrderedJson* effort = find(line, "reasoning_effort")) {
    conversation.reasoning_effort = parse_reasoning_effort(*effort, fmt::format("{}: reasoning_effort", where));
  }
  if (const OrderedJson* sizes = find(line, "image_sizes")) {
    conversation.image_sizes = parse_image_sizes(*sizes, fmt::format("{}: image_sizes", where));
  }
  return conversation;
}

Conversation parse_conversation(std::string_view line, std::string_view where) {
  return conversation_from_json(parse_json(line, where), where);
}

}  // namespace hyperparallel::data
