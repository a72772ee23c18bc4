// Shared by the forms of the plan report: numbers in words, and lines that stand for many layers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/glob.h"

namespace hyperparallel::plan {

std::string bytes_text(int64_t bytes);    // "1.25 GB"
std::string with_commas(int64_t number);  // "1,234"

// Items with one key in one line, in the order of their first.
template <class Item, class Key>
std::vector<std::pair<const Item*, int64_t>> grouped(const std::vector<Item>& items, const Key& key) {
  std::vector<std::pair<const Item*, int64_t>> groups;
  std::map<std::string, size_t> index;
  for (const Item& item : items) {
    const auto [it, is_new] = index.try_emplace(key(item), groups.size());
    if (is_new) groups.emplace_back(&item, 0);
    ++groups[it->second].second;
  }
  return groups;
}

}  // namespace hyperparallel::plan
