#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "kernels/indexer/op.h"
#include "kernels/indexer/tiles.h"
#include "kernels/types.h"

namespace hyperparallel::kernels {
namespace {

// Queries of a chunk: more would only score the groups of other documents.
constexpr int64_t kMostQueries = 256;

// Scores of a chunk of queries against keys [first_group, last_group): [chunk, last_group - first_group].
at::Tensor score_chunk(const IndexQueries& queries, const at::Tensor& keys, int64_t first, int64_t rows, int64_t first_group,
                       int64_t last_group) {
  const at::Tensor q = to_math(queries.q.narrow(0, first, rows));  // [chunk, heads, d]
  const at::Tensor k = to_math(keys.slice(0, first_group, last_group));
  const at::Tensor w = to_math(queries.weights.narrow(0, first, rows)) * queries.scale();  // [chunk, heads]
  const at::Tensor dots =
      at::matmul(q.reshape({-1, q.size(2)}), k.t()).relu_().view({rows, q.size(1), k.size(0)});  // [chunk, heads, groups]
  const at::Tensor scores = at::bmm(w.unsqueeze(1), dots).squeeze(1);
  return queries.sum ? queries.sum(scores) : scores;
}

// The `k` best of `ids` by score, smaller id first among equals; written ascending, then -1.
template <class scalar_t>
void write_best(std::vector<int64_t>& ids, const scalar_t* score, int64_t k, int64_t offset, int32_t* out, int64_t width) {
  if (static_cast<int64_t>(ids.size()) > k) {
    std::nth_element(ids.begin(), ids.begin() + k, ids.end(),
                     [&](int64_t a, int64_t b) { return score[a] != score[b] ? score[a] > score[b] : a < b; });
    ids.resize(k);
    std::sort(ids.begin(), ids.end());
  }
  for (int64_t i = 0; i < width; ++i) out[i] = i < static_cast<int64_t>(ids.size()) ? static_cast<int32_t>(ids[i] + offset) : -1;
}

// One query: `score[g]` is the score of the g-th group of its document, `visible` groups may be chosen.
template <class scalar_t>
struct Chooser {
  int64_t k, width;
  CandidateOptions keep;

  void topk(const scalar_t* score, int64_t visible, int64_t first, const int32_t* pool, int32_t* out) const {
    std::vector<int64_t> ids;
    if (pool == nullptr) {
      ids.resize(visible);
      std::iota(ids.begin(), ids.end(), 0);
    } else {
      for (int64_t b = 0; b < keep.blocks && pool[b] >= 0; ++b) {
        const int64_t begin = pool[b] * keep.block_size, end = std::min(begin + keep.block_size, visible);
        for (int64_t g = begin; g < end; ++g) ids.push_back(g);
      }
    }
    write_best(ids, score, k, first, out, width);
  }

  void candidates(const scalar_t* score, int64_t visible, int32_t* out, int64_t out_width) const {
    const int64_t blocks = (visible + keep.block_size - 1) / keep.block_size;
    std::vector<scalar_t> best(blocks, -std::numeric_limits<scalar_t>::infinity());
    for (int64_t g = 0; g < visible; ++g) best[g / keep.block_size] = std::max(best[g / keep.block_size], score[g]);
    if (blocks > 0) best[blocks - 1] = std::numeric_limits<scalar_t>::infinity();  // holds the newest visible group
    std::vector<int64_t> ids(blocks);
    std::iota(ids.begin(), ids.end(), 0);
    write_best(ids, best.data(), keep.blocks, 0, out, out_width);
  }
};

}  // namespace

double IndexQueries::scale() const {
  return std::pow(static_cast<double>(q.size(2)), -0.5) * std::pow(static_cast<double>(heads > 0 ? heads : q.size(1)), -0.5);
}

at::Tensor index_scores(const IndexQueries& queries, const at::Tensor& keys) {
  return score_chunk(queries, keys, 0, queries.q.size(0), 0, keys.size(0));
}

IndexChoice choose_groups(const IndexQueries& queries, const at::Tensor& keys, int64_t k, const CandidateOptions& keep,
                          const at::Tensor& pool, int64_t chunk_elements, Implementation how) {
  if (how == Implementation::kMega) return indexer::choose_in_tiles(queries, keys, k, keep, pool, chunk_elements);
  const int64_t tokens = queries.q.size(0), heads = queries.q.size(1);
  const bool chooses_candidates = keep.blocks > 0 && !pool.defined();
  IndexChoice choice;
  choice.topk = at::empty({tokens, k}, at::kInt);
  if (chooses_candidates) choice.candidates = at::empty({tokens, keep.blocks}, at::kInt);
  int32_t* topk_out = choice.topk.mutable_data_ptr<int32_t>();
  int32_t* candidates_out = chooses_candidates ? choice.candidates.mutable_data_ptr<int32_t>() : nullptr;
  const int32_t* pool_in = pool.defined() ? pool.const_data_ptr<int32_t>() : nullptr;
  const int64_t* first = queries.first.const_data_ptr<int64_t>();
  const int64_t* count = queries.count.const_data_ptr<int64_t>();

  for (int64_t begin = 0; begin < tokens;) {
    // Grow the chunk while its scores stay within the budget; every chunk has at least one query.
    int64_t low = first[begin], high = first[begin] + count[begin], end = begin + 1;
    while (end < tokens) {
      const int64_t new_low = std::min(low, first[end]), new_high = std::max(high, first[end] + count[end]);
      if (end - begin >= kMostQueries || (end + 1 - begin) * heads * (new_high - new_low) > chunk_elements) break;
      low = new_low, high = new_high, ++end;
    }
    const at::Tensor scores = score_chunk(queries, keys, begin, end - begin, low, high).contiguous();
    AT_DISPATCH_FLOATING_TYPES(scores.scalar_type(), "choose_groups", [&] {
      const Chooser<scalar_t> chooser{k, k, keep};
      const scalar_t* data = scores.const_data_ptr<scalar_t>();
      at::parallel_for(begin, end, 16, [&](int64_t from, int64_t to) {
        for (int64_t t = from; t < to; ++t) {
          const scalar_t* score = data + (t - begin) * (high - low) + (first[t] - low);
          chooser.topk(score, count[t], first[t], pool_in == nullptr ? nullptr : pool_in + t * keep.blocks, topk_out + t * k);
          if (chooses_candidates) chooser.candidates(score, count[t], candidates_out + t * keep.blocks, keep.blocks);
        }
      });
    });
    begin = end;
  }
  return choice;
}

}  // namespace hyperparallel::kernels
