#include <c10/util/Float8_e4m3fn.h>
#include <torch/csrc/autograd/custom_function.h>

#include <bit>
#include <cmath>

#include "kernels/quantise/op.h"

namespace hyperparallel::kernels {
namespace {

// 2^ceil(log2(value)) for a positive normal value; an exact power of two stays.
float power_of_two_at_least(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0);
  return std::bit_cast<float>(exponent << 23);
}

float round_e4m3(float value) {
  return static_cast<float>(c10::Float8_e4m3fn(std::clamp(value, -448.0f, 448.0f)));
}

// Nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6; ties go to the even code.
float round_e2m1(float value) {
  const float magnitude = std::min(std::abs(value), 6.0f);
  const float step = magnitude < 2.0f ? 0.5f : magnitude < 4.0f ? 1.0f : 2.0f;
  return std::copysign(std::nearbyint(magnitude / step) * step, value);
}

// Calls quantise(first element, count) on every block of an FP32 copy.
template <class Quantise>
at::Tensor by_blocks(const at::Tensor& x, int64_t block, const Quantise& quantise) {
  if (x.size(-1) % block != 0) return x;
  at::Tensor out = x.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
  float* data = out.mutable_data_ptr<float>();
  at::parallel_for(0, out.numel() / block, 256, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      float amax = 0.0f;
      for (int64_t i = 0; i < block; ++i) amax = std::max(amax, std::abs(data[b * block + i]));
      quantise(data + b * block, amax);
    }
  });
  return out.to(x.scalar_type());
}

at::Tensor quantise_fp8_window(const at::Tensor& x) {
  return by_blocks(x, 32, [](float* block, float amax) {
    const float scale = power_of_two_at_least(std::max(amax, 1e-4f) * (1.0f / 448.0f));
    for (int i = 0; i < 32; ++i) block[i] = round_e4m3(block[i] / scale) * scale;
  });
}

at::Tensor quantise_fp4_kv(const at::Tensor& x) {
  return by_blocks(x, 16, [](float* block, float amax) {
    const float scale = round_e4m3(std::max(amax, 6.0f * 0x1p-9f) / 6.0f);
    for (int i = 0; i < 16; ++i) block[i] = round_e2m1(block[i] / scale) * scale;
  });
}

at::Tensor quantise_fp4_index(const at::Tensor& x) {
  return by_blocks(x, 32, [](float* block, float amax) {
    const float scale = power_of_two_at_least(std::max(amax, 6.0f * 0x1p-126f) * (1.0f / 6.0f));
    for (int i = 0; i < 32; ++i) block[i] = round_e2m1(block[i] / scale) * scale;
  });
}

template <at::Tensor (*quantise)(const at::Tensor&)>
struct StraightThrough : torch::autograd::Function<StraightThrough<quantise>> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return quantise(x); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list gradients) {
    return gradients;
  }
};

}  // namespace

at::Tensor fp8_window(const at::Tensor& x) {
  return x.size(-1) % 32 != 0 ? x : StraightThrough<quantise_fp8_window>::apply(x);
}
at::Tensor fp4_kv(const at::Tensor& x) {
  return x.size(-1) % 16 != 0 ? x : StraightThrough<quantise_fp4_kv>::apply(x);
}
at::Tensor fp4_index(const at::Tensor& x) {
  return x.size(-1) % 32 != 0 ? x : StraightThrough<quantise_fp4_index>::apply(x);
}

}  // namespace hyperparallel::kernels
