#include "engine/program.h"

#include <set>

#include "base/error.h"

namespace hyperparallel::engine {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (const Dimension& dimension : shape) {
    if (text.size() > 1) text += ", ";
    text += dimension.symbol.empty() ? std::to_string(dimension.size) : dimension.symbol;
  }
  return text + "]";
}

const char* to_string(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::kAllGather:
      return "all-gather";
    case ExchangeKind::kReduceScatter:
      return "reduce-scatter";
    case ExchangeKind::kAllReduce:
      return "all-reduce";
    case ExchangeKind::kEnter:
      return "enter";
    case ExchangeKind::kSplit:
      return "split";
    case ExchangeKind::kCollect:
      return "collect";
    case ExchangeKind::kAllToAll:
      return "all-to-all";
  }
  return "?";
}

ValueId Program::value(const std::string& name) const {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].name == name) return {static_cast<int32_t>(i)};
  }
  throw InternalError("the program has no value `{}`", name);
}

std::string Program::describe() const {
  std::string text;
  auto list = [&](const std::vector<ValueId>& ids) {
    std::string names;
    for (ValueId id : ids) names += (names.empty() ? "" : ", ") + values[id.index].name;
    return names;
  };
  for (const ProgramStep& step : steps) {
    if (auto* run = std::get_if<RunSegment>(&step)) {
      const Segment& s = segments[run->segment];
      text += fmt::format("segment {}: {} -> {}\n", s.name, list(s.reads), list(s.makes));
    } else if (auto* launch = std::get_if<LaunchExchange>(&step)) {
      const Exchange& e = exchanges[launch->exchange];
      text += fmt::format("launch {} ({} over {}): {} -> {}\n", e.name, to_string(e.kind), e.axis, values[e.input.index].name,
                          values[e.output.index].name);
    } else {
      text += fmt::format("wait {}\n", exchanges[std::get<WaitExchange>(step).exchange].name);
    }
  }
  return text;
}

ValueId ProgramBuilder::add_value(std::string name, ValueKind kind, Shape shape) {
  ValueSpec spec;
  spec.name = std::move(name);
  spec.kind = kind;
  spec.shape = std::move(shape);
  if (kind == ValueKind::kDiscrete) spec.element = Element::kInt64;
  program_.values.push_back(std::move(spec));
  program_.segment_of.push_back(-1);
  program_.exchange_of.push_back(-1);
  available_.push_back(false);
  wants_gradient_.push_back(false);
  return {static_cast<int32_t>(program_.values.size() - 1)};
}

ValueId ProgramBuilder::input(std::string name, ValueKind kind, Shape shape, bool wants_gradient) {
  ValueId id = add_value(std::move(name), kind, std::move(shape));
  available_[id.index] = true;
  wants_gradient_[id.index] = wants_gradient;
  program_.inputs.push_back(id);
  return id;
}

ValueId ProgramBuilder::value(std::string name, Shape shape) {
  return add_value(std::move(name), ValueKind::kDifferentiable, std::move(shape));
}

ValueId ProgramBuilder::choice(std::string name, Shape shape) {
  return add_value(std::move(name), ValueKind::kDiscrete, std::move(shape));
}

ParameterId ProgramBuilder::parameter(ParameterSpec spec) {
  program_.parameters.push_back(std::move(spec));
  return {static_cast<int32_t>(program_.parameters.size() - 1)};
}

void ProgramBuilder::close_unit(std::string name) {
  Unit unit{std::move(name), {}};
  for (; first_parameter_of_unit_ < program_.parameters.size(); ++first_parameter_of_unit_) {
    unit.parameters.push_back({static_cast<int32_t>(first_parameter_of_unit_)});
    program_.unit_of.push_back(static_cast<int>(program_.units.size()));
  }
  if (!unit.parameters.empty()) program_.units.push_back(std::move(unit));
}

void ProgramBuilder::begin_region(std::string name) {
  region_ = static_cast<int>(program_.regions.size());
  program_.regions.push_back(std::move(name));
}

void ProgramBuilder::end_region() {
  region_ = -1;
}

void ProgramBuilder::segment(std::string name, std::vector<ValueId> reads, std::vector<ValueId> makes,
                             std::vector<ParameterId> parameters, SegmentCode code) {
  const int index = static_cast<int>(program_.segments.size());
  for (ValueId id : reads) {
    HP_CHECK(available_[id.index], "segment {} reads `{}` before it is there", name, program_.values[id.index].name);
  }
  for (ValueId id : makes) {
    HP_CHECK(!available_[id.index], "segment {} makes `{}`, which exists already", name, program_.values[id.index].name);
    available_[id.index] = true;
    program_.segment_of[id.index] = index;
  }
  program_.segments.push_back(
      {std::move(name), std::move(reads), std::move(makes), std::move(parameters), std::move(code), region_, {}});
  program_.steps.push_back(RunSegment{index});
}

ValueId ProgramBuilder::launch(std::string name, ExchangeKind kind, std::string axis, ValueId input, const Dimension& output_rows,
                               RowCounts rows, RowCounts receive, ValueId order) {
  for (ValueId id : {input, rows.value, receive.value, order}) {
    HP_CHECK(!id.valid() || available_[id.index], "exchange {} uses `{}` before it is there", name,
             program_.values[id.index].name);
  }
  const bool counts_rows = kind != ExchangeKind::kAllReduce && kind != ExchangeKind::kEnter;
  HP_CHECK(counts_rows == (rows.value.valid() || !rows.fixed.empty()), "exchange {} ({}) and its row counts", name,
           to_string(kind));
  const ValueSpec spec = program_.values[input.index];
  Shape shape = spec.shape;
  if (counts_rows) shape.at(0) = output_rows;
  const ValueId output = add_value(name, spec.kind, shape);
  program_.values[output.index].element = spec.element;
  const int index = static_cast<int>(program_.exchanges.size());
  program_.exchange_of[output.index] = index;
  program_.exchanges.push_back(
      {std::move(name), kind, std::move(axis), input, output, std::move(rows), std::move(receive), order, region_});
  program_.steps.push_back(LaunchExchange{index});
  return output;
}

ValueId ProgramBuilder::launch(std::string name, ExchangeKind kind, std::string axis, ValueId input) {
  return launch(std::move(name), kind, std::move(axis), input, Dimension(0));
}

ValueId ProgramBuilder::exchange(std::string name, ExchangeKind kind, std::string axis, ValueId input,
                                 const Dimension& output_rows, RowCounts rows, RowCounts receive) {
  const ValueId output = launch(std::move(name), kind, std::move(axis), input, output_rows, std::move(rows), std::move(receive));
  wait(output);
  return output;
}

ValueId ProgramBuilder::exchange(std::string name, ExchangeKind kind, std::string axis, ValueId input) {
  const ValueId output = launch(std::move(name), kind, std::move(axis), input);
  wait(output);
  return output;
}

void ProgramBuilder::wait(ValueId output) {
  const int index = program_.exchange_of[output.index];
  HP_CHECK(index >= 0 && !available_[output.index], "`{}` is not an exchange under way", program_.values[output.index].name);
  available_[output.index] = true;
  program_.steps.push_back(WaitExchange{index});
}

void ProgramBuilder::loss(Loss loss) {
  program_.losses.push_back(std::move(loss));
}
void ProgramBuilder::output(ValueId value) {
  program_.outputs.push_back(value);
}

Program ProgramBuilder::build() && {
  std::set<std::string> names;
  for (size_t i = 0; i < program_.values.size(); ++i) {
    HP_CHECK(available_[i], "value `{}` is declared and never made", program_.values[i].name);
    HP_CHECK(names.insert(program_.values[i].name).second, "two values are called `{}`", program_.values[i].name);
  }
  HP_CHECK(program_.unit_of.size() == program_.parameters.size(), "parameter {} belongs to no unit",
           program_.parameters[program_.unit_of.size()].name);

  program_.needs_gradient = wants_gradient_;
  program_.has_backward.assign(program_.segments.size(), false);
  program_.gets_gradient.assign(program_.parameters.size(), false);
  const auto learns = [&](ParameterId id) {
    const ParameterSpec& spec = program_.parameters[id.index];
    return spec.use != ParameterUse::kState && spec.trainable;
  };
  auto needs = [&](ValueId id) { return program_.needs_gradient[id.index]; };
  for (const ProgramStep& step : program_.steps) {
    if (auto* run = std::get_if<RunSegment>(&step)) {
      const Segment& segment = program_.segments[run->segment];
      bool any = std::any_of(segment.reads.begin(), segment.reads.end(), needs);
      for (ParameterId id : segment.parameters) any = any || learns(id);
      for (ValueId id : segment.makes) {
        program_.needs_gradient[id.index] = any && program_.values[id.index].kind == ValueKind::kDifferentiable;
      }
      if (std::none_of(segment.makes.begin(), segment.makes.end(), needs)) continue;
      program_.has_backward[run->segment] = true;
      for (ParameterId id : segment.parameters) program_.gets_gradient[id.index] = learns(id);
    } else if (auto* launch = std::get_if<LaunchExchange>(&step)) {
      const Exchange& exchange = program_.exchanges[launch->exchange];
      program_.needs_gradient[exchange.output.index] = needs(exchange.input);
    }
  }
  return std::move(program_);
}

}  // namespace hyperparallel::engine
