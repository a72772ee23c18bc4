// Element loops of the optimizers on plain memory, compiled for several instruction sets and chosen at run time.
// Every version gives the same bits: no contraction into fused multiply-adds, and sums keep a fixed order.
#pragma once

#include <cstdint>

namespace hyperparallel::optim {

// The step's numbers of one tensor; see adamw.h for the formula.
struct AdamWFactors {
  double coefficient = 1;  // on the gradient
  double beta1 = 0, beta2 = 0, eps = 0;
  double decay = 1;       // 1 - lr wd
  double step_size = 0;   // lr / (1 - b1^t)
  double root_scale = 1;  // 1 / sqrt(1 - b2^t)
};

// Updates `size` elements of value, exp_avg and exp_avg_sq in place. Moments in BF16 are its bits; they are rounded to nearest
// even as they are stored.
void adamw_update(const AdamWFactors& factors, int64_t size, const float* gradient, float* value, float* exp_avg,
                  float* exp_avg_sq);
void adamw_update(const AdamWFactors& factors, int64_t size, const double* gradient, double* value, double* exp_avg,
                  double* exp_avg_sq);
void adamw_update(const AdamWFactors& factors, int64_t size, const float* gradient, float* value, uint16_t* exp_avg,
                  uint16_t* exp_avg_sq);

// Sum of squares in FP64. For FP32 elements it is finite exactly when every element is.
double sum_of_squares(int64_t size, const float* elements);
double sum_of_squares(int64_t size, const double* elements);

}  // namespace hyperparallel::optim
