#include "engine/executor.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/trace.h"
#include "engine/memory.h"
#include "kernels/types.h"

namespace hyperparallel::engine {

SegmentRun::SegmentRun(Executor& executor, const Segment& segment, int micro_batch, bool with_graph, bool is_recompute)
    : executor_(executor), segment_(segment), micro_batch_(micro_batch), with_graph_(with_graph), is_recompute_(is_recompute) {
  anchor_ = at::zeros({}, at::kFloat).requires_grad_(with_graph);
  for (ValueId id : segment.reads) {
    at::Tensor tensor = executor.ledger_.value(id, micro_batch).detach();
    if (with_graph && executor.program_.needs_gradient[id.index]) tensor.requires_grad_(true);
    inputs_.emplace(id.index, std::move(tensor));
  }
}

const at::Tensor& SegmentRun::read(ValueId value) const {
  auto it = inputs_.find(value.index);
  HP_CHECK(it != inputs_.end(), "segment {} reads `{}` without declaring it", segment_.name,
           executor_.program_.values[value.index].name);
  return it->second;
}

void SegmentRun::make(ValueId value, at::Tensor tensor) {
  const ValueSpec& spec = executor_.program_.values[value.index];
  HP_CHECK(std::find(segment_.makes.begin(), segment_.makes.end(), value) != segment_.makes.end(),
           "segment {} makes `{}` without declaring it", segment_.name, spec.name);
  HP_CHECK(spec.kind == ValueKind::kDifferentiable || !tensor.requires_grad(), "segment {}: discrete `{}` requires grad",
           segment_.name, spec.name);
  // An input handed on as output, or a view of something larger, would tie lifetimes together.
  const bool is_view = static_cast<size_t>(tensor.numel()) * tensor.element_size() < tensor.storage().nbytes();
  tensor = is_view || !tensor.is_contiguous() ? tensor.clone(at::MemoryFormat::Contiguous) : tensor;
  executor_.check_shape(value, micro_batch_, tensor);
  HP_CHECK(outputs_.emplace(value.index, std::move(tensor)).second, "segment {} makes `{}` twice", segment_.name, spec.name);
}

at::Tensor SegmentRun::choose(ValueId value, const std::function<at::Tensor()>& choose) {
  at::Tensor chosen;
  if (is_recompute_) {
    chosen = executor_.ledger_.value(value, micro_batch_);
  } else {
    at::NoGradGuard no_grad;
    chosen = choose();
  }
  make(value, chosen);
  return outputs_.at(value.index);
}

Weight SegmentRun::weight(ParameterId parameter) {
  HP_CHECK(std::find(segment_.parameters.begin(), segment_.parameters.end(), parameter) != segment_.parameters.end(),
           "segment {} uses {} without declaring it", segment_.name, executor_.parameters_.spec(parameter).name);
  return {&executor_.parameters_, parameter, anchor_};
}

at::Tensor SegmentRun::parameter(ParameterId parameter) {
  const Weight handle = weight(parameter);
  const ParameterSpec& spec = executor_.parameters_.spec(parameter);
  HP_CHECK(spec.use == ParameterUse::kLeaf || spec.use == ParameterUse::kState, "segment {} uses the weight {} as a plain tensor",
           segment_.name, spec.name);
  at::Tensor tensor = handle.value().detach();
  if (with_graph_ && handle.trainable()) {
    for (const auto& [id, leaf] : leaves_) {
      if (id == parameter) return leaf;
    }
    tensor.requires_grad_(true);
    leaves_.emplace_back(parameter, tensor);
  }
  return tensor;
}

at::ScalarType SegmentRun::compute_type() const {
  return executor_.parameters_.compute_type();
}
at::ScalarType SegmentRun::math_type() const {
  return executor_.parameters_.master_type();
}

void SegmentRun::count(const std::string& name, const at::Tensor& counts) {
  if (is_recompute_) return;
  at::Tensor& sum = executor_.counters_[name];
  sum = sum.defined() ? sum + counts : counts.clone();
}

void SegmentRun::observe(const std::string& name, const std::string& rows, const std::function<at::Tensor()>& compute) {
  if (is_recompute_ || !executor_.watch_) return;
  at::NoGradGuard no_grad;
  executor_.watch_(name, rows, compute());
}

dist::Group& SegmentRun::group(const std::string& axis) {
  return executor_.group(axis);
}

WaitClock& SegmentRun::wait_clock() {
  return executor_.wait_clock_;
}

Executor::Executor(const Program& program, ParameterStore& parameters, dist::Groups groups)
    : program_(program), parameters_(parameters), groups_(std::move(groups)), units_(program, parameters, groups_, wait_clock_) {}

Executor::~Executor() = default;

void Executor::run(const std::vector<Action>& schedule, const std::vector<ValueMap>& inputs,
                   const std::vector<std::vector<double>>& seeds) {
  losses_.assign(inputs.size(), std::vector<double>(program_.losses.size(), 0.0));
  outputs_.assign(inputs.size(), {});
  symbols_.clear();
  input_gradients_.clear();
  try {
    take_inputs(inputs);
    for (ActionObserver* observer : observers_) observer->on_run_begin(*this);
    for (const Action& action : schedule) {
      for (ActionObserver* observer : observers_) observer->on_action_begin(*this, action);
      run_action(action, seeds);
      for (ActionObserver* observer : observers_) observer->on_action_end(*this, action);
    }
  } catch (...) {
    graphs_.clear();
    pending_.clear();
    pending_transpose_.clear();
    result_like_.clear();
    units_.abandon();
    if (offload_) offload_->abandon();
    ledger_ = Ledger();
    throw;
  }
  for (size_t m = 0; m < inputs.size(); ++m) {  // an input that no action reads is not in the schedule's releases
    for (ValueId id : program_.inputs) {
      if (ledger_.has_value(id, static_cast<int>(m))) ledger_.release_value(id, static_cast<int>(m));
      if (at::Tensor gradient = ledger_.take_gradient(id, static_cast<int>(m)); gradient.defined())
        input_gradients_[id.index] = kernels::to_math(gradient);
    }
  }
  ledger_.check_empty(program_.values);
}

void Executor::take_inputs(const std::vector<ValueMap>& inputs) {
  for (size_t m = 0; m < inputs.size(); ++m) {
    for (ValueId id : program_.inputs) {
      auto it = inputs[m].find(id.index);
      HP_CHECK(it != inputs[m].end(), "micro-batch {} lacks the input `{}`", m, program_.values[id.index].name);
      check_shape(id, static_cast<int>(m), it->second);
      ledger_.put_value(id, static_cast<int>(m), it->second);
    }
  }
}

void Executor::run_action(const Action& action, const std::vector<std::vector<double>>& seeds) {
  const int m = action.micro_batch;
  switch (action.kind) {
    case ActionKind::kForward: {
      forward(action, /*is_recompute=*/false);
      for (size_t i = 0; i < program_.losses.size(); ++i) {
        const ValueId loss = program_.losses[i].value;
        if (program_.segment_of[loss.index] != action.index) continue;
        losses_[m][i] = ledger_.value(loss, m).item().toDouble();
      }
      break;
    }
    case ActionKind::kRecompute:
      forward(action, /*is_recompute=*/true);
      break;
    case ActionKind::kBackward:
      backward(action, seeds);
      break;
    case ActionKind::kLaunch:
      launch(action);
      break;
    case ActionKind::kWait:
      wait(action);
      break;
    case ActionKind::kLaunchTranspose:
      launch_transpose(action);
      break;
    case ActionKind::kWaitTranspose:
      wait_transpose(action);
      break;
    case ActionKind::kLaunchGather:
      units_.launch_gather(action.index);
      break;
    case ActionKind::kWaitGather:
      units_.wait_gather(action.index);
      break;
    case ActionKind::kReleaseUnit:
      units_.release(action.index);
      break;
    case ActionKind::kLaunchReduce:
      units_.launch_reduce(action.index);
      break;
    case ActionKind::kWaitReduce:
      units_.wait_reduce(action.index, action.last);
      break;
    case ActionKind::kReleaseValue:
      ledger_.release_value({action.index}, m);
      break;
    case ActionKind::kLaunchOffload:
    case ActionKind::kWaitOffload:
    case ActionKind::kLaunchFetch:
    case ActionKind::kWaitFetch:
      move(action);
      break;
  }
}

void Executor::move(const Action& action) {
  HP_CHECK(offload_ != nullptr, "`{}`, and there is no file to offload to", describe(program_, action));
  const Offload::Key key{action.index, action.micro_batch};
  const ValueId value{action.index};
  switch (action.kind) {
    case ActionKind::kLaunchOffload:
      offload_->launch_write(key, program_.values[action.index].name, ledger_.value(value, action.micro_batch));
      break;
    case ActionKind::kWaitOffload:
      offload_->wait_write(key);
      ledger_.release_value(value, action.micro_batch);
      break;
    case ActionKind::kLaunchFetch:
      offload_->launch_read(key);
      break;
    default:
      ledger_.put_value(value, action.micro_batch, offload_->wait_read(key));
  }
}

void Executor::forward(const Action& action, bool is_recompute) {
  const Segment& segment = program_.segments[action.index];
  trace::Scope scope(trace::enabled() ? (is_recompute ? "recompute " : "forward ") + segment.name : std::string(), "segment");
  const int64_t uncounted = allocated_bytes() - ledger_.tensor_bytes();
  auto run = std::unique_ptr<SegmentRun>(new SegmentRun(*this, segment, action.micro_batch, action.keep_graph, is_recompute));
  std::vector<uint32_t> versions;
  for (const auto& [id, tensor] : run->inputs_) versions.push_back(tensor._version());
  {
    at::AutoGradMode grad_mode(action.keep_graph);
    segment.code(*run);
  }
  check_versions(*run, versions);
  for (ValueId id : segment.makes) {
    auto it = run->outputs_.find(id.index);
    HP_CHECK(it != run->outputs_.end(), "segment {} did not make `{}`", segment.name, program_.values[id.index].name);
    if (is_recompute && program_.values[id.index].kind == ValueKind::kDiscrete) continue;
    put_value(id, action.micro_batch, it->second.detach());
    if (!is_recompute) show(id, it->second.detach());
  }
  if (!action.keep_graph) return;
  const std::pair<int, int> key{action.index, action.micro_batch};
  if (!program_.has_backward[key.first]) return;
  std::vector<at::Tensor> held;
  for (const auto& [id, tensor] : run->inputs_) held.push_back(tensor.detach());
  for (const auto& [id, tensor] : run->outputs_) held.push_back(tensor.detach());
  graphs_[key] = std::move(run);
  ledger_.add_graph(key.first, key.second, std::move(held), uncounted);
}

void Executor::put_value(ValueId value, int micro_batch, at::Tensor tensor) {
  const std::vector<ValueId>& outputs = program_.outputs;
  if (std::find(outputs.begin(), outputs.end(), value) != outputs.end()) outputs_[micro_batch][value.index] = tensor;
  ledger_.put_value(value, micro_batch, std::move(tensor));
}

void Executor::show(ValueId value, const at::Tensor& tensor) const {
  if (!watch_) return;
  const ValueSpec& spec = program_.values[value.index];
  watch_(spec.name, spec.shape.empty() ? "" : spec.shape[0].symbol, tensor);
}

void Executor::check_versions(const SegmentRun& run, const std::vector<uint32_t>& versions) const {
  size_t i = 0;
  for (const auto& [id, tensor] : run.inputs_) {
    HP_CHECK(tensor._version() == versions[i++], "segment {} changed its input `{}` in place", run.segment_.name,
             program_.values[id].name);
  }
}

void Executor::backward(const Action& action, const std::vector<std::vector<double>>& seeds_of) {
  const std::pair<int, int> key{action.index, action.micro_batch};
  auto node = graphs_.extract(key);
  HP_CHECK(!node.empty(), "segment {} has no graph to derive", program_.segments[action.index].name);
  SegmentRun& run = *node.mapped();
  trace::Scope scope(trace::enabled() ? "backward " + run.segment_.name : std::string(), "segment");
  for (size_t i = 0; i < program_.losses.size(); ++i) {
    const ValueId loss = program_.losses[i].value;
    if (program_.segment_of[loss.index] != action.index) continue;
    const at::Tensor seed = at::full_like(run.outputs_.at(loss.index).detach(), seeds_of.at(action.micro_batch).at(i));
    ledger_.add_gradient(loss, action.micro_batch, seed);
  }

  std::vector<at::Tensor> outputs, seeds;
  for (auto& [index, output] : run.outputs_) {
    at::Tensor gradient = ledger_.take_gradient({index}, action.micro_batch);
    if (!program_.needs_gradient[index] || !output.requires_grad()) continue;
    seeds.push_back(gradient.defined() ? gradient.to(output.scalar_type()).view(output.sizes()) : at::zeros_like(output));
    outputs.push_back(output);
  }
  std::vector<at::Tensor> sources{run.anchor_};
  std::vector<int32_t> source_values;
  for (auto& [index, input] : run.inputs_) {
    if (!input.requires_grad()) continue;
    sources.push_back(input);
    source_values.push_back(index);
  }
  for (auto& [id, leaf] : run.leaves_) sources.push_back(leaf);

  std::vector<at::Tensor> gradients(sources.size());
  if (!outputs.empty()) {
    gradients =
        torch::autograd::grad(outputs, sources, seeds, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
  }
  for (size_t i = 0; i < source_values.size(); ++i) {
    if (gradients[1 + i].defined()) ledger_.add_gradient({source_values[i]}, action.micro_batch, gradients[1 + i]);
  }
  for (size_t i = 0; i < run.leaves_.size(); ++i) {
    const at::Tensor& gradient = gradients[1 + source_values.size() + i];
    if (gradient.defined()) {
      parameters_.add_to_slot(run.leaves_[i].first, gradient);
    } else {
      parameters_.slot(run.leaves_[i].first);
    }
  }
  ledger_.remove_graph(key.first, key.second);
}

std::vector<int64_t> Executor::row_counts(const RowCounts& counts, int micro_batch) const {
  if (!counts.value.valid()) return counts.fixed;
  const at::Tensor value = ledger_.value(counts.value, micro_batch).contiguous();
  const int64_t* data = value.const_data_ptr<int64_t>();
  return {data, data + value.numel()};
}

namespace {

// This rank's rows of a tensor that all ranks of the group have.
dist::Pending own_rows(const dist::Group& group, const at::Tensor& whole, const std::vector<int64_t>& rows) {
  const int64_t first = std::accumulate(rows.begin(), rows.begin() + group.rank(), int64_t{0});
  const at::Tensor own = whole.narrow(0, first, rows.at(group.rank()));
  return dist::Pending([own = own.sizes() == whole.sizes() ? whole : own.clone()] { return own; });
}

dist::Pending as_it_is(const at::Tensor& tensor) {
  return dist::Pending([tensor] { return tensor; });
}

}  // namespace

void Executor::launch(const Action& action) {
  const Exchange& exchange = program_.exchanges[action.index];
  const at::Tensor& input = ledger_.value(exchange.input, action.micro_batch);
  dist::Group& group = this->group(exchange.axis);
  const std::vector<int64_t> rows = row_counts(exchange.rows, action.micro_batch);
  const auto start = [&]() -> dist::Pending {
    switch (exchange.kind) {
      case ExchangeKind::kAllGather:
      case ExchangeKind::kCollect:
        return group.all_gather(input, rows, exchange.name);
      case ExchangeKind::kReduceScatter:
        return group.reduce_scatter(input, rows, exchange.name);
      case ExchangeKind::kAllReduce:
        return group.all_reduce(input, exchange.name);
      case ExchangeKind::kEnter:
        return as_it_is(input);
      case ExchangeKind::kSplit:
        return own_rows(group, input, rows);
      case ExchangeKind::kAllToAll:
        return group.all_to_all(input, rows, row_counts(exchange.receive, action.micro_batch), exchange.name);
    }
    HP_CHECK(false, "exchange {}", exchange.name);
  };
  pending_.insert_or_assign({action.index, action.micro_batch}, start());
}

void Executor::wait(const Action& action) {
  const Exchange& exchange = program_.exchanges[action.index];
  auto node = pending_.extract({action.index, action.micro_batch});
  HP_CHECK(!node.empty(), "exchange {} was never launched", exchange.name);
  at::Tensor result = wait_clock_.wait(node.mapped(), exchange.axis, exchange.name);
  if (exchange.order.valid()) result = result.index_select(0, ledger_.value(exchange.order, action.micro_batch));
  check_shape(exchange.output, action.micro_batch, result);
  if (program_.needs_gradient[exchange.output.index]) {
    const auto type = kernels::math_type(result.scalar_type());
    result_like_[node.key()] = at::empty({}, at::TensorOptions().dtype(type)).expand(result.sizes());
  }
  show(exchange.output, result);
  put_value(exchange.output, action.micro_batch, std::move(result));
}

void Executor::launch_transpose(const Action& action) {
  const Exchange& exchange = program_.exchanges[action.index];
  auto like = result_like_.extract({action.index, action.micro_batch});
  HP_CHECK(!like.empty(), "exchange {} has no result to derive", exchange.name);
  at::Tensor gradient = ledger_.take_gradient(exchange.output, action.micro_batch);
  dist::Group& group = this->group(exchange.axis);
  // All ranks take part, in one type.
  if (!gradient.defined()) gradient = at::zeros(like.mapped().sizes(), like.mapped().options());
  if (group.size() > 1) gradient = kernels::to_math(gradient);
  if (exchange.order.valid()) {
    const at::Tensor& order = ledger_.value(exchange.order, action.micro_batch);
    gradient = at::empty_like(gradient).index_copy_(0, order, gradient);
  }
  const std::vector<int64_t> rows = row_counts(exchange.rows, action.micro_batch);
  const auto start = [&]() -> dist::Pending {
    switch (exchange.kind) {
      case ExchangeKind::kAllGather:
        return group.reduce_scatter(gradient, rows, exchange.name);
      case ExchangeKind::kReduceScatter:
      case ExchangeKind::kSplit:
        return group.all_gather(gradient, rows, exchange.name);
      case ExchangeKind::kAllReduce:
        return as_it_is(gradient);
      case ExchangeKind::kEnter:
        return group.all_reduce(gradient, exchange.name);
      case ExchangeKind::kCollect:
        return own_rows(group, gradient, rows);
      case ExchangeKind::kAllToAll:
        return group.all_to_all(gradient, row_counts(exchange.receive, action.micro_batch), rows, exchange.name);
    }
    HP_CHECK(false, "exchange {}", exchange.name);
  };
  pending_transpose_.insert_or_assign({action.index, action.micro_batch}, start());
}

void Executor::wait_transpose(const Action& action) {
  auto node = pending_transpose_.extract({action.index, action.micro_batch});
  HP_CHECK(!node.empty(), "the transpose of exchange {} was never launched", program_.exchanges[action.index].name);
  const Exchange& exchange = program_.exchanges[action.index];
  ledger_.add_gradient(exchange.input, action.micro_batch, wait_clock_.wait(node.mapped(), exchange.axis, exchange.name));
}

void Executor::check_shape(ValueId value, int micro_batch, const at::Tensor& tensor) {
  const ValueSpec& spec = program_.values[value.index];
  bool fits = tensor.dim() == static_cast<int64_t>(spec.shape.size());
  for (size_t d = 0; fits && d < spec.shape.size(); ++d) {
    const Dimension& dimension = spec.shape[d];
    const int64_t expected = dimension.symbol.empty()
                                 ? dimension.size
                                 : symbols_.try_emplace({dimension.symbol, micro_batch}, tensor.size(d)).first->second;
    fits = tensor.size(d) == expected;
  }
  HP_CHECK(fits, "`{}` is declared {} and came as [{}]", spec.name, to_string(spec.shape), fmt::join(tensor.sizes().vec(), ", "));
}

}  // namespace hyperparallel::engine
