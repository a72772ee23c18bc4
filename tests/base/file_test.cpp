#include "base/file.h"

#include <gmock/gmock.h>

#include "support/faulty_system.h"
#include "support/scratch.h"

namespace hyperparallel {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(File, WrittenTextIsReadBackAndReplaced) {
  Scratch scratch;
  file::write(scratch / "a", "first");
  file::write(scratch / "a", std::string("se\0cond", 7));
  EXPECT_EQ(file::read(scratch / "a"), std::string("se\0cond", 7));
  file::append(scratch / "b", "x\n");
  file::append(scratch / "b", "y\n");
  EXPECT_EQ(file::read(scratch / "b"), "x\ny\n");
}

TEST(File, UncommittedOutputLeavesNothingAndKeepsTheOldFile) {
  Scratch scratch;
  file::write(scratch / "a", "old");
  { file::Output(scratch / "a").write("new"); }
  EXPECT_EQ(file::read(scratch / "a"), "old");
  EXPECT_FALSE(std::filesystem::exists(scratch / "a.tmp"));
}

TEST(File, ErrorsNamePathAndReason) {
  Scratch scratch;
  try {
    file::read(scratch / "absent");
    FAIL();
  } catch (const file::FileError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr((scratch / "absent").string()), HasSubstr("No such file")));
  }
  FaultySystem system(scratch.path());
  file::ScopedSystem scoped(system);
  system.fail_at(2, ENOSPC);
  try {
    file::write(scratch / "a", "text");
    FAIL();
  } catch (const file::FileError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr((scratch / "a").string()), HasSubstr("No space left")));
  }
}

TEST(File, InterruptedAndShortWritesAreContinued) {
  Scratch scratch;
  FaultySystem system(scratch.path());
  file::ScopedSystem scoped(system);
  system.disturb(true);
  std::string text(10'000, 'x');
  file::write(scratch / "a", text);
  file::append(scratch / "b", text);
  EXPECT_EQ(file::read(scratch / "a"), text);
  EXPECT_EQ(file::read(scratch / "b"), text);
}

TEST(File, AfterACrashAtAnyCallAFileIsOldOrNew) {
  for (Survives survives : {Survives::kNothing, Survives::kEntries, Survives::kEverything}) {
    for (int call = 1;; ++call) {
      Scratch scratch;
      file::write(scratch / "a", "old");
      FaultySystem system(scratch.path());
      file::ScopedSystem scoped(system);
      system.crash_at(call);
      bool saved = true;
      try {
        file::write(scratch / "a", "new");
      } catch (const file::FileError&) {
        saved = false;
      }
      bool crashed = system.count() >= call;
      system.recover(survives);
      EXPECT_THAT(file::read(scratch / "a"), testing::AnyOf("old", "new")) << call;
      EXPECT_TRUE(!saved || file::read(scratch / "a") == "new") << call;
      if (!crashed) break;
    }
  }
}

TEST(File, AfterAFailureAtAnyCallAFileIsOldOrNewAndNothingIsLeft) {
  for (int call = 1;; ++call) {
    Scratch scratch;
    file::write(scratch / "a", "old");
    FaultySystem system(scratch.path());
    file::ScopedSystem scoped(system);
    system.fail_at(call, EIO);
    bool failed = false;
    try {
      file::write(scratch / "a", "new");
    } catch (const file::FileError&) {
      failed = true;
    }
    EXPECT_FALSE(std::filesystem::exists(scratch / "a.tmp")) << call;
    EXPECT_THAT(file::read(scratch / "a"), testing::AnyOf("old", "new")) << call;
    if (system.count() < call) break;
    EXPECT_TRUE(failed || file::read(scratch / "a") == "new") << call;
  }
}

TEST(File, FoldersAreCreatedWithParentsRenamedAndRemoved) {
  Scratch scratch;
  file::create_folders(scratch / "a/b/c/");
  file::create_folders(scratch / "a/b/c");
  file::write(scratch / "a/b/c/file", "x");
  file::write(scratch / "outside", "kept");
  std::filesystem::create_symlink(scratch.path(), scratch / "a/b/link");
  file::rename(scratch / "a", scratch / "z");
  EXPECT_EQ(file::read(scratch / "z/b/c/file"), "x");
  file::remove_tree(scratch / "z");
  EXPECT_FALSE(std::filesystem::exists(scratch / "z"));
  EXPECT_EQ(file::read(scratch / "outside"), "kept");
}

TEST(File, RemovingATreeRemovesTheNamedFileLast) {
  for (int call = 1;; ++call) {
    Scratch scratch;
    file::create_folders(scratch / "a");
    for (const char* name : {"data1", "manifest", "zdata"}) file::write(scratch / "a" / name, name);
    FaultySystem system(scratch.path());
    file::ScopedSystem scoped(system);
    system.crash_at(call);
    bool removed = true;
    try {
      file::remove_tree(scratch / "a", "manifest");
    } catch (const file::FileError&) {
      removed = false;
    }
    system.recover(Survives::kNothing);
    if (removed) break;
    bool holds_data = std::filesystem::exists(scratch / "a/data1") || std::filesystem::exists(scratch / "a/zdata");
    EXPECT_TRUE(!holds_data || std::filesystem::exists(scratch / "a/manifest")) << call;
  }
}

}  // namespace
}  // namespace hyperparallel
