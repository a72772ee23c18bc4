#include "base/glob.h"

#include <gtest/gtest.h>

namespace hyperparallel {
namespace {

TEST(Glob, MatchesTheWholeNameOrNothing) {
  EXPECT_TRUE(glob_matches("layers.0.kv", "layers.0.kv"));
  EXPECT_FALSE(glob_matches("layers.0", "layers.0.kv"));
  EXPECT_FALSE(glob_matches("kv", "layers.0.kv"));
  EXPECT_TRUE(glob_matches("", ""));
  EXPECT_FALSE(glob_matches("", "a"));
}

TEST(Glob, AStarIsAnyTextAndAQuestionMarkOneCharacter) {
  EXPECT_TRUE(glob_matches("*", ""));
  EXPECT_TRUE(glob_matches("*.kv", ".hidden/layers.0.kv")) << "dots and slashes are characters like others";
  EXPECT_TRUE(glob_matches("layers.*.k*", "layers.10.attn.kv"));
  EXPECT_TRUE(glob_matches("layers.?.kv", "layers.3.kv"));
  EXPECT_FALSE(glob_matches("layers.?.kv", "layers.10.kv"));
  EXPECT_FALSE(glob_matches("layers.?.kv", "layers..kv"));
}

TEST(Glob, KnowsClassesAndTakesWhatFollowsABackslashAsItIs) {
  EXPECT_TRUE(glob_matches("w[13].weight", "w3.weight"));
  EXPECT_FALSE(glob_matches("w[13].weight", "w2.weight"));
  EXPECT_TRUE(glob_matches("w\\*", "w*"));
  EXPECT_FALSE(glob_matches("w\\*", "w1"));
}

}  // namespace
}  // namespace hyperparallel
