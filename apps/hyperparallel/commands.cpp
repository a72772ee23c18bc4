#include "commands.h"

#include "bench.h"
#include "convert.h"
#include "crop.h"
#include "docs.h"
#include "eval.h"
#include "generate.h"
#include "inspect.h"
#include "plan.h"
#include "prepare.h"
#include "render.h"
#include "report.h"
#include "tokenize.h"
#include "train.h"
#include "verify.h"

namespace hyperparallel {

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {"train", "train a model from a configuration", train_model},
      {"plan", "show who holds what, what is sent and what memory a layout needs", plan_layout},
      {"crop", "write a smaller configuration of the same make", crop_model},
      {"eval", "answer the questions of a split and compare with the given answers", evaluate},
      {"generate", "answer a prompt or conversations with a trained model", generate},
      {"prepare", "write a known data set as messages JSONL", prepare},
      {"inspect", "show what a picture, data, a checkpoint or a model becomes", inspect},
      {"convert", "import a Hugging Face folder, or export one", convert},
      {"verify", "compare the model with a fixture", verify},
      {"render", "turn conversations into the prompt, its token ids and labels", render},
      {"tokenize", "turn text into token ids", tokenize},
      {"bench", "measure the speed and memory of a training step", bench},
      {"report", "make the HTML report of a training run again", report},
      {"docs", "print a generated documentation page", docs},
  };
  return all;
}

}  // namespace hyperparallel
