// The resize and the patches. Two passes of a bicubic filter (a = -0.5, widened when shrinking), columns first, rounded to 8 bits
// in between, with integer weights: the same bits as the released preprocessing on every machine.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "data/image.h"

namespace hyperparallel::data {
namespace {

constexpr int kChannels = 3;
constexpr int kPrecision = 22;  // fraction bits of a weight
constexpr uint8_t kPadding = 127;

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

// Where one output sample takes its input from.
struct Window {
  int64_t first;  // of its input samples
  int64_t count;  // of its weights
  const int32_t* weights;
};

// The windows of all output samples of one axis.
class Filter {
 public:
  Filter(int64_t in, int64_t out) {
    const double scale = static_cast<double>(in) / static_cast<double>(out);
    const double stretch = std::max(scale, 1.0);
    const double support = 2 * stretch;
    std::vector<double> raw;
    for (int64_t i = 0; i < out; ++i) {
      const double centre = (static_cast<double>(i) + 0.5) * scale;
      const int64_t first = std::max<int64_t>(static_cast<int64_t>(centre - support + 0.5), 0);
      const int64_t last = std::min(static_cast<int64_t>(centre + support + 0.5), in);
      raw.clear();
      double sum = 0;
      for (int64_t j = first; j < last; ++j) {
        raw.push_back(bicubic((static_cast<double>(j) - centre + 0.5) * (1.0 / stretch)));
        sum += raw.back();
      }
      spans_.push_back({first, last - first, static_cast<int64_t>(weights_.size())});
      for (const double weight : raw) weights_.push_back(static_cast<int32_t>(std::round(weight / sum * (1 << kPrecision))));
    }
  }

  Window operator[](int64_t i) const {
    const Span& span = spans_[static_cast<size_t>(i)];
    return {span.first, span.count, weights_.data() + span.offset};
  }

 private:
  struct Span {
    int64_t first, count, offset;
  };
  std::vector<Span> spans_;
  std::vector<int32_t> weights_;
};

uint8_t to_byte(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kPrecision, 0, 255));
}

constexpr int32_t kHalf = 1 << (kPrecision - 1);

// [height, image.width, 3] -> [height, out_width, 3]
RgbImage resize_columns(const RgbImage& image, int64_t out_width) {
  RgbImage out{out_width, image.height, {}};
  out.pixels.resize(static_cast<size_t>(out_width * image.height * kChannels));
  const Filter filter(image.width, out_width);
  uint8_t* target = out.pixels.data();
  for (int64_t y = 0; y < image.height; ++y) {
    const uint8_t* row = image.pixels.data() + y * image.width * kChannels;
    for (int64_t x = 0; x < out_width; ++x, target += kChannels) {
      const Window window = filter[x];
      const uint8_t* source = row + window.first * kChannels;
      int32_t red = kHalf, green = kHalf, blue = kHalf;
      for (int64_t tap = 0; tap < window.count; ++tap, source += kChannels) {
        const int32_t weight = window.weights[tap];
        red += source[0] * weight;
        green += source[1] * weight;
        blue += source[2] * weight;
      }
      target[0] = to_byte(red);
      target[1] = to_byte(green);
      target[2] = to_byte(blue);
    }
  }
  return out;
}

// The weighted sum of a window's rows for `count` bytes that begin at `source`; rows are `stride` bytes apart. The full blocks
// have a fixed length, which lets the compiler use vector instructions.
template <int kBlock>
int64_t sum_rows(const uint8_t* source, int64_t stride, const Window& window, int64_t count, uint8_t* target) {
  int64_t done = 0;
  for (; done + kBlock <= count; done += kBlock) {
    std::array<int32_t, kBlock> sums;
    sums.fill(kHalf);
    for (int64_t tap = 0; tap < window.count; ++tap) {
      const uint8_t* row = source + done + tap * stride;
      const int32_t weight = window.weights[tap];
      for (int i = 0; i < kBlock; ++i) sums[static_cast<size_t>(i)] += row[i] * weight;
    }
    for (int i = 0; i < kBlock; ++i) target[done + i] = to_byte(sums[static_cast<size_t>(i)]);
  }
  return done;
}

// Resizes the rows of `image` into the canvas's box of the plan.
void resize_rows(const RgbImage& image, const ImagePlan& plan, RgbImage& canvas) {
  const Filter filter(image.height, plan.fit_height);
  const int64_t stride = image.width * kChannels;
  for (int64_t y = 0; y < plan.fit_height; ++y) {
    const Window window = filter[y];
    const uint8_t* source = image.pixels.data() + window.first * stride;
    uint8_t* target = canvas.pixels.data() + ((plan.fit_top + y) * canvas.width + plan.fit_left) * kChannels;
    const int64_t done = sum_rows<64>(source, stride, window, stride, target);
    sum_rows<1>(source + done, stride, window, stride - done, target + done);
  }
}

// Nearest bfloat16, halves to even; finite values only.
float round_to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000);
}

std::array<float, 256> normalised_bytes() {
  std::array<float, 256> table{};
  for (size_t v = 0; v < table.size(); ++v) table[v] = round_to_bfloat16((static_cast<float>(v) / 255.0f - 0.5f) / 0.5f);
  return table;
}

}  // namespace

RgbImage fit_image(const RgbImage& image, const ImagePlan& plan) {
  HP_CHECK(
      image.width > 0 && image.height > 0 && static_cast<int64_t>(image.pixels.size()) == image.width * image.height * kChannels,
      "{} bytes for {} x {} pixels", image.pixels.size(), image.width, image.height);
  HP_CHECK(plan.fit_width > 0 && plan.fit_left >= 0 && plan.fit_left + plan.fit_width <= plan.width && plan.fit_height > 0 &&
               plan.fit_top >= 0 && plan.fit_top + plan.fit_height <= plan.height,
           "a fit of {} x {} at {}, {} in {} x {}", plan.fit_width, plan.fit_height, plan.fit_left, plan.fit_top, plan.width,
           plan.height);
  RgbImage canvas{plan.width, plan.height, {}};
  canvas.pixels.assign(static_cast<size_t>(plan.width * plan.height * kChannels), kPadding);
  resize_rows(resize_columns(image, plan.fit_width), plan, canvas);
  return canvas;
}

std::vector<float> image_patches(const RgbImage& canvas, int64_t patch_size) {
  HP_CHECK(patch_size > 0 && canvas.width % patch_size == 0 && canvas.height % patch_size == 0,
           "a canvas of {} x {} pixels is not made of patches of {}", canvas.width, canvas.height, patch_size);
  static const std::array<float, 256> table = normalised_bytes();
  std::vector<float> patches(canvas.pixels.size());
  float* target = patches.data();
  for (int64_t top = 0; top < canvas.height; top += patch_size) {
    for (int64_t left = 0; left < canvas.width; left += patch_size) {
      for (int channel = 0; channel < kChannels; ++channel) {
        for (int64_t y = top; y < top + patch_size; ++y) {
          const uint8_t* source = canvas.pixels.data() + (y * canvas.width + left) * kChannels + channel;
          for (int64_t x = 0; x < patch_size; ++x) *target++ = table[source[x * kChannels]];
        }
      }
    }
  }
  return patches;
}

uint16_t bfloat16_bits(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

}  // namespace hyperparallel::data
