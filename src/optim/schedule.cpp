#include "optim/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/error.h"

namespace hyperparallel::optim {
namespace {

constexpr std::array<std::pair<std::string_view, ScheduleKind>, 6> kKinds = {{
    {"constant", ScheduleKind::kConstant},
    {"linear_floor", ScheduleKind::kLinearFloor},
    {"linear_to_min", ScheduleKind::kLinearToMin},
    {"cosine", ScheduleKind::kCosine},
    {"wsd_cosine", ScheduleKind::kWsdCosine},
    {"wsd_linear", ScheduleKind::kWsdLinear},
}};

double linear(const Schedule& schedule, double progress) {
  return schedule.base_lr + (schedule.min_lr - schedule.base_lr) * progress;
}

double cosine(const Schedule& schedule, double progress) {
  return schedule.min_lr + 0.5 * (schedule.base_lr - schedule.min_lr) * (1 + std::cos(std::numbers::pi * progress));
}

// 0 until `begin`, 1 from `end`.
double progress_between(double position, double begin, double end) {
  return position < begin ? 0 : position >= end ? 1 : (position - begin) / (end - begin);
}

}  // namespace

double learning_rate(const Schedule& schedule, double position) {
  const double warmup = schedule.warmup_steps;
  if (position < warmup) {
    const double done = (position + (schedule.warmup_from == WarmupFrom::kOne ? 1 : 0)) / warmup;
    return schedule.start_lr + (schedule.base_lr - schedule.start_lr) * done;
  }
  switch (schedule.kind) {
    case ScheduleKind::kConstant:
      return schedule.base_lr;
    case ScheduleKind::kLinearFloor: {
      const double left = 1 - progress_between(position, warmup, schedule.total_steps);
      return std::max(schedule.min_lr, schedule.base_lr * left);
    }
    case ScheduleKind::kLinearToMin:
      return linear(schedule, progress_between(position, warmup, schedule.total_steps));
    case ScheduleKind::kCosine:
      return cosine(schedule, progress_between(position, warmup, std::floor(schedule.decay_ratio * schedule.total_steps)));
    case ScheduleKind::kWsdCosine:
      return cosine(schedule, progress_between(position, schedule.stable_until, schedule.decay_until));
    case ScheduleKind::kWsdLinear:
      return linear(schedule, progress_between(position, schedule.stable_until, schedule.decay_until));
  }
  HP_CHECK(false, "schedule kind {}", static_cast<int>(schedule.kind));
}

ScheduleKind parse_schedule_kind(std::string_view name) {
  std::string accepted;
  for (const auto& [known, kind] : kKinds) {
    if (known == name) return kind;
    accepted += (accepted.empty() ? "" : ", ") + std::string(known);
  }
  throw ConfigError("unknown schedule `{}`; accepted: {}", name, accepted);
}

WarmupFrom parse_warmup_from(std::string_view name) {
  if (name == "start") return WarmupFrom::kStart;
  if (name == "one") return WarmupFrom::kOne;
  throw ConfigError("the warmup counts from `{}`; accepted: start, one", name);
}

std::vector<std::string> check(const Schedule& schedule) {
  std::vector<std::string> findings;
  auto expect = [&](bool holds, std::string finding) {
    if (!holds) findings.push_back(std::move(finding));
  };
  const Schedule& s = schedule;
  expect(s.base_lr >= 0 && std::isfinite(s.base_lr),
         fmt::format("the base learning rate {} is not a number from 0 up", s.base_lr));
  expect(s.min_lr >= 0 && s.min_lr <= s.base_lr,
         fmt::format("the lowest learning rate {} is not within 0 and the base rate {}", s.min_lr, s.base_lr));
  expect(s.start_lr >= 0, fmt::format("the warmup's first learning rate {} is negative", s.start_lr));
  expect(s.warmup_steps >= 0, fmt::format("{} warmup steps are negative", s.warmup_steps));
  if (s.kind == ScheduleKind::kCosine)
    expect(s.decay_ratio > 0 && s.decay_ratio <= 1,
           fmt::format("the decay ratio {} is not within 0 (exclusive) and 1", s.decay_ratio));
  if (s.kind == ScheduleKind::kWsdCosine || s.kind == ScheduleKind::kWsdLinear) {
    expect(s.warmup_steps <= s.stable_until && s.stable_until <= s.decay_until,
           fmt::format("warmup {}, stable until {}, decay until {} are not in this order", s.warmup_steps, s.stable_until,
                       s.decay_until));
  }
  return findings;
}

}  // namespace hyperparallel::optim
