// `hyperparallel prepare easy-vqa --out DIR`: the data set of the easy-VQA recipe.
#include "arguments.h"
#include "base/error.h"
#include "data/easy_vqa.h"
#include "prepare.h"

namespace hyperparallel {
namespace {

std::filesystem::path source_folder(const std::string& option) {
  if (!option.empty()) return option;
  if (const auto found = data::find_easy_vqa()) return *found;
  throw DataError(
      "easy-VQA is not installed: no .venv of this folder or of one above the program has it. Either run\n"
      "  .venv/bin/pip install --no-deps easy-vqa==1.0\n"
      "or name the folder of its unpacked wheel with --source DIR");
}

void print_splits(const std::vector<data::EasyVqaSplit>& splits) {
  fmt::print("{:<12}{:>10}{:>12}{:>10}{:>10}{:>10}\n", "split", "pictures", "questions", "yes/no", "shape", "color");
  for (const data::EasyVqaSplit& split : splits) {
    fmt::print("{:<12}{:>10}{:>12}{:>10}{:>10}{:>10}\n", split.name, split.pictures, split.questions(), split.yes_no, split.shape,
               split.color);
  }
}

}  // namespace

int prepare_easy_vqa(const std::vector<std::string>& arguments) {
  std::string out, source;
  CLI::App app(
      "Writes easy-VQA as messages JSONL: train, validation (every 20th training picture) and test, with the pictures beside",
      "hyperparallel prepare easy-vqa");
  app.add_option("--out", out, "folder to write; once it is complete, the command does nothing more")->required();
  app.add_option(
      "--source", source,
      "data folder of the easy-vqa package, or folder of its unpacked wheel (default: the package installed in .venv)");
  if (!parse_arguments(app, arguments)) return static_cast<int>(ExitCode::kFinished);

  if (const auto splits = data::prepared_easy_vqa(out)) {
    fmt::print("{} is complete already\n", out);
    print_splits(*splits);
    return static_cast<int>(ExitCode::kFinished);
  }
  const std::filesystem::path folder = source_folder(source);
  fmt::print("preparing {} from {}\n", out, folder.string());
  print_splits(data::prepare_easy_vqa(folder, out));
  return static_cast<int>(ExitCode::kFinished);
}

}  // namespace hyperparallel
