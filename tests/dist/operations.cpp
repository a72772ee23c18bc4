#include "dist/operations.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <numeric>
#include <stdexcept>
#include <thread>

namespace hyperparallel::dist {
namespace {

using Rows = std::vector<int64_t>;

const at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kDouble, at::kLong};

void expect_same(const at::Tensor& found, const at::Tensor& wanted, const std::string& what) {
  if (!same_bits(found, wanted)) throw std::runtime_error(what + ": the result differs from plain loops");
}

template <class T, class Sum = T>
at::Tensor sum_loop(const std::vector<at::Tensor>& parts) {
  at::Tensor result = at::empty(parts[0].sizes(), parts[0].options());
  T* out = result.mutable_data_ptr<T>();
  for (int64_t i = 0; i < result.numel(); ++i) {
    Sum sum = static_cast<Sum>(parts[0].const_data_ptr<T>()[i]);
    for (size_t r = 1; r < parts.size(); ++r) sum += static_cast<Sum>(parts[r].const_data_ptr<T>()[i]);
    out[i] = static_cast<T>(sum);
  }
  return result;
}

// The numbers of rows to try, by rank.
std::vector<Rows> row_lists(int size) {
  std::vector<Rows> lists(5, Rows(size));
  for (int r = 0; r < size; ++r) {
    lists[0][r] = 3;
    lists[1][r] = (7 * r + 3) % 5;  // 3 0 2 4 1
    lists[2][r] = 0;
    lists[3][r] = r == size - 1 ? 1 : 0;
    lists[4][r] = 997 + 10 * r;
  }
  return lists;
}

class Checker {
 public:
  explicit Checker(Group& group) : group_(group), size_(group.size()), rank_(group.rank()) {}

  void rows(const Rows& rows, at::ScalarType type, bool strided) {
    const std::string what =
        fmt::format("rows [{}] of {}{}", fmt::join(rows, " "), at::toString(type), strided ? ", strided" : "");
    std::vector<at::Tensor> local;
    for (int r = 0; r < size_; ++r) local.push_back(values_of(r, {rows[r], 3, 5}, type, 1, strided));
    expect_same(group_.all_gather(local[rank_], rows, "gather").wait(), at::cat(local), "all_gather, " + what);

    const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    std::vector<at::Tensor> full;
    for (int r = 0; r < size_; ++r) full.push_back(values_of(r, {total, 3, 5}, type, 2, strided));
    const int64_t before = std::accumulate(rows.begin(), rows.begin() + rank_, int64_t{0});
    expect_same(group_.reduce_scatter(full[rank_], rows, "scatter").wait(), plain_sum(full).narrow(0, before, rows[rank_]),
                "reduce_scatter, " + what);
    expect_same(group_.all_reduce(full[rank_], "reduce").wait(), plain_sum(full), "all_reduce, " + what);

    const int root = static_cast<int>(total % size_);
    expect_same(group_.broadcast(full[rank_], root, "broadcast").wait(), full[root], "broadcast, " + what);
    all_to_all(rows, type, strided, what);
    ring(full, what);
  }

  // More than goes through a shared window at once, and uneven: no rows for the first rank, or nearly all for it.
  void large() {
    Rows growing(size_), one(size_);
    for (int r = 0; r < size_; ++r) {
      growing[r] = 6007 * r;
      one[r] = r == 0 ? 9001 : 7;
    }
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      rows(growing, type, /*strided=*/false);
      rows(one, type, /*strided=*/false);
    }
  }

  void scalars() {
    std::vector<at::Tensor> parts;
    for (int r = 0; r < size_; ++r) parts.push_back(values_of(r, {}, at::kFloat, 3));
    expect_same(group_.all_reduce(parts[rank_], "scalar").wait(), plain_sum(parts), "all_reduce of a scalar");
    at::Tensor most = parts[0];
    for (const at::Tensor& part : parts) most = at::maximum(most, part);
    expect_same(group_.all_reduce(parts[rank_], "maximum", Reduction::kMax).wait(), most, "maximum");
    expect_same(group_.broadcast(parts[rank_], size_ - 1, "scalar").wait(), parts[size_ - 1], "broadcast of a scalar");
  }

  void counts() {
    const auto all = group_.gather_counts({rank_, 10 + rank_}, "counts");
    for (int r = 0; r < size_; ++r) {
      if (all.at(r) != Rows{r, 10 + r}) throw std::runtime_error("gather_counts is wrong");
    }
    Rows send(size_), wanted(size_);
    for (int r = 0; r < size_; ++r) {
      send[r] = 100 * rank_ + r;
      wanted[r] = 100 * r + rank_;
    }
    if (group_.exchange_counts(send, "counts") != wanted) throw std::runtime_error("exchange_counts is wrong");
  }

  // Two at once, awaited the other way round.
  void overlap() {
    std::vector<at::Tensor> big, small;
    for (int r = 0; r < size_; ++r) {
      big.push_back(values_of(r, {20011, 7}, at::kFloat, 4));
      small.push_back(values_of(r, {3}, at::kFloat, 5));
    }
    Pending sum = group_.all_reduce(big[rank_], "big");
    Pending gather = group_.all_gather(small[rank_], Rows(size_, 3), "small");
    expect_same(gather.wait(), at::cat(small), "the second of two at once");
    expect_same(sum.wait(), plain_sum(big), "the first of two at once");
  }

  // Never waits before it is there.
  void polled() {
    std::vector<at::Tensor> big, small;
    for (int r = 0; r < size_; ++r) {
      big.push_back(values_of(r, {120'011}, at::kFloat, 7));
      small.push_back(values_of(r, {5}, at::kFloat, 8));
    }
    Pending gather = group_.all_gather(big[rank_], Rows(size_, 120'011), "polled");
    Pending sum = group_.all_reduce(small[rank_], "polled too");
    while (!gather.is_ready() || !sum.is_ready()) std::this_thread::yield();
    expect_same(sum.wait(), plain_sum(small), "a sum that was polled");
    expect_same(gather.wait(), at::cat(big), "rows that were polled");
  }

 private:
  // Rank s sends to rank r as many rows as the list says for (s + 2 r) mod size.
  void all_to_all(const Rows& rows, at::ScalarType type, bool strided, const std::string& what) {
    const auto sent = [&](int s, int r) { return rows[(s + 2 * r) % size_]; };
    Rows send(size_), receive(size_);
    std::vector<at::Tensor> wanted;
    at::Tensor mine;
    for (int s = 0; s < size_; ++s) {
      int64_t total = 0, before = 0;
      for (int r = 0; r < size_; ++r) {
        if (r == rank_) before = total;
        if (s == rank_) send[r] = sent(s, r);
        total += sent(s, r);
      }
      receive[s] = sent(s, rank_);
      const at::Tensor theirs = values_of(s, {total, 3, 5}, type, 6, strided);
      if (s == rank_) mine = theirs;
      wanted.push_back(theirs.narrow(0, before, receive[s]));
    }
    expect_same(group_.all_to_all(mine, send, receive, "rows").wait(), at::cat(wanted), "all_to_all, " + what);
  }

  // Everybody sends to the next rank and receives from the one before.
  void ring(const std::vector<at::Tensor>& full, const std::string& what) {
    if (size_ == 1) return;
    const int next = (rank_ + 1) % size_, previous = (rank_ + size_ - 1) % size_;
    Pending received = group_.receive(full[previous].sizes(), full[previous].scalar_type(), previous, "halo");
    Pending sent = group_.send(full[rank_], next, "halo");
    expect_same(received.wait(), full[previous], "receive, " + what);
    sent.wait();
  }

  Group& group_;
  int size_, rank_;
};

}  // namespace

at::Tensor values_of(int rank, const std::vector<int64_t>& shape, at::ScalarType type, int salt, bool strided) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1000 * salt + rank);
  at::Tensor values = (at::randn(shape, generator, at::kFloat) * 100).to(type);
  return strided ? values.transpose(-1, -2).contiguous().transpose(-1, -2) : values;
}

at::Tensor plain_sum(const std::vector<at::Tensor>& parts) {
  std::vector<at::Tensor> plain;
  for (const at::Tensor& part : parts) plain.push_back(part.contiguous());
  switch (plain[0].scalar_type()) {
    case at::kBFloat16:
      return sum_loop<at::BFloat16, float>(plain);
    case at::kDouble:
      return sum_loop<double>(plain);
    case at::kLong:
      return sum_loop<int64_t>(plain);
    default:
      return sum_loop<float>(plain);
  }
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  return a.numel() == 0 || std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(), a.nbytes()) == 0;
}

void check_operations(Group& group) {
  Checker check(group);
  for (const Rows& rows : row_lists(group.size())) {
    for (at::ScalarType type : kTypes) check.rows(rows, type, /*strided=*/false);
    check.rows(rows, at::kFloat, /*strided=*/true);
  }
  check.large();
  check.scalars();
  check.counts();
  check.overlap();
  check.polled();
  group.barrier("end");
}

}  // namespace hyperparallel::dist
