// DeepSeek-V4.1 as a family of models (models/adapter/family.h).
#pragma once

#include <memory>
#include <optional>

#include "models/adapter/family.h"
#include "models/deepseek_v41/engram_hash.h"
#include "models/deepseek_v41/program.h"

namespace hyperparallel::models::deepseek_v41 {

Family family();

class V41Model : public Model {
 public:
  // `token_map`: the class of each id of the vocabulary; unused without Engram layers.
  V41Model(const ModelConfig& config, const ProgramOptions& options, std::vector<int32_t> token_map);

  const engine::Program& program() const override { return model.program; }
  const engine::Layout& layout() const override { return model.options.layout; }
  std::vector<KernelCall> kernel_calls() const override { return model.kernel_calls; }
  ModelBatch batch_of(const data::MicroBatch& batch) const;
  engine::ValueMap inputs(const data::MicroBatch& batch, at::ScalarType compute) const override;
  std::vector<TableRequest> table_requests(const engine::ValueMap& inputs) const override;
  std::map<std::string, double> metrics(const std::vector<engine::ValueMap>& inputs) const override;
  std::map<std::string, std::string> timed_segments() const override;
  double loss_units(const data::MicroBatch& batch) const override;  // scored slots of draft layers, weighed
  std::map<std::string, double> counter_metrics(const std::map<std::string, at::Tensor>& counters) const override;

  const ModelProgram model;
  std::optional<EngramHasher> hasher;  // where the model has Engram

 private:
  ModelBatch tokens_of(const data::MicroBatch& batch) const;  // without pictures and Engram rows
};

// For what only this family does: generation, golden cases, crop (Ability). Throws InternalError for another family.
const ModelConfig& config_of(const Architecture& architecture);
const V41Model& v41_model(const Model& model);

}  // namespace hyperparallel::models::deepseek_v41
