#include "model_argument.h"

#include <filesystem>

#include "models/families/families.h"
#include "train/config.h"

namespace hyperparallel {

models::ArchitecturePtr read_model_argument(const std::string& path) {
  if (std::filesystem::is_directory(path))
    return models::read_architecture((std::filesystem::path(path) / "config.json").string());
  if (path.ends_with(".json")) return models::read_architecture(path);
  return train::load_config(path).model.architecture;
}

}  // namespace hyperparallel
