#include "data/tokenizer_split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace hyperparallel::data {
namespace {

// The 25 White_Space code points, to stand inside a character class. PCRE2's own `\s` has U+180E as well.
constexpr std::string_view kWhiteSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// Writes out `\s` and `\S`, inside and outside of character classes.
std::string with_exact_white_space(const std::string& pattern, const std::string& where) {
  std::string result;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      if (pattern[i] == '[' && in_class) throw DataError("{}: `[` inside a character class must be escaped: {}", where, pattern);
      if (pattern[i] == '[') in_class = true;
      if (pattern[i] == ']') in_class = false;
      result += pattern[i];
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's' && in_class) {
      result += kWhiteSpace;
    } else if (escaped == 's' || (escaped == 'S' && !in_class)) {
      result.append(escaped == 's' ? "[" : "[^").append(kWhiteSpace).append("]");
    } else if (escaped == 'S') {
      throw DataError("{}: `\\S` inside a character class is not supported: {}", where, pattern);
    } else {
      result.append({'\\', escaped});
    }
  }
  return result;
}

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

class Pattern {
 public:
  Pattern(const std::string& pattern, const std::string& where) : source_(pattern) {
    const std::string text = with_exact_white_space(pattern, where);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
    if (!code_) {
      PCRE2_UCHAR message[256];
      pcre2_get_error_message(error, message, sizeof message);
      throw DataError("{}: the regular expression `{}` is not accepted: {} (at byte {} of its expanded form)", where, pattern,
                      reinterpret_cast<const char*>(message), offset);
    }
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // where there is no JIT, matching interprets
  }

  // Calls piece(end) for every match and every stretch between matches of `text`.
  template <class Piece>
  void for_each_piece(std::string_view text, Piece&& piece) const {
    const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    size_t done = 0;  // everything before it belongs to a piece
    size_t from = 0;  // where the search goes on
    while (from < text.size()) {
      const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, PCRE2_NO_UTF_CHECK,
                                    data.get(), nullptr);
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0) throw DataError("the regular expression `{}` failed on a text with PCRE2 error {}", source_, found);
      const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data.get());
      from = span[1];
      if (span[0] == span[1]) {  // an empty match makes no piece
        do ++from;
        while (from < text.size() && (text[from] & 0xC0) == 0x80);
        continue;
      }
      if (span[0] > done) piece(span[0]);
      piece(span[1]);
      done = span[1];
    }
    if (done < text.size()) piece(text.size());
  }

 private:
  struct CodeDeleter {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  std::string source_;
  std::unique_ptr<pcre2_code, CodeDeleter> code_;
};

class RegexSplitter : public Splitter {
 public:
  RegexSplitter(const std::vector<std::string>& patterns, const std::string& where) {
    for (const std::string& pattern : patterns) patterns_.emplace_back(pattern, where);
  }

  void split(std::string_view text, std::vector<size_t>& ends) const override { split_from(0, text, 0, ends); }

 private:
  // `text` begins at `offset` of the whole text and is cut by the patterns from number `pattern` on.
  void split_from(size_t pattern, std::string_view text, size_t offset, std::vector<size_t>& ends) const {
    if (pattern == patterns_.size()) {
      ends.push_back(offset + text.size());
      return;
    }
    size_t begin = 0;
    patterns_[pattern].for_each_piece(text, [&](size_t end) {
      split_from(pattern + 1, text.substr(begin, end - begin), offset + begin, ends);
      begin = end;
    });
  }

  std::vector<Pattern> patterns_;
};

}  // namespace

std::unique_ptr<Splitter> make_regex_splitter(const std::vector<std::string>& patterns, const std::string& where) {
  return std::make_unique<RegexSplitter>(patterns, where);
}

}  // namespace hyperparallel::data
