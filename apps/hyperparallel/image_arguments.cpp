#include "image_arguments.h"

#include "base/error.h"
#include "models/families/families.h"
#include "train/config.h"

namespace hyperparallel {

void add_image_arguments(CLI::App& app, ImageArguments& arguments) {
  app.add_option("--config", arguments.config,
                 "a model's config.json or a run's YAML, whose vision_config sets the limits (default: released limits)");
  app.add_option("--patch-size", arguments.patch_size, "pixels a side of one patch");
  app.add_option("--downsample", arguments.downsample, "patches a side of one image token");
  app.add_option("--min-pixels", arguments.min_pixels, "smaller pictures are enlarged to about this area");
  app.add_option("--max-image-tokens", arguments.max_image_tokens, "most tokens of a picture");
  app.add_option("--max-wh-ratio", arguments.max_wh_ratio, "wider pictures are squeezed to this width / height");
}

ImageSettings image_settings(const ImageArguments& arguments) {
  ImageSettings settings;
  data::ImageLimits& limits = settings.limits;
  if (!arguments.config.empty()) {
    const auto model = arguments.config.ends_with(".json")
                           ? models::read_architecture(arguments.config, {.allow_vision_only = true})
                           : train::load_config(arguments.config).model.architecture;
    const auto pictures = model->pictures();
    if (!pictures) throw ConfigError("{}: it has no vision_config, so the model takes no pictures", arguments.config);
    limits = pictures->limits;
    if (pictures->token_id >= 0) settings.token_id = pictures->token_id;
  }
  limits.patch_size = arguments.patch_size.value_or(limits.patch_size);
  limits.downsample = arguments.downsample.value_or(limits.downsample);
  limits.min_pixels = arguments.min_pixels.value_or(limits.min_pixels);
  limits.max_image_tokens = arguments.max_image_tokens.value_or(limits.max_image_tokens);
  if (arguments.max_wh_ratio) limits.max_wh_ratio = arguments.max_wh_ratio;
  return settings;
}

}  // namespace hyperparallel
