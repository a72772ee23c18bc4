#include "convert.h"

#include <filesystem>

#include "arguments.h"
#include "base/error.h"
#include "checkpoint/convert.h"
#include "models/families/families.h"
#include "subcommand.h"
#include "train/import_check.h"

namespace hyperparallel {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

int convert_import(const std::vector<std::string>& arguments) {
  fs::path source, out;
  CLI::App app("Makes a checkpoint of step 0 from a Hugging Face folder, in either spelling of names",
               "hyperparallel convert import");
  app.add_option("FOLDER", source, "config.json beside model.safetensors or its shards")->required();
  app.add_option("--out", out, "the run's folder, without checkpoints yet")->required();
  if (!parse_arguments(app, arguments)) return static_cast<int>(ExitCode::kFinished);

  if (fs::exists(out) && !fs::is_directory(out)) throw UsageError("--out {}: is no folder", out.string());
  CheckpointStore store(out / "checkpoints");  // where a run of this folder looks for them
  if (auto step = store.latest()) throw CheckpointError("{}: holds a checkpoint of step {} already", out.string(), *step);
  HfFolder folder(source);
  train::check_weights(folder, *models::read_architecture((source / "config.json").string()));
  import_hf(folder, store);
  fmt::print("imported {} tensors into {}; a run with --train.output={} starts from them\n", store.open(0).tensors().size(),
             store.open(0).folder().string(), out.string());
  return static_cast<int>(ExitCode::kFinished);
}

models::ArchitecturePtr architecture_of(const Checkpoint& checkpoint) {
  Problems problems;
  const std::string file = (checkpoint.folder() / kModelConfigDocument).string();
  const yaml::Node node = yaml::parse_yaml(checkpoint.document(kModelConfigDocument), file, problems);
  auto architecture = models::parse_architecture(node, problems, yaml::MapReader::Unknown::kWarning);
  problems.throw_if_any();
  return architecture;
}

int convert_export(const std::vector<std::string>& arguments) {
  fs::path source, out, files;
  std::string dtype = "bfloat16", names = "transformers";
  double shard_gigabytes = 5;
  CLI::App app("Writes the model of a checkpoint as a Hugging Face folder", "hyperparallel convert export");
  app.add_option("CHECKPOINT", source, "a run's folder (its latest step) or one step's folder")->required();
  app.add_option("--out", out, "the new folder")->required();
  app.add_option("--dtype", dtype, "of the weights; mHC, sinks and router biases stay float32")
      ->check(CLI::IsMember({"bfloat16", "float32"}))
      ->capture_default_str();
  app.add_option("--names", names, "spelling: `model.layers...` and `lm_head`, or as released `layers...` and `head`")
      ->check(CLI::IsMember({"transformers", "released"}))
      ->capture_default_str();
  app.add_option("--shard-gb", shard_gigabytes, "most gigabytes of one file")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--files", files, "take tokenizer and processor files from this folder")->check(CLI::ExistingDirectory);
  if (!parse_arguments(app, arguments)) return static_cast<int>(ExitCode::kFinished);

  Checkpoint checkpoint(resolve_checkpoint(source));
  checkpoint.verify();
  if (names == "released") require(*architecture_of(checkpoint), models::Ability::kReleasedNames, "`--names released`");
  ExportOptions options;
  options.type = dtype == "float32" ? at::kFloat : at::kBFloat16;
  options.spelling = names == "released" ? Spelling::kReleased : Spelling::kTransformers;
  options.max_shard_bytes = static_cast<int64_t>(shard_gigabytes * 1e9);
  if (!files.empty()) options.companions = read_companions(files);
  export_checkpoint(checkpoint, out, options);
  fmt::print("exported step {} to {}\n", checkpoint.step(), out.string());
  return static_cast<int>(ExitCode::kFinished);
}

}  // namespace

int convert(const std::vector<std::string>& arguments) {
  static const std::vector<Command> kinds = {
      {"import", "a Hugging Face folder becomes a checkpoint", convert_import},
      {"export", "a checkpoint becomes a Hugging Face folder", convert_export},
  };
  return run_kind("convert", kinds, arguments);
}

}  // namespace hyperparallel
