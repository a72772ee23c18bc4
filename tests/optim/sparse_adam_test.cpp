#include "optim/sparse_adam.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "golden.h"

namespace hyperparallel::optim {
namespace {

class GoldenSparseAdam : public testing::TestWithParam<at::ScalarType> {};

TEST_P(GoldenSparseAdam, FourStepsHold) {
  const auto tensors = golden_tensors("sparse_adam.safetensors");
  const nlohmann::json golden = golden_json("sparse_adam.json");
  const at::Tensor table = tensors.at("table.0").to(GetParam()).clone(), first = at::zeros_like(table),
                   second = at::zeros_like(table);
  SparseAdam optimizer(table, first, second, {golden.at("betas")[0], golden.at("betas")[1], golden.at("eps")});
  for (int t = 1; t <= 4; ++t) {
    const std::string step = "." + std::to_string(t);
    const RowGradients merged = merge_rows(tensors.at("ids" + step), tensors.at("values" + step).to(GetParam()));
    EXPECT_TRUE(merged.rows.equal(tensors.at("merged_ids" + step))) << t;
    EXPECT_TRUE(merged.values.to(at::kDouble).allclose(tensors.at("merged_values" + step), 1e-6, 1e-9)) << t;
    const at::Tensor before = table.clone(), first_before = first.clone();
    optimizer.step(merged, golden.at("lr"), 1);
    EXPECT_EQ(optimizer.steps(), golden.at("step_after")[t - 1].get<int64_t>());
    for (const auto& [name, found] : {std::pair("table", table), std::pair("exp_avg", first), std::pair("exp_avg_sq", second)})
      expect_close(found, tensors.at(name + step), golden.at("fp32_error").at(name + step), name + step);
    for (int64_t row = 0; row < table.size(0); ++row) {
      if (merged.rows.eq(row).any().item<bool>()) continue;
      EXPECT_TRUE(table[row].equal(before[row]) && first[row].equal(first_before[row])) << row;  // bit for bit
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GoldenSparseAdam, testing::Values(at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

TEST(SparseAdam, RepeatsAreSummedInTheirOrderAndTheCoefficientScalesThem) {
  const at::Tensor ids = at::tensor({5, 2, 5, 5}, at::kLong), values = at::tensor({1e8f, 1.f, 1.f, -1e8f}).view({4, 1});
  const RowGradients merged = merge_rows(ids, values);
  EXPECT_TRUE(merged.rows.equal(at::tensor({2, 5}, at::kLong)));
  EXPECT_EQ(merged.values[1].item<float>(), (1e8f + 1.f) - 1e8f);
  const at::Tensor table = at::zeros({6, 1}), first = at::zeros({6, 1}), second = at::zeros({6, 1});
  SparseAdam optimizer(table, first, second, {0.5, 0.5, 0});
  optimizer.step({at::tensor({2}, at::kLong), at::ones({1, 1})}, 0.1, 4);
  EXPECT_EQ(first[2].item<float>(), 2);
  EXPECT_EQ(second[2].item<float>(), 8);
}

TEST(SparseAdam, RowsOutsideTheTableAreRefusedAndNoneIsNoStep) {
  const at::Tensor table = at::zeros({3, 2});
  SparseAdam optimizer(table, at::zeros({3, 2}), at::zeros({3, 2}), {});
  EXPECT_THROW(optimizer.step({at::tensor({3}, at::kLong), at::ones({1, 2})}, 1, 1), InternalError);
  optimizer.step(merge_rows(at::empty({0}, at::kLong), at::empty({0, 2})), 1, 1);
  EXPECT_EQ(table.abs().sum().item<float>(), 0);
}

}  // namespace
}  // namespace hyperparallel::optim
