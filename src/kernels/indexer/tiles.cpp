// NOTE [Index tiles]: some queries of a document at a time go over its groups, kPanel by kPanel: one product of all their heads
// with the packed keys of a panel, heads combined, and the scores offered to what each query has kept. Nothing of size
// queries x groups is formed. Panels that no query of the tile may choose from are skipped: a tile whose queries see no more
// than k groups, and what no pool has.
// Where heads lie on several ranks, a chunk of scores is formed in the same way, summed over them, and offered.
#include "kernels/indexer/tiles.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "kernels/gemm/tile.h"
#include "kernels/indexer/best.h"
#include "kernels/types.h"
#include "runtime/run.h"

namespace hyperparallel::kernels {
namespace indexer {
namespace {

int64_t panels_of(int64_t groups) {
  return (groups + kPanel - 1) / kPanel;
}

// Consecutive queries of one document.
struct Tile {
  int64_t begin, end;
  int64_t first, most;  // the document's first group; the most groups that one of the queries sees
  int64_t panel;        // the document's first packed panel
};

// The choices of a query so far.
template <class T>
class QueryChoice {
 public:
  QueryChoice(int64_t k, const CandidateOptions& keep, const int32_t* pool, int64_t count, bool keeps_blocks)
      : count_(count),
        keep_(keep),
        pool_(pool),
        best_(k),
        blocks_(keeps_blocks ? keep.blocks : 0, keep.block_size),
        keeps_blocks_(keeps_blocks) {}

  // Scores of the groups from `begin` on, counted from the document's first.
  void offer(const T* scores, int64_t begin, T most) {
    const int64_t end = std::min(begin + kPanel, count_);
    if (begin >= end) return;
    if (pool_ == nullptr) best_.add(scores, end - begin, begin, most);
    for (; pool_ != nullptr && next_ < keep_.blocks && pool_[next_] >= 0; ++next_) {
      const int64_t block = pool_[next_] * keep_.block_size, from = std::max(begin, block),
                    to = std::min(end, block + keep_.block_size);
      if (from < to) best_.add(scores + (from - begin), to - from, from, most);
      if (block + keep_.block_size > end) break;  // goes on in the next panel
    }
    if (keeps_blocks_) blocks_.add(scores, begin, end, most);
  }

  void write_topk(int64_t k, int64_t first, int32_t* out) {
    if (pool_ != nullptr || count_ > k) return best_.write(first, k, out);
    std::iota(out, out + count_, static_cast<int32_t>(first));
    std::fill(out + count_, out + k, -1);
  }
  void write_blocks(int32_t* out) { blocks_.write(keep_.blocks, out); }

 private:
  int64_t count_;
  CandidateOptions keep_;
  const int32_t* pool_;  // blocks, rising, then -1; null: all
  int64_t next_ = 0;     // of pool_
  Best<T> best_;
  BestBlocks<T> blocks_;
  bool keeps_blocks_;
};

template <class S>
class Selection {
  using T = gemm::Sum<S>;

 public:
  Selection(const IndexQueries& queries, const at::Tensor& keys, int64_t k, const CandidateOptions& keep, const at::Tensor& pool,
            IndexChoice& choice)
      : queries_(queries),
        q_(queries.q.detach().contiguous()),
        weights_((to_math(queries.weights.detach()) * queries.scale()).contiguous()),
        keys_(keys.detach().contiguous()),
        pool_(pool.defined() ? pool.contiguous() : pool),
        tokens_(q_.size(0)),
        heads_(q_.size(1)),
        d_(q_.size(2)),
        k_(k),
        keep_(keep),
        count_(queries.count.const_data_ptr<int64_t>()),
        choice_(choice),
        rows_(std::min<int64_t>(tokens_, std::clamp<int64_t>(128 / std::max<int64_t>(heads_, queries.heads), 4, 16))) {
    cut();
    pack();
  }

  void run() {
    runtime::run_independent("index", static_cast<int64_t>(tiles_.size()), [this](int64_t i, int) {
      const Tile& tile = tiles_[i];
      std::vector<QueryChoice<T>> choices = begin_choices(tile);
      std::vector<T> scores(rows_ * kPanel), dots(rows_ * heads_ * kPanel), most(rows_);
      for (const int64_t panel : panels(tile)) {
        score(tile, panel, dots, scores.data(), kPanel, most.data());
        for (size_t q = 0; q < choices.size(); ++q) choices[q].offer(scores.data() + q * kPanel, panel * kPanel, most[q]);
      }
      gemm::release();
      write(tile, choices);
    });
  }

  void run_in_chunks(int64_t chunk_elements) {
    for (size_t begin = 0; begin < tiles_.size();) {
      int64_t width = panels_of(tiles_[begin].most) * kPanel;
      size_t end = begin + 1;
      for (; end < tiles_.size(); ++end) {
        const int64_t wider = std::max(width, panels_of(tiles_[end].most) * kPanel);
        if ((tiles_[end].end - tiles_[begin].begin) * wider > chunk_elements) break;
        width = wider;
      }
      run_chunk(begin, end, width);
      begin = end;
    }
  }

 private:
  void cut() {
    const int64_t* first = queries_.first.const_data_ptr<int64_t>();
    std::map<int64_t, int64_t> seen;  // groups of a document, by its first
    for (int64_t t = 0; t < tokens_; ++t) {
      if (tiles_.empty() || tiles_.back().first != first[t] || t - tiles_.back().begin == rows_)
        tiles_.push_back({t, t, first[t], 0, 0});
      tiles_.back().end = t + 1;
      tiles_.back().most = std::max(tiles_.back().most, count_[t]);
      seen[first[t]] = std::max(seen[first[t]], count_[t]);
    }
    std::map<int64_t, int64_t> panel_of;
    for (const auto& [document, groups] : seen) {
      HP_CHECK(document + groups <= keys_.size(0), "groups up to {} of {}", document + groups, keys_.size(0));
      panel_of[document] = static_cast<int64_t>(packed_from_.size());
      for (int64_t g = 0; g < groups; g += kPanel) packed_from_.push_back({document + g, std::min(kPanel, groups - g)});
    }
    for (Tile& tile : tiles_) tile.panel = panel_of.at(tile.first);
  }

  void pack() {
    const auto panels = static_cast<int64_t>(packed_from_.size());
    packed_ = at::empty({panels, d_, kPanel}, keys_.options());
    constexpr int64_t kPanels = 32;  // of a task
    runtime::run_blocks("index pack", panels, kPanels, [&](int64_t begin, int64_t end, int) {
      std::vector<S> padded(kPanel * d_);
      for (int64_t p = begin; p < end; ++p) {
        const auto [group, groups] = packed_from_[p];
        const S* from = keys_.const_data_ptr<S>() + group * d_;
        if (groups < kPanel) {
          std::fill(std::copy(from, from + groups * d_, padded.begin()), padded.end(), S(0));
          from = padded.data();
        }
        gemm::pack_transposed<S>(from, d_, d_, kPanel, packed_.mutable_data_ptr<S>() + p * d_ * kPanel);
      }
    });
  }

  bool keeps_blocks() const { return choice_.candidates.defined(); }

  // Panels of the document that the tile's queries must be scored for.
  std::vector<int64_t> panels(const Tile& tile) const {
    std::vector<int64_t> wanted;
    if (!pool_.defined()) {
      if (keeps_blocks() || tile.most > k_) wanted.resize(panels_of(tile.most));
      std::iota(wanted.begin(), wanted.end(), 0);
      return wanted;
    }
    std::vector<uint8_t> is_wanted(panels_of(tile.most));
    for (int64_t t = tile.begin; t < tile.end; ++t) {
      const int32_t* blocks = pool_.const_data_ptr<int32_t>() + t * keep_.blocks;
      for (int64_t b = 0; b < keep_.blocks && blocks[b] >= 0; ++b) {
        const int64_t begin = blocks[b] * keep_.block_size, end = std::min(begin + keep_.block_size, count_[t]);
        for (int64_t panel = begin / kPanel; panel < panels_of(end); ++panel) is_wanted[panel] = 1;
      }
    }
    for (size_t panel = 0; panel < is_wanted.size(); ++panel)
      if (is_wanted[panel]) wanted.push_back(static_cast<int64_t>(panel));
    return wanted;
  }

  // Scores of the tile's queries: rows of `out`, kPanel numbers each, `stride` apart. The product is always of rows_ queries.
  void score(const Tile& tile, int64_t panel, std::vector<T>& dots, T* out, int64_t stride, T* most) const {
    const int64_t begin = std::min(tile.begin, tokens_ - rows_);
    const S* q = q_.const_data_ptr<S>() + begin * heads_ * d_;
    const S* keys = packed_.const_data_ptr<S>() + (tile.panel + panel) * d_ * kPanel;
    gemm::product<S>(rows_ * heads_, kPanel, d_, q, d_, keys, dots.data(), kPanel, /*add=*/false);
    combine_heads<T>(tile.end - tile.begin, heads_, dots.data() + (tile.begin - begin) * heads_ * kPanel,
                     weights_.const_data_ptr<T>() + tile.begin * heads_, out, stride, most);
  }

  std::vector<QueryChoice<T>> begin_choices(const Tile& tile) const {
    std::vector<QueryChoice<T>> choices;
    for (int64_t t = tile.begin; t < tile.end; ++t)
      choices.emplace_back(k_, keep_, pool_.defined() ? pool_.const_data_ptr<int32_t>() + t * keep_.blocks : nullptr, count_[t],
                           keeps_blocks());
    return choices;
  }

  void write(const Tile& tile, std::vector<QueryChoice<T>>& choices) const {
    for (int64_t t = tile.begin; t < tile.end; ++t) {
      QueryChoice<T>& choice = choices[t - tile.begin];
      choice.write_topk(k_, tile.first, choice_.topk.mutable_data_ptr<int32_t>() + t * k_);
      if (keeps_blocks()) choice.write_blocks(choice_.candidates.mutable_data_ptr<int32_t>() + t * keep_.blocks);
    }
  }

  void run_chunk(size_t from, size_t to, int64_t width) const {
    const int64_t first = tiles_[from].begin, rows = tiles_[to - 1].end - first;
    const at::Tensor part = at::zeros({rows, width}, weights_.options());
    const auto tiles = static_cast<int64_t>(to - from);
    runtime::run_independent("index", tiles, [&](int64_t i, int) {
      const Tile& tile = tiles_[from + i];
      std::vector<T> dots(rows_ * heads_ * kPanel), most(rows_);
      T* scores = part.mutable_data_ptr<T>() + (tile.begin - first) * width;
      for (const int64_t panel : panels(tile)) score(tile, panel, dots, scores + panel * kPanel, width, most.data());
      gemm::release();
    });
    const at::Tensor summed = queries_.sum(part).contiguous();
    runtime::run_independent("index choice", tiles, [&](int64_t i, int) {
      const Tile& tile = tiles_[from + i];
      std::vector<QueryChoice<T>> choices = begin_choices(tile);
      for (const int64_t panel : panels(tile)) {
        const T* scores = summed.const_data_ptr<T>() + (tile.begin - first) * width + panel * kPanel;
        for (size_t q = 0; q < choices.size(); ++q)
          choices[q].offer(scores + q * width, panel * kPanel, std::numeric_limits<T>::infinity());
      }
      write(tile, choices);
    });
  }

  const IndexQueries& queries_;
  at::Tensor q_, weights_, keys_, pool_;
  int64_t tokens_, heads_, d_, k_;
  CandidateOptions keep_;
  const int64_t* count_;
  IndexChoice& choice_;
  int64_t rows_;  // queries of a product
  std::vector<Tile> tiles_;
  std::vector<std::pair<int64_t, int64_t>> packed_from_;  // by panel: its first group, how many
  at::Tensor packed_;                                     // [panels, d, kPanel]
};

}  // namespace

IndexChoice choose_in_tiles(const IndexQueries& queries, const at::Tensor& keys, int64_t k, const CandidateOptions& keep,
                            const at::Tensor& pool, int64_t chunk_elements) {
  const int64_t tokens = queries.q.size(0);
  IndexChoice choice;
  choice.topk = at::empty({tokens, k}, at::kInt);
  if (keep.blocks > 0 && !pool.defined()) choice.candidates = at::empty({tokens, keep.blocks}, at::kInt);
  if (tokens == 0) return choice;
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, queries.q.scalar_type(), "choose_groups", [&] {
    Selection<scalar_t> selection(queries, keys, k, keep, pool, choice);
    if (queries.sum) {
      selection.run_in_chunks(chunk_elements);
    } else {
      selection.run();
    }
  });
  return choice;
}

}  // namespace indexer

std::vector<Candidate> index_candidates(at::ScalarType type, int64_t d) {
  std::string refusal = gemm::tile_refusal(type);
  if (refusal.empty() && type == at::kBFloat16 && d % 2 != 0) refusal = "BF16 tiles need an even index_head_dim";
  return {{Implementation::kMega, refusal}, {Implementation::kReference, ""}};
}

}  // namespace hyperparallel::kernels
