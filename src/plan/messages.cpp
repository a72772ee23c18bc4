#include "plan/messages.h"

#include <algorithm>

#include "base/error.h"

namespace hyperparallel::plan {

using engine::Exchange;
using engine::ExchangeKind;
using engine::ParameterSpec;

int64_t owned_elements(const ParameterSpec& spec, const engine::Layout& layout) {
  int64_t elements = volume(spec.shape);
  const auto cut = [&](int64_t size, const std::string& axis) {
    const int64_t part = layout.part(size, axis);
    elements = size == 0 ? 0 : elements / size * part;
    return part;
  };
  const int64_t part = spec.cut_axis.empty() ? 0 : cut(spec.shape[spec.cut_dim], spec.cut_axis);
  if (!spec.travels()) return elements;
  const int64_t dim = engine::shard_dim(spec, layout);
  cut(!spec.cut_axis.empty() && spec.cut_dim == dim ? part : spec.shape[dim], engine::shard_axis(spec));
  return elements;
}

int64_t Messages::elements_of(const engine::Shape& shape) const {
  int64_t elements = 1;
  for (const engine::Dimension& dimension : shape) {
    const auto found = r_.symbols.find(dimension.symbol);
    elements *= dimension.symbol.empty() ? dimension.size : found == r_.symbols.end() ? 0 : found->second;
  }
  return elements;
}

int64_t Messages::bytes_of(engine::Element element) const {
  switch (element) {
    case engine::Element::kCompute:
      return r_.compute_bytes;
    case engine::Element::kMath:
      return r_.master_bytes;
    case engine::Element::kCast:
      return r_.compute_bytes == r_.master_bytes ? 0 : r_.master_bytes;
    case engine::Element::kInt64:
      return 8;
    case engine::Element::kInt32:
      return 4;
    case engine::Element::kBool:
      return 1;
  }
  HP_CHECK(false, "element {}", static_cast<int>(element));
}

int64_t Messages::bytes_of(engine::ValueId id) const {
  const engine::ValueSpec& value = program_.values[id.index];
  return elements_of(value.shape) * bytes_of(value.element);
}

int64_t Messages::bytes_of(const std::vector<engine::Buffer>& buffers) const {
  int64_t bytes = 0;
  for (const engine::Buffer& buffer : buffers) bytes += elements_of(buffer.shape) * bytes_of(buffer.element);
  return bytes;
}

int64_t Messages::larger_end(const Exchange& exchange) const {
  return std::max(bytes_of(exchange.input), bytes_of(exchange.output));
}

std::optional<Message> Messages::forward(const Exchange& exchange) const {
  const auto message = [&](const char* kind) { return Message{kind, exchange.axis, larger_end(exchange)}; };
  if (!is_sent(exchange.axis)) return {};
  switch (exchange.kind) {
    case ExchangeKind::kAllGather:
    case ExchangeKind::kCollect:
      return message("all-gather");
    case ExchangeKind::kReduceScatter:
      return message("reduce-scatter");
    case ExchangeKind::kAllReduce:
      return message("all-reduce");
    case ExchangeKind::kAllToAll:
      return message("all-to-all");
    case ExchangeKind::kEnter:
    case ExchangeKind::kSplit:
      return {};
  }
  HP_CHECK(false, "exchange {}", exchange.name);
}

std::optional<Message> Messages::backward(const Exchange& exchange) const {
  // Gradients travel in the master type.
  const int64_t wider = r_.master_bytes / std::min(r_.compute_bytes, r_.master_bytes);
  const auto message = [&](const char* kind) { return Message{kind, exchange.axis, larger_end(exchange) * wider}; };
  if (!is_sent(exchange.axis) || !program_.needs_gradient[exchange.output.index]) return {};
  switch (exchange.kind) {
    case ExchangeKind::kAllGather:
      return message("reduce-scatter");
    case ExchangeKind::kReduceScatter:
    case ExchangeKind::kSplit:
      return message("all-gather");
    case ExchangeKind::kEnter:
      return message("all-reduce");
    case ExchangeKind::kAllToAll:
      return message("all-to-all");
    case ExchangeKind::kAllReduce:
    case ExchangeKind::kCollect:
      return {};
  }
  HP_CHECK(false, "exchange {}", exchange.name);
}

std::optional<Message> Messages::inside(const engine::InnerExchange& exchange) const {
  if (!is_sent(exchange.axis)) return {};
  return Message{"all-to-all", exchange.axis, bytes_of(std::vector{exchange.rows})};
}

std::vector<Message> Messages::by_axis(const char* kind, const std::map<std::string, int64_t>& bytes) const {
  std::vector<Message> messages;
  for (const auto& [axis, count] : bytes) {
    if (is_sent(axis)) messages.push_back({kind, axis, count});
  }
  return messages;
}

int64_t Messages::compute_bytes(const ParameterSpec& spec) const {
  return volume(engine::place(spec, r_.layout).part.size) * (spec.keep_master_type ? r_.master_bytes : r_.compute_bytes);
}

std::vector<Message> Messages::gather(const engine::Unit& unit) const {
  std::map<std::string, int64_t> bytes;
  for (engine::ParameterId id : unit.parameters) {
    const ParameterSpec& spec = program_.parameters[id.index];
    if (spec.travels()) bytes[engine::shard_axis(spec)] += compute_bytes(spec);
  }
  return by_axis("all-gather", bytes);
}

std::vector<Message> Messages::reduce(const engine::Unit& unit) const {
  std::map<std::string, int64_t> bytes;
  for (engine::ParameterId id : unit.parameters) {
    const ParameterSpec& spec = program_.parameters[id.index];
    if (program_.gets_gradient[id.index] && spec.travels())
      bytes[engine::shard_axis(spec)] += volume(engine::place(spec, r_.layout).part.size) * r_.master_bytes;
  }
  return by_axis("reduce-scatter", bytes);
}

std::vector<Message> Messages::sum(const engine::Unit& unit) const {
  std::map<std::string, int64_t> bytes;
  for (engine::ParameterId id : unit.parameters) {
    const ParameterSpec& spec = program_.parameters[id.index];
    if (!program_.gets_gradient[id.index] || !spec.travels()) continue;
    const int64_t owned = owned_elements(spec, r_.layout) * r_.master_bytes;
    if (spec.partial_over_tp) bytes["tp"] += owned;
    if (spec.cut_axis != "ep") bytes["fsdp_replicate"] += owned;
  }
  return by_axis("all-reduce", bytes);
}

}  // namespace hyperparallel::plan
