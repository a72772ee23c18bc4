// Malformed safetensors files, made by hand: each rule of the format refuses what breaks it, naming file and tensor.
#include <gmock/gmock.h>

#include <fstream>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "support/scratch.h"

namespace hyperparallel::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string with_length(uint64_t length, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&length), 8) + rest;
}

std::string file_of(const std::string& header, size_t data_bytes) {
  return with_length(header.size(), header + std::string(data_bytes, '\0'));
}

struct Malformed {
  std::string name;     // of the rule
  std::string content;  // of the file
  std::string message;  // part of what is said
};

void PrintTo(const Malformed& malformed, std::ostream* out) {
  *out << malformed.name;
}

class CorruptSafetensors : public testing::TestWithParam<Malformed> {};

TEST_P(CorruptSafetensors, IsRefusedNamingFileAndFault) {
  Scratch scratch;
  file::write(scratch / "bad.safetensors", GetParam().content);
  try {
    SafetensorsReader reader(scratch / "bad.safetensors");
    for (const TensorInfo& info : reader.tensors()) reader.tensor(info.name);
    FAIL() << "accepted";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr((scratch / "bad.safetensors").string()), HasSubstr(GetParam().message)));
  }
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

std::vector<Malformed> malformed() {
  const std::string a = tensor("a", "F32", "[2]", "[0,8]");
  const std::string bool_header = "{" + tensor("a", "BOOL", "[1]", "[0,1]") + "}";
  auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets, size_t bytes) {
    return file_of("{" + tensor("a", dtype, shape, offsets) + "}", bytes);
  };
  return {
      {"EmptyFile", "", "too few"},
      {"SevenBytes", std::string(7, '\0'), "too few"},
      {"LengthZero", with_length(0, ""), "does not begin with `{`"},
      {"LengthBeyondFile", with_length(100, "{}"), "cut off"},
      {"LengthBeyondLimit", with_length(100'000'001, "{}"), "limit"},
      {"LengthHuge", with_length(~uint64_t{0}, "{}"), "limit"},
      {"LeadingSpace", file_of(" {}", 0), "does not begin with `{`"},
      {"List", file_of("[]", 0), "does not begin with `{`"},
      {"BrokenJson", file_of("{\"a\":", 0), "not valid JSON"},
      {"TextAfterJson", file_of("{} x", 0), "not valid JSON"},
      {"InvalidUtf8", file_of("{\"\xff\":1}", 0), "not valid JSON"},
      {"DeepNesting", file_of(std::string("{\"a\":") + std::string(100'000, '['), 0), "not valid JSON"},
      {"DuplicateTensor", file_of("{" + a + "," + a + "}", 8), "`a` twice"},
      {"DuplicateKey", file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1), "`dtype` twice"},
      {"DuplicateMetadata", file_of(R"({"__metadata__":{"x":"1","x":"2"}})", 0), "`x` twice"},
      {"MetadataList", file_of(R"({"__metadata__":[]})", 0), "__metadata__"},
      {"MetadataNumber", file_of(R"({"__metadata__":{"x":1}})", 0), "`x`"},
      {"TensorNoObject", file_of(R"({"a":3})", 0), "`a`"},
      {"NoDtype", file_of(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1), "`a` has no dtype"},
      {"NoShape", file_of(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1), "`a` has no shape"},
      {"NoOffsets", file_of(R"({"a":{"dtype":"U8","shape":[1]}})", 1), "`a` has no data_offsets"},
      {"UnknownKey", file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1), "unknown key `x`"},
      {"DtypeNumber", file_of(R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1), "dtype"},
      {"UnknownDtype", one("F31", "[2]", "[0,8]", 8), "unknown dtype `F31`"},
      {"LowerCaseDtype", one("f32", "[2]", "[0,8]", 8), "unknown dtype `f32`"},
      {"ShapeNumber", one("F32", "2", "[0,8]", 8), "shape"},
      {"ShapeNegative", one("F32", "[-2]", "[0,8]", 8), "non-negative"},
      {"ShapeFraction", one("F32", "[2.0]", "[0,8]", 8), "non-negative"},
      {"ShapeOverflow", one("F32", "[4611686018427387904,4]", "[0,8]", 8), "too large"},
      {"ShapeOverflowBesideZero", one("F32", "[0,4611686018427387904,4]", "[0,0]", 0), "too large"},
      {"ShapeOver64Bits", one("F32", "[18446744073709551615]", "[0,8]", 8), "non-negative"},
      {"OneOffset", one("F32", "[2]", "[0]", 8), "pair"},
      {"OffsetsBackwards", one("F32", "[2]", "[8,0]", 8), "backwards"},
      {"OffsetNegative", one("F32", "[2]", "[-8,0]", 8), "non-negative"},
      {"SizeDiffersFromShape", one("F32", "[3]", "[0,8]", 8), "needs 12"},
      {"HalfByte", one("F4", "[3]", "[0,2]", 2), "whole bytes"},
      {"HoleAtStart", one("F32", "[2]", "[4,12]", 12), "a hole"},
      {"HoleBetween", file_of("{" + a + "," + tensor("b", "U8", "[1]", "[9,10]") + "}", 10), "tensor `b`"},
      {"Overlap", file_of("{" + a + "," + tensor("b", "F32", "[2]", "[4,12]") + "}", 12), "overlap"},
      {"SameBytesTwice", file_of("{" + a + "," + tensor("b", "F32", "[2]", "[0,8]") + "}", 8), "overlap"},
      {"CutOff", one("F32", "[2]", "[0,8]", 7), "cut off"},
      {"BytesAfterTheLast", one("F32", "[2]", "[0,8]", 9), "1 bytes follow"},
      {"NoTensorsButBytes", file_of("{}", 1), "1 bytes follow"},
      {"DtypeNotLoaded", one("F8_E4M3", "[8]", "[0,8]", 8), "F8_E4M3"},
      {"BoolByte", with_length(bool_header.size(), bool_header + '\2'), "BOOL"},
  };
}

INSTANTIATE_TEST_SUITE_P(Rules, CorruptSafetensors, testing::ValuesIn(malformed()),
                         [](const auto& info) { return info.param.name; });

TEST(SafetensorsRules, LegalOdditiesAreAccepted) {
  Scratch scratch;
  const std::string header = "{" + tensor("late", "U8", "[1]", "[0,1]") + "," + tensor("empty", "F32", "[3,0]", "[1,1]") + "," +
                             tensor("scalar", "I64", "[]", "[1,9]") + "," + tensor("quantised", "F8_E4M3", "[2]", "[9,11]") +
                             "," + tensor("packed", "F4", "[4]", "[11,13]") + "," +
                             tensor("wide", "F32", "[0,1099511627776]", "[13,13]") + "}   ";
  file::write(scratch / "a", file_of(header, 13));
  SafetensorsReader reader(scratch / "a");
  EXPECT_EQ(reader.tensors().size(), 6);
  EXPECT_EQ(reader.tensor("scalar").item<int64_t>(), 0);  // not aligned to its element
  EXPECT_EQ(reader.tensor("empty").sizes(), (std::vector<int64_t>{3, 0}));
  EXPECT_FALSE(reader.info("quantised").scalar_type.has_value());
  file::write(scratch / "none", file_of("{}", 0));
  EXPECT_TRUE(SafetensorsReader(scratch / "none").tensors().empty());
}

TEST(SafetensorsRules, FoldersAndAbsentFilesAreNamed) {
  Scratch scratch;
  EXPECT_THROW(SafetensorsReader(scratch.path()), CheckpointError);
  EXPECT_THROW(SafetensorsReader(scratch / "absent"), CheckpointError);
}

// Random damage of a good file is either refused with a CheckpointError or still a well-formed file; it never crashes.
TEST(SafetensorsFuzz, MutatedFilesAreRefusedOrRead) {
  Scratch scratch;
  write_safetensors(scratch / "good",
                    {{"weight", at::ones({2, 3})}, {"flag", at::ones({3}, at::kBool)}, {"empty", at::empty({0})}});
  const std::string good = file::read(scratch / "good");
  const std::string tokens = "{}[]\":,0129-.eE\\ \x80\xff";
  std::mt19937 random(1);
  auto below = [&](size_t n) { return random() % n; };
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string bad = good;
    for (size_t edits = 1 + below(4); edits > 0 && !bad.empty(); --edits) {
      size_t at = below(bad.size());
      switch (below(5)) {
        case 0:
          bad[at] = static_cast<char>(bad[at] ^ (1 << below(8)));
          break;
        case 1:
          bad[at] = tokens[below(tokens.size())];
          break;
        case 2:
          bad.erase(at, below(9));
          break;
        case 3:
          bad.insert(at, bad.substr(below(bad.size()), below(9)));
          break;
        default:
          bad.resize(at + 1);
          break;
      }
    }
    std::ofstream(scratch / "bad", std::ios::binary) << bad;
    try {
      SafetensorsReader reader(scratch / "bad");
      for (const TensorInfo& info : reader.tensors())
        if (info.scalar_type) reader.tensor(info.name);
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace hyperparallel::checkpoint
