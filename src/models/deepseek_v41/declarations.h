// What the planner must know of the model beside its program: draft layers' parameters, parts by name, sizes by symbol.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/layout.h"
#include "engine/parameter.h"
#include "models/deepseek_v41/config.h"
#include "models/deepseek_v41/program.h"

namespace hyperparallel::models::deepseek_v41 {

// The parameters of the draft layers under their released names, `mtp.<stage>.*`; experts stacked as elsewhere. Throws
// ConfigError where num_nextn_predict_layers asks for them and a dspark_* key is missing or wrong.
std::vector<engine::ParameterSpec> draft_parameters(const ModelConfig& config);

// "backbone", "engram", "vision", "aligner", "delimiters" or "draft".
std::string part_of(const std::string& parameter);

// Elements of all parameters of the model by part, those of the draft layers included.
std::map<std::string, int64_t> parameters_by_part(const ModelConfig& config);

// Rows by symbol of the program's shapes on the rank of `layout`, for a micro-batch of so many tokens, those of pictures
// included (every token's rows of Engram tables are counted as different ones). The pictures of all data-parallel ranks are
// spread over the groups of `vision` ranks; rank 0 has one of the fullest.
std::map<std::string, int64_t> symbol_sizes(const ModelConfig& config, const ProgramOptions& options, int64_t tokens,
                                            const PlannedPictures& pictures = {}, Routing routing = Routing::kBalanced);

}  // namespace hyperparallel::models::deepseek_v41
