// The hand-written pre-tokenizer for the three splits of DeepSeek's V4 and V4.1 tokenizer files.
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <cstdint>

#include "data/tokenizer_split.h"

namespace hyperparallel::data {
namespace {

const std::vector<std::string> kDeepseekPatterns = {
    R"(\p{N}{1,3})",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+"
    "|\\s+(?!\\S)"
    "|\\s+",
};

// Classes of characters.
constexpr uint8_t kOther = 0;    // no alternative begins here unless a letter follows: control, format, private use, unassigned
constexpr uint8_t kWord = 1;     // letters and marks
constexpr uint8_t kPunct = 2;    // punctuation and symbols
constexpr uint8_t kNumber = 3;   // cut out by the first split
constexpr uint8_t kSpace = 4;    // U+0020
constexpr uint8_t kNewline = 5;  // CR, LF
constexpr uint8_t kWhite = 6;    // the rest of White_Space
// Added to a class: in the second split's range (Chinese ideographs, hiragana, katakana), so that no piece has characters of
// both kinds. The third split works inside such a run as elsewhere.
constexpr uint8_t kHan = 8;

class CharClasses {
 public:
  CharClasses() : class_of_(0x110000, kOther) {
    u_enumCharTypes(&CharClasses::add_range, this);
    for (UChar32 c = 0; c < 0x3001; ++c) {  // the last White_Space code point is U+3000
      if (u_isUWhiteSpace(c)) class_of_[c] = kWhite;
    }
    class_of_[' '] = kSpace;
    class_of_['\r'] = class_of_['\n'] = kNewline;
    for (UChar32 c = 0x4e00; c <= 0x9fa5; ++c) set_han(c);
    for (UChar32 c = 0x3040; c <= 0x30ff; ++c) set_han(c);
  }
  uint8_t operator[](UChar32 c) const { return class_of_[c]; }

 private:
  static UBool add_range(const void* context, UChar32 start, UChar32 limit, UCharCategory category) {
    const uint32_t mask = U_MASK(category);
    const uint8_t found = mask & (U_GC_L_MASK | U_GC_M_MASK)   ? kWord
                          : mask & (U_GC_P_MASK | U_GC_S_MASK) ? kPunct
                          : mask & U_GC_N_MASK                 ? kNumber
                                                               : kOther;
    auto& self = *static_cast<CharClasses*>(const_cast<void*>(context));
    for (UChar32 c = start; c < limit; ++c) self.class_of_[c] = found;
    return true;
  }
  void set_han(UChar32 c) {
    if (class_of_[c] != kNumber) class_of_[c] |= kHan;
  }

  std::vector<uint8_t> class_of_;
};

constexpr bool is_white(uint8_t c) {
  return c >= kSpace && c <= kWhite;
}
constexpr bool is_ascii_letter(uint8_t byte) {
  return (byte | 0x20) >= 'a' && (byte | 0x20) <= 'z';
}

// One pass over a text. A position is a byte offset at the start of a character.
class Scan {
 public:
  Scan(const CharClasses& classes, std::string_view text)
      : classes_(classes), text_(reinterpret_cast<const uint8_t*>(text.data())), size_(text.size()) {}

  // End of the piece that begins at `begin`.
  size_t piece_end(size_t begin) const {
    size_t after = begin;
    const uint8_t first = next(after);
    switch (first) {
      case kWord:
      case kWord | kHan:
      case kPunct | kHan:
        return skip(after, first);
      case kOther | kHan:
        return peek(after) == (kWord | kHan) ? skip(after, kWord | kHan) : unmatched_end(after, kHan);
      case kNumber:
        return number_end(after);
      case kPunct:
        return punct_end(begin, after);
      case kSpace:
        if (peek(after) == kWord) return skip(after, kWord);
        if (peek(after) == kPunct) return skip(skip(after, kPunct), kNewline);
        return white_end(begin);
      case kWhite:
        return peek(after) == kWord ? skip(after, kWord) : white_end(begin);
      case kNewline:
        return white_end(begin);
      case kOther:
        return peek(after) == kWord ? skip(after, kWord) : unmatched_end(after, 0);
    }
    return size_;
  }

 private:
  // Class of the character at `position`, which moves behind it.
  uint8_t next(size_t& position) const {
    const uint8_t byte = text_[position];
    if (byte < 0x80) {
      ++position;
      return classes_[byte];
    }
    UChar32 c;
    U8_NEXT_UNSAFE(text_, position, c);
    return classes_[c];
  }

  // At the end of the text: kNumber, which like the end begins no alternative and continues none.
  uint8_t peek(size_t position) const { return position < size_ ? next(position) : kNumber; }

  size_t skip(size_t position, uint8_t wanted) const {
    while (position < size_) {
      size_t after = position;
      if (next(after) != wanted) break;
      position = after;
    }
    return position;
  }

  // `\p{N}{1,3}`, one of them taken.
  size_t number_end(size_t position) const {
    for (int i = 0; i < 2 && peek(position) == kNumber && position < size_; ++i) next(position);
    return position;
  }

  size_t punct_end(size_t begin, size_t after) const {
    if (text_[begin] < 0x80 && after < size_ && is_ascii_letter(text_[after])) {
      while (after < size_ && is_ascii_letter(text_[after])) ++after;
      return after;
    }
    return skip(skip(after, kPunct), kNewline);
  }

  // `\s*[\r\n]+|\s+(?!\S)|\s+`: to the last newline of the run; else the run without its last character if text follows that
  // is in the same piece of the splits before; else the whole run.
  size_t white_end(size_t begin) const {
    size_t end = begin, last = begin, newline_end = 0;
    while (end < size_) {
      size_t after = end;
      const uint8_t c = next(after);
      if (!is_white(c)) break;
      if (c == kNewline) newline_end = after;
      last = end;
      end = after;
    }
    if (newline_end > 0) return newline_end;
    const uint8_t following = peek(end);
    return following == kNumber || following >= kHan || last == begin ? end : last;
  }

  // A run that no alternative matches, without a last character that a following letter takes along. `han`: kHan or 0.
  size_t unmatched_end(size_t position, uint8_t han) const {
    while (peek(position) == (kOther | han)) {
      size_t after = position;
      next(after);
      if (peek(after) == (kWord | han)) break;
      position = after;
    }
    return position;
  }

  const CharClasses& classes_;
  const uint8_t* text_;
  size_t size_;
};

class Scanner : public Splitter {
 public:
  void split(std::string_view text, std::vector<size_t>& ends) const override {
    static const CharClasses classes;
    const Scan scan(classes, text);
    for (size_t position = 0; position < text.size();) {
      position = scan.piece_end(position);
      ends.push_back(position);
    }
  }
};

}  // namespace

std::unique_ptr<Splitter> make_scanner(const std::vector<std::string>& patterns) {
  return patterns == kDeepseekPatterns ? std::make_unique<Scanner>() : nullptr;
}

}  // namespace hyperparallel::data
