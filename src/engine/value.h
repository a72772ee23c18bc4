// Values: the typed tensors that segments hand to each other.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hyperparallel::engine {

// Handles into one Program. They are small, copyable and only mean something for the program that made them.
struct ValueId {
  int32_t index = -1;
  bool operator==(const ValueId&) const = default;
  bool valid() const { return index >= 0; }
};
struct ParameterId {
  int32_t index = -1;
  bool operator==(const ParameterId&) const = default;
  bool valid() const { return index >= 0; }
};

enum class ValueKind {
  kDifferentiable,  // carries a gradient of its own shape
  kDiscrete,        // ids, choices, counts, permutations: no gradient; recorded once and given again when a segment is recomputed
};

// One dimension of a value's shape: a number, or a symbol such as "tokens" whose size a micro-batch decides. All values of a
// micro-batch that name the same symbol must agree on its size; the executor checks it.
struct Dimension {
  std::string symbol;                                       // empty: fixed
  int64_t size = 0;                                         // used when the symbol is empty
  Dimension(const char* name) : symbol(name) {}             // NOLINT: implicit on purpose, shapes read as lists
  Dimension(std::string name) : symbol(std::move(name)) {}  // NOLINT
  Dimension(int64_t number) : size(number) {}               // NOLINT
  Dimension(int number) : size(number) {}                   // NOLINT
};
using Shape = std::vector<Dimension>;
std::string to_string(const Shape& shape);

// How a value, or its gradient, lies over one axis of the mesh.
struct Placement {
  enum class Kind { kReplicate, kShard, kPartial } kind = Kind::kReplicate;
  int64_t dim = 0;  // of kShard
};
// Placement per axis name; an axis that is not named replicates.
using Placements = std::map<std::string, Placement>;

// How large an element is, for plans: the compute type and the math type (kernels/types.h) are those of the run.
enum class Element {
  kCompute,
  kMath,
  kCast,  // the math type where that is not the compute type; else there is no such tensor
  kInt64,
  kInt32,
  kBool,
};

struct ValueSpec {
  std::string name;
  ValueKind kind = ValueKind::kDifferentiable;
  Shape shape;
  Element element = Element::kCompute;  // of discrete ones int64 unless the family says otherwise
  Placements placement;
  Placements gradient_placement;
};

}  // namespace hyperparallel::engine
