// Builds in which any one call goes wrong, or the machine loses power. Whatever happens, the newest
// generation opens, and it is the old one or the new one, whole; and the next build works.
#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/build/table_builder.h"
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
  bool has_old;  // there are generations already, and what a killed writer left
  bool append;
  bool spills;
  LayoutChoice layout;
};
void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

class TableBuilderFaultTest : public SeededTest, public testing::WithParamInterface<Scenario> {
 protected:
  TableBuilderFaultTest() {
    TableSchema schema{.value_kind = ValueKind::kBytes};
    old_rows_ = RowsOf(60, 20, "old");
    new_rows_ = GetParam().spills ? RowsOf(14, 1 << 20, "new") : RowsOf(60, 20, "new");
    for (size_t i = 0; i < 14; ++i) new_rows_[i].key = old_rows_[3 * i].key;
    options_.data_dir = "data";
    options_.table = "t";
    options_.schema = schema;
    options_.append = GetParam().append;
    options_.memory_bytes = kBuildMemoryBytesMin;
    options_.layout = GetParam().layout;
    if (GetParam().has_old) {
      MemoryFileSystem files;
      TestTable table(files, "data", random_);
      table.options.schema = schema;
      EXPECT_OK(table.Build(RowsOf(10, 20, "oldest")));
      EXPECT_OK(table.Build(old_rows_));
      files.Put("data/t/g00000009-0.segment", "left over");
      files.Put("data/t/g00000004.manifest.tmp", "left over");
      files.Put("data/t/spill.tmp", "left over");
      pristine_ = files.Files();
      old_reference_.AddSegment(old_rows_, DuplicateRule::kReject, schema);
      if (GetParam().append) new_reference_ = old_reference_;
    }
    new_reference_.AddSegment(new_rows_, DuplicateRule::kReject, schema);
    questions_ = old_reference_.Keys();
    for (const std::string& key : new_reference_.Keys()) questions_.push_back(key);
    for (const std::string& key : StrangerKeys(random_, questions_, 20)) questions_.push_back(key);
  }

  std::vector<Row> RowsOf(size_t count, size_t value_bytes, const std::string& mark) {
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, count, 12)) {
      rows.push_back({std::move(key), mark + random_.Bytes(value_bytes), random_.Below(1000)});
    }
    return rows;
  }

  // Writes what was there before into `files`, all of it synced.
  void Reset(FileSystem& files, const std::string& data_dir) {
    options_.data_dir = data_dir;
    ASSERT_OK(files.CreateDirectories(data_dir));
    for (const auto& [path, bytes] : pristine_) {
      ASSERT_OK(files.CreateDirectories(JoinPath(data_dir, "t")));
      ASSERT_OK_AND_ASSIGN(const auto file, files.Create(data_dir + path.substr(4)));
      ASSERT_OK(file->WriteAt(0, bytes));
      ASSERT_OK(file->Close());
    }
  }

  absl::Status Build(FileSystem& files) {
    VectorSource source(new_rows_);
    const auto built = BuildTable(files, options_, source, nullptr);
    if (built.ok()) {
      EXPECT_EQ(built->spilled_bytes > 0, GetParam().spills);
    }
    return built.status();
  }

  std::vector<std::string> CallsOfABuild() {
    MemoryFileSystem files;
    Reset(files, "data");
    FaultFileSystem faults(files);
    EXPECT_OK(Build(faults));
    return faults.calls();
  }

  // Opens what there is now. Returns whether it is the new generation.
  bool OpensOldOrNew(FileSystem& files) {
    const auto snapshot = Snapshot::OpenNewest(files, JoinPath(options_.data_dir, "t"));
    if (!GetParam().has_old && absl::IsNotFound(snapshot.status())) return false;
    if (!snapshot.ok()) {
      ADD_FAILURE() << snapshot.status();
      return false;
    }
    const bool is_new = (*snapshot)->generation() == (GetParam().has_old ? 4u : 1u);
    if (!is_new) {
      EXPECT_EQ((*snapshot)->generation(), 3u);
    }
    // Whatever generation opens has its segment map, if it has several segments.
    EXPECT_OK((*snapshot)->segment_map_status());
    EXPECT_EQ((*snapshot)->segment_map() != nullptr, is_new && GetParam().append);
    ExpectSameAnswers(**snapshot, is_new ? new_reference_ : old_reference_, questions_, 64);
    for (const auto& segment : (*snapshot)->segments()) {
      std::vector<DamagedBlock> damaged;
      EXPECT_OK(VerifySegmentFile(files, segment->path(), &damaged));
      EXPECT_TRUE(damaged.empty());
    }
    return is_new;
  }

  // The next build works, and tidies up: what is left is what manifests name.
  void ExpectNextBuildWorks(FileSystem& files) {
    const std::string dir = JoinPath(options_.data_dir, "t");
    std::vector<Row> rows = {{"next", "value"}};
    VectorSource source(rows);
    BuildOptions options = options_;
    options.append = false;
    ASSERT_OK_AND_ASSIGN(const BuildResult built, BuildTable(files, options, source, nullptr));
    std::set<std::string> expected = {"lock"};
    ASSERT_OK_AND_ASSIGN(const auto generations, ListGenerations(files, dir));
    EXPECT_EQ(generations.back(), built.generation);
    for (const uint64_t generation : generations) {
      expected.insert(ManifestFileName(generation));
      ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(files, dir, generation));
      for (const SegmentRef& ref : manifest.segments) expected.insert(ref.file);
    }
    ASSERT_OK_AND_ASSIGN(const auto names, files.List(dir));
    EXPECT_THAT(names, testing::ElementsAreArray(expected));
  }

  // The table's files without those that a build keeps, or may leave for the next one to remove.
  static std::map<std::string, std::string> WithoutLeftovers(
      std::map<std::string, std::string> files) {
    for (const char* name :
         {"lock", "spill.tmp", "g00000004.manifest.tmp", "g00000009-0.segment"}) {
      files.erase(JoinPath("data/t", name));
    }
    return files;
  }

  // Every call in most scenarios. Where a build takes long, only some: mainly those that the others
  // do not have.
  bool Take(size_t call, const std::vector<std::string>& calls) {
    if (!GetParam().spills) return true;
    const bool of_spill = call < calls.size() && calls[call].ends_with("spill.tmp");
    return random_.OneIn(of_spill ? 16 : 50);
  }

  BuildOptions options_;
  std::vector<Row> old_rows_, new_rows_;
  ReferenceEngine old_reference_, new_reference_;
  std::vector<std::string> questions_;
  std::map<std::string, std::string> pristine_;
};

TEST_P(TableBuilderFaultTest, AnyCallFails) {
  const std::vector<std::string> calls = CallsOfABuild();
  struct Kind {
    Fault fault;
    int error_number;
  };
  for (const Kind& kind :
       {Kind{Fault::kError, EIO}, Kind{Fault::kError, ENOSPC}, Kind{Fault::kTornWrite, ENOSPC},
        Kind{Fault::kLateError, EIO}, Kind{Fault::kShortRead, 0}, Kind{Fault::kDiskFull, ENOSPC}}) {
    for (size_t call = 0; call < calls.size(); ++call) {
      if (!Take(call, calls)) continue;
      if (kind.fault == Fault::kTornWrite && !calls[call].starts_with("WriteAt")) continue;
      if (kind.fault == Fault::kShortRead && !calls[call].starts_with("ReadAt")) continue;
      SCOPED_TRACE(testing::Message()
                   << "call " << call << ", " << calls[call] << ", fault "
                   << static_cast<int>(kind.fault) << ", errno " << kind.error_number);
      MemoryFileSystem files;
      ASSERT_NO_FATAL_FAILURE(Reset(files, "data"));
      FaultFileSystem faults(files);
      faults.Arm(kind.fault, call, kind.error_number);
      const absl::Status status = Build(faults);
      const bool is_new = OpensOldOrNew(files);
      if (status.ok()) {
        EXPECT_TRUE(is_new);
      } else {
        EXPECT_THAT(Message(status), HasSubstr("data"));
        if (kind.error_number == ENOSPC) {
          EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
        }
        if (kind.error_number != ENOSPC) {
          EXPECT_TRUE(absl::IsDataLoss(status)) << status;
        }
        // Only once the manifest has its name can the build fail and yet be there.
        if (is_new) {
          EXPECT_TRUE(call + 3 >= calls.size()) << calls[call];
        } else {
          EXPECT_EQ(WithoutLeftovers(files.Files()), WithoutLeftovers(pristine_));
        }
      }
      ASSERT_NO_FATAL_FAILURE(ExpectNextBuildWorks(files));
      ASSERT_FALSE(HasFailure());
    }
  }
}

// A disk that writes something else than it was told: what was written is read back before it
// counts.
TEST_P(TableBuilderFaultTest, ASegmentThatCameOutWrong) {
  const std::vector<std::string> calls = CallsOfABuild();
  std::vector<size_t> of_segment;
  for (size_t call = 0; call < calls.size(); ++call) {
    if (calls[call].starts_with("WriteAt") && calls[call].ends_with(".segment")) {
      of_segment.push_back(call);
    }
  }
  // All of them, or two where a build takes long.
  if (GetParam().spills) {
    for (size_t i = of_segment.size() - 1; i > 0; --i) {
      std::swap(of_segment[i], of_segment[random_.Below(i + 1)]);
    }
  }
  int writes = 0;
  for (const size_t call : of_segment) {
    if (GetParam().spills && writes == 2) break;
    SCOPED_TRACE(testing::Message() << "call " << call << ", " << calls[call]);
    MemoryFileSystem files;
    ASSERT_NO_FATAL_FAILURE(Reset(files, "data"));
    FaultFileSystem faults(files);
    faults.Arm(Fault::kWrongWrite, call, 0);
    const absl::Status status = Build(faults);
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
  EXPECT_GE(writes, GetParam().spills ? 2 : 6);
}

TEST_P(TableBuilderFaultTest, PowerIsLostAtAnyCall) {
  const std::vector<std::string> calls = CallsOfABuild();
  const size_t call_count = calls.size();
  int old_count = 0, new_count = 0;
  for (size_t call = 0; call <= call_count; ++call) {
    // The last call is no call: the power fails after the build.
    if (call > 0 && call < call_count && !Take(call, calls)) continue;
    // Everything is lost, and then some of it.
    for (int round = 0; round < (GetParam().spills ? 2 : 5); ++round) {
      SCOPED_TRACE(testing::Message() << "call " << call << ", round " << round);
      MemoryFileSystem files;
      ASSERT_NO_FATAL_FAILURE(Reset(files, "data"));
      FaultFileSystem faults(files);
      faults.Arm(Fault::kCrash, call, EIO);
      const bool built = Build(faults).ok();
      EXPECT_TRUE(!built || call + 2 >= call_count);
      faults.LoseUnsynced(round == 0 ? nullptr : &random_);
      const bool is_new = OpensOldOrNew(files);
      // What was said to be done is done.
      if (built) {
        EXPECT_TRUE(is_new);
      }
      ++(is_new ? new_count : old_count);
      ASSERT_NO_FATAL_FAILURE(ExpectNextBuildWorks(files));
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GT(old_count, 0);
  EXPECT_GT(new_count, 0);
}

// The same with the machine's file system below.
TEST_P(TableBuilderFaultTest, OnTheMachinesFileSystem) {
  const size_t call_count = CallsOfABuild().size();
  for (size_t call = 0; call <= call_count; ++call) {
    // The disk takes its time to sync.
    if (GetParam().spills || call + 4 < call_count) {
      if (!random_.OneIn(25)) continue;
    }
    for (const Fault fault : {Fault::kTornWrite, Fault::kCrash}) {
      SCOPED_TRACE(testing::Message() << "call " << call << ", fault " << static_cast<int>(fault));
      const TempDir folder;
      ASSERT_NO_FATAL_FAILURE(Reset(PosixFileSystem(), folder.Path("data")));
      FaultFileSystem faults(PosixFileSystem());
      faults.Arm(fault, call, EIO);
      const bool built = Build(faults).ok();
      if (fault == Fault::kCrash) faults.LoseUnsynced(random_.OneIn(2) ? nullptr : &random_);
      const bool is_new = OpensOldOrNew(PosixFileSystem());
      if (built) {
        EXPECT_TRUE(is_new);
      }
      ASSERT_NO_FATAL_FAILURE(ExpectNextBuildWorks(PosixFileSystem()));
      ASSERT_FALSE(HasFailure());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Scenarios, TableBuilderFaultTest,
    testing::Values(Scenario{"FirstBuild", false, false, false, LayoutChoice::kAuto},
                    Scenario{"Replace", true, false, false, LayoutChoice::kPointer},
                    Scenario{"Append", true, true, false, LayoutChoice::kLine},
                    Scenario{"AppendThatSpills", true, true, true, LayoutChoice::kAuto}),
    [](const testing::TestParamInfo<Scenario>& scenario) { return scenario.param.name; });

}  // namespace
}  // namespace latchkey::test
