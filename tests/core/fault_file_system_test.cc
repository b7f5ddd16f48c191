// The file system that fails in tests: what it promises, tests of other things rely on.
#include "tests/support/fault_file_system.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

#include "tests/support/memory_file_system.h"
#include "tests/support/status_asserts.h"
#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

class FaultFileSystemTest : public SeededTest {
 protected:
  void Write(const std::string& path, std::string_view bytes, bool sync) {
    ASSERT_OK_AND_ASSIGN(const auto file, faults_.Create(path));
    ASSERT_OK(file->WriteAt(0, bytes));
    if (sync) {
      ASSERT_OK(file->Sync());
    }
    ASSERT_OK(file->Close());
  }

  FaultFileSystemTest() { base_.Put("d/old", "old"); }

  MemoryFileSystem base_;
  FaultFileSystem faults_{base_};
};

TEST_F(FaultFileSystemTest, FailsTheCallThatWasAsked) {
  faults_.Arm(Fault::kError, 1, ENOSPC);
  ASSERT_OK_AND_ASSIGN(const auto file, faults_.Create("d/f"));
  EXPECT_FAILS(file->WriteAt(0, "x"), kResourceExhausted, HasSubstr("d/f"));
  EXPECT_OK(file->WriteAt(0, "y"));
  EXPECT_THAT(faults_.calls(), ElementsAre("Create d/f", "WriteAt d/f", "WriteAt d/f"));
  EXPECT_EQ(base_.Bytes("d/f"), "y");
}

TEST_F(FaultFileSystemTest, LateErrorsAndTornWrites) {
  faults_.Arm(Fault::kLateError, 0, EIO);
  EXPECT_FAILS(faults_.Rename("d/old", "d/new"), kDataLoss, HasSubstr("d/old"));
  EXPECT_TRUE(base_.Has("d/new"));
  std::set<size_t> sizes;
  for (int i = 0; i < 50; ++i) {
    const std::string path = "d/" + std::to_string(i);
    ASSERT_OK_AND_ASSIGN(const auto file, faults_.Create(path));
    faults_.Arm(Fault::kTornWrite, static_cast<uint64_t>(i), EIO);
    for (int other = 0; other < i; ++other) ASSERT_OK(file->Truncate(0));
    EXPECT_FALSE(file->WriteAt(0, "12345678").ok());
    EXPECT_EQ(base_.Bytes(path), std::string("12345678").substr(0, base_.Bytes(path).size()));
    sizes.insert(base_.Bytes(path).size());
  }
  EXPECT_GT(sizes.size(), 4u);
}

TEST_F(FaultFileSystemTest, ShortReads) {
  ASSERT_OK_AND_ASSIGN(const auto file, faults_.Open("d/old"));
  faults_.Arm(Fault::kShortRead, 1, 0);
  char buffer[3];
  EXPECT_EQ(file->ReadAt(0, 3, buffer).value(), 3u);
  EXPECT_EQ(file->ReadAt(0, 3, buffer).value(), 1u);
  EXPECT_EQ(file->ReadAt(0, 3, buffer).value(), 3u);
}

TEST_F(FaultFileSystemTest, AFullDiskStaysFull) {
  faults_.Arm(Fault::kDiskFull, 1, ENOSPC);
  ASSERT_OK_AND_ASSIGN(const auto file, faults_.Create("d/f"));
  EXPECT_FALSE(file->WriteAt(0, "x").ok());
  EXPECT_FALSE(file->WriteAt(0, "x").ok());
  EXPECT_FALSE(faults_.Create("d/g").ok());
  EXPECT_OK(faults_.Remove("d/f"));
  EXPECT_OK(faults_.List("d"));
}

TEST_F(FaultFileSystemTest, AfterACrashNothingWorks) {
  faults_.Arm(Fault::kCrash, 0, EIO);
  EXPECT_FALSE(faults_.List("d").ok());
  EXPECT_FALSE(faults_.Remove("d/old").ok());
  EXPECT_FALSE(faults_.Open("d/old").ok());
  EXPECT_TRUE(base_.Has("d/old"));
}

TEST_F(FaultFileSystemTest, WhatWasNotSyncedIsLost) {
  Write("d/name-lost", "x", true);
  faults_.LoseUnsynced(nullptr);
  EXPECT_THAT(base_.Files(), UnorderedElementsAre(Pair("d/old", "old")));

  Write("d/bytes-lost", "x", false);
  Write("d/kept", "x", true);
  ASSERT_OK(faults_.SyncDirectory("d"));
  ASSERT_OK(faults_.Remove("d/kept"));
  ASSERT_OK(faults_.Remove("d/old"));
  faults_.LoseUnsynced(nullptr);
  EXPECT_THAT(base_.Files(), UnorderedElementsAre(Pair("d/old", "old"), Pair("d/bytes-lost", ""),
                                                  Pair("d/kept", "x")));

  Write("d/new", "new", true);
  ASSERT_OK(faults_.SyncDirectory("d"));
  ASSERT_OK(faults_.Rename("d/new", "d/old"));
  EXPECT_EQ(base_.Bytes("d/old"), "new");
  faults_.LoseUnsynced(nullptr);
  EXPECT_EQ(base_.Bytes("d/old"), "old");
  EXPECT_EQ(base_.Bytes("d/new"), "new");
  ASSERT_OK(faults_.Rename("d/new", "d/old"));
  ASSERT_OK(faults_.SyncDirectory("d"));
  faults_.LoseUnsynced(nullptr);
  EXPECT_EQ(base_.Bytes("d/old"), "new");
  EXPECT_FALSE(base_.Has("d/new"));
}

// Of what was not synced, anything may be left.
TEST_F(FaultFileSystemTest, OrSomeOfItIsLost) {
  std::set<std::string> seen;
  for (int i = 0; i < 300; ++i) {
    base_ = MemoryFileSystem();
    base_.Put("d/old", "old");
    Write("d/new", "new", i % 2 == 0);
    ASSERT_OK(faults_.Rename("d/new", "d/old"));
    faults_.LoseUnsynced(&random_);
    std::string state;
    for (const auto& [path, bytes] : base_.Files()) state += path + "=" + bytes + " ";
    seen.insert(state);
  }
  for (const char* state : {"d/old=old ", "d/new=new d/old=old ", "d/old=new "}) {
    EXPECT_TRUE(seen.contains(state)) << state;
  }
  EXPECT_FALSE(seen.contains(""));
}

}  // namespace
}  // namespace latchkey::test
