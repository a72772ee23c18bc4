// What the exchanges and units of a program send, in bytes: sizes of values by symbol, the collective of each exchange and of its
// transpose, the collectives of each unit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace hyperparallel::plan {

struct Message {
  std::string kind, axis;  // "all-gather", "tp"
  int64_t bytes = 0;       // that rank 0 holds at its larger end
};

class Messages {
 public:
  explicit Messages(const PlanRequest& request) : r_(request), program_(*request.program) {}

  int64_t elements_of(const engine::Shape& shape) const;
  int64_t bytes_of(engine::ValueId value) const;
  int64_t bytes_of(const std::vector<engine::Buffer>& buffers) const;

  // Nothing where no other rank takes part.
  std::optional<Message> forward(const engine::Exchange& exchange) const;
  std::optional<Message> backward(const engine::Exchange& exchange) const;
  // Of what a segment exchanges itself, in one direction.
  std::optional<Message> inside(const engine::InnerExchange& exchange) const;
  // One for each axis of more than one rank. Sums are done once a step.
  std::vector<Message> gather(const engine::Unit& unit) const;
  std::vector<Message> reduce(const engine::Unit& unit) const;
  std::vector<Message> sum(const engine::Unit& unit) const;

  int64_t compute_bytes(const engine::ParameterSpec& spec) const;  // of the compute copy of rank 0's part

 private:
  bool is_sent(const std::string& axis) const { return r_.layout.size(axis) > 1; }
  int64_t bytes_of(engine::Element element) const;
  int64_t larger_end(const engine::Exchange& exchange) const;
  std::vector<Message> by_axis(const char* kind, const std::map<std::string, int64_t>& bytes) const;

  const PlanRequest& r_;
  const engine::Program& program_;
};

// Elements that a rank owns of a parameter, as engine::place says, without making boxes: a plan of thousands of ranks asks
// millions of times.
int64_t owned_elements(const engine::ParameterSpec& spec, const engine::Layout& layout);

}  // namespace hyperparallel::plan
