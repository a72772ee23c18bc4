#include "models/deepseek_v41/draft_batch.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "models/adapter/tokens.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::vector<int64_t> list_of(const at::Tensor& values) {
  const at::Tensor table = values.contiguous();
  return {table.const_data_ptr<int64_t>(), table.const_data_ptr<int64_t>() + table.numel()};
}

// How many slots from the anchor on are scored.
int64_t scored_slots(const std::vector<int64_t>& targets, int64_t anchor, int64_t document_end, int64_t block) {
  int64_t k = 0;
  while (k < block && anchor + k < document_end && targets[anchor + k] >= 0) ++k;
  return k;
}

class DraftRows {
 public:
  DraftRows(const ModelProgram& model, const ModelBatch& batch, const RankTokens& tokens, engine::ValueMap& map)
      : in_(model.inputs.draft),
        draft_(model.config.text.draft),
        window_(model.config.text.sliding_window),
        layout_(model.options.layout),
        tokens_(tokens),
        shards_(tokens.shards()),
        ids_(list_of(batch.ids)),
        targets_(list_of(batch.targets)),
        map_(map) {
    for (int64_t anchor : list_of(batch.anchors)) {
      HP_CHECK(anchor >= 0 && anchor < tokens.tokens(), "anchor {} of {} tokens", anchor, tokens.tokens());
      anchors_.push_back(anchor);
    }
    HP_CHECK(std::ranges::is_sorted(anchors_), "anchors are not in order");
  }

  void add() {
    const Fetch hidden = fetch_hidden();
    put(in_.model_hidden, hidden);
    add_window();
    std::vector<int64_t> ids, previous, targets, slots, positions, rows;
    std::vector<int64_t> own;
    for (int64_t a : anchors_) {
      if (shards_.owner(a) != tokens_.cp_rank()) continue;
      own.push_back(a);
      const int64_t end = tokens_.border(tokens_.document(a) + 1), scored = scored_slots(targets_, a, end, draft_.block_size);
      for (int64_t k = 0; k < draft_.block_size; ++k) {
        const int64_t at = std::min(a + k, tokens_.tokens() - 1);  // beyond the document the slot is not scored
        ids.push_back(k == 0 ? ids_[a] : draft_.noise_token_id);
        previous.push_back(ids_[at]);
        targets.push_back(k < scored ? targets_[at] : -1);
        slots.push_back(k);
        positions.push_back(tokens_.position(a) + k);
        rows.push_back(a + k < end ? row_of(a + k, hidden) : -1);
      }
    }
    put(in_.ids, ids);
    put(in_.previous, previous);
    put(in_.targets, targets);
    put(in_.slots, slots);
    put(in_.positions, positions);
    put(in_.model_rows, rows);
    const auto all = static_cast<int64_t>(slots.size());
    const at::Tensor of_block = at::arange(all, at::kInt).view({-1, 1, draft_.block_size});
    map_[in_.slots_of_block.index] = of_block.expand({-1, draft_.block_size, -1}).reshape({all, draft_.block_size});
    const std::vector<int64_t> parts = engine::even_parts(all, layout_.size("tp"));
    put(in_.tp_rows, parts);
    const at::Tensor none = at::zeros({parts[layout_.coordinate("tp")]}, at::kBool);
    map_[in_.image.index] = none;
    map_[in_.padding.index] = none;
  }

 private:
  void put(engine::ValueId id, const std::vector<int64_t>& values) { map_[id.index] = tensor_of(values); }
  void put(const Halo& halo, const Fetch& fetch) {
    put(halo.send_index, fetch.send_index);
    put(halo.send_rows, fetch.send_rows);
    put(halo.receive_rows, fetch.receive_rows);
  }
  // `needs(rank, missing)` adds the tokens that a cp rank reads; those that it has are left out.
  template <class Needs>
  Fetch fetch(const Needs& needs) const {
    std::vector<std::vector<int64_t>> missing(shards_.ranks());
    for (int rank = 0; rank < shards_.ranks(); ++rank) {
      std::set<int64_t> read;
      needs(rank, read);
      std::erase_if(read, [&](int64_t t) { return shards_.owner(t) == rank; });
      missing[rank].assign(read.begin(), read.end());
    }
    return plan_fetch(missing, tokens_.cp_rank(), [&](int64_t t) { return ItemPlace{shards_.owner(t), shards_.row(t)}; });
  }
  int64_t row_of(int64_t token, const Fetch& fetch) const {
    if (shards_.owner(token) == tokens_.cp_rank()) return shards_.row(token);
    return static_cast<int64_t>(tokens_.own().size()) + fetch.received.at(token);
  }

  Fetch fetch_hidden() const {
    return fetch([&](int rank, std::set<int64_t>& read) {
      for (int64_t a : anchors_) {
        if (shards_.owner(a) != rank) continue;
        const int64_t end = std::min(a + draft_.block_size, tokens_.border(tokens_.document(a) + 1));
        for (int64_t t = a; t < end; ++t) read.insert(t);
      }
    });
  }

  // The first token that a block of anchor `a` sees.
  int64_t first_seen(int64_t a) const { return std::max(tokens_.document_begin(a), a - window_); }

  void add_window() {
    const Fetch keys = fetch([&](int rank, std::set<int64_t>& read) {
      for (int64_t a : anchors_) {
        for (int64_t t = first_seen(a); shards_.owner(a) == rank && t < a; ++t) read.insert(t);
      }
    });
    put(in_.window, keys);
    // The keys of a stretch of anchors lie one after another, each once.
    std::vector<int64_t> rows, row, start;
    int64_t next = 0, base = 0;  // the token behind the last key; + token: its place among the keys
    for (int64_t a : anchors_) {
      if (shards_.owner(a) != tokens_.cp_rank()) continue;
      if (first_seen(a) > next || rows.empty()) {
        next = first_seen(a);
        base = static_cast<int64_t>(rows.size()) - next;
      }
      for (; next < a; ++next) rows.push_back(row_of(next, keys));
      for (int64_t k = 0; k < draft_.block_size; ++k) {
        row.push_back(base + a - 1);
        start.push_back(base + first_seen(a));
      }
    }
    put(in_.window_rows, rows);
    put(in_.key_row, row);
    put(in_.key_start, start);
  }

  const ModelInputs::Draft& in_;
  const DraftConfig& draft_;
  const int64_t window_;
  const engine::Layout& layout_;
  const RankTokens& tokens_;
  const TokenShards& shards_;
  const std::vector<int64_t> ids_, targets_;
  std::vector<int64_t> anchors_;
  engine::ValueMap& map_;
};

}  // namespace

at::Tensor choose_anchors(const ModelBatch& batch, int64_t most) {
  const std::vector<int64_t> ids = list_of(batch.ids), targets = list_of(batch.targets), borders = list_of(batch.cu_seqlens);
  const at::Tensor image = batch.image_mask.contiguous(), padding = batch.padding.contiguous();
  std::vector<int64_t> chosen;
  for (size_t d = 0; d + 1 < borders.size(); ++d) {
    uint64_t document = mixed(static_cast<uint64_t>(borders[d]));
    for (int64_t t = borders[d]; t < borders[d + 1]; ++t) document = mixed(document ^ static_cast<uint64_t>(ids[t]));
    std::vector<std::pair<uint64_t, int64_t>> candidates;  // by a number drawn for each
    for (int64_t t = borders[d] + 1; t < borders[d + 1]; ++t) {
      if (targets[t] < 0 || image.const_data_ptr<bool>()[t] || padding.const_data_ptr<bool>()[t]) continue;
      candidates.emplace_back(mixed(document ^ static_cast<uint64_t>(t)), t);
    }
    if (most > 0 && static_cast<int64_t>(candidates.size()) > most) {
      std::nth_element(candidates.begin(), candidates.begin() + most, candidates.end());
      candidates.resize(most);
    }
    for (const auto& [number, t] : candidates) chosen.push_back(t);
  }
  std::sort(chosen.begin(), chosen.end());
  return tensor_of(chosen);
}

double draft_units(const TextConfig& text, const DraftLoss& loss, const ModelBatch& batch) {
  const std::vector<int64_t> targets = list_of(batch.targets), borders = list_of(batch.cu_seqlens);
  double units = 0;
  for (int64_t a : list_of(batch.anchors)) {
    const int64_t end = *std::upper_bound(borders.begin(), borders.end(), a);
    for (int64_t k = 0; k < scored_slots(targets, a, end, text.draft.block_size); ++k)
      units += loss.decay > 0 ? std::exp(-static_cast<double>(k) / loss.decay) : 1;
  }
  return units;
}

void add_draft_held(const ModelProgram& model, const ModelBatch& batch, const RankTokens& tokens,
                    std::map<std::string, HeldRows>& held) {
  const engine::Layout& layout = model.options.layout;
  const std::vector<int64_t> anchors = list_of(batch.anchors);
  std::vector<int64_t> own;
  for (size_t i = 0; i < anchors.size(); ++i) {
    const int64_t block = model.config.text.draft.block_size;
    for (int64_t k = 0; tokens.shards().owner(anchors[i]) == tokens.cp_rank() && k < block; ++k)
      own.push_back(static_cast<int64_t>(i) * block + k);
  }
  const auto rows = static_cast<int64_t>(own.size());
  held["draft.tokens"] = {"cp", own};
  held["draft.shard"] = {
      "sample", {own.begin() + layout.begin(rows, "tp"), own.begin() + layout.begin(rows, "tp") + layout.part(rows, "tp")}};
}

void put_draft_inputs(const ModelProgram& model, const ModelBatch& batch, const RankTokens& tokens, engine::ValueMap& map) {
  DraftRows(model, batch, tokens, map).add();
}

}  // namespace hyperparallel::models::deepseek_v41
