#include "core/build/key_deleter.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/lookup/probe_engine.h"
#include "core/segment/segment.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<Row> RowsOf(const std::vector<std::string>& keys) {
  std::vector<Row> rows;
  for (const std::string& key : keys) rows.push_back({key, ""});
  return rows;
}

class KeyDeleterTest : public SeededTest {
 protected:
  KeyDeleterTest() : table_(files_, "data", random_) {
    options_.data_dir = "data";
    options_.table = "t";
  }

  absl::StatusOr<DeleteResult> Delete(const std::vector<std::string>& keys) {
    const std::vector<Row> rows = RowsOf(keys);
    VectorSource source(rows);
    auto result = DeleteKeys(files_, options_, source, nullptr);
    if (result.ok()) {
      EXPECT_EQ(result->keys_read, keys.size());
      EXPECT_EQ(result->keys_read, result->deleted + result->absent + result->repeated);
      EXPECT_EQ(result->published, result->deleted > 0);
    }
    return result;
  }

  // Fails, and leaves all files as they were.
  void ExpectRefused(const std::vector<std::string>& keys, absl::StatusCode code,
                     const testing::Matcher<std::string>& message) {
    const auto before = files_.Files();
    const auto result = Delete(keys);
    EXPECT_EQ(result.status().code(), code) << result.status();
    EXPECT_THAT(Message(result.status()), message);
    EXPECT_EQ(files_.Files(), before);
  }

  MemoryFileSystem files_;
  TestTable table_;
  DeleteOptions options_;
};

TEST_F(KeyDeleterTest, CountsWhatIsThereWhatIsNotAndWhatComesTwice) {
  ASSERT_OK(table_.Build(RowsOf({"a", "b", "c", "d"})));
  ASSERT_OK_AND_ASSIGN(const DeleteResult deleted, Delete({"b", "x", "b", "d", "x", "x", "b"}));
  EXPECT_TRUE(deleted.published);
  EXPECT_EQ(deleted.generation, 3u);
  EXPECT_EQ(deleted.keys_read, 7u);
  EXPECT_EQ(deleted.deleted, 2u);
  EXPECT_EQ(deleted.absent, 1u);
  EXPECT_EQ(deleted.repeated, 4u);
  EXPECT_EQ(deleted.header.row_count, 2u);
  EXPECT_EQ(deleted.header.tombstone_count, 2u);
  EXPECT_EQ(deleted.segment_path, table_.Path("g00000003-0.segment"));
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
  EXPECT_EQ(snapshot->generation(), 3u);
  EXPECT_EQ(snapshot->segments().size(), 2u);
  for (const char* key : {"b", "d", "x"}) {
    EXPECT_EQ(LookupOne(*snapshot, key).outcome, Outcome::kAbsent) << key;
  }
  EXPECT_EQ(LookupOne(*snapshot, "a"), (LookupResult{Outcome::kFound, 0, ""}));
  EXPECT_EQ(LookupOne(*snapshot, "c"), (LookupResult{Outcome::kFound, 2, ""}));
  // The generation before still has them.
  ASSERT_OK_AND_ASSIGN(const Manifest before, ReadManifest(files_, table_.dir(), 2));
  ASSERT_OK_AND_ASSIGN(const auto old, Snapshot::Open(files_, table_.dir(), before));
  EXPECT_EQ(LookupOne(*old, "b").outcome, Outcome::kFound);
}

TEST_F(KeyDeleterTest, WhatIsDeletedAlreadyIsAbsentAndMayComeBack) {
  ASSERT_OK(table_.Build(RowsOf({"a", "b"})));
  ASSERT_OK(Delete({"a"}));
  const auto before = files_.Files();
  ASSERT_OK_AND_ASSIGN(const DeleteResult again, Delete({"a", "x", "a"}));
  EXPECT_FALSE(again.published);
  EXPECT_EQ(again.generation, 3u);
  EXPECT_EQ(again.absent, 2u);
  EXPECT_EQ(again.repeated, 1u);
  EXPECT_EQ(files_.Files(), before) << "nothing was deleted, so nothing is published";
  ASSERT_OK(table_.Append({{"a", "", 77}}));
  ASSERT_OK_AND_ASSIGN(const auto back, table_.Open());
  EXPECT_EQ(LookupOne(*back, "a"), (LookupResult{Outcome::kFound, 77, ""}));
  ASSERT_OK_AND_ASSIGN(const DeleteResult third, Delete({"a", "b"}));
  EXPECT_EQ(third.deleted, 2u);
  ASSERT_OK_AND_ASSIGN(const auto empty, table_.Open());
  EXPECT_EQ(LookupOne(*empty, "a").outcome, Outcome::kAbsent);
  EXPECT_EQ(LookupOne(*empty, "b").outcome, Outcome::kAbsent);
}

TEST_F(KeyDeleterTest, NoKeysAndNoRows) {
  const auto before = files_.Files();
  ASSERT_OK_AND_ASSIGN(const DeleteResult nothing, Delete({}));
  EXPECT_FALSE(nothing.published);
  EXPECT_EQ(nothing.generation, 1u);
  // A generation without segments.
  ASSERT_OK_AND_ASSIGN(const DeleteResult absent, Delete({"a", "b", "a"}));
  EXPECT_EQ(absent.absent, 2u);
  EXPECT_EQ(absent.repeated, 1u);
  auto after = files_.Files();
  after.erase(table_.Path("lock"));
  EXPECT_EQ(after, before);
}

// Each kind of values, layout and key length, over several segments, in which filter and hash list
// differ.
TEST_F(KeyDeleterTest, EveryKindOfTable) {
  struct Values {
    ValueKind kind;
    uint8_t width;
  };
  for (const Values& values :
       {Values{ValueKind::kNone, 0}, Values{ValueKind::kFixed, 12}, Values{ValueKind::kBytes, 0}}) {
    for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
      for (const bool one_length : {true, false}) {
        if (layout == LayoutChoice::kLine && !one_length) continue;
        table_.options.schema = {.value_kind = values.kind, .value_width = values.width};
        table_.options.layout = layout;
        std::map<std::string, Row> expected;
        std::vector<std::string> keys = DistinctKeys(random_, 900, 16);
        if (!one_length) {
          for (std::string& key : keys) key.resize(random_.Between(10, 16));
          const std::set<std::string> distinct(keys.begin(), keys.end());
          keys.assign(distinct.begin(), distinct.end());
        }
        for (int segment = 0; segment < 3; ++segment) {
          table_.options.filter_bits_per_key = static_cast<uint8_t>(segment * 5);
          table_.options.hash_list = segment != 0;
          std::vector<Row> rows;
          for (size_t i = 0; i < keys.size() * 2 / 3; ++i) {
            if (random_.OneIn(3)) continue;
            rows.push_back(
                {keys[i],
                 random_.Bytes(values.kind == ValueKind::kBytes ? random_.Below(50) : values.width),
                 random_.Below(1000)});
            expected[keys[i]] = rows.back();
          }
          ASSERT_OK(segment == 0 ? table_.Build(rows) : table_.Append(rows));
        }
        std::vector<std::string> gone;
        uint64_t there = 0;
        for (const std::string& key : keys) {
          if (random_.OneIn(2)) continue;
          gone.push_back(key);
          there += expected.erase(key);
        }
        ASSERT_OK_AND_ASSIGN(const DeleteResult deleted, Delete(gone));
        EXPECT_EQ(deleted.deleted, there);
        EXPECT_EQ(deleted.absent, gone.size() - there);
        // As the newest segment had it.
        EXPECT_EQ(deleted.header.filter_bits_per_key, 10);
        EXPECT_NE(deleted.header.hash_bits, 0);
        EXPECT_EQ(deleted.header.layout, one_length ? Layout::kLine : Layout::kPointer);
        ReferenceEngine reference;
        std::vector<Row> rows;
        for (const auto& [key, row] : expected) rows.push_back(row);
        reference.AddSegment(rows, DuplicateRule::kReject, table_.options.schema);
        ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
        ExpectSameAnswers(*snapshot, reference, keys, 512);
        std::vector<DamagedBlock> damaged;
        EXPECT_OK(VerifySegmentFile(files_, deleted.segment_path, &damaged));
        EXPECT_TRUE(damaged.empty());
      }
    }
  }
}

TEST_F(KeyDeleterTest, NeedsATable) {
  options_.table = "none";
  ExpectRefused({"a"}, absl::StatusCode::kNotFound, HasSubstr("data/none"));
  options_.table = "../t";
  ExpectRefused({"a"}, absl::StatusCode::kInvalidArgument, HasSubstr("table name"));
}

TEST_F(KeyDeleterTest, KeysThatAreNotTheTables) {
  table_.options.schema = {.key_kind = KeyKind::kHex, .key_bytes = 3};
  ASSERT_OK(table_.Build(RowsOf({"abc", "def"})));
  ASSERT_OK(table_.Append(RowsOf({"abc"})));
  options_.key_kind = KeyKind::kText;
  ExpectRefused({"abc"}, absl::StatusCode::kFailedPrecondition,
                "cannot delete: the table has key kind hex, the keys have text");
  options_.key_kind = KeyKind::kHex;
  ExpectRefused({"abc", "abcd"}, absl::StatusCode::kInvalidArgument,
                "row 2: key: expected 3 bytes, got 4");
  options_.memory_bytes = kBuildMemoryBytesMin - 1;
  ExpectRefused({"abc"}, absl::StatusCode::kInvalidArgument, HasSubstr("memory: expected"));
}

TEST_F(KeyDeleterTest, ASourceThatFailsLeavesTheTableAsItWas) {
  class FailingSource final : public RecordSource {
   public:
    absl::StatusOr<bool> Next(InputRow* row) override {
      if (++rows_ > 5) return InvalidArgument("input:6: no key");
      *row = {"a", "", std::nullopt};
      return true;
    }
    std::string Position() const override { return "input"; }
    uint64_t bytes_read() const override { return 0; }
    uint64_t total_bytes() const override { return 0; }

   private:
    int rows_ = 0;
  };
  ASSERT_OK(table_.Build(RowsOf({"a"})));
  const auto before = files_.Files();
  FailingSource source;
  EXPECT_FAILS(DeleteKeys(files_, options_, source, nullptr), kInvalidArgument, "input:6: no key");
  EXPECT_EQ(files_.Files(), before);
}

TEST_F(KeyDeleterTest, ADamagedAnswerIsAnError) {
  table_.options.schema.value_kind = ValueKind::kBytes;
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table_.Build({{"abc", "value"}, {"def", "other"}}));
  const uint64_t values = built.header.section(SectionKind::kValues).offset;
  files_.Bytes(built.segment_path)[values + 1] ^= 1;
  files_.Bytes(built.segment_path)[values + 8] ^= 1;
  ExpectRefused({"zzz", "abc"}, absl::StatusCode::kDataLoss,
                "data/t: what it holds for the key \"abc\" can't be read");
}

TEST_F(KeyDeleterTest, TwoWritersDoNotMeet) {
  ASSERT_OK(table_.Build(RowsOf({"a"})));
  ASSERT_OK_AND_ASSIGN(const auto lock, files_.Lock(table_.Path("lock")));
  ExpectRefused({"a"}, absl::StatusCode::kFailedPrecondition, HasSubstr("lock"));
}

TEST_F(KeyDeleterTest, TooManySegments) {
  ASSERT_OK(table_.Build(RowsOf({"a"})));
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadNewestManifest(files_, table_.dir()));
  ++manifest.generation;
  manifest.segments.resize(kSegmentsPerGenerationMax, manifest.segments[0]);
  ASSERT_OK(PublishManifest(files_, table_.dir(), manifest));
  ExpectRefused({"a"}, absl::StatusCode::kFailedPrecondition, HasSubstr("4096 segments"));
}

// Half of a million keys are there, many come twice; with the least memory what is read is spilled.
TEST_F(KeyDeleterTest, MemoryIsBounded) {
  constexpr uint64_t kRows = 300'000;
  const TempDir folder;
  const auto make = [](uint64_t number, Row* row) {
    row->key.assign(40, 'k');
    std::memcpy(row->key.data(), &number, sizeof(number));
  };
  BuildOptions build = table_.options;
  build.data_dir = folder.path();
  GeneratorSource source(kRows, make);
  ASSERT_OK(BuildTable(PosixFileSystem(), build, source, nullptr));
  DeleteOptions options = options_;
  options.data_dir = folder.path();
  options.memory_bytes = kBuildMemoryBytesMin;
  GeneratorSource keys(
      3 * kRows, [&](uint64_t ordinal, Row* row) { make(ordinal * 7919 % (2 * kRows), row); });
  const AllocationMeter meter;
  ASSERT_OK_AND_ASSIGN(const DeleteResult deleted,
                       DeleteKeys(PosixFileSystem(), options, keys, nullptr));
  EXPECT_LT(meter.peak_bytes(), kBuildMemoryBytesMin + (8 << 20));
  EXPECT_GT(deleted.spilled_bytes, uint64_t{24} << 20);
  EXPECT_EQ(deleted.keys_read, 3 * kRows);
  EXPECT_EQ(deleted.deleted, kRows);
  EXPECT_EQ(deleted.absent, kRows);
  EXPECT_EQ(deleted.repeated, kRows);
  ASSERT_OK_AND_ASSIGN(const auto snapshot,
                       Snapshot::OpenNewest(PosixFileSystem(), JoinPath(folder.path(), "t")));
  Row row;
  for (int i = 0; i < 1000; ++i) {
    make(random_.Below(2 * kRows), &row);
    EXPECT_EQ(LookupOne(*snapshot, row.key).outcome, Outcome::kAbsent);
  }
}

TEST_F(KeyDeleterTest, TellsOfItsProgress) {
  ASSERT_OK(table_.Build(RowsOf({"a", "b"})));
  const std::vector<Row> rows = RowsOf({"a", "b", "x"});
  VectorSource source(rows);
  std::vector<BuildProgress> told;
  ASSERT_OK(DeleteKeys(files_, options_, source,
                       [&](const BuildProgress& progress) { told.push_back(progress); }));
  ASSERT_GE(told.size(), 4u);
  EXPECT_EQ(told.front().phase, BuildProgress::Phase::kRead);
  EXPECT_EQ(told.front().rows, 0u);
  EXPECT_EQ(told.front().bytes_total, 3u);
  EXPECT_EQ(told.back().phase, BuildProgress::Phase::kCheck);
  EXPECT_EQ(told.back().rows, 2u);
  for (size_t i = 1; i < told.size(); ++i) EXPECT_GE(told[i].phase, told[i - 1].phase);
}

}  // namespace
}  // namespace latchkey::test
