#include "models/deepseek_v41/pictures.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "models/adapter/shards.h"
#include "models/adapter/tokens.h"

namespace hyperparallel::models::deepseek_v41 {

std::vector<std::vector<int64_t>> spread_pictures(const std::vector<int64_t>& cost,
                                                  const std::vector<std::pair<int64_t, int64_t>>& home, int64_t groups) {
  std::vector<std::vector<int64_t>> pictures(groups);
  std::vector<int64_t> work(groups, 0), by_cost(cost.size());
  std::set<std::pair<int64_t, int64_t>> least;  // (work, group)
  for (int64_t group = 0; group < groups; ++group) least.emplace(0, group);
  std::iota(by_cost.begin(), by_cost.end(), 0);
  std::stable_sort(by_cost.begin(), by_cost.end(), [&](int64_t a, int64_t b) { return cost[a] > cost[b]; });
  for (const int64_t picture : by_cost) {
    int64_t group = least.begin()->second;
    for (int64_t near = home[picture].second; near >= home[picture].first; --near) {
      if (work[near] == least.begin()->first) group = near;
    }
    least.erase({work[group], group});
    work[group] += cost[picture];
    least.emplace(work[group], group);
    pictures[group].push_back(picture);
  }
  for (auto& of_group : pictures) std::sort(of_group.begin(), of_group.end());
  return pictures;
}

Pictures::Pictures(const VisionConfig& config, const engine::Layout& layout, const ModelBatch& batch)
    : config_(config),
      layout_(layout),
      batch_(batch),
      members_(layout.size("vision")),
      sample_(layout.size("sample")),
      rank_(layout.coordinate("stage")),
      groups_(layout.size("stage") / members_) {
  const int own = layout.coordinate("dp"), ranks = layout.size("dp");
  HP_CHECK(batch.outlines.empty() ? ranks == 1 : static_cast<int>(batch.outlines.size()) == ranks,
           "{} outlines of micro-batches for {} data-parallel ranks", batch.outlines.size(), ranks);
  for (int dp_rank = 0; dp_rank < ranks; ++dp_rank) {
    const BatchOutline here{batch.ids.defined() ? batch.ids.size(0) : 0, batch.grids, batch.image_starts};
    add_outline(dp_rank == own ? here : batch.outlines[dp_rank], dp_rank);
    HP_CHECK(batch.outlines.empty() || dp_rank != own ||
                 (batch.outlines[own].tokens == here.tokens && batch.outlines[own].grids.equal(here.grids)),
             "the outline of data-parallel rank {} is not that of its micro-batch", own);
  }
  spread();
  own_ = &groups_[rank_ / members_];
}

void Pictures::add_outline(const BatchOutline& outline, int dp_rank) {
  const int64_t down = config_.downsample_ratio;
  const at::Tensor grids = outline.grids.contiguous();
  int64_t patches = 0;
  for (int64_t i = 0; i < grids.size(0); ++i) {
    const int64_t rows = grids.const_data_ptr<int64_t>()[2 * i], columns = grids.const_data_ptr<int64_t>()[2 * i + 1];
    const int64_t start = outline.image_starts.defined() ? outline.image_starts[i].item<int64_t>() : 0;
    pictures_.push_back({dp_rank, rows, columns, start, patches, (rows + down - 1) / down, (columns + down - 1) / down});
    const int64_t length = pictures_.back().span_begin(pictures_.back().aligned());
    HP_CHECK(!outline.image_starts.defined() || (start >= 0 && start + length <= outline.tokens),
             "image {} of {} tokens starts at {}", i, length, start);
    patches += rows * columns;
  }
  HP_CHECK(dp_rank != layout_.coordinate("dp") || patches == batch_.patches.size(0), "{} patches for grids of {}",
           batch_.patches.size(0), patches);
  tokens_.push_back(outline.tokens);
}

// Attention is quadratic in the patches of a picture, all else linear: with equal weights at about 4 times the width.
void Pictures::spread() {
  std::vector<int64_t> cost;
  std::vector<Range> home;
  for (const Picture& picture : pictures_) {
    cost.push_back(picture.patches() * (picture.patches() + 4 * config_.hidden_size));
    home.emplace_back(picture.dp_rank * sample_ / members_, ((picture.dp_rank + 1) * sample_ - 1) / members_);
  }
  auto spread = spread_pictures(cost, home, static_cast<int64_t>(groups_.size()));
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    group.pictures = std::move(spread[g]);
    for (const int64_t i : group.pictures) {
      pictures_[i].group = static_cast<int64_t>(g);
      pictures_[i].group_patch = group.patches;
      pictures_[i].group_aligned = group.aligned;
      group.patches += pictures_[i].patches();
      group.aligned += pictures_[i].aligned();
    }
  }
}

Pictures::Range Pictures::part_of(int64_t total, int64_t member) const {
  return {engine::part_begin(total, members_, member), engine::part_begin(total, members_, member + 1)};
}

template <class Visit>
void Pictures::for_parts(int64_t total, int64_t begin, int64_t count, const Visit& visit) const {
  for (int64_t member = 0; member < members_; ++member) {
    const auto [from, to] = part_of(total, member);
    const int64_t first = std::max(from, begin), last = std::min(to, begin + count);
    if (first < last) visit(member, first - begin, last - begin);
  }
}

// All ranks of a sample group have the patches: each serves the receivers that stand in their own groups where it does.
int Pictures::sender_of_patches(int dp_rank, int64_t receiver) const {
  return static_cast<int>(dp_rank * sample_ + receiver % sample_);
}

std::map<int64_t, std::vector<Pictures::Range>> Pictures::outgoing_patches() const {
  std::map<int64_t, std::vector<Range>> outgoing;
  for (const Picture& picture : pictures_) {
    if (picture.dp_rank != layout_.coordinate("dp")) continue;
    for_parts(groups_[picture.group].patches, picture.group_patch, picture.patches(),
              [&](int64_t to, int64_t first, int64_t last) {
                const int64_t receiver = picture.group * members_ + to;
                if (sender_of_patches(picture.dp_rank, receiver) == rank_)
                  outgoing[receiver].emplace_back(picture.first_patch + first, picture.first_patch + last);
              });
  }
  return outgoing;
}

void Pictures::add_tower(const ModelInputs& in, at::ScalarType compute, engine::ValueMap& map) const {
  add_patches(in, compute, map);
  add_windows(in, map);
}

void Pictures::add_patches(const ModelInputs& in, at::ScalarType compute, engine::ValueMap& map) const {
  const int64_t ranks = layout_.size("stage"), member = rank_ % members_;
  std::vector<int64_t> send(ranks, 0), receive(ranks, 0);
  std::vector<Range> stretches;
  for (const auto& [receiver, of_receiver] : outgoing_patches()) {
    for (const auto& [first, last] : of_receiver) {  // neighbouring stretches in one
      send[receiver] += last - first;
      if (!stretches.empty() && stretches.back().second == first) {
        stretches.back().second = last;
      } else {
        stretches.emplace_back(first, last);
      }
    }
  }
  std::vector<at::Tensor> patches;
  for (const auto& [first, last] : stretches) patches.push_back(batch_.patches.slice(0, first, last));
  // What comes in lies in the order of the group: its pictures are in order of data-parallel ranks, and so are the senders.
  std::vector<int64_t> row, column, patches_of;
  for (const int64_t i : own_->pictures) {
    const Picture& picture = pictures_[i];
    patches_of.push_back(picture.patches());
    for_parts(own_->patches, picture.group_patch, picture.patches(), [&](int64_t to, int64_t first, int64_t last) {
      if (to != member) return;
      receive[sender_of_patches(picture.dp_rank, rank_)] += last - first;
      for (int64_t p = first; p < last; ++p) row.push_back(p / picture.columns), column.push_back(p % picture.columns);
    });
  }
  const std::vector<int64_t> parts = engine::even_parts(own_->patches, members_),
                             heads = engine::even_parts(config_.num_attention_heads, members_);
  std::vector<int64_t> head_send, head_receive;
  for (int64_t other = 0; other < members_; ++other) {
    head_send.push_back(parts[member] * heads[other]);
    head_receive.push_back(parts[other] * heads[member]);
  }
  const at::Tensor sent = patches.empty() ? batch_.patches.narrow(0, 0, 0) : patches.size() == 1 ? patches[0] : at::cat(patches);
  map[in.patches.index] = sent.to(compute);
  map[in.patch_send_rows.index] = tensor_of(send);
  map[in.patch_receive_rows.index] = tensor_of(receive);
  map[in.patch_rows.index] = tensor_of(row);
  map[in.patch_columns.index] = tensor_of(column);
  map[in.image_patches.index] = tensor_of(patches_of);
  map[in.patch_parts.index] = tensor_of(parts);
  map[in.head_send_rows.index] = tensor_of(head_send);
  map[in.head_receive_rows.index] = tensor_of(head_receive);
}

// Aligner rows: which patches each covers, what other ranks have of them, and what the span tokens of this rank are made of.
void Pictures::add_windows(const ModelInputs& in, engine::ValueMap& map) const {
  const int64_t down = config_.downsample_ratio, member = rank_ % members_;
  std::vector<std::vector<int64_t>> covered(members_);  // patches of the group, -1: outside of the picture
  std::vector<int64_t> source;
  int64_t aligned = 0;
  for (const int64_t i : own_->pictures) {
    const Picture& picture = pictures_[i];
    for_parts(own_->aligned, picture.group_aligned, picture.aligned(), [&](int64_t on, int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const int64_t top = r / picture.out_columns * down, left = r % picture.out_columns * down;
        for (int64_t k = 0; k < down * down; ++k) {
          const int64_t y = top + k / down, x = left + k % down;
          const bool inside = y < picture.rows && x < picture.columns;
          covered[on].push_back(inside ? picture.group_patch + y * picture.columns + x : -1);
        }
        if (on != member) continue;
        if (r == 0) source.push_back(0);
        source.push_back(3 + aligned++);
        if ((r + 1) % picture.out_columns == 0) source.push_back(1);
        if (r + 1 == picture.aligned()) source.push_back(2);
      }
    });
  }
  std::vector<std::vector<int64_t>> needs(members_);
  for (int64_t on = 0; on < members_; ++on) {
    const auto [begin, end] = part_of(own_->patches, on);
    std::set<int64_t> missing;
    for (const int64_t patch : covered[on]) {
      if (patch >= 0 && (patch < begin || patch >= end)) missing.insert(patch);
    }
    needs[on].assign(missing.begin(), missing.end());
  }
  const std::vector<int64_t> parts = engine::even_parts(own_->patches, members_);
  std::vector<ItemPlace> places;
  for (int64_t on = 0; on < members_; ++on) {
    for (int64_t row = 0; row < parts[on]; ++row) places.push_back({static_cast<int>(on), row});
  }
  const Fetch fetch = plan_fetch(needs, static_cast<int>(member), [&](int64_t patch) { return places[patch]; });
  std::vector<int64_t> rows;
  for (const int64_t patch : covered[member]) {
    rows.push_back(patch < 0 ? -1 : places[patch].rank == member ? places[patch].row : parts[member] + fetch.received.at(patch));
  }
  map[in.neighbours.send_index.index] = tensor_of(fetch.send_index);
  map[in.neighbours.send_rows.index] = tensor_of(fetch.send_rows);
  map[in.neighbours.receive_rows.index] = tensor_of(fetch.receive_rows);
  map[in.unshuffle.index] = tensor_of(rows).view({-1, down * down});
  map[in.span_source.index] = tensor_of(source);
}

namespace {

// The rank of a sample group that has a token in its part.
int64_t sample_rank(const TokenShards& shards, int64_t token, int64_t tp) {
  const auto total = static_cast<int64_t>(shards.tokens(shards.owner(token)).size());
  int64_t rank = 0;
  while (engine::part_begin(total, tp, rank + 1) <= shards.row(token)) ++rank;
  return shards.owner(token) * tp + rank;
}

}  // namespace

// Both sides walk through span tokens in the same order, and file them by the other side.
void Pictures::add_spans(const ModelInputs& in, engine::ValueMap& map) const {
  const int64_t tp = layout_.size("tp"), ranks = layout_.size("stage"), member = rank_ % members_;
  std::map<int, TokenShards> shards;  // of the micro-batches that concern this rank
  const auto shards_of = [&](int dp_rank) -> const TokenShards& {
    return shards.try_emplace(dp_rank, tokens_[dp_rank], layout_).first->second;
  };
  std::vector<std::vector<int64_t>> outgoing(ranks), incoming(ranks);  // own span tokens; positions of received ones
  int64_t made = 0;
  for (const int64_t i : own_->pictures) {
    const Picture& picture = pictures_[i];
    for_parts(own_->aligned, picture.group_aligned, picture.aligned(), [&](int64_t on, int64_t first, int64_t last) {
      for (int64_t s = picture.span_begin(first); on == member && s < picture.span_begin(last); ++s)
        outgoing[picture.dp_rank * sample_ + sample_rank(shards_of(picture.dp_rank), picture.start + s, tp)].push_back(made++);
    });
  }
  const int dp_rank = layout_.coordinate("dp");
  const TokenShards& own = shards_of(dp_rank);
  for (const Picture& picture : pictures_) {
    if (picture.dp_rank != dp_rank) continue;
    for_parts(groups_[picture.group].aligned, picture.group_aligned, picture.aligned(),
              [&](int64_t on, int64_t first, int64_t last) {
                for (int64_t s = picture.span_begin(first); s < picture.span_begin(last); ++s) {
                  if (sample_rank(own, picture.start + s, tp) == rank_ % sample_)
                    incoming[picture.group * members_ + on].push_back(picture.start + s);
                }
              });
  }
  std::vector<int64_t> send_index, send(ranks), receive(ranks), index(own.tokens(layout_.coordinate("cp")).size(), -1);
  int64_t row = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    send_index.insert(send_index.end(), outgoing[rank].begin(), outgoing[rank].end());
    send[rank] = static_cast<int64_t>(outgoing[rank].size());
    receive[rank] = static_cast<int64_t>(incoming[rank].size());
    for (const int64_t token : incoming[rank]) index[own.row(token)] = row++;
  }
  map[in.spans.send_index.index] = tensor_of(send_index);
  map[in.spans.send_rows.index] = tensor_of(send);
  map[in.spans.receive_rows.index] = tensor_of(receive);
  map[in.span_index.index] = tensor_of(index);
}

void Pictures::add_held(std::map<std::string, HeldRows>& held) const {
  const int64_t member = rank_ % members_;
  std::vector<int64_t> patches, aligned, spans, sent;
  const auto add = [](std::vector<int64_t>& rows, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) rows.push_back(row);
  };
  int64_t first_patch = 0, first_aligned = 0, first_span = 0;  // of a picture among all
  for (const Picture& picture : pictures_) {
    if (&groups_[picture.group] == own_) {
      for_parts(own_->patches, picture.group_patch, picture.patches(), [&](int64_t on, int64_t first, int64_t last) {
        if (on == member) add(patches, first_patch + first, first_patch + last);
      });
      for_parts(own_->aligned, picture.group_aligned, picture.aligned(), [&](int64_t on, int64_t first, int64_t last) {
        if (on != member) return;
        add(aligned, first_aligned + first, first_aligned + last);
        add(spans, first_span + picture.span_begin(first), first_span + picture.span_begin(last));
      });
    }
    first_patch += picture.patches();
    first_aligned += picture.aligned();
    first_span += picture.span_begin(picture.aligned());
  }
  for (const auto& [receiver, stretches] : outgoing_patches()) {
    for (const auto& [first, last] : stretches) add(sent, first, last);
  }
  held["patches"] = {"stage", std::move(patches)};
  held["aligned"] = {"stage", std::move(aligned)};
  held["span_tokens"] = {"stage", std::move(spans)};
  held["patches.sent"] = {"sample", std::move(sent)};
}

}  // namespace hyperparallel::models::deepseek_v41
