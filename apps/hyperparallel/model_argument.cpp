#include "model_argument.h"

#include <filesystem>

#include "train/config.h"

namespace hyperparallel {

models::deepseek_v41::ModelConfig read_model_argument(const std::string& path) {
  if (std::filesystem::is_directory(path))
    return models::deepseek_v41::parse_model_config((std::filesystem::path(path) / "config.json").string());
  if (path.ends_with(".json")) return models::deepseek_v41::parse_model_config(path);
  return train::load_config(path).model.architecture;
}

}  // namespace hyperparallel
