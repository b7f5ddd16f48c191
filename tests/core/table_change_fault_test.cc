// Deletions and merges in which any one call goes wrong, or the machine loses power. Whatever
// happens, the newest generation opens, and it is the old one or the new one, whole; and the same
// change works when it is made again.
#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/build/key_deleter.h"
#include "core/build/table_merger.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::HasSubstr;

struct Scenario {
  const char* name;
  bool deletes;  // else it merges
  MergePolicy policy;
  bool spills;
};
void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

constexpr uint64_t kOldGeneration = 7, kNewGeneration = 8;

class TableChangeFaultTest : public SeededTest, public testing::WithParamInterface<Scenario> {
 protected:
  TableChangeFaultTest() {
    MemoryFileSystem files;
    TestTable table(files, "data", random_);
    table.options.schema.value_kind = ValueKind::kBytes;
    // A large segment, and five small ones above it, one of them a deletion's.
    std::map<std::string, Row> rows;
    const auto add = [&](size_t count) {
      std::vector<Row> added;
      for (std::string& key : DistinctKeys(random_, count, 12)) {
        added.push_back({std::move(key), random_.Bytes(20), random_.Below(1000)});
      }
      for (size_t i = 0; i < count && i < rows.size() && i < 3; ++i) {
        added[i].key = std::next(rows.begin(), static_cast<ptrdiff_t>(7 * i))->first;
      }
      for (const Row& row : added) rows[row.key] = row;
      return added;
    };
    EXPECT_OK(table.Build(add(2000)));
    for (int i = 0; i < 4; ++i) EXPECT_OK(table.Append(add(20)));
    const auto present = [&](size_t index) {
      return std::next(rows.begin(), static_cast<ptrdiff_t>(index))->first;
    };
    // A deletion that the old generation has already.
    std::vector<Row> earlier;
    for (size_t i = 1; i <= 6; ++i) earlier.push_back({present(8 * i), ""});
    EXPECT_OK(Delete(files, "data", earlier));
    for (const Row& row : earlier) rows.erase(row.key);
    SetReference(rows, &old_reference_);
    if (GetParam().deletes) {
      const size_t count = GetParam().spills ? 1500 : 30;
      for (size_t i = 0; i < count; ++i) deleted_.push_back({present(i), ""});
      for (const std::string& key : DistinctKeys(random_, count / 2, 13)) {
        deleted_.push_back({key, ""});
      }
      if (GetParam().spills) {
        for (std::string& key : DistinctKeys(random_, 400, kKeyBytesMax)) {
          deleted_.push_back({std::move(key), ""});
        }
      }
      for (const Row& row : deleted_) rows.erase(row.key);
    }
    SetReference(rows, &new_reference_);
    questions_ = old_reference_.Keys();
    for (size_t i = questions_.size(); i > 300; --i) {
      std::swap(questions_[random_.Below(i)], questions_[i - 1]);
    }
    questions_.resize(300);
    for (size_t i = 0; i < 30 && i < deleted_.size(); ++i) questions_.push_back(deleted_[i].key);
    for (const Row& row : earlier) questions_.push_back(row.key);
    for (const std::string& key : StrangerKeys(random_, questions_, 20)) questions_.push_back(key);
    files.Put("data/t/g00000009-0.segment", "left over");
    files.Put("data/t/g00000008.manifest.tmp", "left over");
    files.Put("data/t/spill.tmp", "left over");
    pristine_ = files.Files();
  }

  static void SetReference(const std::map<std::string, Row>& rows, ReferenceEngine* reference) {
    std::vector<Row> all;
    for (const auto& [key, row] : rows) all.push_back(row);
    reference->AddSegment(all, DuplicateRule::kReject, {.value_kind = ValueKind::kBytes});
  }

  static absl::StatusOr<DeleteResult> Delete(FileSystem& files, const std::string& data_dir,
                                             const std::vector<Row>& rows) {
    VectorSource source(rows);
    DeleteOptions options;
    options.data_dir = data_dir;
    options.table = "t";
    options.memory_bytes = kBuildMemoryBytesMin;
    return DeleteKeys(files, options, source, nullptr);
  }

  // Writes what was there before into `files`, all of it synced.
  void Reset(FileSystem& files, const std::string& data_dir) {
    data_dir_ = data_dir;
    ASSERT_OK(files.CreateDirectories(JoinPath(data_dir, "t")));
    for (const auto& [path, bytes] : pristine_) {
      ASSERT_OK_AND_ASSIGN(const auto file, files.Create(data_dir + path.substr(4)));
      ASSERT_OK(file->WriteAt(0, bytes));
      ASSERT_OK(file->Close());
    }
  }

  absl::Status Change(FileSystem& files) {
    if (GetParam().deletes) {
      const auto deleted = Delete(files, data_dir_, deleted_);
      if (deleted.ok()) {
        EXPECT_TRUE(deleted->published);
        EXPECT_EQ(deleted->spilled_bytes > 0, GetParam().spills);
      }
      return deleted.status();
    }
    MergeOptions options;
    options.data_dir = data_dir_;
    options.table = "t";
    options.policy = GetParam().policy;
    options.memory_bytes = kBuildMemoryBytesMin;
    const auto merged = MergeTable(files, options, nullptr);
    if (merged.ok()) {
      EXPECT_TRUE(merged->published);
      EXPECT_EQ(merged->plan.segments, Merged());
    }
    return merged.status();
  }
  size_t Merged() const { return GetParam().policy == MergePolicy::kAll ? 6 : 5; }

  std::vector<std::string> CallsOfAChange() {
    MemoryFileSystem files;
    Reset(files, "data");
    FaultFileSystem faults(files);
    EXPECT_OK(Change(faults));
    return faults.calls();
  }

  // Opens what there is now. Returns whether it is the new generation.
  bool OpensOldOrNew(FileSystem& files) {
    const auto snapshot = Snapshot::OpenNewest(files, JoinPath(data_dir_, "t"));
    if (!snapshot.ok()) {
      ADD_FAILURE() << snapshot.status();
      return false;
    }
    const bool is_new = (*snapshot)->generation() == kNewGeneration;
    if (!is_new) {
      EXPECT_EQ((*snapshot)->generation(), kOldGeneration);
    }
    EXPECT_EQ((*snapshot)->segments().size(), !is_new              ? 6u
                                              : GetParam().deletes ? 7u
                                                                   : 7 - Merged());
    ExpectSameAnswers(**snapshot, is_new ? new_reference_ : old_reference_, questions_, 512);
    for (const auto& segment : (*snapshot)->segments()) {
      std::vector<DamagedBlock> damaged;
      EXPECT_OK(VerifySegmentFile(files, segment->path(), &damaged));
      EXPECT_TRUE(damaged.empty());
    }
    return is_new;
  }

  // The change is made again, and what is left in the end is what manifests name.
  void ExpectAnotherRunWorks(FileSystem& files, bool is_new) {
    if (is_new) {
      // It is done already.
      MergeOptions options;
      options.data_dir = data_dir_;
      options.table = "t";
      ASSERT_OK(MergeTable(files, options, nullptr));
    } else {
      ASSERT_OK(Change(files));
      EXPECT_TRUE(OpensOldOrNew(files));
    }
    const std::string dir = JoinPath(data_dir_, "t");
    std::set<std::string> expected = {"lock"};
    ASSERT_OK_AND_ASSIGN(const auto generations, ListGenerations(files, dir));
    for (const uint64_t generation : generations) {
      expected.insert(ManifestFileName(generation));
      ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(files, dir, generation));
      for (const SegmentRef& ref : manifest.segments) expected.insert(ref.file);
    }
    ASSERT_OK_AND_ASSIGN(const auto names, files.List(dir));
    EXPECT_THAT(names, testing::ElementsAreArray(expected));
  }

  // The table's files without those that a change keeps, or may leave for the next one to remove.
  static std::map<std::string, std::string> WithoutLeftovers(
      std::map<std::string, std::string> files) {
    for (const char* name :
         {"lock", "spill.tmp", "g00000008.manifest.tmp", "g00000009-0.segment"}) {
      files.erase(JoinPath("data/t", name));
    }
    return files;
  }

  // Every call, or some where a change takes long, mainly those that others do not have.
  bool Take(const std::string& call) {
    return !GetParam().spills || random_.OneIn(call.ends_with("spill.tmp") ? 150 : 12);
  }

  std::string data_dir_;
  std::vector<Row> deleted_;
  ReferenceEngine old_reference_, new_reference_;
  std::vector<std::string> questions_;
  std::map<std::string, std::string> pristine_;
};

TEST_P(TableChangeFaultTest, AnyCallFails) {
  const std::vector<std::string> calls = CallsOfAChange();
  struct Kind {
    Fault fault;
    int error_number;
  };
  for (const Kind& kind :
       {Kind{Fault::kError, EIO}, Kind{Fault::kError, ENOSPC}, Kind{Fault::kTornWrite, ENOSPC},
        Kind{Fault::kLateError, EIO}, Kind{Fault::kShortRead, 0}, Kind{Fault::kDiskFull, ENOSPC}}) {
    for (size_t call = 0; call < calls.size(); ++call) {
      if (!Take(calls[call])) continue;
      if (kind.fault == Fault::kTornWrite && !calls[call].starts_with("WriteAt")) continue;
      if (kind.fault == Fault::kShortRead && !calls[call].starts_with("ReadAt")) continue;
      SCOPED_TRACE(testing::Message()
                   << "call " << call << ", " << calls[call] << ", fault "
                   << static_cast<int>(kind.fault) << ", errno " << kind.error_number);
      MemoryFileSystem files;
      ASSERT_NO_FATAL_FAILURE(Reset(files, "data"));
      FaultFileSystem faults(files);
      faults.Arm(kind.fault, call, kind.error_number);
      const absl::Status status = Change(faults);
      const bool is_new = OpensOldOrNew(files);
      if (status.ok()) {
        EXPECT_TRUE(is_new);
      } else {
        EXPECT_THAT(Message(status), HasSubstr("data/t"));
        // Only once the manifest has its name can the change fail and yet be there.
        if (is_new) {
          EXPECT_TRUE(call + 4 >= calls.size()) << calls[call];
        } else {
          EXPECT_EQ(WithoutLeftovers(files.Files()), WithoutLeftovers(pristine_));
        }
      }
      ASSERT_NO_FATAL_FAILURE(ExpectAnotherRunWorks(files, is_new));
      ASSERT_FALSE(HasFailure());
    }
  }
}

// A disk that writes something else than it was told.
TEST_P(TableChangeFaultTest, ASegmentThatCameOutWrong) {
  const std::vector<std::string> calls = CallsOfAChange();
  int writes = 0;
  for (size_t call = 0; call < calls.size(); ++call) {
    if (!calls[call].starts_with("WriteAt") || !calls[call].ends_with(".segment")) continue;
    SCOPED_TRACE(testing::Message() << "call " << call << ", " << calls[call]);
    MemoryFileSystem files;
    ASSERT_NO_FATAL_FAILURE(Reset(files, "data"));
    FaultFileSystem faults(files);
    faults.Arm(Fault::kWrongWrite, call, 0);
    const absl::Status status = Change(faults);
    if (status.ok()) {  // nothing was to be written
      EXPECT_TRUE(OpensOldOrNew(files));
      continue;
    }
    ++writes;
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(Message(status), HasSubstr(".segment"));
    EXPECT_FALSE(OpensOldOrNew(files));
    EXPECT_EQ(WithoutLeftovers(files.Files()), WithoutLeftovers(pristine_));
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GE(writes, 6);
}

TEST_P(TableChangeFaultTest, PowerIsLostAtAnyCall) {
  const std::vector<std::string> calls = CallsOfAChange();
  const size_t call_count = calls.size();
  int old_count = 0, new_count = 0;
  for (size_t call = 0; call <= call_count; ++call) {
    // The last call is no call: the power fails after the change.
    if (call > 0 && call < call_count && !Take(calls[call])) continue;
    // Everything is lost, and then some of it.
    for (int round = 0; round < 2; ++round) {
      SCOPED_TRACE(testing::Message() << "call " << call << ", round " << round);
      MemoryFileSystem files;
      ASSERT_NO_FATAL_FAILURE(Reset(files, "data"));
      FaultFileSystem faults(files);
      faults.Arm(Fault::kCrash, call, EIO);
      const bool changed = Change(faults).ok();
      faults.LoseUnsynced(round == 0 ? nullptr : &random_);
      const bool is_new = OpensOldOrNew(files);
      // What was said to be done is done.
      if (changed) {
        EXPECT_TRUE(is_new);
      }
      ++(is_new ? new_count : old_count);
      ASSERT_NO_FATAL_FAILURE(ExpectAnotherRunWorks(files, is_new));
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GT(old_count, 0);
  EXPECT_GT(new_count, 0);
}

// The same with the machine's file system below.
TEST_P(TableChangeFaultTest, OnTheMachinesFileSystem) {
  const size_t call_count = CallsOfAChange().size();
  for (size_t call = 0; call <= call_count; ++call) {
    // The disk takes its time to sync.
    if ((GetParam().spills || call + 4 < call_count) &&
        !random_.OneIn(GetParam().spills ? 200 : 25)) {
      continue;
    }
    for (const Fault fault : {Fault::kTornWrite, Fault::kCrash}) {
      SCOPED_TRACE(testing::Message() << "call " << call << ", fault " << static_cast<int>(fault));
      const TempDir folder;
      ASSERT_NO_FATAL_FAILURE(Reset(PosixFileSystem(), folder.Path("data")));
      FaultFileSystem faults(PosixFileSystem());
      faults.Arm(fault, call, EIO);
      const bool changed = Change(faults).ok();
      if (fault == Fault::kCrash) faults.LoseUnsynced(random_.OneIn(2) ? nullptr : &random_);
      const bool is_new = OpensOldOrNew(PosixFileSystem());
      if (changed) {
        EXPECT_TRUE(is_new);
      }
      ASSERT_NO_FATAL_FAILURE(ExpectAnotherRunWorks(PosixFileSystem(), is_new));
      ASSERT_FALSE(HasFailure());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Scenarios, TableChangeFaultTest,
    testing::Values(Scenario{"Delete", true, MergePolicy::kAll, false},
                    Scenario{"DeleteThatSpills", true, MergePolicy::kAll, true},
                    Scenario{"MergeAll", false, MergePolicy::kAll, false},
                    Scenario{"MergeTiered", false, MergePolicy::kTiered, false}),
    [](const testing::TestParamInfo<Scenario>& scenario) { return scenario.param.name; });

}  // namespace
}  // namespace latchkey::test
