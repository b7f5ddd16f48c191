#include "core/segment/segment.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/segment/group.h"
#include "core/segment/term_order_layout.h"
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

class SegmentTest : public SeededTest {
 protected:
  // Rows with values of bytes, under distinct keys of several lengths or of one.
  std::vector<Row> SomeRows(size_t count, LayoutChoice layout) {
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, count, 12)) {
      if (layout == LayoutChoice::kTermOrder) key += random_.Bytes(random_.Below(20));
      rows.push_back({std::move(key), random_.Bytes(random_.Below(30)), random_.Below(1000)});
    }
    return rows;
  }

  absl::Status CountRows(const Segment& segment, uint64_t* count) {
    *count = 0;
    return segment.ForEachRow([&](const StoredRow&) {
      ++*count;
      return absl::OkStatus();
    });
  }

  MemoryFileSystem files_;
};

TEST_F(SegmentTest, GivesAllItsRowsBack) {
  for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
    for (const ValueKind values : {ValueKind::kNone, ValueKind::kFixed, ValueKind::kBytes}) {
      TestTable table(files_, "data", random_);
      table.options.layout = layout;
      table.options.schema = {.value_kind = values,
                              .value_width = static_cast<uint8_t>(values == ValueKind::kFixed)};
      std::map<std::string, Row> expected;
      std::vector<Row> rows = SomeRows(3000, layout);
      for (Row& row : rows) {
        if (values == ValueKind::kNone) row.value.clear();
        if (values == ValueKind::kFixed) row.value.assign(1, static_cast<char>(random_.Next()));
        expected[row.key] = row;
      }
      ASSERT_OK(table.AppendPartitioned(rows, 3));
      ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
      uint64_t count = 0;
      ASSERT_OK(snapshot->segments()[0]->ForEachRow([&](const StoredRow& row) {
        ++count;
        const Row& wanted = expected[std::string(row.key)];
        EXPECT_EQ(row.doc_id, wanted.doc_id);
        EXPECT_EQ(row.value, wanted.value);
        return absl::OkStatus();
      }));
      EXPECT_EQ(count, rows.size());
      EXPECT_EQ(expected.size(), rows.size());
      files_ = MemoryFileSystem();
    }
  }
}

// What a lookup may read is never written as zero bytes: zeros are damage, or say nothing.
TEST_F(SegmentTest, NothingThatSaysAbsentIsZero) {
  for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
    TestTable table(files_, "data", random_);
    table.options.layout = layout;
    table.options.schema = {.value_kind = ValueKind::kBytes};
    table.options.filter_bits_per_key = 32;  // so that many words have no key
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(SomeRows(3000, layout)));
    const std::string& bytes = files_.Bytes(built.segment_path);
    const Section& filter = built.header.section(SectionKind::kFilter);
    int without_key = 0;
    for (uint64_t at = filter.offset; at < filter.end(); at += 8) {
      const auto word = Load<uint64_t>(bytes.data() + at);
      ASSERT_NE(word, 0u);
      without_key += word == 1;
    }
    EXPECT_GT(without_key, 100);
    const Section& control = built.header.section(SectionKind::kControl);
    uint64_t full = 0;
    for (uint64_t at = control.offset; at < control.end(); ++at) {
      const auto byte = static_cast<uint8_t>(bytes[at]);
      ASSERT_TRUE(byte == kControlEmpty || byte >= 0x80);
      full += byte >= 0x80;
    }
    EXPECT_EQ(full, 3000u);
    files_ = MemoryFileSystem();
  }
}

TEST_F(SegmentTest, ForEachRowEndsAtAnErrorOfItsVisitor) {
  TestTable table(files_, "data", random_);
  ASSERT_OK(table.Build({{"a", ""}, {"b", ""}, {"c", ""}}));
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
  int calls = 0;
  EXPECT_FAILS(snapshot->segments()[0]->ForEachRow([&](const StoredRow&) {
    return ++calls == 2 ? absl::CancelledError("enough") : absl::OkStatus();
  }), kCancelled, "enough");
  EXPECT_EQ(calls, 2);
}

// Bulk reading must not lose rows silently: whatever is zeroed, or reads as an empty slot.
TEST_F(SegmentTest, ForEachRowReportsDamage) {
  for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
    TestTable table(files_, "data", random_);
    table.options.layout = layout;
    table.options.schema = {.value_kind = ValueKind::kBytes};
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(SomeRows(500, layout)));
    const std::string pristine = files_.Bytes(built.segment_path);
    uint64_t count;
    for (const SectionKind kind : {SectionKind::kControl, SectionKind::kSlotWords,
                                   SectionKind::kRecords, SectionKind::kValues}) {
      const Section& section = built.header.section(kind);
      for (uint64_t at = section.offset; at + 64 <= section.end(); at += 64) {
        std::string& bytes = files_.Bytes(built.segment_path);
        bytes.replace(at, 64, 64, '\0');
        ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, built.segment_path));
        const absl::Status status = CountRows(*segment, &count);
        if (status.ok()) {
          // It had padding or empty slots, or the end of a doc id, which only a checksum covers.
          EXPECT_EQ(count, 500u);
        } else {
          EXPECT_FAILS(status, kDataLoss, StartsWith(built.segment_path));
        }
        bytes = pristine;
      }
    }
    // A full slot that reads as an empty one.
    const Section& control = built.header.section(SectionKind::kControl);
    std::string& bytes = files_.Bytes(built.segment_path);
    for (uint64_t at = control.offset; at < control.end(); ++at) {
      if (static_cast<uint8_t>(bytes[at]) < 0x80) continue;
      bytes[at] = static_cast<char>(kControlEmpty);
      ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, built.segment_path));
      EXPECT_FAILS(CountRows(*segment, &count), kDataLoss,
                   AllOf(StartsWith(built.segment_path), HasSubstr("499"), HasSubstr("500")));
      bytes[at] = pristine[at];
      if (HasFailure()) break;
    }
    files_ = MemoryFileSystem();
  }
}

TEST_F(SegmentTest, VerifyFindsNothingInWholeFiles) {
  for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
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
  table.options.layout = LayoutChoice::kTermOrder;
  table.options.schema = {.value_kind = ValueKind::kBytes};
  std::vector<Row> rows = SomeRows(60'000, LayoutChoice::kTermOrder);
  rows[7].value = random_.Bytes(3 << 20);
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(rows));
  std::string& bytes = files_.Bytes(built.segment_path);
  std::vector<std::pair<std::string, uint64_t>> expected;
  for (size_t i = 1; i + 1 < kSectionCount; ++i) {
    const Section& section = built.header.sections[i];
    ASSERT_GT(section.size_bytes, kChecksumBlockBytes) << i;
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
  EXPECT_FAILS(Segment::Open(files_, "data/none.segment"), kNotFound, HasSubstr("data/none.segment"));
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

// Files with right checksums whose slot words or lengths point anywhere: reads stay within bounds.
TEST_F(SegmentTest, ForgedPointersAreClamped) {
  TestTable table(files_, "data", random_);
  table.options.layout = LayoutChoice::kTermOrder;
  table.options.schema = {.value_kind = ValueKind::kBytes};
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(SomeRows(40, LayoutChoice::kTermOrder)));
  const std::string pristine = files_.Bytes(built.segment_path);
  const std::vector<std::string> keys = table.reference().Keys();
  const Section& words = built.header.section(SectionKind::kSlotWords);
  const Section& records = built.header.section(SectionKind::kRecords);
  const Section& values = built.header.section(SectionKind::kValues);
  std::vector<uint64_t> pointers = {0, 1, records.size_bytes - 1, records.size_bytes,
                                    records.size_bytes + 1, (uint64_t{1} << 40) - 2};
  for (int i = 0; i < 2000; ++i) pointers.push_back(random_.Below(records.size_bytes + 20));
  uint64_t count;
  for (const uint64_t pointer : pointers) {
    std::string bytes = pristine;
    for (uint64_t at = words.offset; at < words.end(); at += 8) {
      const auto word = Load<uint64_t>(bytes.data() + at);
      if (word != 0) {
        Store(bytes.data() + at, ((pointer + 1) << kPointerShift) | MarkOf(word));
      }
    }
    // Lengths that go on, and on.
    if (pointer % 3 == 0) bytes.replace(values.offset, values.size_bytes, values.size_bytes, '\xFF');
    if (pointer % 5 == 0) {
      bytes.replace(records.end() - 9, 9, 9, '\xFF');
    }
    SealSegment(built.header, &bytes);
    files_.Bytes(built.segment_path) = bytes;
    ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, built.segment_path));
    EXPECT_FALSE(CountRows(*segment, &count).ok());
    const uint64_t seed = segment->header().identity.seed;
    for (const std::string& key : keys) {
      const Hash128 hash = HashBytes(key.data(), key.size(), seed);
      const Partition& partition = segment->PartitionFor(hash);
      const uint32_t home = segment->HomeSlot(partition, hash);
      for (uint32_t slot = home; slot < partition.slots && slot < home + 3; ++slot) {
        RowRef row;
        std::string_view value;
        const uint32_t mark = SlotWordMark(slot - home, TagOf(hash.low));
        if (segment->CompareTermOrder(partition, slot, mark, key, &row) == Candidate::kMatch &&
            segment->ReadValue(row, hash, &value)) {
          EXPECT_EQ(value, table.reference().Lookup(key).value);
        }
      }
    }
  }
}

}  // namespace
}  // namespace latchkey::test
