// Cuts a fixed set of texts out of a longer one: leftmost first, at each place the longest.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace hyperparallel::data {

class AddedTokenMatcher {
 public:
  AddedTokenMatcher() : nodes_(1) {}

  // `content` is not empty.
  void add(std::string_view content, int64_t id) {
    size_t node = 0;
    for (const char c : content) {
      const auto byte = static_cast<uint8_t>(c);
      if (!nodes_[node].children.contains(byte)) {
        nodes_[node].children.emplace(byte, nodes_.size());
        nodes_.emplace_back();
      }
      node = nodes_[node].children[byte];
    }
    nodes_[node].id = id;
    begins_[static_cast<uint8_t>(content.front())] = true;
  }

  // Calls rest(text) for every stretch between matches that is not empty and match(id) for every match, in order.
  template <class Rest, class Match>
  void cut(std::string_view text, Rest&& rest, Match&& match) const {
    size_t done = 0;
    for (size_t i = 0; i < text.size();) {
      const auto [id, length] = begins_[static_cast<uint8_t>(text[i])] ? longest(text.substr(i)) : kNone;
      if (length == 0) {
        ++i;
        continue;
      }
      if (i > done) rest(text.substr(done, i - done));
      match(id);
      done = i += length;
    }
    if (done < text.size()) rest(text.substr(done));
  }

 private:
  static constexpr std::pair<int64_t, size_t> kNone = {-1, 0};
  struct Node {
    std::map<uint8_t, size_t> children;
    int64_t id = -1;  // of the token that ends here
  };

  // Id and length of the longest token that `text` begins with.
  std::pair<int64_t, size_t> longest(std::string_view text) const {
    std::pair<int64_t, size_t> found = kNone;
    size_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto child = nodes_[node].children.find(static_cast<uint8_t>(text[i]));
      if (child == nodes_[node].children.end()) break;
      node = child->second;
      if (nodes_[node].id >= 0) found = {nodes_[node].id, i + 1};
    }
    return found;
  }

  std::vector<Node> nodes_;         // a trie over bytes, the root first
  std::array<bool, 256> begins_{};  // bytes that a token begins with
};

}  // namespace hyperparallel::data
