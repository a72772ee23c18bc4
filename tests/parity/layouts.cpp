#include "parity/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <ostream>
#include <set>

#include "base/error.h"
#include "parity/run.h"
#include "train/ranks.h"
#include "train/run_model.h"

namespace hyperparallel::parity {
namespace {

struct Value {
  std::string name;
  std::vector<std::string> overrides;
  int degree = 1;             // ranks that it takes
  std::string not_with = {};  // with that value of another choice it makes no difference
};
using Choice = std::vector<Value>;

Choice degrees(const std::string& letter, const std::string& key, int ranks, bool takes_ranks = true) {
  Choice choice;
  for (int degree = 1; degree <= ranks; degree *= 2)
    choice.push_back(
        {fmt::format("{}{}", letter, degree), {fmt::format("--parallel.{}={}", key, degree)}, takes_ranks ? degree : 1});
  return choice;
}

std::vector<Choice> table(int ranks) {
  return {degrees("Hsdp", "fsdp_replicate", ranks),
          degrees("Tp", "tp", ranks),
          degrees("Cp", "cp", ranks),
          degrees("Ep", "ep", ranks, /*takes_ranks=*/false),
          {{"", {}}, {"Sp", {"--parallel.sequence_parallel=true"}, 1, "Tp1"}},
          {{"", {}}, {"Balanced", {"--parallel.cp_shard=balanced"}, 1, "Cp1"}},
          {{"", {}},
           {"Full", {"--recompute.mode=full"}},
           {"Selective", {"--recompute.mode=selective", "--recompute.keep=[\"*.q\", \"*.sent\", \"*.mid\"]"}}},
          {{"", {}},  // as many as tp
           {"PictureAlone", {"--parallel.vision_ulysses=1"}},
           {"PictureOnTwo", {"--parallel.vision_ulysses=2"}}}};
}

// The layout as the program sees it, or nothing where it is refused.
std::optional<Layout> legal(Layout layout) {
  try {
    const train::Config config = tiny(layout.overrides);
    const engine::Layout mesh = train::layout_of(config, layout.ranks);
    if (config.parallel.vision_ulysses == mesh.size("tp")) return {};  // makes no difference
    config.model.architecture->build(train::program_options(config, mesh), /*tokenizer=*/nullptr);
    for (const char* axis : {"dp", "edp"}) layout.traits.push_back(fmt::format("{} {}", axis, mesh.size(axis)));
    return layout;
  } catch (const ConfigError&) {
    return {};
  }
}

using Pair = std::pair<std::string, std::string>;
std::set<Pair> pairs_of(const Layout& layout) {
  std::set<Pair> pairs;
  for (size_t i = 0; i < layout.traits.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const auto tagged = [&](size_t k) { return fmt::format("{}:{}", k, layout.traits[k]); };
      pairs.emplace(tagged(j), tagged(i));
    }
  }
  return pairs;
}

}  // namespace

void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.ranks << " ranks";
  for (const std::string& override : layout.overrides) *out << " " << override;
}

std::vector<Layout> all_layouts(int ranks) {
  std::vector<Layout> layouts{{fmt::format("Ranks{}", ranks), 1, {}, {fmt::format("ranks {}", ranks)}}};
  for (const Choice& choice : table(ranks)) {
    std::vector<Layout> next;
    for (const Layout& layout : layouts) {
      for (const Value& value : choice) {
        const bool is_idle = !value.not_with.empty() && std::ranges::find(layout.traits, value.not_with) != layout.traits.end();
        if (is_idle || layout.ranks * value.degree > ranks) continue;
        Layout& more = next.emplace_back(layout);
        more.ranks *= value.degree;
        if (!value.name.ends_with("1")) more.name += value.name;
        more.traits.push_back(value.name);
        more.overrides.insert(more.overrides.end(), value.overrides.begin(), value.overrides.end());
      }
    }
    layouts = std::move(next);
  }
  std::vector<Layout> accepted;
  for (Layout& layout : layouts) {
    layout.ranks = ranks;
    if (auto found = legal(layout)) accepted.push_back(std::move(*found));
  }
  return accepted;
}

std::vector<Layout> pairwise_cover(const std::vector<Layout>& layouts) {
  std::vector<std::set<Pair>> pairs;
  std::set<Pair> open;
  for (const Layout& layout : layouts) {
    pairs.push_back(pairs_of(layout));
    open.insert(pairs.back().begin(), pairs.back().end());
  }
  std::vector<Layout> cover;
  while (!open.empty()) {
    size_t best = 0, most = 0;
    for (size_t i = 0; i < layouts.size(); ++i) {
      const auto fresh = static_cast<size_t>(
          std::count_if(pairs[i].begin(), pairs[i].end(), [&](const Pair& pair) { return open.contains(pair); }));
      if (fresh > most) best = i, most = fresh;
    }
    cover.push_back(layouts[best]);
    for (const Pair& pair : pairs[best]) open.erase(pair);
  }
  return cover;
}

bool run_all() {
  const char* wish = std::getenv("HYPERPARALLEL_PARITY");
  return wish != nullptr && std::string(wish) == "all";
}

const std::vector<Layout>& cover_of(int ranks) {
  static std::map<int, std::vector<Layout>> known;
  const auto [place, is_new] = known.try_emplace(ranks);
  if (is_new) place->second = pairwise_cover(all_layouts(ranks));
  return place->second;
}

std::vector<Layout> matrix_layouts() {
  std::vector<Layout> layouts;
  const auto add = [&](const std::vector<Layout>& more, size_t count) {
    layouts.insert(layouts.end(), more.begin(), more.begin() + static_cast<int64_t>(std::min(count, more.size())));
  };
  if (run_all()) {
    for (int ranks : {1, 2, 4}) add(all_layouts(ranks), SIZE_MAX);
  } else {
    add(cover_of(4), 6);
  }
  add(cover_of(8), run_all() ? SIZE_MAX : 2);
  return layouts;
}

}  // namespace hyperparallel::parity
