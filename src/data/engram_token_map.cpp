#include "data/engram_token_map.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <unordered_map>

#include "base/error.h"

namespace hyperparallel::data {
namespace {

using icu::Normalizer2;
using icu::UnicodeString;

UnicodeString normalized(const UnicodeString& text, const Normalizer2* (*form)(UErrorCode&)) {
  UErrorCode status = U_ZERO_ERROR;
  UnicodeString result = form(status)->normalize(text, status);
  HP_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  return result;
}

bool is_collapsing(UChar32 c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// Without marks, in lower case (code point by code point: no final sigma), each run of blanks and line ends one space.
UnicodeString folded(const UnicodeString& text) {
  UnicodeString result;
  bool in_run = false;
  for (int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) {
    const UChar32 c = text.char32At(i);
    if (U_GET_GC_MASK(c) & U_GC_M_MASK) continue;
    if (!is_collapsing(c)) {
      result.append(u_tolower(c));
    } else if (!in_run) {
      result.append(UChar32{' '});
    }
    in_run = is_collapsing(c);
  }
  return result;
}

// Without White_Space at both ends (all of it is in the BMP).
UnicodeString trimmed(const UnicodeString& text) {
  int32_t begin = 0, end = text.length();
  while (begin < end && u_isUWhiteSpace(text[begin])) ++begin;
  while (end > begin && u_isUWhiteSpace(text[end - 1])) --end;
  return UnicodeString(text, begin, end - begin);
}

}  // namespace

std::string engram_key(std::string_view text) {
  const auto decomposed = normalized(normalized(UnicodeString::fromUTF8(text), &Normalizer2::getNFKCInstance),  //
                                     &Normalizer2::getNFDInstance);
  UnicodeString key = folded(decomposed);
  if (key != UnicodeString(u' ')) key = trimmed(key);
  if (key.isEmpty()) return std::string(text);
  std::string utf8;
  return key.toUTF8String(utf8);
}

EngramTokenMap build_engram_token_map(const Tokenizer& tokenizer) {
  EngramTokenMap result;
  result.map.reserve(tokenizer.size());
  std::unordered_map<std::string, int32_t> class_of_key;  // keys of all kinds in one dictionary: some classes mix them
  for (int64_t id = 0; id < tokenizer.size(); ++id) {
    const std::string text = tokenizer.decode({&id, 1});
    const bool undecodable = text.find("\xEF\xBF\xBD") != std::string::npos;
    const auto [entry, is_new] = class_of_key.emplace(undecodable ? tokenizer.stored_string(id) : engram_key(text),
                                                      static_cast<int32_t>(class_of_key.size()));
    result.map.push_back(entry->second);
  }
  result.classes = static_cast<int64_t>(class_of_key.size());
  return result;
}

}  // namespace hyperparallel::data
