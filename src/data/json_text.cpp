#include "data/json_text.h"

#include <charconv>
#include <cmath>
#include <unordered_set>
#include <vector>

#include "base/error.h"

namespace hyperparallel::data {
namespace {

// Builds the value while it checks what the library leaves open: duplicate keys, depth, integers beyond 64 bits.
class StrictBuilder : public nlohmann::json_sax<OrderedJson> {
 public:
  explicit StrictBuilder(std::string_view where) : where_(where) {}

  OrderedJson take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") != std::string::npos) return add(value);
    return add(OrderedJson::binary({text.begin(), text.end()}));
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON text has none

  bool start_object(std::size_t) override {
    open(OrderedJson::object());
    keys_.emplace_back();
    return true;
  }
  bool key(string_t& value) override {
    if (!keys_.back().insert(value).second) throw DataError("{}: the key `{}` occurs twice in one object", where_, value);
    key_ = std::move(value);
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    open_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override {
    open(OrderedJson::array());
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    std::string reason = error.what();  // "[json.exception...] parse error at line 1, column 5: reason; last read: ..."
    if (auto at = reason.find(": "); at != std::string::npos) reason.erase(0, at + 2);
    if (auto at = reason.find("; last read: "); at != std::string::npos) {
      const auto rest = reason.find("'; ", at);  // what was expected follows
      reason.erase(at, rest == std::string::npos ? std::string::npos : rest + 1 - at);
    }
    throw DataError("{}: not valid JSON at byte {}: {}", where_, position, reason.substr(0, 200));
  }

 private:
  bool add(OrderedJson value) {
    insert(std::move(value));
    return true;
  }
  void open(OrderedJson value) {
    if (open_.size() == kMaxJsonDepth) throw DataError("{}: JSON is nested deeper than {} levels", where_, kMaxJsonDepth);
    open_.push_back(insert(std::move(value)));
  }
  OrderedJson* insert(OrderedJson value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    OrderedJson& top = *open_.back();
    if (top.is_array()) {
      top.push_back(std::move(value));
      return &top.back();
    }
    auto& object = top.get_ref<OrderedJson::object_t&>();
    object.emplace_back(std::move(key_), std::move(value));  // the key is known to be new
    return &object.back().second;
  }

  std::string_view where_;
  OrderedJson root_;
  std::vector<OrderedJson*> open_;  // from the root to the innermost container; only the last one grows
  std::vector<std::unordered_set<std::string>> keys_;
  std::string key_;
};

void write_string(const std::string& text, std::string& out) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

// repr(float): the shortest digits that give the value again; an exponent below 1e-4 and from 1e16 on.
void write_float(double value, std::string& out) {
  const double size = std::abs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, fixed ? std::chars_format::fixed : std::chars_format::scientific);
  const std::string_view digits(buffer, end.ptr - buffer);
  out += digits;
  if (fixed && digits.find('.') == std::string_view::npos) out += ".0";
}

void write(const OrderedJson& value, std::string& out) {
  switch (value.type()) {
    case OrderedJson::value_t::object: {
      out += '{';
      std::string_view separator;
      for (const auto& [key, member] : value.items()) {
        out += separator;
        write_string(key, out);
        out += ": ";
        write(member, out);
        separator = ", ";
      }
      out += '}';
      break;
    }
    case OrderedJson::value_t::array: {
      out += '[';
      std::string_view separator;
      for (const OrderedJson& element : value) {
        out += separator;
        write(element, out);
        separator = ", ";
      }
      out += ']';
      break;
    }
    case OrderedJson::value_t::string:
      write_string(value.get_ref<const std::string&>(), out);
      break;
    case OrderedJson::value_t::number_float:
      write_float(value.get<double>(), out);
      break;
    case OrderedJson::value_t::binary:
      out.append(value.get_binary().begin(), value.get_binary().end());
      break;
    default:
      out += value.dump();
      break;  // integers, booleans, null
  }
}

}  // namespace

OrderedJson parse_json(std::string_view text, std::string_view where) {
  // The library takes a NUL for the end of the text and skips a byte order mark.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    throw DataError("{}: not valid JSON at byte {}: a NUL byte", where, nul + 1);
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    throw DataError("{}: begins with a byte order mark; only the start of a file may have one", where);
  }
  StrictBuilder builder(where);
  OrderedJson::sax_parse(text, &builder);
  return builder.take();
}

std::string python_json(const OrderedJson& value) {
  std::string out;
  write(value, out);
  return out;
}

}  // namespace hyperparallel::data
