#include "models/adapter/footprints.h"

namespace hyperparallel::models {

using engine::Buffer;
using engine::Element;

Buffer math(engine::Shape shape) {
  return {std::move(shape), Element::kMath};
}
Buffer compute(engine::Shape shape) {
  return {std::move(shape), Element::kCompute};
}
Buffer cast(engine::Shape shape) {
  return {std::move(shape), Element::kCast};
}
Buffer int64(engine::Shape shape) {
  return {std::move(shape), Element::kInt64};
}

void append(Buffers& to, const Buffers& more) {
  to.insert(to.end(), more.begin(), more.end());
}
void append(engine::Footprint& to, const engine::Footprint& more) {
  append(to.saved, more.saved), append(to.forward, more.forward), append(to.backward, more.backward);
}

Buffers saved_by_norm(const engine::Dimension& rows, int64_t width) {
  return {compute({rows, width}), math({rows})};
}

Footprints::Footprints(engine::Program& program) : program_(program) {
  for (size_t i = 0; i < program.segments.size(); ++i) index_[program.segments[i].name] = i;
}

void Footprints::set(const std::string& segment, engine::Footprint footprint) const {
  const auto found = index_.find(segment);
  if (found != index_.end()) program_.segments[found->second].footprint = std::move(footprint);
}

void Footprints::set_ends(int64_t width, int64_t words) const {
  set("embed", {{}, {compute({2, "tokens", width})}, {compute({"tokens", width}), math({words, width})}});
  // Derived in forward: gradients of the rows, and of the table.
  set("loss", {{compute({"tokens", width}), math({words, width})},
               {compute({"tokens", width}), compute({"loss.rows", words})},
               {compute({"tokens", width})}});
}

}  // namespace hyperparallel::models
