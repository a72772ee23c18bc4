// JSON as the chat format needs it: read strictly, keeping the given order, and written the way Python's json.dumps does.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace hyperparallel::data {

using OrderedJson = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 100;  // nested objects and arrays

// Parses one JSON text. Integers beyond 64 bits are kept as their digits in a binary value, so that python_json can write them.
// Throws DataError, which begins with `where`, for anything that is not JSON (comments, NaN, raw control characters and NUL,
// invalid UTF-8, lone surrogates, trailing text), for a key that occurs twice in an object, and for more than kMaxJsonDepth
// levels.
OrderedJson parse_json(std::string_view text, std::string_view where);

// json.dumps(value, ensure_ascii=False) of Python: `, ` and `: `, given order, non-ASCII kept, floats as repr writes them.
std::string python_json(const OrderedJson& value);

}  // namespace hyperparallel::data
