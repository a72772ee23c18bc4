#include "train/router_balance.h"

#include <algorithm>

namespace hyperparallel::train {
namespace {

constexpr const char* kModalities[] = {"text", "image"};

// "layers.3" of "layers.3.loads"; empty for another counter.
std::string layer_of(const std::string& counter) {
  static const std::string kSuffix = ".loads";
  return counter.ends_with(kSuffix) ? counter.substr(0, counter.size() - kSuffix.size()) : "";
}

// "layers.3.loads" -> "model.layers.3.ffn.gate.bias", "mtp.0.loads" -> "mtp.0.ffn.gate.bias"; empty for another counter.
std::string bias_name(const std::string& counter) {
  const std::string layer = layer_of(counter);
  return layer.empty() ? "" : (layer.starts_with("layers.") ? "model." : "") + layer + ".ffn.gate.bias";
}

}  // namespace

void update_router_bias(at::Tensor& bias, at::Tensor& bias_vl, const at::Tensor& loads, double rate) {
  at::Tensor* targets[] = {&bias, &bias_vl};
  for (int modality = 0; modality < 2; ++modality) {
    const at::Tensor load = loads[modality];
    const at::Tensor direction = (load.sum() - load * load.size(0)).sign();
    if (load.sum().item<int64_t>() > 0) targets[modality]->add_(direction.to(targets[modality]->scalar_type()), rate);
  }
}

void update_router_biases(engine::ParameterStore& parameters, const std::map<std::string, at::Tensor>& counters, double rate) {
  for (const auto& [counter, loads] : counters) {
    const std::string name = bias_name(counter);
    if (!name.empty() && parameters.spec(parameters.find(name)).trainable)
      update_router_bias(parameters.master(parameters.find(name)), parameters.master(parameters.find(name + "_vl")), loads, rate);
  }
}

std::map<std::string, double> router_metrics(const engine::ParameterStore& parameters,
                                             const std::map<std::string, at::Tensor>& counters) {
  std::map<std::string, double> metrics;
  double worst = 0, largest = 0;
  for (const auto& [counter, loads] : counters) {
    const std::string name = bias_name(counter);
    if (name.empty()) continue;
    for (int modality = 0; modality < 2; ++modality) {
      const double total = loads[modality].sum().item<double>();
      if (total == 0) continue;
      const double ratio = loads[modality].max().item<double>() * static_cast<double>(loads.size(1)) / total;
      const std::string layer = layer_of(counter), of_backbone = "layers.";
      const std::string shown = layer.starts_with(of_backbone) ? "layer." + layer.substr(of_backbone.size()) : layer;
      metrics["moe/load_max_over_mean/" + shown + "/" + kModalities[modality]] = ratio;
      worst = std::max(worst, ratio);
      largest =
          std::max(largest, parameters.master(parameters.find(modality == 0 ? name : name + "_vl")).abs().max().item<double>());
    }
  }
  if (!counters.empty()) metrics["moe/load_max_over_mean"] = worst, metrics["moe/bias_abs_max"] = largest;
  return metrics;
}

}  // namespace hyperparallel::train
