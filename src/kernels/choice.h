// Which implementation of an operation computes it (`kernels` of the configuration).
//
// NOTE [Choice]: a configuration names the fastest implementation that may be taken. Every operation has a list, fastest first;
// the first that is allowed and does not refuse the call is taken, and `hyperparallel inspect kernels` shows which, and why none
// that is faster. A refusal depends on sizes, types and the machine, never on values, so all ranks and steps take the same.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace hyperparallel::kernels {

enum class Implementation {
  kReference,  // library operations and autograd
  kFused,      // loops of our own
  kMega,       // these as tasks of one plan on the multicore runtime (src/runtime)
};
constexpr auto choices(Implementation) {
  return std::array{"reference", "fused", "mega"};
}
constexpr const char* to_string(Implementation implementation) {
  return choices(implementation)[static_cast<size_t>(implementation)];
}

// An entry of an operation's list. `refusal` says why the call cannot be taken; empty: it can.
struct Candidate {
  Implementation implementation;
  std::string refusal;
};

struct Choice {
  Implementation taken = Implementation::kReference;
  std::vector<Candidate> passed_over;  // the faster ones, with their reasons
};

// `candidates`: fastest first, the reference, which refuses nothing, last.
inline Choice choose(Implementation fastest, const std::vector<Candidate>& candidates) {
  Choice choice;
  for (const Candidate& candidate : candidates) {
    choice.taken = candidate.implementation;
    if (candidate.implementation > fastest) {
      choice.passed_over.push_back(
          {candidate.implementation, "the configuration allows no faster one than " + std::string(to_string(fastest))});
    } else if (!candidate.refusal.empty()) {
      choice.passed_over.push_back(candidate);
    } else {
      break;
    }
  }
  return choice;
}

}  // namespace hyperparallel::kernels
