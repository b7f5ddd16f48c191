#include "core/build/table_merger.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/build/key_deleter.h"
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

// Segments of so many rows, the newest first.
size_t Plan(const std::vector<uint64_t>& rows, MergePolicy policy, uint64_t tombstones = 0) {
  std::vector<SegmentSize> sizes;
  for (const uint64_t count : rows) sizes.push_back({count, tombstones, 4096});
  return PlanMerge(sizes, policy);
}

TEST(PlanMergeTest, All) {
  const MergePolicy all = MergePolicy::kAll;
  EXPECT_EQ(Plan({}, all), 0u);
  EXPECT_EQ(Plan({5}, all), 0u);
  EXPECT_EQ(Plan({0}, all), 0u);
  EXPECT_EQ(Plan({5}, all, 1), 1u);
  EXPECT_EQ(Plan({5, 1'000'000}, all), 2u);
  EXPECT_EQ(Plan(std::vector<uint64_t>(4096, 3), all), 4096u);
}

TEST(PlanMergeTest, Tiered) {
  struct Case {
    std::vector<uint64_t> rows;
    size_t merged;
  };
  for (const Case& c : {
           Case{{}, 0}, Case{{10}, 0}, Case{{10, 10, 10}, 0},  // too few
           Case{{10, 10, 10, 10}, 4},                          // just enough
           Case{{10, 40, 200, 1000}, 4},       // each at most four times those before it
           Case{{10, 41, 10, 10, 10}, 0},      // the run ends before the second
           Case{{10, 40, 201, 10, 10}, 0},     // … before the third
           Case{{10, 40, 200, 1001}, 0},       // … before the fourth
           Case{{10, 10, 10, 10, 161}, 4},     // the oldest stays
           Case{{10, 10, 10, 10, 160}, 5},     //
           Case{{10, 5, 1, 1, 68, 1'000}, 5},  // shrinking ones are no obstacle
           Case{{0, 0, 0, 0, 1}, 4},           // empty ones
           Case{{0, 1, 1, 1, 1}, 0},           //
       }) {
    EXPECT_EQ(Plan(c.rows, MergePolicy::kTiered), c.merged) << testing::PrintToString(c.rows);
    // Tombstones decide nothing.
    EXPECT_EQ(Plan(c.rows, MergePolicy::kTiered, 1), c.merged);
  }
}

TEST(PlanMergeTest, TieredLeavesAtMostFifteen) {
  // Each so much larger than those before it together that none would be merged.
  std::vector<uint64_t> rows;
  for (uint64_t count = 1; rows.size() < 15; count *= 6) rows.push_back(count);
  EXPECT_EQ(Plan(rows, MergePolicy::kTiered), 0u);
  rows.insert(rows.begin(), 0);
  EXPECT_EQ(Plan(rows, MergePolicy::kTiered), 2u);
  rows.insert(rows.begin(), 5, 0);
  EXPECT_EQ(rows.size(), 21u);
  EXPECT_EQ(Plan(rows, MergePolicy::kTiered), 7u);
}

// However deltas come, merging after each keeps the table small, and a row is rewritten a few times
// only.
TEST(PlanMergeTest, TieredAsDeltasArrive) {
  for (const uint64_t delta : {1, 10, 1000}) {
    std::vector<uint64_t> rows = {1'000'000};
    uint64_t written = 0, added = 0;
    for (int round = 0; round < 2000; ++round) {
      rows.insert(rows.begin(), delta + static_cast<uint64_t>(round) % 3);
      added += rows.front();
      const size_t merged = Plan(rows, MergePolicy::kTiered);
      uint64_t sum = 0;
      for (size_t i = 0; i < merged; ++i) sum += rows[i];
      written += sum;
      if (merged > 0) {
        rows.erase(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(merged));
        rows.insert(rows.begin(), sum);
      }
      ASSERT_LE(rows.size(), kTieredSegmentsMax);
    }
    EXPECT_LT(written, 15 * (added + 1'000'000));
  }
}

class TableMergerTest : public SeededTest {
 protected:
  TableMergerTest() : table_(files_, "data", random_) {
    options_.data_dir = "data";
    options_.table = "t";
  }

  absl::StatusOr<MergeResult> Merge(MergePolicy policy = MergePolicy::kAll) {
    options_.policy = policy;
    return CheckedMerge(files_, options_);
  }

  // With what holds of every merge.
  static absl::StatusOr<MergeResult> CheckedMerge(FileSystem& files, const MergeOptions& options) {
    const std::string dir = JoinPath(options.data_dir, options.table);
    const auto before = ReadNewestManifest(files, dir);
    auto merged = MergeTable(files, options, nullptr);
    const auto after = ReadNewestManifest(files, dir);
    if (!before.ok() || !after.ok()) return merged;
    const bool published = merged.ok() && merged->published;
    EXPECT_EQ(after->generation, before->generation + published);
    if (!published) {
      EXPECT_EQ(*after, *before);
      return merged;
    }
    EXPECT_EQ(merged->generation, after->generation);
    EXPECT_EQ(merged->plan.table_segments, before->segments.size());
    EXPECT_EQ(after->segments.size(), before->segments.size() - merged->plan.segments + 1);
    EXPECT_EQ(after->identity, before->identity);
    EXPECT_EQ(after->schema, before->schema);
    uint64_t rows = 0;
    for (size_t i = 0; i < merged->plan.segments; ++i) rows += before->segments[i].row_count;
    EXPECT_EQ(merged->rows_read, rows);
    EXPECT_EQ(merged->plan.rows, rows);
    EXPECT_EQ(merged->rows_read,
              merged->rows_stored + merged->rows_hidden + merged->tombstones_dropped);
    EXPECT_EQ(merged->header.row_count, merged->rows_stored);
    EXPECT_EQ(after->segments[0].row_count, merged->rows_stored);
    if (after->segments.size() == 1) {
      EXPECT_EQ(merged->header.tombstone_count, 0u);
    } else {
      EXPECT_EQ(merged->tombstones_dropped, 0u);
    }
    std::vector<DamagedBlock> damaged;
    EXPECT_TRUE(IsOk(VerifySegmentFile(files, merged->segment_path, &damaged)));
    EXPECT_TRUE(damaged.empty());
    return merged;
  }

  absl::StatusOr<DeleteResult> Delete(const std::vector<std::string>& keys) {
    std::vector<Row> rows;
    for (const std::string& key : keys) rows.push_back({key, ""});
    VectorSource source(rows);
    DeleteOptions options;
    options.data_dir = "data";
    options.table = "t";
    options.key_kind = table_.options.schema.key_kind;
    return DeleteKeys(files_, options, source, nullptr);
  }

  MemoryFileSystem files_;
  TestTable table_;
  MergeOptions options_;
};

TEST_F(TableMergerTest, NewestRowsWinAndTombstonesGo) {
  table_.options.schema.value_kind = ValueKind::kBytes;
  ASSERT_OK(table_.Build({{"a", "a1"}, {"b", "b1"}, {"c", "c1"}, {"d", "d1"}}));
  ASSERT_OK(table_.Append({{"b", "b2", 20}, {"e", "e2", 21}}));
  ASSERT_OK(Delete({"c", "e"}));
  ASSERT_OK(table_.Append({{"c", "c3", 30}}));
  ASSERT_OK_AND_ASSIGN(const MergeResult merged, Merge());
  EXPECT_TRUE(merged.published);
  EXPECT_EQ(merged.generation, 6u);
  EXPECT_EQ(merged.plan.segments, 4u);
  EXPECT_EQ(merged.rows_read, 9u);
  EXPECT_EQ(merged.rows_stored, 4u);
  EXPECT_EQ(merged.rows_hidden, 4u);  // a, the tombstone of c and its first row, the row of e
  EXPECT_EQ(merged.tombstones_dropped, 1u);
  EXPECT_EQ(merged.segment_path, table_.Path("g00000006-0.segment"));
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
  EXPECT_EQ(LookupOne(*snapshot, "a"), (LookupResult{Outcome::kFound, 0, "a1"}));
  EXPECT_EQ(LookupOne(*snapshot, "b"), (LookupResult{Outcome::kFound, 20, "b2"}));
  EXPECT_EQ(LookupOne(*snapshot, "c"), (LookupResult{Outcome::kFound, 30, "c3"}));
  EXPECT_EQ(LookupOne(*snapshot, "d"), (LookupResult{Outcome::kFound, 3, "d1"}));
  EXPECT_EQ(LookupOne(*snapshot, "e").outcome, Outcome::kAbsent);
  // The generations before are as they were.
  ASSERT_OK_AND_ASSIGN(const Manifest before, ReadManifest(files_, table_.dir(), 5));
  ASSERT_OK_AND_ASSIGN(const auto old, Snapshot::Open(files_, table_.dir(), before));
  EXPECT_EQ(LookupOne(*old, "c"), (LookupResult{Outcome::kFound, 30, "c3"}));
  // Once is enough.
  const auto files = files_.Files();
  ASSERT_OK_AND_ASSIGN(const MergeResult again, Merge());
  EXPECT_FALSE(again.published);
  EXPECT_EQ(again.generation, 6u);
  EXPECT_EQ(files_.Files(), files);
}

TEST_F(TableMergerTest, TombstonesStayAsLongAsSomethingOlderDoes) {
  std::vector<Row> rows;
  for (std::string& key : DistinctKeys(random_, 1000, 8)) rows.push_back({std::move(key), ""});
  ASSERT_OK(table_.Build(rows));
  ASSERT_OK(table_.Append({{"new", ""}}));
  ASSERT_OK(Delete({rows[0].key}));
  ASSERT_OK(Delete({rows[1].key, "new"}));
  ASSERT_OK(Delete({rows[2].key}));
  ASSERT_OK_AND_ASSIGN(const MergeResult merged, Merge(MergePolicy::kTiered));
  EXPECT_EQ(merged.plan.segments, 4u);
  EXPECT_EQ(merged.rows_stored, 4u);
  EXPECT_EQ(merged.rows_hidden, 1u);
  EXPECT_EQ(merged.header.tombstone_count, 4u);
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
  EXPECT_EQ(snapshot->segments().size(), 2u);
  for (const std::string& key : {rows[0].key, rows[1].key, rows[2].key, std::string("new")}) {
    EXPECT_EQ(LookupOne(*snapshot, key).outcome, Outcome::kAbsent);
  }
  EXPECT_EQ(LookupOne(*snapshot, rows[3].key).doc_id, 3u);
  ASSERT_OK_AND_ASSIGN(const MergeResult all, Merge());
  EXPECT_EQ(all.rows_stored, 997u);
  EXPECT_EQ(all.tombstones_dropped, 4u);
  EXPECT_EQ(all.rows_hidden, 3u);
}

TEST_F(TableMergerTest, WhatIsLeftOfATableWithoutRows) {
  EXPECT_FALSE(Merge()->published) << "no segments at all";
  ASSERT_OK(table_.Build({{"a", ""}, {"b", ""}}));
  ASSERT_OK(Delete({"a", "b"}));
  ASSERT_OK_AND_ASSIGN(const MergeResult merged, Merge());
  EXPECT_EQ(merged.rows_stored, 0u);
  EXPECT_EQ(merged.rows_hidden, 2u);
  EXPECT_EQ(merged.tombstones_dropped, 2u);
  ASSERT_OK_AND_ASSIGN(const auto empty, table_.Open());
  EXPECT_EQ(empty->segments().size(), 1u);
  EXPECT_EQ(LookupOne(*empty, "a").outcome, Outcome::kAbsent);
  // It grows again, by keys of any length.
  ASSERT_OK(table_.Append({{"longer", ""}}));
  ASSERT_OK(Merge());
  ASSERT_OK_AND_ASSIGN(const auto one, table_.Open());
  EXPECT_EQ(LookupOne(*one, "longer").outcome, Outcome::kFound);
  EXPECT_EQ(one->segments()[0]->header().layout, Layout::kLine);
  // Segments without rows are no obstacle.
  ASSERT_OK(table_.Append({}));
  ASSERT_OK_AND_ASSIGN(const MergeResult with_empty, Merge());
  EXPECT_EQ(with_empty.rows_stored, 1u);
}

TEST_F(TableMergerTest, ASegmentAloneWithTombstonesIsMerged) {
  ASSERT_OK(table_.Build({{"a", ""}}));
  ASSERT_OK(Delete({"a"}));
  // As if what the tombstone hides had never been.
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadNewestManifest(files_, table_.dir()));
  ++manifest.generation;
  manifest.segments.pop_back();
  ASSERT_OK(PublishManifest(files_, table_.dir(), manifest));
  EXPECT_FALSE(Merge(MergePolicy::kTiered)->published);
  ASSERT_OK_AND_ASSIGN(const MergeResult merged, Merge());
  EXPECT_EQ(merged.tombstones_dropped, 1u);
  EXPECT_EQ(merged.rows_stored, 0u);
  EXPECT_FALSE(Merge()->published);
}

TEST_F(TableMergerTest, FilterAndHashListAreAsInTheNewestAndTheLayoutAsInABuild) {
  table_.options.layout = LayoutChoice::kPointer;
  ASSERT_OK(table_.Build({{"aa", ""}, {"bb", ""}}));
  table_.options.filter_bits_per_key = 7;
  table_.options.hash_list = false;
  ASSERT_OK(table_.Append({{"cc", ""}}));
  ASSERT_OK_AND_ASSIGN(const MergeResult one, Merge());
  EXPECT_EQ(one.header.filter_bits_per_key, 7);
  EXPECT_EQ(one.header.hash_bits, 0);
  EXPECT_EQ(one.header.layout, Layout::kLine);
  table_.options.filter_bits_per_key = 0;
  table_.options.hash_list = true;
  ASSERT_OK(table_.Append({{"ddd", ""}}));
  ASSERT_OK_AND_ASSIGN(const MergeResult two, Merge());
  EXPECT_EQ(two.header.filter_kind, FilterKind::kNone);
  EXPECT_NE(two.header.hash_bits, 0);
  EXPECT_EQ(two.header.layout, Layout::kPointer);
  EXPECT_EQ(two.header.key_bytes_min, 2);
  EXPECT_EQ(two.header.key_bytes_max, 3);
}

// Segments of every number of partitions, coarser and finer than the new one's. With the least
// memory some of the coarse ones are spilled.
TEST_F(TableMergerTest, SegmentsOfAnyNumberOfPartitions) {
  struct Case {
    TableSchema schema;
    bool one_length;
    bool hash_list;
    bool spills;
  };
  for (const Case& c : {
           Case{{}, true, true, false},
           Case{{}, true, false, true},
           Case{{.value_kind = ValueKind::kFixed, .value_width = 8}, false, true, true},
           Case{{.doc_id_bytes = 8, .value_kind = ValueKind::kBytes}, true, true, true},
       }) {
    ASSERT_OK(table_.Build({}));
    table_.options.schema = c.schema;
    table_.options.hash_list = c.hash_list;
    ASSERT_OK(table_.Build({}));
    const size_t value_bytes =
        c.schema.value_kind == ValueKind::kBytes ? 300 : c.schema.value_width;
    std::vector<std::string> keys = DistinctKeys(random_, 45'000, 12);
    // Those are in the oldest segment only, and deleted right after.
    const std::vector<std::string> gone(keys.begin() + 30'000, keys.end());
    keys.resize(30'000);
    if (!c.one_length) {
      for (size_t i = 0; i < keys.size(); i += 2) keys[i] += "longer";
    }
    uint64_t rows_in_all = 0;
    // The newest ones are kept for a while, so that the older ones are spilled.
    for (const int bits : {0, 10, 1, 0, 3, 0, 6, 0, 0, 2}) {
      std::vector<Row> rows;
      for (const std::string& key : keys) {
        if (random_.OneIn(3)) continue;
        rows.push_back({key, random_.Bytes(value_bytes), random_.Below(1000)});
      }
      const bool oldest = rows_in_all == 0;
      if (oldest) {
        for (const std::string& key : gone) rows.push_back({key, random_.Bytes(value_bytes)});
      }
      rows_in_all += rows.size();
      ASSERT_OK(table_.AppendPartitioned(rows, static_cast<uint8_t>(bits)));
      if (!oldest) continue;
      ASSERT_OK_AND_ASSIGN(const DeleteResult deleted, Delete(gone));
      EXPECT_EQ(deleted.deleted, gone.size());
      rows_in_all += gone.size();
    }
    options_.memory_bytes = c.spills ? kBuildMemoryBytesMin : uint64_t{1} << 30;
    ASSERT_OK_AND_ASSIGN(const MergeResult merged, Merge());
    EXPECT_EQ(merged.rows_read, rows_in_all);
    EXPECT_GT(merged.header.partition_bits, 1);
    // They are so few that they are spilled to memory only, but for those with large values.
    EXPECT_EQ(merged.spilled_bytes > 0, value_bytes >= 300);
    EXPECT_EQ(merged.tombstones_dropped, gone.size());
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
    for (const std::string& key : gone) {
      ASSERT_EQ(LookupOne(*snapshot, key).outcome, Outcome::kAbsent);
    }
    for (const std::string& key : StrangerKeys(random_, keys, 1000)) keys.push_back(key);
    ExpectSameAnswers(*snapshot, table_.reference(), keys, 4096);
    uint64_t rows = 0;
    ASSERT_OK(snapshot->segments()[0]->ForEachRow([&](const StoredRow&) {
      ++rows;
      return absl::OkStatus();
    }));
    EXPECT_EQ(rows, merged.rows_stored);
  }
}

TEST_F(TableMergerTest, MemoryIsBounded) {
  for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
    const TempDir folder;
    BuildOptions build = table_.options;
    build.data_dir = folder.path();
    build.layout = layout;
    build.schema.value_kind = ValueKind::kBytes;
    constexpr uint64_t kRows = 60'000, kSegments = 12;
    constexpr size_t kKeyBytes = 20;
    const auto make = [](uint64_t number, Row* row) {
      row->key.assign(kKeyBytes, 'k');
      std::memcpy(row->key.data(), &number, sizeof(number));
      row->value.assign(number % 100, 'v');
    };
    for (uint64_t i = 0; i < kSegments; ++i) {
      // Half of each is in the next one too.
      GeneratorSource source(kRows, [&](uint64_t ordinal, Row* row) {
        make(i * kRows / 2 + ordinal, row);
        row->doc_id = i;
      });
      build.append = i > 0;
      ASSERT_OK(BuildTable(PosixFileSystem(), build, source, nullptr));
    }
    MergeOptions options = options_;
    options.data_dir = folder.path();
    options.memory_bytes = kBuildMemoryBytesMin;
    const AllocationMeter meter;
    ASSERT_OK_AND_ASSIGN(const MergeResult merged, CheckedMerge(PosixFileSystem(), options));
    EXPECT_LT(meter.peak_bytes(), kBuildMemoryBytesMin + (8 << 20))
        << "layout " << static_cast<int>(layout);
    EXPECT_EQ(merged.rows_read, kSegments * kRows);
    EXPECT_EQ(merged.rows_stored, (kSegments + 1) * kRows / 2);
    ASSERT_OK_AND_ASSIGN(const auto snapshot,
                         Snapshot::OpenNewest(PosixFileSystem(), JoinPath(folder.path(), "t")));
    Row row;
    for (int i = 0; i < 2000; ++i) {
      const uint64_t number = random_.Below((kSegments + 1) * kRows / 2);
      make(number, &row);
      const uint64_t newest = std::min(number / (kRows / 2), kSegments - 1);
      EXPECT_EQ(LookupOne(*snapshot, row.key), (LookupResult{Outcome::kFound, newest, row.value}));
    }
  }
}

// Damage anywhere in what is read: named, nothing published, nothing left.
TEST_F(TableMergerTest, ADamagedSegmentStopsTheMerge) {
  table_.options.schema.value_kind = ValueKind::kBytes;
  ASSERT_OK(table_.Build({{"a", "a1"}, {"bb", "b1"}}));
  ASSERT_OK(table_.Append({{"a", "a2"}, {"c", "c2"}}));
  ASSERT_OK(Delete({"bb"}));
  files_.Put(table_.Path("lock"), "");
  const auto pristine = files_.Files();
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadNewestManifest(files_, table_.dir()));
  int sections = 0;
  for (const SegmentRef& ref : manifest.segments) {
    const std::string path = table_.Path(ref.file);
    std::vector<std::pair<uint64_t, uint64_t>> parts = {{0, 200}};  // the header's fields
    {
      ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, path));
      for (const Section& section : segment->header().sections) {
        if (section.size_bytes > 0) parts.emplace_back(section.offset, section.size_bytes);
      }
    }
    for (const auto& [offset, size_bytes] : parts) {
      const uint64_t at = offset + random_.Below(size_bytes);
      std::string& bytes = files_.Bytes(path);
      bytes[at] ^= static_cast<char>(random_.Between(1, 255));
      const auto merged = Merge();
      EXPECT_FALSE(merged.ok()) << path << ", offset " << at;
      EXPECT_THAT(Message(merged.status()), HasSubstr(path));
      auto after = files_.Files();
      after[path] = pristine.at(path);
      EXPECT_EQ(after, pristine);
      files_.Put(path, pristine.at(path));
      ++sections;
    }
    files_.Put(path, pristine.at(path).substr(0, pristine.at(path).size() - 1));
    EXPECT_FAILS(Merge(), kDataLoss, HasSubstr(path));
    ASSERT_OK(files_.Remove(path));
    EXPECT_FAILS(Merge(), kNotFound, HasSubstr(path));
    files_.Put(path, pristine.at(path));
  }
  EXPECT_GT(sections, 20);
  // A sound file, but of another table or in the place of another.
  const std::string first = table_.Path(manifest.segments[0].file);
  const std::string last = table_.Path(manifest.segments[2].file);
  files_.Put(first, pristine.at(last));
  EXPECT_FAILS(Merge(), kDataLoss, HasSubstr(first));
  TestTable other(files_, "other", random_);
  other.options.schema = table_.options.schema;
  ASSERT_OK_AND_ASSIGN(const BuildResult built, other.Build({{"a", "a1"}}));
  files_.Put(first, files_.Bytes(built.segment_path));
  EXPECT_FAILS(Merge(), kDataLoss, AllOf(HasSubstr(first), HasSubstr("another table")));
  files_.Put(first, pristine.at(first));
  EXPECT_TRUE(Merge()->published);
}

TEST_F(TableMergerTest, WhatCanNotBeMerged) {
  options_.table = "none";
  EXPECT_FAILS(Merge(), kNotFound, HasSubstr("data/none"));
  EXPECT_FALSE(files_.Has("data/none/lock"));
  options_.table = "t";
  ASSERT_OK(table_.Build({{"a", ""}}));
  ASSERT_OK(table_.Append({{"b", ""}}));
  options_.memory_bytes = kBuildMemoryBytesMin - 1;
  EXPECT_FAILS(Merge(), kInvalidArgument, HasSubstr("memory: expected"));
  options_.memory_bytes = kBuildMemoryBytesMin;
  {
    ASSERT_OK_AND_ASSIGN(const auto lock, files_.Lock(table_.Path("lock")));
    EXPECT_FAILS(Merge(), kFailedPrecondition, HasSubstr("lock"));
  }
  EXPECT_OK(Merge());
}

TEST_F(TableMergerTest, TellsOfItsProgress) {
  ASSERT_OK(table_.Build({{"a", ""}, {"b", ""}}));
  ASSERT_OK(table_.Append({{"b", ""}, {"c", ""}}));
  std::vector<BuildProgress> told;
  ASSERT_OK(MergeTable(files_, options_,
                       [&](const BuildProgress& progress) { told.push_back(progress); }));
  ASSERT_GE(told.size(), 6u);
  EXPECT_EQ(told.front().phase, BuildProgress::Phase::kRead);
  EXPECT_EQ(told.front().rows, 0u);
  EXPECT_EQ(told.front().rows_total, 4u);
  EXPECT_EQ(told[2].rows, 4u);
  EXPECT_EQ(told[2].bytes, told[2].bytes_total);
  EXPECT_EQ(told[3].phase, BuildProgress::Phase::kWrite);
  EXPECT_EQ(told[3].rows, 4u);
  EXPECT_EQ(told.back().phase, BuildProgress::Phase::kCheck);
  EXPECT_EQ(told.back().rows, 3u);
}

// Random builds, appends, deletions and merges, beside a map: some thousand of them.
TEST_F(TableMergerTest, AgreesWithAMapWhateverIsDone) {
  std::map<std::string, std::pair<uint64_t, std::string>> expected;
  std::map<std::string, int> done;
  for (int round = 0; round < 60; ++round) {
    TableSchema schema{.doc_id_bytes = static_cast<uint8_t>(random_.OneIn(2) ? 4 : 8)};
    schema.value_kind = static_cast<ValueKind>(round % 3);
    if (schema.value_kind == ValueKind::kFixed) schema.value_width = 9;
    const bool one_length = random_.OneIn(2);
    std::vector<std::string> pool = DistinctKeys(random_, 50, 11);
    for (std::string& key : pool) {
      if (!one_length && random_.OneIn(2)) key += "and more";
    }
    if (one_length && random_.OneIn(2)) schema.key_bytes = 11;
    std::vector<std::string> questions = pool;
    for (const std::string& key : StrangerKeys(random_, pool, 10)) questions.push_back(key);
    table_.options.schema = schema;
    const auto random_row = [&] {
      const size_t most = schema.value_kind == ValueKind::kBytes ? 40 : 0;
      return Row{random_.Pick(pool), random_.Bytes(schema.value_width + random_.Below(most + 1)),
                 random_.Below(1'000'000)};
    };
    for (int step = 0; step < 70; ++step) {
      table_.options.hash_list = !random_.OneIn(4);
      table_.options.filter_bits_per_key = random_.OneIn(4) ? 0 : 10;
      table_.options.layout = static_cast<LayoutChoice>(one_length ? random_.Below(3) : 0);
      table_.options.duplicates = random_.OneIn(2) ? DuplicateRule::kFirst : DuplicateRule::kLast;
      const uint64_t what = step == 0 ? 0 : random_.Below(40);
      if (what < 20) {
        std::vector<Row> rows;
        for (uint64_t left = random_.Below(12); left > 0; --left) rows.push_back(random_row());
        const bool append = what > 0;
        ASSERT_OK_AND_ASSIGN(const BuildResult built,
                             append ? table_.Append(rows) : table_.Build(rows));
        EXPECT_EQ(built.rows_read, rows.size());
        EXPECT_EQ(built.rows_read, built.rows_stored + built.duplicates_dropped);
        if (!append) expected.clear();
        std::set<std::string> seen;
        for (const Row& row : rows) {
          if (!seen.insert(row.key).second && table_.options.duplicates == DuplicateRule::kFirst) {
            continue;
          }
          expected[row.key] = {*row.doc_id, row.value};
        }
        ++done[append ? "append" : "build"];
      } else if (what < 34) {
        std::vector<std::string> keys;
        std::set<std::string> distinct;
        uint64_t there = 0;
        for (uint64_t left = random_.Below(15); left > 0; --left) {
          keys.push_back(random_.Pick(pool));
          distinct.insert(keys.back());
          there += expected.erase(keys.back());
        }
        ASSERT_OK_AND_ASSIGN(const DeleteResult deleted, Delete(keys));
        EXPECT_EQ(deleted.keys_read, keys.size());
        EXPECT_EQ(deleted.deleted, there);
        EXPECT_EQ(deleted.absent, distinct.size() - there);
        EXPECT_EQ(deleted.repeated, keys.size() - distinct.size());
        EXPECT_EQ(deleted.published, there > 0);
        ++done["delete"];
      } else {
        const bool tiered = what < 39;
        ASSERT_OK_AND_ASSIGN(const MergeResult merged,
                             Merge(tiered ? MergePolicy::kTiered : MergePolicy::kAll));
        if (!tiered && merged.published) {
          EXPECT_EQ(merged.rows_stored, expected.size());
        }
        done[tiered ? "tiered" : "all"] += merged.published;
      }
      ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
      ReferenceEngine reference;
      std::vector<Row> rows;
      for (const auto& [key, row] : expected) rows.push_back({key, row.second, row.first});
      reference.AddSegment(rows, DuplicateRule::kReject, schema);
      ExpectSameAnswers(*snapshot, reference, questions, 64);
      ASSERT_FALSE(HasFailure()) << "round " << round << ", step " << step;
    }
    // The next round begins with a build, which needs nothing of this one.
    if (round % 10 == 9) {
      ASSERT_OK_AND_ASSIGN(const Manifest newest, ReadNewestManifest(files_, table_.dir()));
      for (const auto& [path, bytes] : files_.Files()) {
        const bool used =
            path.ends_with("lock") || path.ends_with(ManifestFileName(newest.generation));
        if (!used) {
          ASSERT_OK(files_.Remove(path));
        }
      }
    }
  }
  EXPECT_GE(done["append"] + done["build"] + done["delete"], 3'000);
  EXPECT_GE(done["build"], 60);
  EXPECT_GT(done["all"], 40);
  EXPECT_GT(done["tiered"], 40);
}

}  // namespace
}  // namespace latchkey::test
