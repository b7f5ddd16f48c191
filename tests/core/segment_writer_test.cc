#include "core/segment/segment_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/key/key_hash.h"
#include "core/lookup/probe_engine.h"
#include "core/segment/inline_layout.h"
#include "core/segment/term_order_layout.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/segment_bytes.h"
#include "tests/support/status_asserts.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class SegmentWriterTest : public SeededTest {
 protected:
  // A plan of one partition.
  SegmentPlan PlanOf(uint64_t rows, uint16_t key_bytes) {
    SegmentPlan plan;
    plan.identity = RandomIdentity(random_);
    plan.key_bytes_min = plan.key_bytes_max = key_bytes;
    plan.layout = key_bytes <= kInlineKeyBytesMax ? Layout::kInline : Layout::kTermOrder;
    plan.partitions = {{rows, rows * key_bytes}};
    return plan;
  }

  MemoryFileSystem files_;
};

// Hashes that all fall on one slot leave no room: an error, not a loop and not a wrong table.
TEST_F(SegmentWriterTest, KeysThatHashTooUnevenlyAreRefused) {
  std::vector<std::string> keys = DistinctKeys(random_, 1000, 8);
  std::vector<SegmentRow> rows;
  for (const std::string& key : keys) rows.push_back({{UINT64_MAX, random_.Next()}, 1, key, ""});
  ASSERT_OK(files_.CreateDirectories("data"));
  ASSERT_OK_AND_ASSIGN(const auto writer,
                       SegmentWriter::Create(files_, "data/s", PlanOf(rows.size(), 8)));
  EXPECT_FAILS(writer->AddPartition(rows), kInvalidArgument,
               AllOf(HasSubstr("partition 0"), HasSubstr("unevenly")));
}

// The same hash for few rows is no error: that is what the slots behind the home slots are for.
TEST_F(SegmentWriterTest, EqualHashesOverflow) {
  for (const uint64_t low : {uint64_t{0}, UINT64_MAX}) {
    std::vector<std::string> keys = DistinctKeys(random_, 200, 8);
    std::vector<SegmentRow> rows;
    for (const std::string& key : keys) rows.push_back({{low, 0}, 1, key, ""});
    files_.Put("data/s", "");
    ASSERT_OK(files_.Remove("data/s"));
    ASSERT_OK_AND_ASSIGN(const auto writer,
                         SegmentWriter::Create(files_, "data/s", PlanOf(rows.size(), 8)));
    ASSERT_OK(writer->AddPartition(rows));
    ASSERT_OK_AND_ASSIGN(const SegmentHeader header, writer->Finish());
    EXPECT_EQ(header.displacement_max, 199u);
    EXPECT_EQ(header.slot_count, low == 0 ? HomeSlotsFor(200) : HomeSlotsFor(200) - 1 + 200);
    ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, "data/s"));
    EXPECT_EQ(segment->header(), header);
  }
}

TEST_F(SegmentWriterTest, DoesNotReplaceAFile) {
  files_.Put("data/s", "something");
  EXPECT_FAILS(SegmentWriter::Create(files_, "data/s", PlanOf(1, 8)), kAlreadyExists,
               HasSubstr("data/s"));
  EXPECT_EQ(files_.Bytes("data/s"), "something");
}

// The bounds of a plan may be far above what comes: sections then lie further apart, and all holds.
TEST_F(SegmentWriterTest, BoundsThatAreNotMet) {
  for (const uint16_t key_bytes : {uint16_t{8}, uint16_t{40}}) {
    SegmentPlan plan = PlanOf(1'000'000, key_bytes);
    plan.schema.value_kind = ValueKind::kBytes;
    plan.value_bytes = 50 << 20;
    plan.partition_bits = 1;
    plan.partitions.push_back({500'000, uint64_t{500'000} * key_bytes});
    std::vector<std::string> keys = DistinctKeys(random_, 100, key_bytes);
    std::vector<SegmentRow> rows;
    for (const std::string& key : keys) {
      rows.push_back({HashBytes(key.data(), key.size(), plan.identity.seed), 7, key, "value"});
    }
    std::sort(rows.begin(), rows.end(), [](const SegmentRow& a, const SegmentRow& b) {
      return a.hash.low < b.hash.low;
    });
    const auto middle = std::find_if(rows.begin(), rows.end(), [](const SegmentRow& row) {
      return row.hash.low >> 63 == 1;
    });
    const std::string path = "data/s" + std::to_string(key_bytes);
    ASSERT_OK(files_.CreateDirectories("data"));
    ASSERT_OK_AND_ASSIGN(const auto writer, SegmentWriter::Create(files_, path, plan));
    ASSERT_OK(writer->AddPartition({rows.begin(), middle}));
    ASSERT_OK(writer->AddPartition({middle, rows.end()}));
    ASSERT_OK(writer->Finish());
    std::vector<DamagedBlock> damaged;
    ASSERT_OK(VerifySegmentFile(files_, path, &damaged));
    EXPECT_TRUE(damaged.empty());
    ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, path));
    for (const SegmentRow& row : rows) {
      RowRef found;
      std::string_view value;
      ASSERT_EQ(ProbeOne(*segment, row.key, row.hash, &found), Outcome::kFound);
      ASSERT_TRUE(segment->ReadValue(found, row.hash, &value));
      EXPECT_EQ(value, "value");
    }
  }
}

// Sections that grow large are aligned for large pages, whatever the plan's bounds were.
TEST_F(SegmentWriterTest, LargeSectionsAreAligned) {
  TestTable table(files_, "data", random_);
  table.options.schema.value_kind = ValueKind::kBytes;
  std::vector<Row> rows;
  for (std::string& key : DistinctKeys(random_, 100'000, 20)) {
    rows.push_back({std::move(key), random_.Bytes(30)});
  }
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(rows));
  int large = 0;
  for (const Section& section : built.header.sections) {
    if (section.size_bytes < kLargeSectionAlignment) continue;
    ++large;
    EXPECT_EQ(section.offset % (2 << 20), 0u);
  }
  EXPECT_EQ(large, 2);
}

// Records of a partition lie in the order of their keys.
TEST_F(SegmentWriterTest, TermOrderIsTheOrderOfKeys) {
  TestTable table(files_, "data", random_);
  std::vector<Row> rows;
  for (const size_t length : {1, 5, 30, 31, 32, 100, 1000, 3000, 5000}) {
    for (std::string& key : DistinctKeys(random_, 20, length)) rows.push_back({std::move(key), ""});
  }
  ASSERT_OK(table.AppendPartitioned(rows, 1));
  const std::string& bytes = files_.Bytes(table.Path("g00000002-0.segment"));
  const SegmentHeader header = HeaderOf(bytes);
  ASSERT_EQ(header.layout, Layout::kTermOrder);
  const Section& directory = header.section(SectionKind::kDirectory);
  ASSERT_OK_AND_ASSIGN(const auto entries, DecodeDirectory(header, std::string_view(bytes).substr(
                                               directory.offset, directory.size_bytes)));
  uint64_t read = 0;
  for (const PartitionEntry& entry : entries) {
    const auto* const records = reinterpret_cast<const uint8_t*>(bytes.data()) +
                                header.section(SectionKind::kRecords).offset + entry.records_offset;
    std::string before;
    uint64_t at = 0;
    for (uint32_t i = 0; i < entry.row_count; ++i, ++read) {
      // A record begins with bytes that are not zero, the rest of a page is zero.
      const uint64_t page_end = RoundUp(at, kPageBytes);
      if (std::all_of(records + at, records + page_end, [](uint8_t byte) { return byte == 0; })) {
        at = page_end;
      }
      TermRecord record;
      ASSERT_TRUE(ReadTermRecord(header.schema, records, entry.record_bytes, at, &record));
      EXPECT_LT(before, record.key);
      before = record.key;
      at += TermRecordBytes(header.schema, record.key.size());
    }
    EXPECT_EQ(at, entry.record_bytes);
  }
  EXPECT_EQ(read, rows.size());
}

}  // namespace
}  // namespace latchkey::test
