#include "train.h"

#include "local_ranks.h"
#include "train/config.h"
#include "train/ranks.h"
#include "train/trainer.h"

namespace hyperparallel {

int train_model(const std::vector<std::string>& all_arguments) {
  std::vector<std::string> arguments = all_arguments;
  const RankStart start = take_rank_start(arguments);
  train::LoadOptions options;
  options.for_training = true;
  const auto config = train::config_from_arguments(arguments, "hyperparallel train CONFIG [--ranks N]", options);
  if (!config) return 0;
  train::check_layout(*config, start.ranks);
  return run_on_ranks(start, "train", arguments, dist::Seconds(config->parallel.timeout),
                      [&](dist::World* world) { return train::train(*config, world); });
}

}  // namespace hyperparallel
