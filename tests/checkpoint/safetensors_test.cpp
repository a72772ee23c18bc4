#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "base/file.h"
#include "support/scratch.h"

namespace hyperparallel::checkpoint {
namespace {

const std::filesystem::path kGolden = std::filesystem::path(HP_SOURCE_DIR) / "tests/golden";

TEST(Safetensors, EveryDtypeAndShapeComesBackTheSameBits) {
  Scratch scratch;
  std::vector<NamedTensor> tensors;
  for (at::ScalarType type :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar, at::kByte, at::kBool})
    tensors.emplace_back(at::toString(type), at::arange(6).reshape({2, 3}).to(type));
  tensors.emplace_back("scalar", at::scalar_tensor(3.5));
  tensors.emplace_back("empty", at::empty({0, 7}));
  tensors.emplace_back("transposed", at::arange(6).reshape({2, 3}).t());
  tensors.emplace_back("odd \"name\" \xc3\xa9", at::ones({1}, at::kByte));
  write_safetensors(scratch / "a.safetensors", tensors, {{"format", "pt"}, {"by", "test"}});

  SafetensorsReader reader(scratch / "a.safetensors");
  EXPECT_EQ(reader.tensors().size(), tensors.size());
  EXPECT_EQ(reader.metadata().at("by"), "test");
  for (const auto& [name, tensor] : tensors) {
    at::Tensor read = reader.tensor(name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(read, tensor)) << name;
    EXPECT_EQ(read.sizes(), tensor.sizes()) << name;
  }
  EXPECT_EQ(reader.header().size() % 8, 0);
}

TEST(Safetensors, SameTensorsInAnotherOrderGiveTheSameFile) {
  Scratch scratch;
  NamedTensor a("a", at::ones({3}, at::kByte)), b("b", at::ones({2, 2})), c("c", at::ones({5}, at::kDouble));
  write_safetensors(scratch / "1", {a, b, c});
  write_safetensors(scratch / "2", {c, b, a});
  EXPECT_EQ(file::read(scratch / "1"), file::read(scratch / "2"));
  SafetensorsReader reader(scratch / "1");
  for (const TensorInfo& info : reader.tensors())
    EXPECT_EQ(info.offset % static_cast<int64_t>(at::elementSize(*info.scalar_type)), 0) << info.name;
}

TEST(Safetensors, TensorsOutliveTheirReader) {
  Scratch scratch;
  write_safetensors(scratch / "a", {{"x", at::arange(10)}});
  at::Tensor x = SafetensorsReader(scratch / "a").tensor("x");
  file::remove(scratch / "a");
  EXPECT_TRUE(at::equal(x, at::arange(10)));
}

TEST(Safetensors, BoxReadsThePartAsked) {
  Scratch scratch;
  at::Tensor x = at::arange(4 * 5 * 6).reshape({4, 5, 6});
  write_safetensors(scratch / "a", {{"x", x}, {"s", at::scalar_tensor(2)}});
  SafetensorsReader reader(scratch / "a");
  EXPECT_TRUE(at::equal(reader.box("x", {1, 2, 3}, {2, 3, 2}), x.slice(0, 1, 3).slice(1, 2, 5).slice(2, 3, 5)));
  EXPECT_TRUE(at::equal(reader.box("x", {1, 0, 0}, {3, 5, 6}), x.slice(0, 1, 4)));
  EXPECT_TRUE(at::equal(reader.box("x", {0, 4, 0}, {4, 1, 6}), x.slice(1, 4, 5)));
  EXPECT_EQ(reader.box("x", {0, 5, 0}, {4, 0, 6}).numel(), 0);
  EXPECT_TRUE(at::equal(reader.box("s", {}, {}), at::scalar_tensor(2)));
}

TEST(Safetensors, GoldenFilesAreRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kGolden)) {
    if (entry.path().extension() != ".safetensors") continue;
    EXPECT_NO_THROW(read_all(entry.path())) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 40);
  SafetensorsReader bf16(kGolden / "model/bf16/weights.safetensors");
  EXPECT_EQ(bf16.tensor("model.embed.weight").scalar_type(), at::kBFloat16);
  EXPECT_EQ(bf16.tensor("model.layers.0.attn.attn_sink").scalar_type(), at::kFloat);
}

TEST(Safetensors, AbsentTensorIsNamedWithItsFile) {
  Scratch scratch;
  write_safetensors(scratch / "a", {{"x", at::ones({1})}});
  SafetensorsReader reader(scratch / "a");
  EXPECT_FALSE(reader.has("y"));
  try {
    reader.tensor("y");
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr((scratch / "a").string()), testing::HasSubstr("`y`")));
  }
}

}  // namespace
}  // namespace hyperparallel::checkpoint
