// Program inputs of a micro-batch for one rank: what the layers need to know of documents, groups and pictures, derived from
// their borders on the host. Ranks that share a micro-batch derive the same from the same batch and take their part.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "models/deepseek_v41/draft_batch.h"
#include "models/deepseek_v41/pictures.h"
#include "models/deepseek_v41/prefix.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

std::vector<int64_t> border_list(const at::Tensor& cu_seqlens) {
  const at::Tensor borders = cu_seqlens.contiguous();
  return {borders.const_data_ptr<int64_t>(), borders.const_data_ptr<int64_t>() + borders.numel()};
}

// What each document continues.
std::vector<int64_t> lengths_of(const Prefix* prefix, const ModelBatch& batch) {
  std::vector<int64_t> lengths;
  if (prefix == nullptr) return lengths;
  HP_CHECK(static_cast<int64_t>(prefix->sequences.size()) == batch.cu_seqlens.size(0) - 1, "{} documents continue {} sequences",
           batch.cu_seqlens.size(0) - 1, prefix->sequences.size());
  for (const Prefix::Sequence& sequence : prefix->sequences) lengths.push_back(sequence.length);
  return lengths;
}

class Preparation {
 public:
  Preparation(const ModelProgram& model, const ModelBatch& batch, at::ScalarType compute, const Prefix* prefix)
      : model_(model),
        in_(model.inputs),
        text_(model.config.text),
        layout_(model.options.layout),
        batch_(batch),
        compute_(compute),
        prefix_(prefix),
        tokens_(border_list(batch.cu_seqlens), layout_, lengths_of(prefix, batch)),
        shards_(tokens_.shards()),
        own_(tokens_.own()) {
    HP_CHECK((prefix != nullptr) == model.options.cached, "a prefix goes with a cached program");
  }

  void add_all(engine::ValueMap& map) {
    map_ = &map;
    add_tokens();
    if (prefix_ == nullptr) {
      add_window();
    } else {
      add_cached_window();
      add_prefix();
    }
    for (const auto& [ratio, groups] : in_.groups) {
      prefix_ == nullptr ? add_groups(ratio, groups) : add_cached_groups(ratio, groups);
    }
    for (size_t i = 0; i < in_.engram.size(); ++i) add_engram(i);
    if (in_.draft.ids.valid()) put_draft_inputs(model_, batch_, tokens_, map);
  }

  void add_held(std::map<std::string, HeldRows>& held) const {
    held["tokens"] = {"cp", own_};
    held["shard"] = {"sample", tokens_.shard()};
    if (in_.draft.ids.valid()) add_draft_held(model_, batch_, tokens_, held);
    for (const auto& [ratio, groups] : in_.groups) {
      std::vector<int64_t>& own = (held["groups." + std::to_string(ratio)] = {"cp", {}}).rows;
      int64_t group = 0;
      for (int64_t d = 0; d < tokens_.documents(); ++d) {
        for (int64_t end = tokens_.border(d) + ratio; end <= tokens_.border(d + 1); end += ratio, ++group) {
          if (shards_.owner(end - 1) == tokens_.cp_rank()) own.push_back(group);
        }
      }
    }
  }

 private:
  void put(engine::ValueId id, at::Tensor tensor) { (*map_)[id.index] = std::move(tensor); }
  void put(engine::ValueId id, const std::vector<int64_t>& values) { put(id, tensor_of(values)); }
  void put(const Halo& halo, const Fetch& fetch) {
    put(halo.send_index, fetch.send_index);
    put(halo.send_rows, fetch.send_rows);
    put(halo.receive_rows, fetch.receive_rows);
  }
  ItemPlace place_of(int64_t token) const { return {shards_.owner(token), shards_.row(token)}; }

  void add_tokens() {
    const at::Tensor shard = tensor_of(tokens_.shard());
    at::Tensor ids = batch_.ids;
    if (in_.span_index.valid()) ids = ids.masked_fill(batch_.image_mask, -1);  // spans are not looked up
    tokens_.put(*map_, in_, ids, batch_.targets);
    put(in_.image, batch_.image_mask.index_select(0, shard));
    put(in_.closed, batch_.image_mask.logical_or(batch_.padding).index_select(0, shard));
    put(in_.padding, batch_.padding.index_select(0, shard));
    if (in_.counted.valid()) put(in_.counted, batch_.padding.logical_not().index_select(0, tensor_of(own_)));
    if (in_.sequence.valid()) add_sequences(shard);
  }

  void add_sequences(const at::Tensor& shard) {
    std::vector<int64_t> sequence(tokens_.tokens()), lengths(tokens_.documents());
    const at::Tensor padding = batch_.padding.contiguous();
    for (int64_t t = 0; t < tokens_.tokens(); ++t) {
      sequence[t] = padding.const_data_ptr<bool>()[t] ? -1 : tokens_.document(t);
      if (sequence[t] >= 0) ++lengths[sequence[t]];
    }
    put(in_.sequence, tensor_of(sequence).index_select(0, shard));
    put(in_.sequence_lengths, lengths);
  }

  // A stretch of window keys: a chunk's tokens behind those of the same document that its windows reach back to.
  struct Stretch {
    int64_t first, begin, end;
  };
  std::vector<Stretch> stretches(int cp_rank) const {
    std::vector<Stretch> result;
    for (const auto& [begin, end] : shards_.chunks(cp_rank))
      result.push_back({std::max(tokens_.document_begin(begin), begin - (text_.sliding_window - 1)), begin, end});
    return result;
  }

  void add_window() {
    std::vector<std::vector<int64_t>> needs(shards_.ranks());
    for (int rank = 0; rank < shards_.ranks(); ++rank) {
      std::set<int64_t> missing;
      for (const Stretch& s : stretches(rank)) {
        for (int64_t t = s.first; t < s.begin; ++t) {
          if (shards_.owner(t) != rank) missing.insert(t);
        }
      }
      needs[rank].assign(missing.begin(), missing.end());
    }
    const Fetch fetch = plan_fetch(needs, tokens_.cp_rank(), [&](int64_t token) { return place_of(token); });
    put(in_.window, fetch);
    std::vector<int64_t> rows, start, key;
    for (const Stretch& s : stretches(tokens_.cp_rank())) {
      const auto base = static_cast<int64_t>(rows.size()) - s.first;  // + token: its row among the keys
      for (int64_t t = s.first; t < s.end; ++t) rows.push_back(own_or_received(t, fetch));
      for (int64_t t = s.begin; t < s.end; ++t) {
        start.push_back(base + std::max(tokens_.document_begin(t), s.first));
        key.push_back(base + t);
      }
    }
    put(in_.window_rows, rows);
    put(in_.document_start, start);
    put(in_.key_row, key);
  }
  int64_t own_or_received(int64_t token, const Fetch& fetch) const {
    if (shards_.owner(token) == tokens_.cp_rank()) return shards_.row(token);
    return static_cast<int64_t>(own_.size()) + fetch.received.at(token);
  }

  void add_groups(int64_t ratio, const ModelInputs::Groups& groups) {
    const auto ranks = static_cast<size_t>(shards_.ranks());
    std::vector<std::vector<int64_t>> needs(ranks), numbers(ranks);  // tokens to fetch; groups that a rank makes
    std::vector<int64_t> first_group{0}, first_token;                // by document; by group
    for (int64_t d = 0; d < tokens_.documents(); ++d) {
      first_group.push_back(first_group.back() + tokens_.length(d) / ratio);
      for (int64_t g = 0; g < tokens_.length(d) / ratio; ++g) {
        const int64_t begin = tokens_.border(d) + g * ratio;
        const int owner = shards_.owner(begin + ratio - 1);
        numbers[owner].push_back(static_cast<int64_t>(first_token.size()));
        first_token.push_back(begin);
        for (int64_t t = begin; t < begin + ratio; ++t) {
          if (shards_.owner(t) != owner) needs[owner].push_back(t);
        }
      }
    }
    const Fetch fetch = plan_fetch(needs, tokens_.cp_rank(), [&](int64_t token) { return place_of(token); });
    if (groups.halo.send_index.valid()) put(groups.halo, fetch);
    std::vector<int64_t> members, position, rows, order(first_token.size()), first, count;
    for (int64_t g : numbers[tokens_.cp_rank()]) {
      position.push_back(first_token[g] - tokens_.document_begin(first_token[g]));
      for (int64_t t = first_token[g]; t < first_token[g] + ratio; ++t) members.push_back(own_or_received(t, fetch));
    }
    int64_t gathered = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
      rows.push_back(static_cast<int64_t>(numbers[rank].size()));
      for (int64_t g : numbers[rank]) order[g] = gathered++;
    }
    for (int64_t t : own_) {
      first.push_back(first_group[tokens_.document(t)]);
      count.push_back((t - tokens_.document_begin(t) + 1) / ratio);
    }
    put(groups.tokens, tensor_of(members).view({-1, ratio}));
    put(groups.positions, position);
    put(groups.rows, rows);
    if (groups.order.valid()) put(groups.order, order);
    put(groups.first, first);
    put(groups.count, count);
  }

  // Rows of the table that this rank's tokens look up, each once; who has them; and where each (token, column) finds its row.
  void add_engram(size_t which) {
    const at::Tensor shard = tensor_of(tokens_.shard());
    const at::Tensor all = batch_.engram_rows.select(1, static_cast<int64_t>(which)).index_select(0, shard).contiguous();
    const at::Tensor closed = map_->at(in_.closed.index).contiguous();
    const int64_t columns = all.size(1), table = text_.engram_num_embeddings[which], ranks = layout_.size(in_.engram[which].axis);
    const int64_t* row = all.const_data_ptr<int64_t>();
    const bool* shut = closed.const_data_ptr<bool>();
    std::vector<int64_t> unique, found(static_cast<size_t>(all.numel()), -1), send(ranks, 0);
    for (int64_t i = 0; i < all.numel(); ++i) {
      if (!shut[i / columns]) unique.push_back(row[i]);
    }
    std::sort(unique.begin(), unique.end());
    unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
    HP_CHECK(unique.empty() || (unique.front() >= 0 && unique.back() < table), "Engram rows {} to {} of a table of {}",
             unique.front(), unique.back(), table);
    for (int64_t i = 0; i < all.numel(); ++i) {
      if (!shut[i / columns]) found[i] = std::lower_bound(unique.begin(), unique.end(), row[i]) - unique.begin();
    }
    auto from = unique.begin();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto to = std::lower_bound(from, unique.end(), engine::part_begin(table, ranks, rank + 1));
      send[rank] = to - from;
      from = to;
    }
    put(in_.engram[which].rows, unique);
    put(in_.engram[which].send_rows, send);
    put(in_.engram[which].found, found);
  }

  // ---- Cached programs: one cp rank, documents with a prefix ----

  // Row where each document begins when documents lie one after another with the rows they kept before the new ones.
  std::vector<int64_t> first_rows(const KeptRows& rows) const {
    std::vector<int64_t> first{0};
    for (int64_t d = 0; d < tokens_.documents(); ++d)
      first.push_back(first.back() + rows.kept(text_, tokens_.before(d)) + rows.added(tokens_.before(d), tokens_.length(d)));
    return first;
  }

  void add_cached_window() {
    const KeptRows window{KeptRows::Kind::kWindow};
    const std::vector<int64_t> first = first_rows(window);
    std::vector<int64_t> start, row;
    for (int64_t d = 0; d < tokens_.documents(); ++d) {
      const int64_t own = first[d] + window.kept(text_, tokens_.before(d));
      for (int64_t i = 0; i < tokens_.length(d); ++i) start.push_back(first[d]), row.push_back(own + i);
    }
    put(in_.document_start, start);
    put(in_.key_row, row);
  }

  void add_cached_groups(int64_t ratio, const ModelInputs::Groups& groups) {
    const KeptRows group_rows{KeptRows::Kind::kGroups, ratio}, input_rows{KeptRows::Kind::kGroupInputs, ratio};
    const std::vector<int64_t> first_group = first_rows(group_rows);
    const std::vector<int64_t> first_input = first_rows(input_rows);
    std::vector<int64_t> first, count, members, position;
    for (int64_t d = 0; d < tokens_.documents(); ++d) {
      const int64_t before = tokens_.before(d), old_groups = before / ratio;
      for (int64_t g = old_groups; g < (before + tokens_.length(d)) / ratio; ++g) {
        position.push_back(g * ratio);
        for (int64_t i = 0; i < ratio; ++i) members.push_back(first_input[d] + (g - old_groups) * ratio + i);
      }
      for (int64_t i = 0; i < tokens_.length(d); ++i) first.push_back(first_group[d]), count.push_back((before + i + 1) / ratio);
    }
    put(groups.first, first);
    put(groups.count, count);
    put(groups.tokens, tensor_of(members).view({-1, ratio}));
    put(groups.positions, position);
    put(groups.rows, std::vector<int64_t>{static_cast<int64_t>(position.size())});
  }

  void add_prefix() {
    for (const ContinuedRows& rows : in_.continued) {
      const size_t i = &rows - in_.continued.data();
      const int64_t width = model_.program.values[rows.past.index].shape[1].size;
      put(rows.past, prefix_->pools.empty() ? at::empty({0, width}, at::TensorOptions().dtype(compute_)) : prefix_->pools[i]);
    }
    for (size_t k = 0; k < in_.kept.size(); ++k) {
      std::vector<int64_t> gather;
      int64_t fresh = prefix_->pool_rows(in_, k);
      for (int64_t d = 0; d < tokens_.documents(); ++d) {
        const int64_t kept = in_.kept[k].kept(text_, tokens_.before(d));
        for (int64_t i = 0; i < kept; ++i) gather.push_back(prefix_->sequences[d].ends[k] - kept + i);
        for (int64_t i = 0; i < in_.kept[k].added(tokens_.before(d), tokens_.length(d)); ++i) gather.push_back(fresh++);
      }
      put(in_.kept[k].gather, gather);
    }
    put(in_.logit_rows, batch_.cu_seqlens.slice(0, 1) - 1);
  }

  const ModelProgram& model_;
  const ModelInputs& in_;
  const TextConfig& text_;
  const engine::Layout& layout_;
  const ModelBatch& batch_;
  const at::ScalarType compute_;
  const Prefix* prefix_;
  const RankTokens tokens_;
  const TokenShards& shards_;
  const std::vector<int64_t>& own_;  // tokens of this cp rank
  engine::ValueMap* map_ = nullptr;
};

}  // namespace

engine::ValueMap prepare_inputs(const ModelProgram& model, const ModelBatch& batch, at::ScalarType compute,
                                const Prefix* prefix) {
  engine::ValueMap map;
  const ModelInputs& in = model.inputs;
  if (in.patches.valid()) {
    const Pictures pictures(*model.config.vision, model.options.layout, batch);
    pictures.add_tower(in, compute, map);
    if (in.span_index.valid()) pictures.add_spans(in, map);
  }
  if (in.ids.valid()) Preparation(model, batch, compute, prefix).add_all(map);
  return map;
}

std::map<std::string, HeldRows> held_rows(const ModelProgram& model, const ModelBatch& batch) {
  std::map<std::string, HeldRows> held;
  if (model.inputs.patches.valid()) Pictures(*model.config.vision, model.options.layout, batch).add_held(held);
  if (model.inputs.ids.valid()) Preparation(model, batch, at::kFloat, nullptr).add_held(held);
  return held;
}

}  // namespace hyperparallel::models::deepseek_v41
