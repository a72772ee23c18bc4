#include "base/error.h"

#include <gmock/gmock.h>

namespace hyperparallel {
namespace {

TEST(Error, TypedErrorsCarryTheirExitCode) {
  EXPECT_EQ(ConfigError("a.yaml:{}: bad", 3).code(), ExitCode::kUsage);
  EXPECT_EQ(DataError("x").code(), ExitCode::kData);
  EXPECT_STREQ(ConfigError("a.yaml:{}: bad", 3).what(), "a.yaml:3: bad");
}

TEST(Error, CheckNamesConditionAndValues) {
  try {
    HP_CHECK(1 + 1 == 3, "sum is {}", 2);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("1 + 1 == 3"), testing::HasSubstr("sum is 2")));
  }
}

}  // namespace
}  // namespace hyperparallel
