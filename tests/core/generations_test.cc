// Generations come and go: which there are, an earlier one's content published again, old ones
// removed, and what a reader holds stays whatever happens.
#include "core/table/generations.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/lookup/visible_rows.h"
#include "core/table/snapshot.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

// Doc id and value by key.
using Content = std::map<std::string, std::pair<uint64_t, std::string>>;

Content ContentOf(const Snapshot& snapshot) {
  Content content;
  EXPECT_OK(ForEachVisibleRow(snapshot, [&](const StoredRow& row) {
    EXPECT_TRUE(content.emplace(row.key, std::pair(row.doc_id, std::string(row.value))).second);
    return absl::OkStatus();
  }));
  return content;
}

Content ContentOf(FileSystem& files, const std::string& dir, uint64_t generation) {
  const auto held = HoldGeneration(files, dir, generation);
  EXPECT_OK(held);
  if (!held.ok()) return {};
  const auto snapshot = Snapshot::Open(files, dir, held->manifest);
  EXPECT_OK(snapshot);
  return snapshot.ok() ? ContentOf(**snapshot) : Content();
}

// --- locks ------------------------------------------------------------------------------------

// The machine's file system, and the one in memory, whose locks must be like it.
class SharedLockTest : public testing::TestWithParam<bool> {
 protected:
  SharedLockTest() { EXPECT_OK(files_.CreateDirectories(folder_.Path("t"))); }

  void Create(const std::string& path) { ASSERT_OK(files_.Create(path)); }

  TempDir folder_;
  MemoryFileSystem memory_;
  FileSystem& files_ = GetParam() ? static_cast<FileSystem&>(memory_) : PosixFileSystem();
  const std::string path_ = folder_.Path("t/file");
};
INSTANTIATE_TEST_SUITE_P(, SharedLockTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "Memory" : "Posix"; });

TEST_P(SharedLockTest, ManyShareAndOneExcludes) {
  Create(path_);
  {
    ASSERT_OK_AND_ASSIGN(auto first, files_.LockShared(path_));
    ASSERT_OK_AND_ASSIGN(auto second, files_.LockShared(path_));
    for (auto* lock : {&first, &second}) {
      ASSERT_OK_AND_ASSIGN(const auto none, files_.TryLockExclusive(path_));
      EXPECT_EQ(none, nullptr);
      lock->reset();
    }
    ASSERT_OK_AND_ASSIGN(const auto whole, files_.TryLockExclusive(path_));
    EXPECT_NE(whole, nullptr);
    ASSERT_OK_AND_ASSIGN(const auto none, files_.TryLockExclusive(path_));
    EXPECT_EQ(none, nullptr);
    EXPECT_FAILS(files_.Lock(path_), kFailedPrecondition, HasSubstr(path_));
  }
  EXPECT_OK(files_.LockShared(path_));
  ASSERT_OK_AND_ASSIGN(const auto written, files_.Lock(path_));
  ASSERT_OK_AND_ASSIGN(const auto none, files_.TryLockExclusive(path_));
  EXPECT_EQ(none, nullptr);
}

TEST_P(SharedLockTest, AFileThatIsNotThereIsNotMade) {
  EXPECT_FAILS(files_.LockShared(path_), kNotFound, HasSubstr(path_));
  EXPECT_FAILS(files_.TryLockExclusive(path_), kNotFound, HasSubstr(path_));
  ASSERT_OK_AND_ASSIGN(const auto names, files_.List(folder_.Path("t")));
  EXPECT_THAT(names, IsEmpty());
}

TEST_P(SharedLockTest, ALockIsOfTheFileNotOfItsName) {
  Create(path_);
  ASSERT_OK_AND_ASSIGN(const auto old, files_.LockShared(path_));
  ASSERT_OK(files_.Remove(path_));
  Create(path_);
  ASSERT_OK_AND_ASSIGN(auto lock, files_.TryLockExclusive(path_));
  EXPECT_NE(lock, nullptr);
  lock = nullptr;
  ASSERT_OK_AND_ASSIGN(const auto moved, files_.LockShared(path_));
  ASSERT_OK(files_.Rename(path_, path_ + "2"));
  ASSERT_OK_AND_ASSIGN(lock, files_.TryLockExclusive(path_ + "2"));
  EXPECT_EQ(lock, nullptr);
}

// Whether a reader comes before the removal or waits for the lock until after: it never has a file
// that is gone, be there another one of that name or not.
TEST(PosixLockTest, WhatIsRemovedUnderAnExclusiveLockIsNotHeld) {
  FileSystem& files = PosixFileSystem();
  const TempDir folder;
  const std::string path = folder.Path("file");
  for (int round = 0; round < 60; ++round) {
    ASSERT_OK(files.Create(path));
    ASSERT_OK_AND_ASSIGN(auto lock, files.TryLockExclusive(path));
    absl::StatusOr<std::unique_ptr<FileLock>> read;
    std::thread reader([&] { read = files.LockShared(path); });
    if (round % 3 != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const bool replaced = round % 2 == 0;
    EXPECT_OK(files.Remove(path));
    if (replaced) {
      EXPECT_OK(files.Create(path));
    }
    lock = nullptr;
    reader.join();
    if (!replaced) {
      EXPECT_FAILS(read, kNotFound, HasSubstr(path));
      continue;
    }
    if (read.ok()) {
      ASSERT_OK_AND_ASSIGN(const auto none, files.TryLockExclusive(path));
      EXPECT_EQ(none, nullptr) << "it has the file that is gone";
    } else {
      EXPECT_FAILS(read, kNotFound, HasSubstr(path));
    }
    ASSERT_OK(files.Remove(path));
  }
}

// --- one table --------------------------------------------------------------------------------

class GenerationsTest : public SeededTest {
 protected:
  GenerationsTest() : table_(files_, "data", random_) {
    table_.options.schema.value_kind = ValueKind::kBytes;
  }

  // Generations 2 (a), 3 (a and b), 4 (c alone, of a build anew), 5 (c and d).
  void MakeFive() {
    ASSERT_OK(table_.Build({{"a", "1"}}));
    ASSERT_OK(table_.Append({{"b", "2"}, {"a", "2"}}));
    ASSERT_OK(table_.Build({{"c", "3"}}));
    ASSERT_OK(table_.Append({{"d", "4"}}));
    names_ = {"g00000001.manifest",  "g00000002.manifest",
              "g00000003.manifest",  "g00000004.manifest",
              "g00000005.manifest",  "g00000002-0.segment",
              "g00000003-0.segment", "g00000004-0.segment",
              "g00000005-0.segment", "lock"};
  }

  std::set<std::string> Names() {
    const auto names = files_.List(table_.dir());
    EXPECT_OK(names);
    return {names->begin(), names->end()};
  }
  std::set<std::string> NamesWithout(const std::vector<std::string>& gone) const {
    std::set<std::string> names = names_;
    for (const std::string& name : gone) EXPECT_EQ(names.erase(name), 1u) << name;
    return names;
  }
  void Damage(uint64_t generation) {
    files_.Bytes(table_.Path(ManifestFileName(generation)))[20] ^= 1;
  }
  absl::StatusOr<std::shared_ptr<const Snapshot>> Open(uint64_t generation) {
    auto manifest = ReadManifest(files_, table_.dir(), generation);
    if (!manifest.ok()) return manifest.status();
    return Snapshot::Open(files_, table_.dir(), *manifest);
  }
  absl::StatusOr<GcResult> Collect(uint64_t keep) {
    return Gc(files_, table_.dir(), {.keep = keep});
  }
  absl::StatusOr<Manifest> RollBackTo(uint64_t generation) {
    return Rollback(files_, table_.dir(), generation);
  }

  MemoryFileSystem files_;
  TestTable table_;
  std::set<std::string> names_;  // of all files that MakeFive made
};

TEST_F(GenerationsTest, NumbersAsText) {
  EXPECT_EQ(GenerationsText({}), "");
  EXPECT_EQ(GenerationsText({7}), "7");
  EXPECT_EQ(GenerationsText({7, 8}), "7, 8");
  EXPECT_EQ(GenerationsText({1, 3, 4, 5, 8, 9, 11, 12, 13, 14}), "1, 3 to 5, 8, 9, 11 to 14");
}

TEST_F(GenerationsTest, AreListed) {
  MakeFive();
  Damage(2);
  ASSERT_OK_AND_ASSIGN(const auto reader, Open(3));
  ASSERT_OK_AND_ASSIGN(const auto infos, ListTableGenerations(files_, table_.dir()));
  ASSERT_EQ(infos.size(), 5u);
  const std::map<uint64_t, std::pair<uint64_t, uint64_t>> segments_and_rows = {
      {1, {0, 0}}, {3, {2, 3}}, {4, {1, 1}}, {5, {2, 2}}};
  for (size_t i = 0; i < infos.size(); ++i) {
    const GenerationInfo& info = infos[i];
    SCOPED_TRACE(i);
    EXPECT_EQ(info.generation, i + 1);
    EXPECT_EQ(info.newest, i == 4);
    EXPECT_EQ(info.held, i + 1 == 3);
    if (i + 1 == 2) {
      EXPECT_FAILS(info.status, kDataLoss, HasSubstr("g00000002.manifest"));
      continue;
    }
    ASSERT_OK(info.status);
    ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(files_, table_.dir(), i + 1));
    EXPECT_EQ(info.created_unix_s, manifest.created_unix_s);
    EXPECT_EQ(std::pair(info.segments, info.rows), segments_and_rows.at(i + 1));
    uint64_t bytes = 0;
    for (const SegmentRef& ref : manifest.segments) {
      bytes += files_.Bytes(table_.Path(ref.file)).size();
    }
    EXPECT_EQ(info.file_bytes, bytes);
  }
  EXPECT_FAILS(ListTableGenerations(files_, "data/none"), kNotFound, HasSubstr("data/none"));
  ASSERT_OK(files_.CreateDirectories("data/empty"));
  EXPECT_FAILS(ListTableGenerations(files_, "data/empty"), kNotFound, HasSubstr("data/empty"));
}

TEST_F(GenerationsTest, RollbackPublishesAnEarlierContentUnderANewNumber) {
  MakeFive();
  ASSERT_OK_AND_ASSIGN(const Manifest third, ReadManifest(files_, table_.dir(), 3));
  ASSERT_OK_AND_ASSIGN(const Manifest published, RollBackTo(3));
  EXPECT_EQ(published.generation, 6u);
  ASSERT_OK_AND_ASSIGN(const auto newest, table_.Open());
  EXPECT_EQ(newest->manifest(), published);
  Manifest expected = third;
  expected.generation = 6;
  expected.created_unix_s = published.created_unix_s;
  EXPECT_EQ(published, expected);
  EXPECT_GE(published.created_unix_s, third.created_unix_s);
  const Content content = {{"a", {1, "2"}}, {"b", {0, "2"}}};
  EXPECT_EQ(ContentOf(*newest), content);
  // Nothing else changed, and what follows builds on it.
  for (uint64_t generation = 1; generation <= 5; ++generation) EXPECT_OK(Open(generation));
  ASSERT_OK(table_.Append({{"e", "5"}}));
  const Content more = {{"a", {1, "2"}}, {"b", {0, "2"}}, {"e", {0, "5"}}};
  EXPECT_EQ(ContentOf(files_, table_.dir(), 7), more);
}

TEST_F(GenerationsTest, RollbackToAnotherSchema) {
  ASSERT_OK(table_.Build({{"a", "1"}}));
  table_.options.schema = {.key_kind = KeyKind::kText, .doc_id_bytes = 8};
  ASSERT_OK(table_.Build({{"b", ""}}));
  ASSERT_OK_AND_ASSIGN(const Manifest published, RollBackTo(2));
  EXPECT_EQ(published.schema.value_kind, ValueKind::kBytes);
  EXPECT_EQ(ContentOf(files_, table_.dir(), 4), Content({{"a", {0, "1"}}}));
}

// Times never run backwards, whatever the clock does.
TEST_F(GenerationsTest, AClockThatGoesBackwards) {
  MakeFive();
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadManifest(files_, table_.dir(), 5));
  manifest.generation = 6;
  manifest.created_unix_s += 1'000'000'000;  // and now is before that
  ASSERT_OK(PublishManifest(files_, table_.dir(), manifest));
  ASSERT_OK_AND_ASSIGN(const Manifest published, RollBackTo(2));
  EXPECT_EQ(published.created_unix_s, manifest.created_unix_s);
  // Of the one rolled back to as well, if the newest can't be read.
  Damage(7);
  ASSERT_OK_AND_ASSIGN(const Manifest again, RollBackTo(6));
  EXPECT_EQ(again.generation, 8u);
  EXPECT_EQ(again.created_unix_s, manifest.created_unix_s);
  ASSERT_OK_AND_ASSIGN(const auto infos, ListTableGenerations(files_, table_.dir()));
  int64_t last = 0;
  for (const GenerationInfo& info : infos) {
    if (!info.status.ok()) continue;
    EXPECT_GE(info.created_unix_s, last);
    last = info.created_unix_s;
  }
}

TEST_F(GenerationsTest, RollbackFromADamagedGeneration) {
  MakeFive();
  Damage(5);
  EXPECT_FAILS(table_.Open(), kDataLoss, HasSubstr("g00000005.manifest"));
  ASSERT_OK(RollBackTo(4));
  EXPECT_EQ(ContentOf(files_, table_.dir(), 6), Content({{"c", {0, "3"}}}));
  ASSERT_OK(table_.Open());
}

TEST_F(GenerationsTest, RollbackToWhatIsNotThere) {
  MakeFive();
  ASSERT_OK(Collect(2));
  const auto before = files_.Files();
  for (const uint64_t generation : {0, 3, 6, 99}) {
    EXPECT_FAILS(RollBackTo(generation), kNotFound,
                 AllOf(StartsWith("data/t"), HasSubstr(fmt::format("generation {}", generation)),
                       HasSubstr("there are 4, 5")));
  }
  EXPECT_FAILS(RollBackTo(5), kFailedPrecondition, HasSubstr("newest"));
  EXPECT_EQ(files_.Files(), before);
  EXPECT_FAILS(Rollback(files_, "data/none", 1), kNotFound, HasSubstr("data/none"));
  EXPECT_EQ(files_.Files(), before);
}

TEST_F(GenerationsTest, RollbackToWhoseFilesAreNotThere) {
  MakeFive();
  const std::string path = table_.Path("g00000002-0.segment");
  const std::string whole = files_.Bytes(path);
  ASSERT_OK(files_.Remove(path));
  EXPECT_FAILS(RollBackTo(3), kNotFound, AllOf(HasSubstr("generation 3"), HasSubstr(path)));
  files_.Put(path, whole.substr(0, whole.size() - 1));
  EXPECT_FAILS(RollBackTo(3), kDataLoss, HasSubstr(path));
  files_.Put(path, files_.Bytes(table_.Path("g00000003-0.segment")));
  EXPECT_FAILS(RollBackTo(3), kDataLoss, HasSubstr(path));
  Damage(2);
  EXPECT_FAILS(RollBackTo(2), kDataLoss, HasSubstr("g00000002.manifest"));
  EXPECT_EQ(Names(), names_);
}

TEST_F(GenerationsTest, OneWriterAtATime) {
  MakeFive();
  const auto before = files_.Files();
  {
    ASSERT_OK_AND_ASSIGN(const auto writer, files_.Lock(table_.Path("lock")));
    EXPECT_FAILS(RollBackTo(3), kFailedPrecondition, HasSubstr("data/t/lock"));
    EXPECT_FAILS(Collect(1), kFailedPrecondition, HasSubstr("data/t/lock"));
    EXPECT_OK(Gc(files_, table_.dir(), {.dry_run = true}));
    EXPECT_EQ(files_.Files(), before);
  }
  EXPECT_OK(RollBackTo(3));
  EXPECT_OK(Collect(1));
}

TEST_F(GenerationsTest, RollbackRemovesWhatAKilledWriterLeft) {
  MakeFive();
  files_.Put(table_.Path("g00000006-0.segment"), "left over");
  files_.Put(table_.Path("spill.tmp"), "left over");
  ASSERT_OK(RollBackTo(2));
  names_.insert("g00000006.manifest");
  EXPECT_EQ(Names(), names_);
}

// --- gc ---------------------------------------------------------------------------------------

TEST_F(GenerationsTest, GcKeepsTheNewest) {
  MakeFive();
  const auto before = files_.Files();
  ASSERT_OK_AND_ASSIGN(const GcResult none, Collect(5));
  EXPECT_THAT(none.kept, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(none.files, IsEmpty());
  EXPECT_EQ(none.bytes, 0u);
  ASSERT_OK(Collect(UINT64_MAX));
  EXPECT_EQ(files_.Files(), before);
  // Generation 3 names the file of 2.
  ASSERT_OK_AND_ASSIGN(const GcResult first, Collect(3));
  EXPECT_THAT(first.removed, ElementsAre(1, 2));
  EXPECT_THAT(first.files, ElementsAre("g00000001.manifest", "g00000002.manifest"));
  EXPECT_EQ(Names(), NamesWithout({"g00000001.manifest", "g00000002.manifest"}));
  EXPECT_EQ(ContentOf(files_, table_.dir(), 3).size(), 2u);
  ASSERT_OK_AND_ASSIGN(const GcResult second, Collect(1));
  EXPECT_THAT(second.kept, ElementsAre(5));
  EXPECT_THAT(second.held, IsEmpty());
  EXPECT_THAT(second.removed, ElementsAre(3, 4));
  EXPECT_THAT(second.files, ElementsAre("g00000003.manifest", "g00000004.manifest",
                                        "g00000002-0.segment", "g00000003-0.segment"));
  uint64_t bytes = 0;
  for (const std::string& name : second.files) bytes += before.at(table_.Path(name)).size();
  EXPECT_EQ(second.bytes, bytes);
  EXPECT_EQ(Names(), (std::set<std::string>{"g00000004-0.segment", "g00000005-0.segment",
                                            "g00000005.manifest", "lock"}));
  EXPECT_EQ(ContentOf(files_, table_.dir(), 5).size(), 2u);
  EXPECT_FAILS(Collect(0), kInvalidArgument, HasSubstr("at least 1"));
  EXPECT_FAILS(Gc(files_, "data/none", {}), kNotFound, HasSubstr("data/none"));
}

TEST_F(GenerationsTest, GcLeavesWhatReadersHold) {
  MakeFive();
  ASSERT_OK_AND_ASSIGN(auto reader, Open(3));
  ASSERT_OK_AND_ASSIGN(auto other_reader, Open(3));
  ASSERT_OK_AND_ASSIGN(const GcResult held, Collect(1));
  EXPECT_THAT(held.kept, ElementsAre(5));
  EXPECT_THAT(held.held, ElementsAre(3));
  EXPECT_THAT(held.removed, ElementsAre(1, 2, 4));
  EXPECT_EQ(Names(),
            NamesWithout({"g00000001.manifest", "g00000002.manifest", "g00000004.manifest"}));
  EXPECT_EQ(ContentOf(*reader).size(), 2u);
  EXPECT_EQ(ContentOf(files_, table_.dir(), 3), ContentOf(*reader));
  reader = nullptr;
  ASSERT_OK_AND_ASSIGN(const GcResult still, Collect(1));
  EXPECT_THAT(still.held, ElementsAre(3));
  EXPECT_THAT(still.files, IsEmpty());
  other_reader = nullptr;
  ASSERT_OK_AND_ASSIGN(const GcResult free, Collect(1));
  EXPECT_THAT(free.removed, ElementsAre(3));
  EXPECT_EQ(Names(), (std::set<std::string>{"g00000004-0.segment", "g00000005-0.segment",
                                            "g00000005.manifest", "lock"}));
}

TEST_F(GenerationsTest, GcKeepsTheFilesOfARollback) {
  MakeFive();
  ASSERT_OK(RollBackTo(3));
  ASSERT_OK(Collect(1));
  EXPECT_EQ(Names(), (std::set<std::string>{"g00000002-0.segment", "g00000003-0.segment",
                                            "g00000006.manifest", "lock"}));
  EXPECT_EQ(ContentOf(files_, table_.dir(), 6).size(), 2u);
}

TEST_F(GenerationsTest, GcRemovesLeftoversAndNothingForeign) {
  MakeFive();
  for (const char* name :
       {"g00000003-1.segment", "g00000009-0.segment", "spill.tmp", "g00000006.manifest.tmp"}) {
    files_.Put(table_.Path(name), "left over");
  }
  for (const char* name : {"notes.txt", "x.segment", "g1.manifest", "g00000009.txt"}) {
    files_.Put(table_.Path(name), "foreign");
    names_.insert(name);
  }
  ASSERT_OK_AND_ASSIGN(const GcResult result, Collect(9));
  EXPECT_THAT(result.files, ElementsAre("g00000003-1.segment", "g00000006.manifest.tmp",
                                        "g00000009-0.segment", "spill.tmp"));
  EXPECT_EQ(Names(), names_);
}

TEST_F(GenerationsTest, GcThatOnlyTells) {
  MakeFive();
  ASSERT_OK_AND_ASSIGN(const auto reader, Open(2));
  const auto before = files_.Files();
  ASSERT_OK_AND_ASSIGN(const GcResult told, Gc(files_, table_.dir(), {.dry_run = true}));
  EXPECT_EQ(files_.Files(), before);
  ASSERT_OK_AND_ASSIGN(const GcResult done, Collect(1));
  EXPECT_THAT(done.removed, ElementsAre(1, 3, 4));
  EXPECT_EQ(told.kept, done.kept);
  EXPECT_EQ(told.held, done.held);
  EXPECT_EQ(told.removed, done.removed);
  EXPECT_EQ(told.files, done.files);
  EXPECT_EQ(told.bytes, done.bytes);
}

// A generation that is still being copied is no reason to let go of what is whole.
TEST_F(GenerationsTest, GcRefusesWhereNothingWholeWouldStay) {
  MakeFive();
  const std::string path = table_.Path("g00000005-0.segment");
  const std::string whole = files_.Bytes(path);
  files_.Put(path, whole.substr(0, 4096));
  for (int round = 0; round < 2; ++round) {
    const auto before = files_.Files();
    EXPECT_FAILS(Collect(1), kFailedPrecondition, AllOf(HasSubstr("whole"), HasSubstr(path)));
    EXPECT_FAILS(Gc(files_, table_.dir(), {.keep = 1, .dry_run = true}), kFailedPrecondition,
                 HasSubstr(path));
    EXPECT_EQ(files_.Files(), before);
    if (round == 0) {
      ASSERT_OK(files_.Remove(path));
    }
  }
  ASSERT_OK_AND_ASSIGN(const GcResult result, Collect(2));
  EXPECT_THAT(result.removed, ElementsAre(1, 2, 3));
  EXPECT_EQ(ContentOf(files_, table_.dir(), 4), Content({{"c", {0, "3"}}}));
  files_.Put(path, whole);
  ASSERT_OK(Collect(1));
  EXPECT_EQ(ContentOf(files_, table_.dir(), 5).size(), 2u);
}

// Which files a manifest needs that can't be read, nobody knows.
TEST_F(GenerationsTest, GcRefusesWhereAManifestThatStaysCannotBeRead) {
  MakeFive();
  Damage(4);
  const auto before = files_.Files();
  for (const uint64_t keep : {2, 3, 5}) {
    EXPECT_FAILS(Collect(keep), kDataLoss,
                 AllOf(HasSubstr("no segment is removed"), HasSubstr("g00000004.manifest")));
    EXPECT_EQ(files_.Files(), before);
  }
  // If it is old and nobody holds it, it goes, and nothing needs its files.
  ASSERT_OK_AND_ASSIGN(const GcResult result, Collect(1));
  EXPECT_THAT(result.removed, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(ContentOf(files_, table_.dir(), 5).size(), 2u);
}

TEST_F(GenerationsTest, GcRefusesWhereAManifestThatIsHeldCannotBeRead) {
  MakeFive();
  ASSERT_OK_AND_ASSIGN(auto reader, Open(3));
  Damage(3);
  const auto before = files_.Files();
  EXPECT_FAILS(Collect(1), kDataLoss, HasSubstr("g00000003.manifest"));
  EXPECT_EQ(files_.Files(), before);
  reader = nullptr;
  ASSERT_OK(Collect(1));
  EXPECT_FALSE(files_.Has(table_.Path("g00000003-0.segment")));
}

// --- readers beside gc ------------------------------------------------------------------------

// Does something before the next file is locked by a reader.
class HookedFileSystem final : public FileSystem {
 public:
  explicit HookedFileSystem(FileSystem& base) : base_(base) {}
  std::function<void()> before_lock;

  absl::StatusOr<std::unique_ptr<FileLock>> LockShared(const std::string& path) override {
    if (const auto hook = std::exchange(before_lock, nullptr)) hook();
    return base_.LockShared(path);
  }
  absl::StatusOr<std::unique_ptr<FileLock>> TryLockExclusive(const std::string& path) override {
    return base_.TryLockExclusive(path);
  }
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    return base_.Lock(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    return base_.Create(path);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    return base_.Open(path);
  }
  absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string& path) override {
    return base_.Map(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return base_.Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override { return base_.Remove(path); }
  absl::Status CreateDirectories(const std::string& path) override {
    return base_.CreateDirectories(path);
  }
  absl::Status SyncDirectory(const std::string& path) override { return base_.SyncDirectory(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return base_.List(path);
  }

 private:
  FileSystem& base_;
};

TEST_F(GenerationsTest, ANewestThatIsRemovedBeforeItIsHeld) {
  MakeFive();
  HookedFileSystem files(files_);
  files.before_lock = [&] {
    ASSERT_OK(RollBackTo(4));
    ASSERT_OK(Collect(1));
  };
  ASSERT_OK_AND_ASSIGN(const auto snapshot, Snapshot::OpenNewest(files, table_.dir()));
  EXPECT_EQ(files.before_lock, nullptr);
  EXPECT_EQ(snapshot->generation(), 6u);
  EXPECT_EQ(ContentOf(*snapshot), Content({{"c", {0, "3"}}}));
}

TEST_F(GenerationsTest, AManifestThatIsGoneWhenItIsOpened) {
  MakeFive();
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(files_, table_.dir(), 3));
  ASSERT_OK(Collect(2));
  EXPECT_FAILS(Snapshot::Open(files_, table_.dir(), manifest), kNotFound,
               AllOf(HasSubstr("g00000003.manifest"), HasSubstr("generation 3 was removed")));
  EXPECT_FAILS(HoldGeneration(files_, table_.dir(), 3), kNotFound, HasSubstr("there are 4, 5"));
  EXPECT_FAILS(HoldManifest(files_, table_.dir(), 3), kNotFound, HasSubstr("g00000003.manifest"));
}

// --- faults -----------------------------------------------------------------------------------

struct FaultCase {
  const char* name;
  bool collects;  // or rolls back
};
void PrintTo(const FaultCase& fault_case, std::ostream* out) { *out << fault_case.name; }

class GenerationsFaultTest : public GenerationsTest, public testing::WithParamInterface<FaultCase> {
 protected:
  absl::Status Do(FileSystem& files) {
    if (GetParam().collects) return Gc(files, table_.dir(), {.keep = 2}).status();
    return Rollback(files, table_.dir(), 3).status();
  }
};
INSTANTIATE_TEST_SUITE_P(, GenerationsFaultTest,
                         testing::Values(FaultCase{"Rollback", false}, FaultCase{"Gc", true}),
                         [](const auto& test) { return test.param.name; });

TEST_P(GenerationsFaultTest, AnyCallFailsOrIsTheLast) {
  MakeFive();
  ASSERT_OK(RollBackTo(2));  // generation 6 names an old file
  files_.Put(table_.Path("g00000007-0.segment"), "left over");
  files_.Put(table_.Path("spill.tmp"), "left over");
  const auto pristine = files_.Files();
  const Content old_content = {{"a", {0, "1"}}}, new_content = {{"a", {1, "2"}}, {"b", {0, "2"}}};
  size_t calls = 0;
  {
    FaultFileSystem faults(files_);
    ASSERT_OK(Do(faults));
    calls = faults.calls().size();
  }
  ASSERT_GT(calls, 10u);
  for (const Fault fault :
       {Fault::kError, Fault::kLateError, Fault::kTornWrite, Fault::kDiskFull, Fault::kCrash}) {
    size_t failed = 0;
    for (size_t at = 0; at < calls; ++at) {
      for (const bool all_lost : {true, false}) {
        MemoryFileSystem files;
        for (const auto& [path, bytes] : pristine) files.Put(path, bytes);
        FaultFileSystem faults(files);
        faults.Arm(fault, at, fault == Fault::kDiskFull ? ENOSPC : EIO);
        const absl::Status status = Do(faults);
        failed += !status.ok();
        SCOPED_TRACE(testing::Message()
                     << "fault " << static_cast<int>(fault) << " at "
                     << (at < faults.calls().size() ? faults.calls()[at] : "none"));
        faults.LoseUnsynced(all_lost ? nullptr : &random_);
        // It is the old one or the new one, whole; what is said to be done is.
        ASSERT_OK_AND_ASSIGN(auto newest, Snapshot::OpenNewest(files, table_.dir()));
        if (GetParam().collects) {
          ASSERT_EQ(newest->generation(), 6u);
        } else if (status.ok()) {
          ASSERT_EQ(newest->generation(), 7u);
        }
        ASSERT_EQ(ContentOf(*newest), newest->generation() == 6 ? old_content : new_content);
        const uint64_t generation = newest->generation();
        newest = nullptr;
        // Each generation that is still there is whole.
        ASSERT_OK_AND_ASSIGN(const auto generations, ListGenerations(files, table_.dir()));
        for (const uint64_t each : generations) ContentOf(files, table_.dir(), each);
        // The next run does what is left to do.
        ASSERT_OK(Gc(files, table_.dir(), {.keep = 1}));
        ASSERT_OK_AND_ASSIGN(const auto names, files.List(table_.dir()));
        std::vector<std::string> expected = {"g00000002-0.segment"};
        if (generation == 7) expected.push_back("g00000003-0.segment");
        expected.push_back(ManifestFileName(generation));
        expected.push_back("lock");
        ASSERT_EQ(names, expected);
      }
    }
    EXPECT_GT(failed, fault == Fault::kDiskFull ? 1u : calls / 2);
  }
}

// --- a model ----------------------------------------------------------------------------------

// Whatever is built, rolled back, collected and held in whatever order: each generation answers as
// a plain map does, as long as it should be there.
TEST_F(GenerationsTest, AgreesWithAPlainMap) {
  std::map<uint64_t, Content> model = {{1, {}}};
  std::vector<std::pair<std::shared_ptr<const Snapshot>, Content>> readers;
  size_t rollbacks = 0, removed = 0, skipped = 0;
  for (int step = 0; step < 600; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    const uint64_t newest = model.rbegin()->first;
    const auto some_generation = [&] {
      return std::next(model.begin(), static_cast<ptrdiff_t>(random_.Below(model.size())))->first;
    };
    switch (random_.Below(8)) {
      case 0:
      case 1:
      case 2: {
        const bool append = random_.OneIn(4) ? false : newest > 1;
        Content content = append ? model.at(newest) : Content();
        std::vector<Row> rows;
        for (std::string& key : DistinctKeys(random_, random_.Below(12), 1)) {
          rows.push_back({std::move(key), random_.Bytes(random_.Below(9)), random_.Below(1000)});
          content[rows.back().key] = {*rows.back().doc_id, rows.back().value};
        }
        ASSERT_OK(append ? table_.Append(rows) : table_.Build(rows));
        model[newest + 1] = std::move(content);
        break;
      }
      case 3:
      case 4: {
        const uint64_t to = some_generation();
        if (to == newest || to == 1) break;  // the first has the plainest schema
        ++rollbacks;
        ASSERT_OK_AND_ASSIGN(const Manifest manifest, RollBackTo(to));
        ASSERT_EQ(manifest.generation, newest + 1);
        model[newest + 1] = model.at(to);
        break;
      }
      case 5: {
        const uint64_t keep = random_.Between(1, 6);
        ASSERT_OK_AND_ASSIGN(const GcResult result, Collect(keep));
        std::vector<uint64_t> kept, held, gone;
        std::set<uint64_t> read;
        for (const auto& [snapshot, content] : readers) read.insert(snapshot->generation());
        size_t left = model.size();
        for (const auto& [generation, content] : model) {
          (left-- <= keep ? kept : read.contains(generation) ? held : gone).push_back(generation);
        }
        ASSERT_EQ(result.kept, kept);
        ASSERT_EQ(result.held, held);
        ASSERT_EQ(result.removed, gone);
        for (const uint64_t generation : gone) model.erase(generation);
        removed += gone.size();
        skipped += held.size();
        break;
      }
      case 6: {
        const uint64_t generation = some_generation();
        ASSERT_OK_AND_ASSIGN(auto snapshot, Open(generation));
        readers.emplace_back(std::move(snapshot), model.at(generation));
        break;
      }
      default:
        if (readers.empty()) break;
        std::swap(random_.Pick(readers), readers.back());
        readers.pop_back();
    }
    // What is there is what the manifests name.
    ASSERT_OK_AND_ASSIGN(const auto generations, ListGenerations(files_, table_.dir()));
    std::vector<uint64_t> expected;
    for (const auto& [generation, content] : model) expected.push_back(generation);
    ASSERT_EQ(generations, expected);
    ASSERT_EQ(ContentOf(files_, table_.dir(), generations.back()), model.rbegin()->second);
    if (step % 10 != 0) continue;
    for (const auto& [generation, content] : model) {
      ASSERT_EQ(ContentOf(files_, table_.dir(), generation), content);
    }
    for (const auto& [snapshot, content] : readers) {
      ASSERT_EQ(ContentOf(*snapshot), content);
      ASSERT_EQ(ContentOf(files_, table_.dir(), snapshot->generation()), content);
    }
  }
  EXPECT_GT(rollbacks, 20u);
  EXPECT_GT(removed, 50u);
  EXPECT_GT(skipped, 5u);
  readers.clear();
  ASSERT_OK(Collect(1));
  ASSERT_OK_AND_ASSIGN(const Manifest newest, ReadNewestManifest(files_, table_.dir()));
  std::set<std::string> expected = {"lock", ManifestFileName(newest.generation)};
  for (const SegmentRef& ref : newest.segments) expected.insert(ref.file);
  EXPECT_EQ(Names(), expected);
}

}  // namespace
}  // namespace latchkey::test
