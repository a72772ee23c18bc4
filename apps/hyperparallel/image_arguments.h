// The arguments of commands that plan pictures: a model's limits, or single ones.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "data/image.h"

namespace hyperparallel {

struct ImageArguments {
  std::string config;
  std::optional<int64_t> patch_size, downsample, min_pixels, max_image_tokens;
  std::optional<double> max_wh_ratio;
};

void add_image_arguments(CLI::App& app, ImageArguments& arguments);

struct ImageSettings {
  data::ImageLimits limits;         // the released ones, or those of --config, with what the command line changes
  std::optional<int64_t> token_id;  // of --config
};

// Throws ConfigError.
ImageSettings image_settings(const ImageArguments& arguments);

}  // namespace hyperparallel
