#include "core/segment/segment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/bytes.h"
#include "core/lookup/probe_stages.h"
#include "core/segment/hash_list.h"
#include "core/segment/record_pointer.h"
#include "core/segment/segment_writer.h"
#include "core/segment/value_locator.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/segment_bytes.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr LayoutChoice kLayouts[] = {LayoutChoice::kLine, LayoutChoice::kPointer};

class SegmentTest : public SeededTest {
 protected:
  // Rows with values of bytes, under distinct keys of several lengths or of one.
  std::vector<Row> SomeRows(size_t count, LayoutChoice layout) {
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, count, 12)) {
      if (layout == LayoutChoice::kPointer) key += random_.Bytes(random_.Below(20));
      rows.push_back({std::move(key), random_.Bytes(random_.Below(30)), random_.Below(1000)});
    }
    return rows;
  }

  static absl::Status CountRows(const Segment& segment, uint64_t* count) {
    *count = 0;
    return segment.ForEachRow([&](const StoredRow&) {
      ++*count;
      return absl::OkStatus();
    });
  }

  // Writes a segment of one partition with these rows, in any order, and opens it.
  absl::StatusOr<std::unique_ptr<const Segment>> WriteSegment(std::vector<SegmentRow> rows,
                                                              SegmentPlan plan) {
    plan.partitions = {{rows.size(), 0}};
    plan.key_bytes_min = UINT16_MAX;
    for (SegmentRow& row : rows) {
      row.hash = HashBytes(row.key.data(), row.key.size(), plan.identity.seed);
      const auto key_bytes = static_cast<uint16_t>(row.key.size());
      plan.key_bytes_min = std::min(plan.key_bytes_min, key_bytes);
      plan.key_bytes_max = std::max(plan.key_bytes_max, key_bytes);
      plan.partitions[0].key_bytes += row.key.size();
      plan.value_bytes += StoredValueBytes(row.value.size());
    }
    std::sort(rows.begin(), rows.end(),
              [](const SegmentRow& a, const SegmentRow& b) { return a.hash < b.hash; });
    const std::string path = "data/" + std::to_string(written_++) + ".segment";
    absl::Status status = files_.CreateDirectories("data");
    if (!status.ok()) return status;
    auto writer = SegmentWriter::Create(files_, path, plan);
    if (!writer.ok()) return writer.status();
    status = (*writer)->AddPartition(rows);
    if (!status.ok()) return status;
    const auto header = (*writer)->Finish();
    if (!header.ok()) return header.status();
    return Segment::Open(files_, path);
  }

  MemoryFileSystem files_;
  int written_ = 0;
};

TEST_F(SegmentTest, GivesAllItsRowsBack) {
  for (const LayoutChoice layout : kLayouts) {
    for (const ValueKind values : {ValueKind::kNone, ValueKind::kFixed, ValueKind::kBytes}) {
      for (const uint8_t doc_id_bytes : {4, 8}) {
        TestTable table(files_, "data", random_);
        table.options.layout = layout;
        table.options.schema = {.doc_id_bytes = doc_id_bytes,
                                .value_kind = values,
                                .value_width = static_cast<uint8_t>(values == ValueKind::kFixed)};
        const uint64_t doc_id_max = table.options.schema.DocIdMax();
        std::map<std::string, Row> expected;
        std::vector<Row> rows = SomeRows(2000, layout);
        for (Row& row : rows) {
          if (values == ValueKind::kNone) row.value.clear();
          if (values == ValueKind::kFixed) row.value.assign(1, static_cast<char>(random_.Next()));
          row.doc_id = random_.OneIn(3) ? random_.Below(2) * doc_id_max : random_.Below(doc_id_max);
          expected[row.key] = row;
        }
        ASSERT_EQ(expected.size(), rows.size());
        ASSERT_OK(table.AppendPartitioned(rows, 3));
        ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
        const Segment& segment = *snapshot->segments()[0];
        ASSERT_EQ(segment.row_shape() != nullptr, layout == LayoutChoice::kLine);
        std::set<std::string> seen;
        ASSERT_OK(segment.ForEachRow([&](const StoredRow& row) {
          EXPECT_TRUE(seen.emplace(row.key).second) << "a row came twice";
          const auto wanted = expected.find(std::string(row.key));
          EXPECT_NE(wanted, expected.end());
          EXPECT_EQ(row.doc_id, wanted->second.doc_id);
          EXPECT_EQ(row.value, wanted->second.value);
          EXPECT_FALSE(row.tombstone);
          EXPECT_EQ(row.hash, HashBytes(row.key.data(), row.key.size(), snapshot->seed()));
          return HasFailure() ? absl::CancelledError() : absl::OkStatus();
        }));
        EXPECT_EQ(seen.size(), rows.size());
        files_ = MemoryFileSystem();
      }
    }
  }
}

TEST_F(SegmentTest, TombstonesAreCountedAndGivenWithoutDocIdAndValue) {
  for (const ValueKind values : {ValueKind::kNone, ValueKind::kFixed, ValueKind::kBytes}) {
    for (const Layout layout : {Layout::kLine, Layout::kPointer}) {
      SegmentPlan plan;
      plan.identity = RandomIdentity(random_);
      plan.layout = layout;
      plan.schema = {.value_kind = values,
                     .value_width = static_cast<uint8_t>(values == ValueKind::kFixed ? 5 : 0)};
      const std::vector<std::string> keys = DistinctKeys(random_, 500, 9);
      std::set<std::string> deleted;
      std::vector<SegmentRow> rows;
      const std::string_view value = values == ValueKind::kNone ? "" : "12345";
      for (size_t i = 0; i < keys.size(); ++i) {
        const bool tombstone = random_.OneIn(3);
        if (tombstone) deleted.insert(keys[i]);
        // A tombstone has no value, not even one of a fixed width.
        rows.push_back({0, i + 1, keys[i], tombstone ? "" : value, tombstone});
      }
      ASSERT_OK_AND_ASSIGN(const auto segment, WriteSegment(rows, plan));
      EXPECT_EQ(segment->header().row_count, keys.size());
      EXPECT_EQ(segment->header().tombstone_count, deleted.size());
      std::set<std::string> seen;
      ASSERT_OK(segment->ForEachRow([&](const StoredRow& row) {
        const bool tombstone = deleted.contains(std::string(row.key));
        EXPECT_EQ(row.tombstone, tombstone);
        if (tombstone) seen.emplace(row.key);
        EXPECT_EQ(row.value, tombstone ? "" : value);
        EXPECT_EQ(row.doc_id != 0, !tombstone);
        return absl::OkStatus();
      }));
      EXPECT_EQ(seen, deleted);
      for (size_t i = 0; i < keys.size(); ++i) {
        RowRef row;
        const uint64_t hash = HashBytes(keys[i].data(), keys[i].size(), plan.identity.seed);
        const Held held = ProbeOne(*segment, true, keys[i], hash, &row);
        EXPECT_EQ(held, deleted.contains(keys[i]) ? Held::kTombstone : Held::kRow);
        if (held == Held::kRow) {
          EXPECT_EQ(row.doc_id, i + 1);
        }
      }
    }
  }
}

// What a lookup may read is never written as zero bytes: zeros are damage, or say nothing. And what
// it does not read is zero bytes.
TEST_F(SegmentTest, NothingThatSaysAbsentIsZero) {
  for (const LayoutChoice layout : kLayouts) {
    TestTable table(files_, "data", random_);
    table.options.layout = layout;
    table.options.schema = {.value_kind = ValueKind::kBytes};
    table.options.filter_bits_per_key = 32;  // so that many words have no key
    ASSERT_OK(table.AppendPartitioned(SomeRows(3000, layout), 2));
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
    const Segment& segment = *snapshot->segments()[0];
    const SegmentHeader& header = segment.header();
    const std::string& bytes = files_.Bytes(segment.path());
    const Section& filter = header.section(SectionKind::kFilter);
    int without_key = 0;
    for (uint64_t at = filter.offset; at < filter.end(); at += 8) {
      const auto word = Load<uint64_t>(bytes.data() + at);
      ASSERT_NE(word, 0u);
      without_key += word == 1;
    }
    EXPECT_GT(without_key, 100);
    const Section& pilots = header.section(SectionKind::kPilots);
    for (uint64_t at = pilots.offset; at < pilots.end(); ++at) ASSERT_NE(bytes[at], '\0');

    const LineShape& shape = segment.shape();
    uint64_t rows = 0;
    for (const Partition& partition : segment.partitions()) {
      for (uint32_t i = 0; i < partition.line_count; ++i) {
        const uint8_t* const line = partition.lines + uint64_t{i} * shape.line_bytes();
        const uint8_t mark = shape.MarkAfter(line);
        ASSERT_GE(mark, 0x80);
        ASSERT_LE(mark, 0x80 + shape.entries());
        ASSERT_TRUE(shape.IsMark(mark));
        const uint32_t entries = mark - 0x80u;
        rows += entries;
        for (uint32_t e = 0; e < entries; ++e) {
          const uint8_t* const entry = shape.Entry(line, e);
          if (layout == LayoutChoice::kLine) {
            ASSERT_NE(Load<uint32_t>(entry), 0u) << "a doc id field";
            ASSERT_NE(Load<uint64_t>(entry + 4), 0u) << "a locator";
          } else {
            ASSERT_NE(Load<uint64_t>(entry) >> 24, 0u) << "an offset";
          }
        }
        for (size_t at = entries * shape.entry_bytes(); at < shape.line_bytes() - 1; ++at) {
          ASSERT_EQ(line[at], 0) << "behind the entries";
        }
      }
    }
    EXPECT_EQ(rows, 3000u);
    files_ = MemoryFileSystem();
  }
}

// Lines are full to 96% in the mean, and neither they nor short records straddle a page.
TEST_F(SegmentTest, LinesAreFullAndNothingStraddlesAPage) {
  for (const LayoutChoice layout : kLayouts) {
    TestTable table(files_, "data", random_);
    table.options.layout = layout;
    table.options.schema = {.value_kind = ValueKind::kBytes};
    ASSERT_OK(table.AppendPartitioned(SomeRows(20'000, layout), 1));
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
    const Segment& segment = *snapshot->segments()[0];
    const SegmentHeader& header = segment.header();
    EXPECT_EQ(header.section(SectionKind::kLines).offset % kPageBytes, 0u);
    EXPECT_EQ(header.section(SectionKind::kRecords).offset % kPageBytes, 0u);
    uint64_t entries = 0;
    for (const Partition& partition : segment.partitions()) {
      EXPECT_EQ((partition.lines - segment.partitions()[0].lines) % kPageBytes, 0);
      EXPECT_EQ((partition.records - segment.partitions()[0].records) % kPageBytes, 0);
      EXPECT_EQ(kPageBytes % (size_t{1} << partition.line_shift), 0u);
      entries += uint64_t{partition.line_count} * segment.shape().entries();
      for (uint32_t i = 0; layout == LayoutChoice::kPointer && i < partition.line_count; ++i) {
        const uint8_t* const line = partition.lines + uint64_t{i} * 64;
        for (uint32_t e = 0; e < line[63] - 0x80u; ++e) {
          const uint64_t offset = OffsetOfPointer(Load<uint64_t>(segment.shape().Entry(line, e)));
          PointedRecord record{};
          ASSERT_TRUE(ReadPointedRecord(header.schema, partition.records, partition.record_bytes,
                                        offset, &record));
          const size_t size_bytes = PointedRecordBytes(header.schema, record.key.size());
          ASSERT_EQ(offset / kPageBytes, (offset + size_bytes - 1) / kPageBytes);
        }
      }
    }
    EXPECT_GT(20'000.0 / static_cast<double>(entries), 0.9);
    files_ = MemoryFileSystem();
  }
}

// A reference that knows only what FORMAT.md says of the way to a row.
TEST_F(SegmentTest, EveryStoredKeyLiesInTheLineThatItsPilotLeadsTo) {
  for (const LayoutChoice layout : kLayouts) {
    for (const uint8_t partition_bits : {0, 1, 5}) {
      TestTable table(files_, "data", random_);
      table.options.layout = layout;
      const std::vector<Row> rows = SomeRows(1000, layout);
      ASSERT_OK(table.AppendPartitioned(rows, partition_bits));
      ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
      const Segment& segment = *snapshot->segments()[0];
      ASSERT_EQ(segment.partitions().size(), size_t{1} << partition_bits);
      for (const Row& row : rows) {
        const uint64_t hash = HashBytes(row.key.data(), row.key.size(), snapshot->seed());
        const uint64_t number = partition_bits == 0 ? 0 : hash >> (64 - partition_bits);
        const Partition& partition = segment.PartitionFor(hash);
        ASSERT_EQ(&partition, &segment.partitions()[number]);
        const uint64_t group_bits = (hash << partition_bits) >> 32;
        const uint8_t pilot = partition.pilots[group_bits * partition.group_count >> 32];
        ASSERT_EQ(partition.PilotAddress(hash),
                  partition.pilots + (group_bits * partition.group_count >> 32));
        const uint64_t mixed = (hash ^ pilot * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
        const uint64_t line_number = (mixed >> 32) * partition.line_count >> 32;
        const uint8_t* const line = partition.lines + line_number * segment.shape().line_bytes();
        ASSERT_EQ(partition.LineAddress(hash, pilot), line);
        int found = 0;
        for (uint32_t e = 0; e < segment.shape().MarkAfter(line) - 0x80u; ++e) {
          const uint8_t* const entry = segment.shape().Entry(line, e);
          if (layout == LayoutChoice::kLine) {
            found += segment.shape().KeyAt(entry) == row.key;
            continue;
          }
          const auto pointer = Load<uint64_t>(entry);
          if ((pointer ^ hash) << 40 != 0) continue;
          PointedRecord record{};
          ASSERT_TRUE(ReadPointedRecord(snapshot->schema(), partition.records,
                                        partition.record_bytes, (pointer >> 24) - 1, &record));
          found += record.key == row.key;
        }
        ASSERT_EQ(found, 1);
      }
      files_ = MemoryFileSystem();
    }
  }
}

TEST_F(SegmentTest, KnowsLengthsAndPrefixesOfItsKeys) {
  for (int round = 0; round < 200; ++round) {
    SegmentPlan plan;
    plan.identity = RandomIdentity(random_);
    plan.layout = Layout::kPointer;
    std::set<std::string> keys;
    const size_t count = random_.Between(1, 8);
    const std::string common = random_.Bytes(random_.Below(10));
    while (keys.size() < count) keys.insert(common + random_.Bytes(random_.Between(1, 12)));
    std::vector<SegmentRow> rows;
    for (const std::string& key : keys) rows.push_back({0, 1, key, ""});
    ASSERT_OK_AND_ASSIGN(const auto segment, WriteSegment(rows, plan));
    size_t shortest = SIZE_MAX, longest = 0;
    std::string smallest, largest;
    for (const std::string& key : keys) {
      shortest = std::min(shortest, key.size());
      longest = std::max(longest, key.size());
      std::string prefix = key.substr(0, 8);
      prefix.resize(8);
      if (smallest.empty() || prefix < smallest) smallest = prefix;
      if (largest.empty() || prefix > largest) largest = prefix;
    }
    for (size_t size_bytes = 0; size_bytes < 40; ++size_bytes) {
      EXPECT_EQ(segment->MayHoldLength(size_bytes),
                size_bytes >= shortest && size_bytes <= longest);
    }
    EXPECT_FALSE(segment->MayHoldLength(SIZE_MAX));
    const auto number = [](const std::string& prefix) {
      uint64_t big_endian = 0;
      for (const char byte : prefix) big_endian = big_endian << 8 | static_cast<uint8_t>(byte);
      return big_endian;
    };
    const uint64_t low = number(smallest), high = number(largest);
    EXPECT_TRUE(segment->MayHoldPrefix(low));
    EXPECT_TRUE(segment->MayHoldPrefix(high));
    EXPECT_TRUE(segment->MayHoldPrefix(low + (high - low) / 2));
    if (low > 0) {
      EXPECT_FALSE(segment->MayHoldPrefix(low - 1));
    }
    if (high < UINT64_MAX) {
      EXPECT_FALSE(segment->MayHoldPrefix(high + 1));
    }
    EXPECT_EQ(segment->keys_are_close(), high - low < UINT64_MAX / 2);
    for (const std::string& key : keys) EXPECT_TRUE(segment->MayHoldPrefix(KeyPrefix(key)));
  }
}

// Keys with one tag, so that a lookup has to read the records of several.
TEST_F(SegmentTest, KeysWithTheSameTag) {
  SegmentPlan plan;
  plan.identity = RandomIdentity(random_);
  plan.layout = Layout::kPointer;
  plan.filter_bits_per_key = 0;
  std::unordered_map<uint32_t, std::vector<uint64_t>> by_tag;
  std::vector<std::string> same;
  for (uint64_t number = random_.Next() >> 1; same.empty(); ++number) {
    auto& numbers = by_tag[static_cast<uint32_t>(
        HashBytes(&number, sizeof(number), plan.identity.seed) & 0xFFFFFF)];
    numbers.push_back(number);
    if (numbers.size() < 3) continue;
    for (const uint64_t one : numbers) {
      same.emplace_back(reinterpret_cast<const char*>(&one), sizeof(one));
    }
  }
  const auto probe = [&](const Segment& segment, const std::string& key, RowRef* row) {
    return ProbeOne(segment, false, key, HashBytes(key.data(), key.size(), plan.identity.seed),
                    row);
  };
  // Two more, so that the third is not excluded by its first bytes.
  const std::string smallest(8, '\0'), largest(8, '\xFF');
  ASSERT_OK_AND_ASSIGN(
      const auto segment,
      WriteSegment(
          {{0, 11, same[0], ""}, {0, 22, same[1], ""}, {0, 33, smallest, ""}, {0, 44, largest, ""}},
          plan));
  ASSERT_EQ(segment->partitions()[0].line_count, 1u);
  RowRef row;
  ASSERT_EQ(probe(*segment, same[0], &row), Held::kRow);
  EXPECT_EQ(row.doc_id, 11u);
  ASSERT_EQ(probe(*segment, same[1], &row), Held::kRow);
  EXPECT_EQ(row.doc_id, 22u);
  EXPECT_EQ(probe(*segment, same[2], &row), Held::kNothing) << "both records are other keys'";
  // A record that is damaged can't be told from any of them, so that none that comes to it is
  // absent; one that is found before it is found.
  std::string& bytes = files_.Bytes(segment->path());
  const Section& records = segment->header().section(SectionKind::kRecords);
  const size_t at = bytes.find(same[0], records.offset);
  ASSERT_LT(at, records.end());
  for (int bit = 0; bit < 64; ++bit) {
    bytes[at + static_cast<size_t>(bit) / 8] ^= static_cast<char>(1 << bit % 8);
    ASSERT_OK_AND_ASSIGN(const auto damaged, Segment::Open(files_, segment->path()));
    EXPECT_EQ(probe(*damaged, same[0], &row), Held::kDamaged);
    EXPECT_EQ(probe(*damaged, same[2], &row), Held::kDamaged);
    const Held other = probe(*damaged, same[1], &row);
    EXPECT_TRUE(other == Held::kDamaged || (other == Held::kRow && row.doc_id == 22u));
    bytes[at + static_cast<size_t>(bit) / 8] ^= static_cast<char>(1 << bit % 8);
  }
}

// Every mark that a line may have, and every one that it may not.
TEST_F(SegmentTest, MarksSayHowManyEntriesCount) {
  for (const Layout layout : {Layout::kLine, Layout::kPointer}) {
    SegmentPlan plan;
    plan.identity = RandomIdentity(random_);
    plan.layout = layout;
    const std::vector<std::string> keys = DistinctKeys(random_, 2, 16);
    ASSERT_OK_AND_ASSIGN(const auto whole,
                         WriteSegment({{0, 1, keys[0], ""}, {0, 2, keys[1], ""}}, plan));
    ASSERT_EQ(whole->partitions()[0].line_count, 1u);
    const uint32_t most = whole->shape().entries();
    EXPECT_EQ(most, layout == Layout::kLine ? 3u : 7u);
    std::string& bytes = files_.Bytes(whole->path());
    const size_t mark_at = whole->header().section(SectionKind::kLines).offset + 63;
    for (unsigned mark = 0; mark < 256; ++mark) {
      bytes[mark_at] = static_cast<char>(mark);
      ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, whole->path()));
      int rows = 0;
      for (const std::string& key : keys) {
        RowRef row;
        const uint64_t hash = HashBytes(key.data(), key.size(), plan.identity.seed);
        const Held held = ProbeOne(*segment, false, key, hash, &row);
        if (mark < 0x80 || mark > 0x80 + most) {
          EXPECT_EQ(held, Held::kDamaged) << mark;
        } else {
          EXPECT_NE(held, Held::kDamaged) << mark;
          rows += held == Held::kRow;
        }
      }
      if (mark >= 0x80 && mark <= 0x80 + most) {
        EXPECT_EQ(rows, static_cast<int>(std::min(2u, mark - 0x80))) << mark;
      }
      uint64_t count;
      EXPECT_EQ(CountRows(*segment, &count).ok(), mark == 0x82) << mark;
    }
  }
}

TEST_F(SegmentTest, ForEachRowEndsAtAnErrorOfItsVisitor) {
  TestTable table(files_, "data", random_);
  ASSERT_OK(table.Build({{"a", ""}, {"b", ""}, {"c", ""}}));
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
  int calls = 0;
  EXPECT_FAILS(snapshot->segments()[0]->ForEachRow([&](const StoredRow&) {
    return ++calls == 2 ? absl::CancelledError("enough") : absl::OkStatus();
  }),
               kCancelled, "enough");
  EXPECT_EQ(calls, 2);
}

// Bulk reading must not lose rows silently: whatever is zeroed, or a mark that counts fewer entries
// or more.
TEST_F(SegmentTest, ForEachRowReportsDamage) {
  for (const LayoutChoice layout : kLayouts) {
    TestTable table(files_, "data", random_);
    table.options.layout = layout;
    table.options.schema = {.value_kind = ValueKind::kBytes};
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(SomeRows(500, layout)));
    std::string& bytes = files_.Bytes(built.segment_path);
    const std::string pristine = bytes;
    const Section& lines = built.header.section(SectionKind::kLines);
    uint64_t count;
    for (const SectionKind kind :
         {SectionKind::kPilots, SectionKind::kLines, SectionKind::kRecords, SectionKind::kValues}) {
      const Section& section = built.header.section(kind);
      for (uint64_t at = section.offset; at + 64 <= section.end(); at += 64) {
        bytes.replace(at, 64, 64, '\0');
        ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, built.segment_path));
        const absl::Status status = CountRows(*segment, &count);
        if (status.ok()) {
          // The end of a doc id, which only a checksum covers. Pilots and whole lines always show.
          EXPECT_TRUE(kind == SectionKind::kRecords || kind == SectionKind::kValues ||
                      (kind == SectionKind::kLines && built.header.line_bytes > 64))
              << SectionName(kind);
          EXPECT_EQ(count, 500u);
        } else {
          EXPECT_FAILS(status, kDataLoss, StartsWith(built.segment_path));
        }
        bytes.replace(at, 64, pristine, at, 64);
      }
    }
    // An entry that does not count any more, and one that never was.
    for (uint64_t at = lines.offset + built.header.line_bytes - 1; at < lines.end();
         at += built.header.line_bytes) {
      for (const int step : {-1, 1}) {
        bytes[at] = static_cast<char>(bytes[at] + step);
        ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, built.segment_path));
        const absl::Status status = CountRows(*segment, &count);
        if (step == -1 && static_cast<uint8_t>(pristine[at]) > 0x80) {
          EXPECT_FAILS(status, kDataLoss,
                       AllOf(StartsWith(built.segment_path), HasSubstr("499"), HasSubstr("500")));
        } else {
          EXPECT_FAILS(status, kDataLoss,
                       AllOf(StartsWith(built.segment_path), HasSubstr("damaged")));
        }
        bytes[at] = pristine[at];
        ASSERT_FALSE(HasFailure());
      }
    }
    files_ = MemoryFileSystem();
  }
}

// Lines are named by their number and partition.
TEST_F(SegmentTest, ForEachRowNamesTheLine) {
  TestTable table(files_, "data", random_);
  ASSERT_OK(table.AppendPartitioned(SomeRows(2000, LayoutChoice::kLine), 2));
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
  const Segment& segment = *snapshot->segments()[0];
  const Partition& partition = segment.partitions()[2];
  const auto line_at = static_cast<uint64_t>(partition.lines - segment.partitions()[0].lines) +
                       uint64_t{17} * segment.shape().line_bytes() +
                       segment.header().section(SectionKind::kLines).offset;
  files_.Bytes(segment.path())[line_at + segment.shape().line_bytes() - 1] = 0;
  ASSERT_OK_AND_ASSIGN(const auto damaged, Segment::Open(files_, segment.path()));
  uint64_t count;
  EXPECT_FAILS(CountRows(*damaged, &count), kDataLoss,
               segment.path() + ": the mark in line 17 of partition 2 is damaged");
}

TEST_F(SegmentTest, VerifyFindsNothingInWholeFiles) {
  for (const LayoutChoice layout : kLayouts) {
    const TempDir folder;
    TestTable table(PosixFileSystem(), folder.path(), random_);
    table.options.layout = layout;
    table.options.schema = {.value_kind = ValueKind::kBytes};
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(SomeRows(20'000, layout)));
    std::vector<DamagedBlock> damaged;
    ASSERT_OK(VerifySegmentFile(PosixFileSystem(), built.segment_path, &damaged));
    EXPECT_TRUE(damaged.empty());
  }
}

// Sections of many blocks, the last one short: each damaged block is named, and no other.
TEST_F(SegmentTest, VerifyNamesEveryDamagedBlock) {
  TestTable table(files_, "data", random_);
  table.options.layout = LayoutChoice::kPointer;
  table.options.schema = {.value_kind = ValueKind::kBytes};
  std::vector<Row> rows = SomeRows(200'000, LayoutChoice::kPointer);
  rows[7].value = random_.Bytes(3 << 20);
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(rows));
  std::string& bytes = files_.Bytes(built.segment_path);
  std::vector<std::pair<std::string, uint64_t>> expected;
  for (size_t i = 1; i + 1 < kSectionCount; ++i) {
    const Section& section = built.header.sections[i];
    ASSERT_GT(section.size_bytes, kChecksumBlockBytes) << SectionName(static_cast<SectionKind>(i));
    for (uint64_t at = 0; at < section.size_bytes; at += kChecksumBlockBytes) {
      const uint64_t end = std::min(at + kChecksumBlockBytes, section.size_bytes);
      if (!random_.OneIn(3) && end != section.size_bytes) continue;
      bytes[section.offset + random_.Between(at, end - 1)] ^= 0x20;
      expected.emplace_back(SectionName(static_cast<SectionKind>(i)), section.offset + at);
    }
  }
  std::vector<DamagedBlock> damaged;
  ASSERT_OK(VerifySegmentFile(files_, built.segment_path, &damaged));
  std::vector<std::pair<std::string, uint64_t>> got;
  for (const DamagedBlock& block : damaged) got.emplace_back(block.section, block.offset);
  EXPECT_EQ(got, expected);
}

TEST_F(SegmentTest, OpenAndVerifyNameTheFileThatIsNotThere) {
  std::vector<DamagedBlock> damaged;
  EXPECT_FAILS(Segment::Open(files_, "data/none.segment"), kNotFound,
               HasSubstr("data/none.segment"));
  EXPECT_FAILS(VerifySegmentFile(files_, "data/none.segment", &damaged), kNotFound,
               HasSubstr("data/none.segment"));
  files_.Put("data/empty.segment", "");
  files_.Put("data/text.segment", std::string(100'000, 'x'));
  for (const std::string path : {"data/empty.segment", "data/text.segment"}) {
    EXPECT_FAILS(Segment::Open(files_, path), kDataLoss, StartsWith(path));
    EXPECT_FAILS(VerifySegmentFile(files_, path, &damaged), kDataLoss, StartsWith(path));
  }
  const TempDir folder;
  EXPECT_FAILS(Segment::Open(PosixFileSystem(), folder.path()), kInvalidArgument,
               HasSubstr(folder.path()));
}

TEST_F(SegmentTest, ReadHashListGivesTheTopBitsOfAllHashes) {
  for (const size_t count : {0, 1, 2, 40'000}) {
    TestTable table(files_, "data", random_);
    const std::vector<Row> rows = SomeRows(count, LayoutChoice::kLine);
    ASSERT_OK(table.AppendPartitioned(rows, count > 2 ? 4 : 0));
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
    const Segment& segment = *snapshot->segments()[0];
    const SegmentHeader& header = segment.header();
    ASSERT_GT(header.hash_bits, 0);
    ASSERT_OK_AND_ASSIGN(const std::string_view list, segment.ReadHashList());
    EXPECT_EQ(list.size(), header.section(SectionKind::kHashes).size_bytes);
    std::vector<uint64_t> expected, got;
    for (const Row& row : rows) {
      expected.push_back(HashBytes(row.key.data(), row.key.size(), snapshot->seed()) >>
                         (64 - header.hash_bits));
    }
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(ForEachHash({header.hash_bits, header.hash_delta_bytes}, list,
                          [&](uint64_t prefix) { got.push_back(prefix); }),
              count);
    EXPECT_EQ(got, expected);
    files_ = MemoryFileSystem();
  }
}

TEST_F(SegmentTest, ReadHashListNamesTheDamagedBlock) {
  TestTable table(files_, "data", random_);
  table.options.schema = {.value_kind = ValueKind::kBytes};  // so that all sections lie before it
  ASSERT_OK_AND_ASSIGN(const BuildResult built,
                       table.Build(SomeRows(80'000, LayoutChoice::kPointer)));
  ASSERT_EQ(built.header.layout, Layout::kPointer);
  const Section& hashes = built.header.section(SectionKind::kHashes);
  ASSERT_GT(hashes.size_bytes, 2 * kChecksumBlockBytes);
  std::string& bytes = files_.Bytes(built.segment_path);
  for (uint64_t at = hashes.offset; at < hashes.end(); at += kChecksumBlockBytes) {
    const uint64_t end = std::min(at + kChecksumBlockBytes, hashes.end());
    for (const uint64_t byte : {at, random_.Between(at, end - 1), end - 1}) {
      bytes[byte] ^= 1;
      ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, built.segment_path));
      EXPECT_FAILS(
          segment->ReadHashList(), kDataLoss,
          built.segment_path + ": section 'hashes' is damaged at offset " + std::to_string(at));
      bytes[byte] ^= 1;
    }
  }
  ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, built.segment_path));
  EXPECT_OK(segment->ReadHashList());

  table.options.hash_list = false;
  ASSERT_OK_AND_ASSIGN(const BuildResult without, table.Build({{"a", ""}}));
  ASSERT_OK_AND_ASSIGN(const auto listless, Segment::Open(files_, without.segment_path));
  EXPECT_FAILS(listless->ReadHashList(), kFailedPrecondition, StartsWith(without.segment_path));
}

// Files with right checksums whose pointers or lengths lead anywhere: reads stay within bounds, and
// what is found is right.
TEST_F(SegmentTest, ForgedPointersAreClamped) {
  TestTable table(files_, "data", random_);
  table.options.layout = LayoutChoice::kPointer;
  table.options.schema = {.value_kind = ValueKind::kBytes};
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(SomeRows(40, LayoutChoice::kPointer)));
  const std::string pristine = files_.Bytes(built.segment_path);
  const std::vector<std::string> keys = table.reference().Keys();
  const Section& lines = built.header.section(SectionKind::kLines);
  const Section& records = built.header.section(SectionKind::kRecords);
  const Section& values = built.header.section(SectionKind::kValues);
  std::vector<uint64_t> offsets = {0,
                                   1,
                                   records.size_bytes - 1,
                                   records.size_bytes,
                                   records.size_bytes + 1,
                                   (uint64_t{1} << 40) - 2};
  for (uint64_t at = records.size_bytes - 40; at < records.size_bytes; ++at) offsets.push_back(at);
  for (int i = 0; i < 1000; ++i) offsets.push_back(random_.Below(records.size_bytes + 20));
  uint64_t count;
  for (const uint64_t offset : offsets) {
    std::string& bytes = files_.Bytes(built.segment_path);
    bytes = pristine;
    for (uint64_t at = lines.offset; at < lines.end(); at += 64) {
      for (int e = 0; e < static_cast<uint8_t>(bytes[at + 63]) - 0x80; ++e) {
        char* const entry = bytes.data() + at + e * 8;
        Store(entry, MakePointer(offset, TagOfPointer(Load<uint64_t>(entry))));
      }
    }
    // Lengths that go on, and on.
    if (offset % 3 == 0) bytes.replace(values.offset, values.size_bytes, values.size_bytes, '\xFF');
    if (offset % 5 == 0) bytes.replace(records.end() - 9, 9, 9, '\xFF');
    SealSegment(built.header, &bytes);
    ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, built.segment_path));
    EXPECT_FAILS(CountRows(*segment, &count), kDataLoss, StartsWith(built.segment_path));
    int found = 0;
    for (const std::string& key : keys) {
      RowRef row;
      std::string_view value;
      const uint64_t hash = HashBytes(key.data(), key.size(), segment->header().identity.seed);
      const Held held = ProbeOne(*segment, false, key, hash, &row);
      ASSERT_TRUE(held == Held::kRow || held == Held::kDamaged) << offset;
      if (held == Held::kDamaged) continue;
      ++found;
      if (segment->ReadValue(row, hash, &value)) {
        EXPECT_EQ(value, table.reference().Lookup(key).value);
      }
    }
    EXPECT_LE(found, 1) << "all pointers lead to one record";
  }
}

// Locators with any offset and any check: within bounds, and never another row's value.
TEST_F(SegmentTest, ForgedLocatorsAreClamped) {
  for (const LayoutChoice layout : kLayouts) {
    TestTable table(files_, "data", random_);
    table.options.layout = layout;
    table.options.schema = {.value_kind = ValueKind::kBytes};
    const std::vector<Row> rows = SomeRows(40, layout);
    ASSERT_OK(table.AppendPartitioned(rows, 0));
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
    const Segment& segment = *snapshot->segments()[0];
    const uint64_t size_bytes = segment.header().section(SectionKind::kValues).size_bytes;
    int other_values = 0;
    for (const Row& row : rows) {
      const uint64_t hash = HashBytes(row.key.data(), row.key.size(), snapshot->seed());
      RowRef found;
      ASSERT_EQ(ProbeOne(segment, false, row.key, hash, &found), Held::kRow);
      std::string_view value;
      ASSERT_TRUE(segment.ReadValue(found, hash, &value));
      EXPECT_EQ(value, row.value);
      const auto locator = Load<uint64_t>(found.value);
      const auto reads = [&](uint64_t forged) {
        const RowRef ref{0, reinterpret_cast<const uint8_t*>(&forged)};
        return segment.ReadValue(ref, hash, &value);
      };
      EXPECT_FALSE(reads(0)) << "a hole";
      EXPECT_FALSE(reads(locator ^ 1)) << "the check";
      for (const uint64_t offset : {size_bytes, size_bytes + 1, (uint64_t{1} << 48) - 2}) {
        EXPECT_FALSE(reads(MakeLocator(offset, LocatorCheck(locator))));
        EXPECT_EQ(segment.ValueAddress(MakeLocator(offset, 0)), nullptr);
      }
      for (uint64_t offset = 0; offset < size_bytes; ++offset) {
        if (offset == LocatorOffset(locator)) continue;
        other_values += reads(MakeLocator(offset, LocatorCheck(locator))) && value != row.value;
      }
    }
    EXPECT_LE(other_values, 20) << "of some 30,000, one in 65,536 agrees by chance";
    files_ = MemoryFileSystem();
  }
}

}  // namespace
}  // namespace latchkey::test
