// Whole matrices from the parts that ranks own, and back: for update rules that must see a matrix as one (Muon).
//
// NOTE [Owners of matrices]: every matrix is computed by one rank, which gets the other ranks' parts of it and sends their parts
// of the result back. The owner is one of those that own a part, so that a matrix that lies whole on a rank stays there; among
// them the costliest matrices go first, each to the rank with the least work so far. Where several ranks own the same part
// (HSDP replicas, tp ranks that compute alike), one of them sends it and all get the result.
// Matrices go in waves: while one is computed, the parts of the next are on their way, and the results of the one before.
#pragma once

#include "base/aten.h"

#include <functional>
#include <memory>
#include <vector>

#include "base/box.h"
#include "dist/group.h"

namespace hyperparallel::optim {

// One parameter: where it lies, and which matrices it is made of.
struct MatrixSource {
  std::vector<Box> owned;     // by rank of the group: the part of the parameter that the rank owns; may be empty
  std::vector<Box> matrices;  // disjoint; all dimensions but the last two have size 1
};

// The matrices of a parameter of two or more dimensions: one for each index of the dimensions before the last two, each cut into
// blocks of so many rows; no `rows`: one block. Throws InternalError where the blocks do not fill the rows.
std::vector<Box> matrices_of(const std::vector<int64_t>& shape, const std::vector<int64_t>& rows = {});

class MatrixExchange {
 public:
  // Takes whole matrices of one shape, [matrices, rows, columns]; gives as many of the same shape.
  using Transform = std::function<at::Tensor(const at::Tensor&)>;

  // The same sources on every rank. A wave holds about `wave_elements` elements a rank.
  MatrixExchange(std::vector<MatrixSource> sources, std::shared_ptr<dist::Group> group, int64_t wave_elements = 8 << 20);

  // `local[i]`: this rank's part of source i, of the size of its box; undefined: the source takes no part this time, on no rank.
  // Returns the rank's parts of the transformed matrices, undefined likewise. Every rank calls it. `label` names the exchanges.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& local, const Transform& transform, const std::string& label);

  // Multiply-adds of a Newton-Schulz step (rows * columns * min(rows, columns)) over the matrices that each rank computes.
  const std::vector<double>& work() const { return work_; }

 private:
  struct Matrix {
    size_t source;
    Box box;
    int owner;
  };
  struct Wave {
    size_t begin, end;  // of matrices_
  };
  void assign_owners();
  std::vector<int> holders(const Matrix& matrix) const;
  int sender(const Matrix& matrix, int holder) const;
  dist::Pending launch(const Wave& wave, const std::vector<at::Tensor>& local, const std::string& label) const;
  dist::Pending compute(const Wave& wave, dist::Pending parts, const std::vector<at::Tensor>& local, const Transform& transform,
                        const std::string& label) const;
  void scatter(const Wave& wave, dist::Pending results, const std::vector<at::Tensor>& local, std::vector<at::Tensor>& out) const;

  std::vector<MatrixSource> sources_;
  std::shared_ptr<dist::Group> group_;
  std::vector<Matrix> matrices_;
  std::vector<Wave> waves_;
  std::vector<double> work_;
};

}  // namespace hyperparallel::optim
