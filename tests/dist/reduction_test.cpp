#include "dist/reduction.h"

#include <gmock/gmock.h>

#include <limits>

#include "base/aten.h"
#include "base/error.h"
#include "dist/operations.h"

namespace hyperparallel::dist {
namespace {

at::Tensor reduced(const std::vector<at::Tensor>& parts, Reduction reduction) {
  std::vector<const void*> data;
  for (const at::Tensor& part : parts) data.push_back(part.const_data_ptr());
  at::Tensor out = at::empty_like(parts[0]);
  reduce_elements(out.mutable_data_ptr(), data, out.numel(), out.scalar_type(), reduction);
  return out;
}

class ReductionOfType : public testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Types, ReductionOfType,
                         testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kShort,
                                         at::kChar, at::kByte, at::kBool));

TEST_P(ReductionOfType, EqualsLibtorchOverOddSizes) {
  const at::ScalarType type = GetParam();
  const bool is_narrow = type == at::kBFloat16 || type == at::kHalf;
  for (const int64_t size : {0, 1, 31, 512, 1531}) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < 3; ++rank) parts.push_back(values_of(rank, {size}, at::kFloat, 1).mul(0.2).to(type));
    if (type == at::kBool) {
      for (at::Tensor& part : parts) part = values_of(static_cast<int>(&part - parts.data()), {size}, at::kFloat, 2).gt(80);
    }
    at::Tensor sum = parts[0].to(is_narrow ? at::kFloat : type, /*non_blocking=*/false, /*copy=*/true), most = parts[0];
    for (int rank = 1; rank < 3; ++rank) {
      sum = sum.add(parts[rank]);
      most = at::maximum(most, parts[rank]);
    }
    EXPECT_TRUE(same_bits(reduced(parts, Reduction::kSum), sum.to(type))) << size;
    EXPECT_TRUE(same_bits(reduced(parts, Reduction::kMax), most)) << size;
  }
}

TEST(Reduction, KeepsNaNAndInfinity) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const std::vector<at::Tensor> parts{at::tensor({nan, 1.0, infinity, infinity, 3e38}, at::kDouble).to(type),
                                        at::tensor({1.0, nan, 1.0, -infinity, 3e38}, at::kDouble).to(type)};
    const at::Tensor sum = reduced(parts, Reduction::kSum).to(at::kDouble),
                     most = reduced(parts, Reduction::kMax).to(at::kDouble);
    EXPECT_TRUE(sum.isnan().equal(at::tensor({1, 1, 0, 1, 0}).to(at::kBool))) << sum;
    EXPECT_EQ(sum[2].item<double>(), infinity);
    EXPECT_EQ(sum[4].item<double>(), type == at::kDouble ? 6e38 : infinity);
    EXPECT_TRUE(most.isnan().equal(at::tensor({1, 1, 0, 0, 0}).to(at::kBool))) << most;
    EXPECT_EQ(most[3].item<double>(), infinity);
  }
}

TEST(Reduction, RefusesComplexNumbers) {
  EXPECT_THROW(reduced({at::ones({1}, at::kComplexFloat)}, Reduction::kSum), InternalError);
}

}  // namespace
}  // namespace hyperparallel::dist
