// Pre-tokenizer: cuts text into the pieces inside which BPE merges.
//
// Regular expressions are applied one after another: each works on the pieces that the one before left, a match and the text
// between matches become pieces of their own. Two implementations: PCRE2 for any patterns, and a hand-written scanner for the
// three patterns of DeepSeek's V4 and V4.1 files.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hyperparallel::data {

class Splitter {
 public:
  virtual ~Splitter() = default;
  // Appends the end of each piece, as an offset into `text`, ascending, the last one text.size(). `text` is valid UTF-8.
  // May be called from several threads at once.
  virtual void split(std::string_view text, std::vector<size_t>& ends) const = 0;
};

// Throws DataError naming the pattern that does not compile. `where` stands before the message.
std::unique_ptr<Splitter> make_regex_splitter(const std::vector<std::string>& patterns, const std::string& where);
// Null if the patterns are not the ones that the scanner is written for.
std::unique_ptr<Splitter> make_scanner(const std::vector<std::string>& patterns);

}  // namespace hyperparallel::data
