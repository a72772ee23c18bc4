// The step as a program: a list of segments (code) and exchanges (communication without code), with typed values between them.
// Few segments communicate themselves, and say so. What is gathered, sent, kept, recomputed and released is decided from this
// list before the first step.
//
// NOTE [Program order]: the list is in forward order. A segment reads values that were made, or whose exchange was awaited,
// before it. Backward runs the list in reverse: the transpose of an exchange starts where the forward waited and ends where it
// started.
#pragma once

#include "base/aten.h"

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "engine/parameter.h"
#include "engine/value.h"

namespace hyperparallel::engine {

class SegmentRun;
using SegmentCode = std::function<void(SegmentRun&)>;

// NOTE [Footprint]: what a segment's code holds beside its values, so that a plan can tell the memory of a step without a tensor.
struct Buffer {
  Shape shape;
  Element element = Element::kCompute;
};
struct Footprint {
  std::vector<Buffer> saved;     // from forward to backward, beside what the segment reads and makes
  std::vector<Buffer> forward;   // at most at once while it runs, beside `saved` and what it makes
  std::vector<Buffer> backward;  // likewise while it is derived: beside `saved` and the outputs' gradients, with the inputs' ones
};

// What a segment's code exchanges by itself (SegmentRun::group), forward and backward alike: for plans.
struct InnerExchange {
  std::string name, axis;
  Buffer rows;  // at its larger end
};

struct Segment {
  std::string name;
  std::vector<ValueId> reads;
  std::vector<ValueId> makes;
  std::vector<ParameterId> parameters;
  SegmentCode code;
  int region = -1;           // the layer it belongs to; -1: none, never recomputed
  Footprint footprint = {};  // empty where the family does not tell
  std::vector<InnerExchange> inner = {};
};

// The communication patterns of the program, each with its transpose for gradients. "Rows" is dimension 0.
enum class ExchangeKind {
  kAllGather,      // the rows of all ranks, in rank order            transpose: reduce-scatter
  kReduceScatter,  // the sum over ranks; each gets its rows           transpose: all-gather
  kAllReduce,      // partial sums to the whole, on every rank         transpose: none, its gradient is the same on every rank
  kEnter,          // none: an equal value enters a region where       transpose: all-reduce
                   //       every rank derives only its part
  kSplit,          // own rows of a value that all ranks have          transpose: all-gather
  kCollect,        // the rows of all ranks, for equal use everywhere  transpose: own rows, since all have the same gradient
  kAllToAll,       // rows to their owners, by counts                  transpose: the same with counts swapped
};
const char* to_string(ExchangeKind kind);

// How many rows go where, by rank of the axis: known when the program is built, or a discrete value int64 [ranks].
struct RowCounts {
  RowCounts() = default;
  RowCounts(ValueId counts) : value(counts) {}                          // NOLINT: implicit on purpose
  RowCounts(std::vector<int64_t> counts) : fixed(std::move(counts)) {}  // NOLINT
  ValueId value;
  std::vector<int64_t> fixed;
};

struct Exchange {
  std::string name;
  ExchangeKind kind = ExchangeKind::kAllGather;
  std::string axis;  // mesh axis: "cp", "tp", "ep"
  ValueId input;
  ValueId output;
  RowCounts rows;     // all but kAllReduce, kEnter: rows of each rank; kAllToAll: rows sent to each
  RowCounts receive;  // kAllToAll: rows received from each
  ValueId order;      // kAllGather, optional: int64 [all rows], the gathered row that becomes row i
  int region = -1;    // as of a segment
};

// A scalar that is derived. The loss of a step is the sum of weight * value / count over all losses, micro-batches and ranks.
struct Loss {
  // What is counted: of the whole step, on all ranks. Padding counts nowhere.
  enum class Per {
    kSupervisedTokens,
    kTokens,
    kSequences,   // documents of packed rows
    kModelUnits,  // what the model says
  };
  ValueId value;  // sum over what the cp rank holds, equal on its tp ranks
  std::string name;
  Per per = Per::kSupervisedTokens;
  double weight = 1;
};

struct RunSegment {
  int segment;
};
struct LaunchExchange {
  int exchange;
};
struct WaitExchange {
  int exchange;
};
using ProgramStep = std::variant<RunSegment, LaunchExchange, WaitExchange>;

// Parameters that are gathered, released and reduced together.
struct Unit {
  std::string name;
  std::vector<ParameterId> parameters;
};

struct Program {
  std::vector<ValueSpec> values;
  std::vector<ParameterSpec> parameters;
  std::vector<Segment> segments;
  std::vector<Exchange> exchanges;
  std::vector<Unit> units;
  std::vector<ProgramStep> steps;
  std::vector<std::string> regions;  // names of the layers, in order
  std::vector<ValueId> inputs;       // given from outside for every micro-batch
  std::vector<ValueId> outputs;      // handed out after every run, whatever else becomes of them
  std::vector<Loss> losses;          // the first is the one that is reported as the loss

  // Derived by ProgramBuilder::build.
  std::vector<bool> needs_gradient;  // per value: backward carries a gradient for it
  std::vector<bool> has_backward;    // per segment: it makes such a value
  std::vector<bool> gets_gradient;   // per parameter, state left out: some segment that uses it has a backward
  std::vector<int> unit_of;          // per parameter
  std::vector<int> segment_of;       // per value: the segment that makes it, or -1
  std::vector<int> exchange_of;      // per value: the exchange whose output it is, or -1

  // Throws InternalError for an unknown name.
  ValueId value(const std::string& name) const;
  // The list as text, one step a line: for reading and for tests.
  std::string describe() const;
};

// Builds a Program in forward order. Every method throws InternalError when the order or a name is wrong.
class ProgramBuilder {
 public:
  // A value that comes from outside with every micro-batch. A differentiable input gets a gradient only where `wants_gradient`.
  ValueId input(std::string name, ValueKind kind, Shape shape, bool wants_gradient = false);
  // A differentiable value that a later `segment` makes.
  ValueId value(std::string name, Shape shape);
  // A discrete value that a later `segment` makes.
  ValueId choice(std::string name, Shape shape);

  ParameterId parameter(ParameterSpec spec);
  // Parameters declared since the last call form one unit.
  void close_unit(std::string name);

  // Segments added until the next call belong to this layer; recompute works on runs of whole layers.
  void begin_region(std::string name);
  void end_region();

  void segment(std::string name, std::vector<ValueId> reads, std::vector<ValueId> makes, std::vector<ParameterId> parameters,
               SegmentCode code);

  // Starts an exchange of `input`; the returned value, whose rows are `output_rows` and whose other dimensions are those of
  // the input, may be read only after `wait` of it.
  ValueId launch(std::string name, ExchangeKind kind, std::string axis, ValueId input, const Dimension& output_rows,
                 RowCounts rows = {}, RowCounts receive = {}, ValueId order = {});
  // Without a change of rows: kAllReduce, kEnter.
  ValueId launch(std::string name, ExchangeKind kind, std::string axis, ValueId input);
  void wait(ValueId output);
  // `launch` and `wait` at once.
  ValueId exchange(std::string name, ExchangeKind kind, std::string axis, ValueId input, const Dimension& output_rows,
                   RowCounts rows = {}, RowCounts receive = {});
  ValueId exchange(std::string name, ExchangeKind kind, std::string axis, ValueId input);

  const ValueSpec& spec(ValueId value) const { return program_.values[value.index]; }

  void loss(Loss loss);
  void output(ValueId value);

  Program build() &&;

 private:
  ValueId add_value(std::string name, ValueKind kind, Shape shape);
  Program program_;
  std::vector<bool> available_;  // per value: may be read now
  std::vector<bool> wants_gradient_;
  size_t first_parameter_of_unit_ = 0;
  int region_ = -1;
};

}  // namespace hyperparallel::engine
