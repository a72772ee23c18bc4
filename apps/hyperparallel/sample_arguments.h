// The arguments of commands that encode conversations.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "data/sample.h"
#include "image_arguments.h"

namespace hyperparallel {

struct SampleArguments {
  std::string tokenizer, tool_text, supervise = "last";
  ImageArguments image;
};

void add_sample_arguments(CLI::App& app, SampleArguments& arguments);

// Options as the arguments say. Throws DataError and ConfigError for files that cannot be read.
data::SampleOptions sample_options(const SampleArguments& arguments);

}  // namespace hyperparallel
