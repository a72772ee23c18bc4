// Uses a part with libtorch and one without.
#include <cstdio>

#include "data/image.h"
#include "engine/parameter.h"

int main() {
  using namespace hyperparallel;
  engine::ParameterStore parameters({{.name = "gain", .shape = {4}, .initialiser = engine::Initialiser::fill(0.25)}}, at::kFloat,
                                    at::kFloat);
  parameters.initialise(42);
  const double sum = parameters.master(parameters.find("gain")).sum().item<double>();
  const auto tokens = data::plan_image(84, 84, {.min_pixels = 3136, .max_image_tokens = 64}).tokens;
  std::printf("sum %.1f, image tokens %lld\n", sum, static_cast<long long>(tokens));
}
