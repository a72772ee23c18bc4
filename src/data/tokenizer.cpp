#include "data/tokenizer.h"

#include <unicode/utf8.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "data/tokenizer_added.h"
#include "data/tokenizer_bpe.h"
#include "data/tokenizer_byte_level.h"
#include "data/tokenizer_file.h"
#include "data/tokenizer_split.h"

namespace hyperparallel::data {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Offset of the first byte that is not part of well-formed UTF-8, or text.size().
size_t well_formed_prefix(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    UChar32 c;
    U8_NEXT(text.data(), i, text.size(), c);
    if (c < 0) return begin;
  }
  return text.size();
}

std::string replace_ill_formed(std::string bytes) {
  size_t i = well_formed_prefix(bytes);
  if (i == bytes.size()) return bytes;
  std::string text = bytes.substr(0, i);
  while (i < bytes.size()) {
    const size_t begin = i;
    UChar32 c;
    U8_NEXT(bytes.data(), i, bytes.size(), c);  // moves over a maximal ill-formed sequence
    text += c < 0 ? kReplacement : std::string_view(bytes).substr(begin, i - begin);
  }
  return text;
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerFile file);

  std::string path;
  struct Entry {
    std::string stored;  // as the file spells it
    std::string bytes;   // what it decodes to
    bool exists = false;
    bool added = false, special = false;
  };
  std::vector<Entry> entries;                         // by id
  std::unordered_map<std::string_view, int64_t> ids;  // of stored strings
  AddedTokenMatcher unnormalized_tokens, normalized_tokens;
  std::unique_ptr<const Splitter> splitter;
  std::unique_ptr<const BytePairEncoder> encoder;

 private:
  void add_entry(int64_t id, const std::string& stored, const char* where);
  void add_vocabulary(const TokenizerFile& file);
  void add_added_tokens(const TokenizerFile& file);
  void build_encoder(const TokenizerFile& file);
  int32_t merge_id(const std::string& token, size_t rank) const;
};

Tokenizer::Impl::Impl(TokenizerFile file) : path(file.path) {
  int64_t size = 0;
  for (const auto& [token, id] : file.vocabulary) size = std::max(size, id + 1);
  for (const AddedToken& token : file.added_tokens) size = std::max(size, token.id + 1);
  entries.resize(size);
  add_vocabulary(file);
  build_encoder(file);
  add_added_tokens(file);
  splitter = make_scanner(file.splits);
  if (!splitter) splitter = make_regex_splitter(file.splits, path);
}

void Tokenizer::Impl::add_entry(int64_t id, const std::string& stored, const char* where) {
  Entry& entry = entries[id];
  if (entry.exists && entry.stored != stored) {
    throw DataError("{}: `{}`: id {} is given to `{}` and to `{}`", path, where, id, entry.stored, stored);
  }
  if (!entry.exists) entry = {stored, alphabet_to_bytes(stored).value_or(stored), true};
  const auto [known, is_new] = ids.emplace(entry.stored, id);
  if (known->second != id) throw DataError("{}: `{}`: `{}` has the ids {} and {}", path, where, stored, known->second, id);
}

void Tokenizer::Impl::add_vocabulary(const TokenizerFile& file) {
  ids.reserve(entries.size());
  for (const auto& [token, id] : file.vocabulary) add_entry(id, token, "model.vocab");
}

void Tokenizer::Impl::add_added_tokens(const TokenizerFile& file) {
  for (const AddedToken& token : file.added_tokens) {
    add_entry(token.id, token.content, "added_tokens");
    entries[token.id].added = true;
    entries[token.id].special = token.special;
    (token.normalized ? normalized_tokens : unnormalized_tokens).add(token.content, token.id);
  }
}

int32_t Tokenizer::Impl::merge_id(const std::string& token, size_t rank) const {
  const auto found = ids.find(token);
  if (found != ids.end()) return found->second;
  throw DataError("{}: `model.merges[{}]` needs the token `{}`, which `model.vocab` does not have", path, rank, token);
}

void Tokenizer::Impl::build_encoder(const TokenizerFile& file) {
  std::array<int32_t, 256> byte_ids;
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(byte_to_alphabet(byte));
    if (found == ids.end()) {
      throw DataError("{}: `model.vocab` has no entry `{}` for byte {}; accepted: byte-level vocabularies with all 256 bytes",
                      path, byte_to_alphabet(byte), byte);
    }
    byte_ids[byte] = found->second;
  }
  std::vector<BytePairEncoder::Token> tokens;
  tokens.reserve(file.vocabulary.size());
  for (const auto& [token, id] : file.vocabulary) {
    if (auto bytes = alphabet_to_bytes(token); bytes && !bytes->empty()) tokens.push_back({*bytes, static_cast<int32_t>(id)});
  }
  std::vector<BytePairEncoder::Merge> merges;
  merges.reserve(file.merges.size());
  for (const auto& [left, right] : file.merges) {
    const size_t rank = merges.size();
    merges.push_back({merge_id(left, rank), merge_id(right, rank), merge_id(left + right, rank)});
  }
  encoder = std::make_unique<const BytePairEncoder>(byte_ids, tokens, merges, file.ignore_merges);
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::string& path) {
  return Tokenizer(std::make_unique<const Impl>(read_tokenizer_file(path)));
}

std::vector<int64_t> Tokenizer::encode(std::string_view text) const {
  if (const size_t valid = well_formed_prefix(text); valid < text.size()) {
    throw DataError("the text is not UTF-8: byte {} (0x{:02x})", valid, static_cast<uint8_t>(text[valid]));
  }
  std::vector<int64_t> ids;
  std::vector<size_t> ends;
  ids.reserve(text.size() / 4 + 1);
  const auto encode_plain = [&](std::string_view plain) {
    ends.clear();
    impl_->splitter->split(plain, ends);
    size_t begin = 0;
    for (const size_t end : ends) {
      impl_->encoder->encode(plain.substr(begin, end - begin), ids);
      begin = end;
    }
  };
  const auto push = [&](int64_t id) { ids.push_back(id); };
  impl_->unnormalized_tokens.cut(
      text, [&](std::string_view rest) { impl_->normalized_tokens.cut(rest, encode_plain, push); }, push);
  return ids;
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const int64_t id : ids) {
    stored_string(id);  // throws for an unknown id
    const Impl::Entry& entry = impl_->entries[id];
    if (!(skip_special_tokens && entry.special)) bytes += entry.bytes;
  }
  return replace_ill_formed(std::move(bytes));
}

std::optional<int64_t> Tokenizer::token_to_id(std::string_view token) const {
  const auto found = impl_->ids.find(token);
  if (found == impl_->ids.end()) return std::nullopt;
  return found->second;
}

int64_t Tokenizer::required_id(std::string_view token) const {
  if (const auto id = token_to_id(token)) return *id;
  throw DataError("{}: the tokenizer has no token `{}`", path(), token);
}

const std::string& Tokenizer::stored_string(int64_t id) const {
  if (id < 0 || id >= size() || !impl_->entries[id].exists) {
    throw DataError("{}: there is no token with id {}; ids go from 0 to {}", path(), id, size() - 1);
  }
  return impl_->entries[id].stored;
}

bool Tokenizer::is_added(int64_t id) const {
  return id >= 0 && id < size() && impl_->entries[id].added;
}
bool Tokenizer::is_special(int64_t id) const {
  return id >= 0 && id < size() && impl_->entries[id].special;
}
int64_t Tokenizer::size() const {
  return static_cast<int64_t>(impl_->entries.size());
}
const std::string& Tokenizer::path() const {
  return impl_->path;
}

}  // namespace hyperparallel::data
