// `hyperparallel inspect image FILE`: how a picture reaches the model.
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "base/error.h"
#include "base/file.h"
#include "data/image.h"
#include "image_arguments.h"
#include "inspect.h"

namespace hyperparallel {
namespace {

struct Options {
  std::string file, canvas;
  ImageArguments limits;
  std::string exif = "apply";
  int64_t max_pixels = data::kDefaultMaxDecodedPixels;
};

std::string read_picture(const std::string& path) {
  try {
    return file::read(path);
  } catch (const file::FileError& error) {
    throw DataError("{}", error.what());
  }
}

data::ImagePlan plan_of(const std::string& path, const data::RgbImage& image, const data::ImageLimits& limits) {
  try {
    return data::plan_image(image.width, image.height, limits);
  } catch (const DataError& error) {
    throw DataError("{}: {}", path, error.what());
  }
}

const char* orientation_name(int orientation) {
  static const char* const names[] = {"upright",
                                      "mirrored left to right",
                                      "upside down",
                                      "mirrored top to bottom",
                                      "mirrored along the main diagonal",
                                      "to be turned right by 90 degrees",
                                      "mirrored along the other diagonal",
                                      "to be turned left by 90 degrees"};
  HP_CHECK(orientation >= 1 && orientation <= 8, "orientation {}", orientation);
  return names[orientation - 1];
}

// One line a row of tokens; what is long and the same is counted instead of drawn.
void print_layout(const data::ImagePlan& plan) {
  constexpr int64_t kMaxRows = 40, kMaxColumns = 100, kShownRows = 3;
  const std::string row = plan.llm_columns <= kMaxColumns ? std::string(static_cast<size_t>(plan.llm_columns), 'I') + "N"
                                                          : fmt::format("III ... {} x I ... IIIN", plan.llm_columns);
  fmt::print("\nLayout (S start, I image token, N new line, E end):\n  S\n");
  const int64_t shown = plan.llm_rows <= kMaxRows ? plan.llm_rows : kShownRows;
  for (int64_t i = 0; i < shown; ++i) fmt::print("  {}\n", row);
  if (shown < plan.llm_rows) fmt::print("  ... {} more rows like these ...\n", plan.llm_rows - shown);
  fmt::print("  E\n");
}

void print_plan(const data::ImagePlan& plan, const data::ImageLimits& limits) {
  const std::string ratio = limits.max_wh_ratio ? fmt::format(", at most {} : 1 wide", *limits.max_wh_ratio) : "";
  fmt::print("limits       at least {} pixels, at most {} tokens{}, patches of {} x {}, {} x {} patches a token\n",
             limits.min_pixels, limits.max_image_tokens, ratio, limits.patch_size, limits.patch_size, limits.downsample,
             limits.downsample);
  fmt::print("canvas       {} x {} pixels\n", plan.width, plan.height);
  fmt::print("fit          {} x {} pixels at left {}, top {}; the rest is grey padding\n", plan.fit_width, plan.fit_height,
             plan.fit_left, plan.fit_top);
  fmt::print("patches      {} = {} rows x {} columns\n", plan.patch_rows * plan.patch_columns, plan.patch_rows,
             plan.patch_columns);
  fmt::print("tokens       {} = {} rows x ({} image tokens + new line) + start + end\n", plan.tokens, plan.llm_rows,
             plan.llm_columns);
}

}  // namespace

int inspect_image(const std::vector<std::string>& arguments) {
  Options options;
  CLI::App app("Shows how a picture is decoded, resized and cut into patches and tokens", "hyperparallel inspect image");
  app.add_option("FILE", options.file, "the picture")->required();
  add_image_arguments(app, options.limits);
  app.add_option("--exif", options.exif, "apply or ignore the EXIF orientation")
      ->check(CLI::IsMember({"apply", "ignore"}))
      ->capture_default_str();
  app.add_option("--max-pixels", options.max_pixels, "refuse larger pictures before decoding")->capture_default_str();
  app.add_option("--canvas", options.canvas, "write what the vision encoder sees to this PNG file");
  if (!parse_arguments(app, arguments)) return static_cast<int>(ExitCode::kFinished);

  const data::ImageLimits limits = image_settings(options.limits).limits;
  const auto orientation = options.exif == "apply" ? data::ExifOrientation::kApply : data::ExifOrientation::kIgnore;
  const std::string content = read_picture(options.file);
  const std::span bytes(reinterpret_cast<const uint8_t*>(content.data()), content.size());
  const data::ImageInfo info = data::read_image_info(bytes, orientation, options.file, options.max_pixels);
  const data::RgbImage image = data::decode_image(bytes, orientation, options.file, options.max_pixels);

  fmt::print("file         {}: {}, {} bytes\n", options.file, info.format, content.size());
  fmt::print("stored       {} channels of {} bits\n", info.bands, info.bits);
  fmt::print("orientation  {} ({}){}\n", info.exif_orientation, orientation_name(info.exif_orientation),
             info.exif_orientation == 1 ? ""
             : options.exif == "apply"  ? ", applied"
                                        : ", ignored");
  fmt::print("decoded      {} x {} pixels, RGB\n", image.width, image.height);
  const data::ImagePlan plan = plan_of(options.file, image, limits);
  print_plan(plan, limits);
  print_layout(plan);
  if (!options.canvas.empty()) {
    const std::vector<uint8_t> png = data::encode_png(data::fit_image(image, plan));
    file::write(options.canvas, {reinterpret_cast<const char*>(png.data()), png.size()});
    fmt::print("\nwrote {}\n", options.canvas);
  }
  return static_cast<int>(ExitCode::kFinished);
}

}  // namespace hyperparallel
