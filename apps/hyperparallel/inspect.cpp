#include "inspect.h"

#include "subcommand.h"

namespace hyperparallel {

int inspect(const std::vector<std::string>& arguments) {
  static const std::vector<Command> kinds = {
      {"data", "which tokens of each sample are trained on, and how its pictures are cut", inspect_data},
      {"image", "how a picture is decoded, resized and cut into patches and tokens", inspect_image},
      {"checkpoint", "what a checkpoint, a Hugging Face folder or a safetensors file holds", inspect_checkpoint},
      {"model", "a model's layers, its parameters and the program of a step", inspect_model},
      {"kernels", "which implementation each operation takes, and why not a faster one", inspect_kernels},
      {"trace", "what a recorded trace's threads were busy with", inspect_trace},
  };
  return run_kind("inspect", kinds, arguments);
}

}  // namespace hyperparallel
