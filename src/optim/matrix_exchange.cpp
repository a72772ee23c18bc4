#include "optim/matrix_exchange.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"

namespace hyperparallel::optim {
namespace {

int64_t rows_of(const Box& box) {
  return box.size[box.size.size() - 2];
}
int64_t columns_of(const Box& box) {
  return box.size.back();
}
double work_of(const Box& box) {
  return static_cast<double>(rows_of(box)) * static_cast<double>(columns_of(box)) *
         static_cast<double>(std::min(rows_of(box), columns_of(box)));
}

// The box `inner` of a tensor that is the box `outer`, as a view.
at::Tensor cut(at::Tensor tensor, const Box& outer, const Box& inner) {
  for (size_t d = 0; d < inner.size.size(); ++d)
    tensor = tensor.narrow(static_cast<int64_t>(d), inner.offset[d] - outer.offset[d], inner.size[d]);
  return tensor;
}

at::Tensor joined(const std::vector<at::Tensor>& parts, const at::TensorOptions& options) {
  return parts.empty() ? at::empty({0}, options) : at::cat(parts);
}

}  // namespace

std::vector<Box> matrices_of(const std::vector<int64_t>& shape, const std::vector<int64_t>& rows) {
  const size_t dims = shape.size();
  HP_CHECK(dims >= 2, "a parameter of {} dimensions is no matrix", dims);
  const std::vector<int64_t> blocks = rows.empty() ? std::vector<int64_t>{shape[dims - 2]} : rows;
  HP_CHECK(std::accumulate(blocks.begin(), blocks.end(), int64_t{0}) == shape[dims - 2], "blocks do not fill {} rows",
           shape[dims - 2]);
  std::vector<Box> matrices;
  const int64_t stacked = std::accumulate(shape.begin(), shape.end() - 2, int64_t{1}, std::multiplies<>());
  for (int64_t s = 0; s < stacked; ++s) {
    Box box{std::vector<int64_t>(dims, 0), std::vector<int64_t>(dims, 1)};
    int64_t rest = s;
    for (size_t d = dims - 2; d-- > 0;) {
      box.offset[d] = rest % shape[d];
      rest /= shape[d];
    }
    box.size[dims - 1] = shape[dims - 1];
    for (const int64_t block : blocks) {
      box.size[dims - 2] = block;
      if (volume(box.size) > 0) matrices.push_back(box);
      box.offset[dims - 2] += block;
    }
  }
  return matrices;
}

MatrixExchange::MatrixExchange(std::vector<MatrixSource> sources, std::shared_ptr<dist::Group> group, int64_t wave_elements)
    : sources_(std::move(sources)), group_(std::move(group)), work_(group_->size(), 0) {
  const int64_t most = wave_elements * group_->size();
  int64_t elements = 0;
  for (size_t i = 0; i < sources_.size(); ++i) {
    HP_CHECK(static_cast<int>(sources_[i].owned.size()) == group_->size(), "a source on {} ranks in a group of {}",
             sources_[i].owned.size(), group_->size());
    for (const Box& box : sources_[i].matrices) {
      if (waves_.empty() || elements + volume(box.size) > most) {
        waves_.push_back({matrices_.size(), matrices_.size()});
        elements = 0;
      }
      elements += volume(box.size);
      matrices_.push_back({i, box, -1});
      ++waves_.back().end;
    }
  }
  assign_owners();
}

std::vector<int> MatrixExchange::holders(const Matrix& matrix) const {
  std::vector<int> ranks;
  const std::vector<Box>& owned = sources_[matrix.source].owned;
  for (size_t rank = 0; rank < owned.size(); ++rank) {
    if (intersect(owned[rank], matrix.box)) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

// NOTE [Owners of matrices]
void MatrixExchange::assign_owners() {
  std::vector<size_t> by_work(matrices_.size());
  std::iota(by_work.begin(), by_work.end(), size_t{0});
  std::stable_sort(by_work.begin(), by_work.end(),
                   [&](size_t a, size_t b) { return work_of(matrices_[a].box) > work_of(matrices_[b].box); });
  for (const size_t i : by_work) {
    const std::vector<int> ranks = holders(matrices_[i]);
    HP_CHECK(!ranks.empty(), "nobody owns a part of matrix {} of source {}", i, matrices_[i].source);
    matrices_[i].owner = *std::ranges::min_element(ranks, {}, [&](int rank) { return work_[rank]; });
    work_[matrices_[i].owner] += work_of(matrices_[i].box);
  }
}

// Of the ranks that own the same part of a source: the matrix's owner, or else the first.
int MatrixExchange::sender(const Matrix& matrix, int holder) const {
  const std::vector<Box>& owned = sources_[matrix.source].owned;
  if (owned[matrix.owner] == owned[holder]) return matrix.owner;
  return static_cast<int>(std::ranges::find(owned, owned[holder]) - owned.begin());
}

// Sends this rank's parts to the owners of their matrices.
dist::Pending MatrixExchange::launch(const Wave& wave, const std::vector<at::Tensor>& local, const std::string& label) const {
  const int me = group_->rank(), ranks = group_->size();
  std::vector<std::vector<at::Tensor>> outgoing(ranks);
  std::vector<int64_t> send(ranks, 0), receive(ranks, 0);
  at::TensorOptions options;
  for (size_t i = wave.begin; i < wave.end; ++i) {
    const Matrix& matrix = matrices_[i];
    const MatrixSource& source = sources_[matrix.source];
    if (!local[matrix.source].defined()) continue;
    options = local[matrix.source].options();
    for (const int holder : holders(matrix)) {
      if (sender(matrix, holder) != holder) continue;
      const Box part = *intersect(source.owned[holder], matrix.box);
      if (holder == me) {
        outgoing[matrix.owner].push_back(cut(local[matrix.source], source.owned[me], part).reshape({-1}));
        send[matrix.owner] += volume(part.size);
      }
      if (matrix.owner == me) receive[holder] += volume(part.size);
    }
  }
  std::vector<at::Tensor> all;
  for (const auto& to_rank : outgoing) all.insert(all.end(), to_rank.begin(), to_rank.end());
  return group_->all_to_all(joined(all, options), send, receive, label + ".matrices");
}

// Puts the matrices of this rank together, transforms those of one shape at once, and sends the results back.
dist::Pending MatrixExchange::compute(const Wave& wave, dist::Pending parts, const std::vector<at::Tensor>& local,
                                      const Transform& transform, const std::string& label) const {
  const int me = group_->rank(), ranks = group_->size();
  const at::Tensor received = parts.wait();
  std::map<size_t, at::Tensor> whole;  // by matrix
  int64_t first = 0;
  for (int from = 0; from < ranks; ++from) {
    for (size_t i = wave.begin; i < wave.end; ++i) {
      const Matrix& matrix = matrices_[i];
      const Box& owned = sources_[matrix.source].owned[from];
      if (matrix.owner != me || !local[matrix.source].defined()) continue;
      const std::optional<Box> part = intersect(owned, matrix.box);
      if (!part || sender(matrix, from) != from) continue;
      at::Tensor& tensor = whole[i];
      if (!tensor.defined()) tensor = at::empty(matrix.box.size, received.options());
      cut(tensor, matrix.box, *part).copy_(received.narrow(0, first, volume(part->size)).view(part->size));
      first += volume(part->size);
    }
  }
  std::map<std::pair<int64_t, int64_t>, std::vector<size_t>> by_shape;
  for (const auto& [i, tensor] : whole) by_shape[{rows_of(matrices_[i].box), columns_of(matrices_[i].box)}].push_back(i);
  for (const auto& [shape, members] : by_shape) {
    std::vector<at::Tensor> batch;
    for (const size_t i : members) batch.push_back(whole.at(i).view({shape.first, shape.second}));
    const at::Tensor out = transform(at::stack(batch));
    for (size_t b = 0; b < members.size(); ++b)
      whole.at(members[b]) = out.select(0, static_cast<int64_t>(b)).view(matrices_[members[b]].box.size);
  }

  std::vector<at::Tensor> all;
  std::vector<int64_t> send(ranks, 0), receive(ranks, 0);
  for (int to = 0; to < ranks; ++to) {
    for (size_t i = wave.begin; i < wave.end; ++i) {
      const Matrix& matrix = matrices_[i];
      if (!local[matrix.source].defined()) continue;
      const std::vector<Box>& owned = sources_[matrix.source].owned;
      if (matrix.owner == me) {
        if (const std::optional<Box> part = intersect(owned[to], matrix.box)) {
          all.push_back(cut(whole.at(i), matrix.box, *part).reshape({-1}));
          send[to] += volume(part->size);
        }
      }
      if (matrix.owner == to) {
        if (const std::optional<Box> part = intersect(owned[me], matrix.box)) receive[to] += volume(part->size);
      }
    }
  }
  return group_->all_to_all(joined(all, received.options()), send, receive, label + ".results");
}

// Files what came back under this rank's parts.
void MatrixExchange::scatter(const Wave& wave, dist::Pending results, const std::vector<at::Tensor>& local,
                             std::vector<at::Tensor>& out) const {
  const int me = group_->rank(), ranks = group_->size();
  const at::Tensor received = results.wait();
  int64_t first = 0;
  for (int from = 0; from < ranks; ++from) {
    for (size_t i = wave.begin; i < wave.end; ++i) {
      const Matrix& matrix = matrices_[i];
      const Box& owned = sources_[matrix.source].owned[me];
      if (matrix.owner != from || !local[matrix.source].defined()) continue;
      const std::optional<Box> part = intersect(owned, matrix.box);
      if (!part) continue;
      cut(out[matrix.source], owned, *part).copy_(received.narrow(0, first, volume(part->size)).view(part->size));
      first += volume(part->size);
    }
  }
}

std::vector<at::Tensor> MatrixExchange::run(const std::vector<at::Tensor>& local, const Transform& transform,
                                            const std::string& label) {
  HP_CHECK(local.size() == sources_.size(), "{} parts for {} sources", local.size(), sources_.size());
  std::vector<at::Tensor> out(local.size());
  for (size_t i = 0; i < local.size(); ++i) {
    if (!local[i].defined()) continue;
    HP_CHECK(local[i].sizes() == at::IntArrayRef(sources_[i].owned[group_->rank()].size), "part {} is [{}]", i,
             fmt::join(local[i].sizes().vec(), ", "));
    out[i] = at::empty_like(local[i], at::MemoryFormat::Contiguous);
  }
  std::optional<dist::Pending> coming, returning;
  if (!waves_.empty()) coming = launch(waves_[0], local, label);
  for (size_t w = 0; w < waves_.size(); ++w) {
    std::optional<dist::Pending> next;
    if (w + 1 < waves_.size()) next = launch(waves_[w + 1], local, label);
    dist::Pending results = compute(waves_[w], std::move(*coming), local, transform, label);
    if (returning) scatter(waves_[w - 1], std::move(*returning), local, out);
    returning = std::move(results);
    coming = std::move(next);
  }
  if (returning) scatter(waves_.back(), std::move(*returning), local, out);
  return out;
}

}  // namespace hyperparallel::optim
