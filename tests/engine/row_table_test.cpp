#include "engine/row_table.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "engine/parameter.h"
#include "support/scratch.h"

namespace hyperparallel::engine::row_tables {

at::Tensor ids(std::vector<int64_t> list) {
  return at::tensor(list, at::kLong);
}

// In memory, and in a file.
class RowTables : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<RowTable> table(int64_t rows, int64_t width, at::ScalarType type = at::kFloat) const {
    return std::make_unique<RowTable>(rows, width, type, GetParam() ? folder_.path() : std::filesystem::path());
  }
  // Row r, column c begins as 10 r + c.
  static RowTable::Start tens(int64_t width) {
    return [width](int64_t first, int64_t count, void* values) {
      for (int64_t i = 0; i < count * width; ++i)
        static_cast<float*>(values)[i] = static_cast<float>(10 * (first + i / width) + i % width);
    };
  }
  Scratch folder_;
};

TEST_P(RowTables, RowsBeginWhenTheyAreUsedAndAreReadWithoutATrace) {
  for (const int64_t rows : {1, 63, 64, 65, 200}) {
    const auto own = table(rows, 3);
    own->begin_as(tens(3));
    at::Tensor all = at::empty({rows, 3});
    own->read(0, all);
    EXPECT_EQ(own->begun_rows(), 0);
    EXPECT_EQ(all[rows - 1][2].item<float>(), static_cast<float>(10 * (rows - 1) + 2));
    const at::Tensor found = own->look_up(ids({rows - 1, -1, 0, rows - 1}));
    EXPECT_TRUE(found[0].equal(all[rows - 1]) && found[3].equal(found[0]) && found[2].equal(all[0]));
    EXPECT_EQ(found[1].abs().sum().item<float>(), 0);
    EXPECT_EQ(own->begun_rows(), rows == 1 ? 1 : 2);
    at::Tensor writable = own->begun(ids({0}));
    writable[0].fill_(7);
    own->read(0, all);
    EXPECT_TRUE(all[0].equal(at::full({3}, 7.f)));
    EXPECT_TRUE(own->whole().equal(all));
    EXPECT_EQ(own->begun_rows(), rows);
  }
}

TEST_P(RowTables, WhatIsWrittenIsReadAndStartValuesCostNothing) {
  const auto own = table(130, 2);
  own->begin_as(tens(2));
  at::Tensor middle = at::empty({5, 2});
  own->read(62, middle);
  own->write(62, middle);  // as they begin anyway
  EXPECT_EQ(own->begun_rows(), 0);
  middle[3].fill_(-1);
  own->write(62, middle);
  EXPECT_EQ(own->begun_rows(), 1);
  EXPECT_TRUE(own->look_up(ids({65}))[0].equal(at::full({2}, -1.f)));
  int64_t seen = 0;
  own->for_pieces([&](int64_t first, const at::Tensor& rows) {
    EXPECT_EQ(first, seen);
    seen += rows.size(0);
  });
  EXPECT_EQ(seen, 130);
  own->drop_pages();
  EXPECT_TRUE(own->look_up(ids({65}))[0].equal(at::full({2}, -1.f)));
}

TEST_P(RowTables, ItsLikeIsOfZerosAndKnowsWhichRowsAreNot) {
  const auto own = table(100, 4, at::kDouble);
  own->begin_as([](int64_t, int64_t count, void* values) { std::fill_n(static_cast<double*>(values), count * 4, 1.0); });
  const auto other = own->like();
  EXPECT_EQ(other->type(), at::kDouble);
  EXPECT_THAT(other->rows_that_differ_from_zero(), testing::IsEmpty());
  other->begun(ids({99, 5, 64, 3})).index_fill_(0, ids({99, 5}), 2.0);
  EXPECT_THAT(other->rows_that_differ_from_zero(), testing::ElementsAre(5, 99));
}

TEST_P(RowTables, RowsOutsideAreRefusedAndNoRowsAreATable) {
  const auto own = table(3, 2);
  EXPECT_THROW(own->look_up(ids({3})), InternalError);
  EXPECT_THROW(own->begun(ids({-1})), InternalError);
  EXPECT_THROW(own->write(2, at::zeros({2, 2})), InternalError);
  const auto none = table(0, 2);
  EXPECT_EQ(none->look_up(ids({-1})).abs().sum().item<float>(), 0);
  EXPECT_EQ(none->whole().numel(), 0);
  none->for_pieces([](int64_t, const at::Tensor&) { FAIL(); });
}

INSTANTIATE_TEST_SUITE_P(Memory, RowTables, testing::Bool(), [](const auto& info) { return info.param ? "File" : "Host"; });

// Whatever the storage, parameters begin with the same bits; a large table costs nothing until it is used.
TEST(TableParameters, BeginAsThoseInDeviceMemory) {
  ParameterSpec spec;
  spec.name = "ngrams";
  spec.shape = {37, 5};
  spec.initialiser = Initialiser::normal(0.1);
  ParameterStore device({spec}, at::kFloat, at::kFloat);
  spec.use = ParameterUse::kTable;
  spec.cut_axis = "stage";
  Layout layout;
  layout.mesh = dist::Mesh(3, {.tp = 3});
  device.initialise(5);
  for (layout.rank = 0; layout.rank < 3; ++layout.rank) {
    ParameterStore host({spec}, at::kFloat, at::kBFloat16, layout);
    host.initialise(5);
    const Box& owned = host.placement({0}).owned;
    EXPECT_TRUE(host.master({0}).equal(narrow_to(device.master({0}), owned))) << layout.rank;
  }
  spec.shape = {int64_t{1} << 30, 64};
  ParameterStore huge({spec}, at::kFloat, at::kFloat);
  huge.initialise(5);
  EXPECT_NE(huge.table({0}).look_up(ids({(int64_t{1} << 30) - 1})).abs().sum().item<float>(), 0);
}

// Micro-batches add rows again and again: no more is kept than a few times those that differ, with the bits of one sum in order.
TEST(TableParameters, GradientsOfManyMicroBatchesStayAsManyAsTheRows) {
  ParameterSpec spec;
  spec.name = "ngrams";
  spec.shape = {300, 3};
  spec.use = ParameterUse::kTable;
  spec.cut_axis = "stage";
  ParameterStore store({spec}, at::kFloat, at::kFloat);
  std::vector<at::Tensor> rows, values;
  int64_t most = 0;
  for (int batch = 0; batch < 12; ++batch) {
    rows.push_back(at::arange(5000).mul(7 + batch).remainder(300));
    values.push_back(at::sin(at::arange(15000).to(at::kFloat).add(batch)).view({5000, 3}));
    store.add_row_gradients({0}, rows.back(), values.back());
    int64_t kept = 0;
    for (const at::Tensor& tensor : store.gradients_and_copies()) kept += tensor.numel() / 3;
    most = std::max(most, kept);
  }
  EXPECT_LT(most, 300 + 8192 + 5000);
  const RowGradients expected = merge_rows(at::cat(rows), at::cat(values));
  const RowGradients& found = store.row_gradients({0});
  EXPECT_TRUE(found.rows.equal(expected.rows));
  EXPECT_TRUE(found.values.equal(expected.values));
  store.clear_gradients();
  EXPECT_EQ(store.row_gradients({0}).rows.numel(), 0);
}

}  // namespace hyperparallel::engine::row_tables
