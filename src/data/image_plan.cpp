// From a picture's size to its canvas, its place in it and its tokens (docs/model.md, Vision). Python's rounding is kept.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/image.h"

namespace hyperparallel::data {
namespace {

struct Size {
  int64_t width, height;
};

void check_limits(const ImageLimits& limits) {
  if (limits.patch_size < 1) throw ConfigError("vision_config.patch_size is {}, it must be at least 1", limits.patch_size);
  if (limits.downsample < 1) throw ConfigError("vision_config.downsample is {}, it must be at least 1", limits.downsample);
  if (limits.min_pixels < 0) throw ConfigError("vision_config.min_pixels is {}, it must not be negative", limits.min_pixels);
  if (limits.max_image_tokens < 4) {
    throw ConfigError("vision_config.max_image_tokens is {}, the smallest span (start, one image token, new line, end) has 4",
                      limits.max_image_tokens);
  }
  if (limits.max_wh_ratio && !(std::isfinite(*limits.max_wh_ratio) && *limits.max_wh_ratio > 0)) {
    throw ConfigError("vision_config.max_wh_ratio is {}, it must be a positive number or null", *limits.max_wh_ratio);
  }
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Like Python's round(): halves go to the even neighbour (the default rounding mode).
int64_t round_half_even(double value) {
  return static_cast<int64_t>(std::nearbyint(value));
}

void set_canvas(ImagePlan& plan, Size canvas, const ImageLimits& limits) {
  plan.width = canvas.width;
  plan.height = canvas.height;
  plan.patch_rows = canvas.height / limits.patch_size;
  plan.patch_columns = canvas.width / limits.patch_size;
  plan.llm_rows = ceil_div(plan.patch_rows, limits.downsample);
  plan.llm_columns = ceil_div(plan.patch_columns, limits.downsample);
  plan.tokens = plan.llm_rows * (plan.llm_columns + 1) + 2;
}

// The largest canvas of about the shape width : height whose span keeps within max_image_tokens.
Size largest_canvas(double width, double height, const ImageLimits& limits) {
  const int64_t cell = limits.patch_size * limits.downsample;
  const double ratio = height / width;
  const double columns = std::sqrt(static_cast<double>(limits.max_image_tokens - 2) / ratio + 0.25) - 0.5;
  const double rows = columns * ratio;
  if (columns < 1) return {cell, (limits.max_image_tokens - 2) / 2 * cell};
  if (rows < 1) return {(limits.max_image_tokens - 3) * cell, cell};
  const double patch = static_cast<double>(limits.patch_size);
  const double scale =
      std::min(std::floor(columns) * static_cast<double>(cell) / width, std::floor(rows) * static_cast<double>(cell) / height);
  const auto snap = [&](double side) { return static_cast<int64_t>(std::floor(side * scale / patch)) * limits.patch_size; };
  return {snap(width), snap(height)};
}

// Keeps the aspect ratio: one side fills the canvas, the other is rounded and centred.
void set_fit(ImagePlan& plan, double width, double height) {
  const double ratio = width / height;
  const double canvas_ratio = static_cast<double>(plan.width) / static_cast<double>(plan.height);
  plan.fit_width = plan.width;
  plan.fit_height = plan.height;
  if (ratio > canvas_ratio) plan.fit_height = round_half_even(height / width * static_cast<double>(plan.width));
  if (ratio < canvas_ratio) plan.fit_width = round_half_even(width / height * static_cast<double>(plan.height));
  plan.fit_left = round_half_even(static_cast<double>(plan.width - plan.fit_width) * 0.5);
  plan.fit_top = round_half_even(static_cast<double>(plan.height - plan.fit_height) * 0.5);
}

}  // namespace

ImagePlan plan_image(int64_t image_width, int64_t image_height, const ImageLimits& limits) {
  check_limits(limits);
  if (image_width < 1 || image_height < 1) {
    throw DataError("a picture of {} x {} pixels: both sides must be at least 1", image_width, image_height);
  }
  double width = static_cast<double>(image_width);
  double height = static_cast<double>(image_height);
  const bool squeezed = limits.max_wh_ratio && width >= *limits.max_wh_ratio * height;
  if (squeezed) width = *limits.max_wh_ratio * height;
  if (const double min_pixels = static_cast<double>(limits.min_pixels); width * height < min_pixels) {
    const double scale = std::sqrt(min_pixels / (width * height));
    width = std::max(std::trunc(width * scale), 1.0);
    height = std::max(std::trunc(height * scale), 1.0);
  }
  const auto round_up = [&](double side) {
    return static_cast<int64_t>(std::ceil(side / static_cast<double>(limits.patch_size))) * limits.patch_size;
  };

  ImagePlan plan;
  set_canvas(plan, {round_up(width), round_up(height)}, limits);
  if (plan.tokens > limits.max_image_tokens) set_canvas(plan, largest_canvas(width, height, limits), limits);
  HP_CHECK(plan.patch_rows > 0 && plan.patch_columns > 0 && plan.tokens <= limits.max_image_tokens,
           "plan of {} x {}: canvas {} x {}, {} tokens", image_width, image_height, plan.width, plan.height, plan.tokens);

  if (squeezed) {
    plan.fit_width = plan.width;
    plan.fit_height = plan.height;
  } else {
    set_fit(plan, static_cast<double>(image_width), static_cast<double>(image_height));
  }
  if (plan.fit_width == 0 || plan.fit_height == 0) {
    throw DataError(
        "a picture of {} x {} pixels is too thin: fitted into its canvas of {} x {} pixels (at most {} image tokens) "
        "it would be {} x {}; cut it into parts or raise max_image_tokens",
        image_width, image_height, plan.width, plan.height, limits.max_image_tokens, plan.fit_width, plan.fit_height);
  }
  return plan;
}

std::vector<int32_t> span_types(const ImagePlan& plan) {
  std::vector<int32_t> types;
  types.reserve(static_cast<size_t>(plan.tokens));
  types.push_back(kSpanStart);
  for (int64_t row = 0; row < plan.llm_rows; ++row) {
    types.insert(types.end(), static_cast<size_t>(plan.llm_columns), kSpanImage);
    types.push_back(kSpanNewLine);
  }
  types.push_back(kSpanEnd);
  return types;
}

}  // namespace hyperparallel::data
