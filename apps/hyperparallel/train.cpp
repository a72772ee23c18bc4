#include "train.h"

#include "train/config.h"
#include "train/trainer.h"

namespace hyperparallel {

int train_model(const std::vector<std::string>& arguments) {
  train::LoadOptions options;
  options.for_training = true;
  const auto config = train::config_from_arguments(arguments, "hyperparallel train CONFIG", options);
  return config ? train::train(*config) : 0;
}

}  // namespace hyperparallel
