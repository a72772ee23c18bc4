// Load balance of the router between optimizer steps: the two bias vectors of every MoE layer, and the loads as metrics.
#pragma once

#include <map>
#include <string>

#include "engine/executor.h"

namespace hyperparallel::train {

// b_i += rate * sign(total - E * load_i), per modality, in integers: an expert exactly at the mean does not move, and a modality
// without tokens in the step moves nothing (docs/model.md, Mixture of experts). loads int64 [2, experts]: text drives bias, image
// drives bias_vl; both [experts].
void update_router_bias(at::Tensor& bias, at::Tensor& bias_vl, const at::Tensor& loads, double rate);

// Does so for every layer with counters "layers.i.loads".
void update_router_biases(engine::ParameterStore& parameters, const std::map<std::string, at::Tensor>& counters, double rate);

// moe/load_max_over_mean, that of each layer and modality, and moe/bias_abs_max.
std::map<std::string, double> router_metrics(const engine::ParameterStore& parameters,
                                             const std::map<std::string, at::Tensor>& counters);

}  // namespace hyperparallel::train
