// The communication of parameters, unit by unit: shards are gathered into compute copies before use, and the slots that backward
// filled are summed over the ranks into the gradients of the owned rows.
//
// One gather or reduction moves all parameters of a unit that lie on the same axis in one type as one message. Sums run in the
// master type: reduce-scatter over the shard axis for every reduction; over tp and over the HSDP replicas (parameters outside of
// `ep`) only in the last one of a step.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dist/mesh.h"
#include "engine/parameter.h"
#include "engine/program.h"
#include "engine/wait_clock.h"

namespace hyperparallel::engine {

class UnitExchange {
 public:
  // All must outlive it. Every rank calls the functions below for the same units in the same order.
  UnitExchange(const Program& program, ParameterStore& parameters, const dist::Groups& groups, WaitClock& clock);

  void launch_gather(int unit);
  void wait_gather(int unit);  // the unit's compute copies are there
  void release(int unit);
  // Takes the unit's slots.
  void launch_reduce(int unit);
  // Adds what was launched to the gradients of the owned rows. `last`: no reduction of this unit follows in this step.
  void wait_reduce(int unit, bool last);

  bool busy() const { return !gathers_.empty() || !reductions_.empty(); }
  void abandon();  // after an exception

 private:
  // Parameters that travel together.
  struct Message {
    std::vector<ParameterId> parameters;
    std::string axis;
    std::vector<int64_t> elements;  // by rank of the axis
    dist::Pending pending;
  };
  // The sharded ones of the parameters, by axis and, for compute copies, by type.
  std::vector<Message> messages_of(const std::vector<ParameterId>& parameters, bool compute_types) const;
  int64_t shard_elements(ParameterId id, int rank) const;
  bool is_sharded(ParameterId id) const;
  void sum_over(const std::string& axis, const std::vector<ParameterId>& parameters, const std::string& label);
  std::vector<ParameterId> trained(int unit) const;  // those that get a gradient
  dist::Group& group(const std::string& axis) const { return *groups_.at(axis); }

  const Program& program_;
  ParameterStore& parameters_;
  const dist::Groups& groups_;
  WaitClock& clock_;
  std::map<int, std::vector<Message>> gathers_, reductions_;  // by unit
};

}  // namespace hyperparallel::engine
