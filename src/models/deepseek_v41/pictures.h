// The pictures of a micro-batch over the ranks: who computes which, and what moves for it. Host arithmetic on the outlines of all
// data-parallel ranks' micro-batches, the same on every rank; nothing communicates here.
//
// NOTE [Pictures over ranks]: the ranks of a stage form groups of `vision` consecutive ones. The pictures of the micro-batches
// that run at the same time are spread over all groups by cost, whoever's they are. The patches of a group's pictures lie one
// behind another, cut into even parts over its ranks:
//   patches     from a rank that has the micro-batch to those that compute the picture          all-to-all over `stage`
//   attention   all heads of the own patches <-> own heads of all patches, in every block       2 all-to-alls over `vision`
//   neighbours  patches that an aligner row covers and another rank has                         all-to-all over `vision`
//   spans       from the ranks that computed them to those that hold their tokens               all-to-all over `stage`
// Heads and aligner rows are cut into even parts like the patches; any part may be empty, so no size needs to divide. Gradients
// go the same ways back; those of the parameters are parts everywhere, summed over the stage. Cost: a patch of 14 x 14 is 2352
// bytes in FP32, sent at most once, and does not move where its own rank computes it. Every rank walks through the outlines of
// all data-parallel ranks (three numbers a picture, which its loader knows), and through the tokens of those micro-batches whose
// pictures it computes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/layout.h"
#include "models/deepseek_v41/batch.h"
#include "models/deepseek_v41/program.h"

namespace hyperparallel::models::deepseek_v41 {

// Which pictures each of `groups` computes, ascending: the costliest first, each to the group with the least work so far; of
// equal ones to one of its home, `home[picture]` = [first, last] group that has the picture already.
std::vector<std::vector<int64_t>> spread_pictures(const std::vector<int64_t>& cost,
                                                  const std::vector<std::pair<int64_t, int64_t>>& home, int64_t groups);

class Pictures {
 public:
  // Throws InternalError when the batch contradicts itself.
  Pictures(const VisionConfig& config, const engine::Layout& layout, const ModelBatch& batch);

  // The inputs of tower and aligner, facts.md 2.2 and 2.3.
  void add_tower(const ModelInputs& in, at::ScalarType compute, engine::ValueMap& map) const;
  // What takes span tokens to the ranks that have their positions in their part of the tokens.
  void add_spans(const ModelInputs& in, engine::ValueMap& map) const;
  // `patches`, `aligned`, `span_tokens` and `patches.sent` of held_rows (program.h).
  void add_held(std::map<std::string, HeldRows>& held) const;

 private:
  struct Picture {
    int dp_rank;  // whose micro-batch
    int64_t rows, columns, start;
    int64_t first_patch;            // in that micro-batch
    int64_t out_rows, out_columns;  // aligner rows
    int64_t group = 0;              // that computes it
    int64_t group_patch = 0;        // its first patch among those of the group
    int64_t group_aligned = 0;      // its first aligner row, likewise
    int64_t patches() const { return rows * columns; }
    int64_t aligned() const { return out_rows * out_columns; }
    // Span tokens before those that go with its aligner row `r`: START goes with the first one, NEW_LINE and END with the one
    // before.
    int64_t span_begin(int64_t r) const {
      return r == 0 ? 0 : r == aligned() ? out_rows * (out_columns + 1) + 2 : 1 + r + r / out_columns;
    }
  };
  struct Group {
    std::vector<int64_t> pictures;  // ascending
    int64_t patches = 0, aligned = 0;
  };
  using Range = std::pair<int64_t, int64_t>;  // [first, second)

  void add_outline(const BatchOutline& outline, int dp_rank);
  void spread();
  // The members of the group, by rank in it, that have some of the items [begin, begin + count) of `total`; calls `visit(member,
  // items of it, counted from begin)`.
  template <class Visit>
  void for_parts(int64_t total, int64_t begin, int64_t count, const Visit& visit) const;
  Range part_of(int64_t total, int64_t member) const;
  int sender_of_patches(int dp_rank, int64_t receiver) const;
  // What this rank sends, by receiver and in order of pictures: patches of its micro-batch.
  std::map<int64_t, std::vector<Range>> outgoing_patches() const;
  void add_patches(const ModelInputs& in, at::ScalarType compute, engine::ValueMap& map) const;
  void add_windows(const ModelInputs& in, engine::ValueMap& map) const;

  const VisionConfig& config_;
  const engine::Layout& layout_;
  const ModelBatch& batch_;
  const int64_t members_, sample_, rank_;  // ranks of a group, of a sample group; this one's place in the stage
  std::vector<int64_t> tokens_;            // of each data-parallel rank's micro-batch
  std::vector<Picture> pictures_;          // in order of data-parallel rank, then position
  std::vector<Group> groups_;
  const Group* own_ = nullptr;
};

}  // namespace hyperparallel::models::deepseek_v41
