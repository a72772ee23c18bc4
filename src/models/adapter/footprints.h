// What families declare footprints with (engine/program.h, NOTE [Footprint]): buffers by the type of their elements, and what the
// shared pieces of decoders keep. tests/plan holds them against measured bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/layout.h"
#include "engine/program.h"

namespace hyperparallel::models {

using Buffers = std::vector<engine::Buffer>;

engine::Buffer math(engine::Shape shape);
engine::Buffer compute(engine::Shape shape);
engine::Buffer cast(engine::Shape shape);  // a copy in the math type that is made only where the compute type is another
engine::Buffer int64(engine::Shape shape);

void append(Buffers& to, const Buffers& more);
void append(engine::Footprint& to, const engine::Footprint& more);  // of two operations in one segment

// rms_norm of a tensor that nothing else keeps: the tensor and 1 / rms.
Buffers saved_by_norm(const engine::Dimension& rows, int64_t width);

// Sets footprints by the name of the segment; a name that no segment has is passed over, as some exist in some layouts only.
class Footprints {
 public:
  explicit Footprints(engine::Program& program);
  bool has(const std::string& segment) const { return index_.contains(segment); }
  engine::Segment& segment(const std::string& name) const { return program_.segments[index_.at(name)]; }
  void set(const std::string& segment, engine::Footprint footprint) const;
  // Segments `embed` and `loss` of builder.h, for `words` of the vocabulary on this rank.
  void set_ends(int64_t width, int64_t words) const;

 private:
  engine::Program& program_;
  std::map<std::string, size_t> index_;
};

}  // namespace hyperparallel::models
