#include "train.h"

#include "base/error.h"
#include "dist/launch.h"
#include "dist/mpi_comm.h"
#include "local_ranks.h"
#include "train/config.h"
#include "train/ranks.h"
#include "train/trainer.h"

namespace hyperparallel {

int train_model(const std::vector<std::string>& all_arguments) {
  std::vector<std::string> arguments = all_arguments;
  const auto ranks = take_ranks(arguments);
  const dist::Launch launch = dist::read_launch();
  if (ranks && launch.world_size > 1)
    throw UsageError("--ranks {} under {}, which has started {} ranks already: leave one of them out", *ranks, launch.launcher,
                     launch.world_size);
  train::LoadOptions options;
  options.for_training = true;
  const auto config = train::config_from_arguments(arguments, "hyperparallel train CONFIG [--ranks N]", options);
  if (!config) return 0;
  train::check_layout(*config, ranks.value_or(launch.world_size));
  if (ranks && *ranks > 1) return run_local_ranks(*ranks, "train", arguments);
  if (launch.world_size == 1) return train::train(*config);
  int code = 0;
  const dist::Seconds timeout(config->parallel.timeout);
  const ExitCode failed = dist::run_mpi_ranks([&](dist::World& world) { code = train::train(*config, &world); },
                                              {.start_timeout = timeout, .end_timeout = timeout});
  return failed == ExitCode::kFinished ? code : static_cast<int>(failed);
}

}  // namespace hyperparallel
