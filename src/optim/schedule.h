// Learning-rate schedules: pure functions from the position in a run to a learning rate.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hyperparallel::optim {

enum class ScheduleKind {
  kConstant,     // base_lr after the warmup
  kLinearFloor,  // straight from base_lr at the warmup's end to 0 at total_steps, but never below min_lr
  kLinearToMin,  // straight from base_lr at the warmup's end to min_lr at total_steps
  kCosine,       // half a cosine from base_lr at the warmup's end to min_lr at floor(decay_ratio * total_steps), then min_lr
  kWsdCosine,    // base_lr until stable_until, half a cosine to min_lr at decay_until, then min_lr (the shape of DeepSeek's runs)
  kWsdLinear,    // the same with a straight line
};

// Where the warmup counts from: with kStart the first step has start_lr, with kOne the step number warmup_steps has base_lr.
enum class WarmupFrom { kStart, kOne };

// Positions are optimizer steps counted from 0, or any other unit (tokens) as long as all fields use the same.
struct Schedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  WarmupFrom warmup_from = WarmupFrom::kOne;
  double total_steps = 0;
  double warmup_steps = 0;
  double base_lr = 0;
  double min_lr = 0;
  double start_lr = 0;      // the warmup starts here
  double decay_ratio = 1;   // kCosine
  double stable_until = 0;  // kWsdCosine, kWsdLinear
  double decay_until = 0;   // kWsdCosine, kWsdLinear
};

// The learning rate of the step at `position` (0 = the first step).
double learning_rate(const Schedule& schedule, double position);

// Names as in a configuration: constant, linear_floor, linear_to_min, cosine, wsd_cosine, wsd_linear; start, one.
// ConfigError names what is accepted.
ScheduleKind parse_schedule_kind(std::string_view name);
WarmupFrom parse_warmup_from(std::string_view name);

// What is wrong with a schedule, one sentence for each finding, empty when it is sound.
std::vector<std::string> check(const Schedule& schedule);

}  // namespace hyperparallel::optim
