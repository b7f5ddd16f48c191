#include "core/segment/segment_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/checked_math.h"
#include "core/base/hash.h"
#include "core/key/key_hash.h"
#include "core/lookup/probe_engine.h"
#include "core/segment/bloom_filter.h"
#include "core/segment/record_pointer.h"
#include "core/segment/value_locator.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/segment_bytes.h"
#include "tests/support/status_asserts.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A file as it was written: bytes, header and directory.
struct Written {
  std::string bytes;
  SegmentHeader header;
  std::vector<PartitionEntry> entries;

  const uint8_t* Section(SectionKind kind) const {
    return reinterpret_cast<const uint8_t*>(bytes.data()) + header.section(kind).offset;
  }
  std::string_view SectionBytes(SectionKind kind) const {
    return std::string_view(bytes).substr(header.section(kind).offset,
                                          header.section(kind).size_bytes);
  }
};

class SegmentWriterTest : public SeededTest {
 protected:
  // A plan of one partition.
  SegmentPlan PlanOf(uint64_t rows, uint16_t key_bytes) {
    SegmentPlan plan;
    plan.identity = RandomIdentity(random_);
    plan.key_bytes_min = plan.key_bytes_max = key_bytes;
    plan.layout = LineShape::SuitsRows({}, key_bytes) ? Layout::kLine : Layout::kPointer;
    plan.partitions = {{rows, rows * key_bytes}};
    return plan;
  }

  // For a file data/s.
  void MakeRoom() {
    files_.Put("data/s", "");
    EXPECT_OK(files_.Remove("data/s"));
  }

  // Adds the rows to a file at data/s, and fills in what follows from them: their hashes, and the
  // plan's bounds. The rows are left in rows_, in their order in the file.
  absl::Status Write(SegmentPlan plan, std::vector<SegmentRow> rows) {
    plan.partitions.assign(size_t{1} << plan.partition_bits, {});
    plan.key_bytes_min = plan.key_bytes_max = 0;
    for (SegmentRow& row : rows) {
      row.hash = HashBytes(row.key.data(), row.key.size(), plan.identity.seed);
      auto& bound = plan.partitions[PartitionOf(row.hash, plan.shard_bits, plan.partition_bits)];
      ++bound.rows;
      bound.key_bytes += row.key.size();
      plan.value_bytes += StoredValueBytes(row.value.size());
      const auto key_bytes = static_cast<uint16_t>(row.key.size());
      plan.key_bytes_max = std::max(plan.key_bytes_max, key_bytes);
      plan.key_bytes_min =
          plan.key_bytes_min == 0 ? key_bytes : std::min(plan.key_bytes_min, key_bytes);
    }
    // A shard's rows all have its bits on top, so their order is that of the partitions.
    std::sort(rows.begin(), rows.end(),
              [](const SegmentRow& a, const SegmentRow& b) { return a.hash < b.hash; });
    rows_ = rows;
    MakeRoom();
    auto writer = SegmentWriter::Create(files_, "data/s", plan);
    if (!writer.ok()) return writer.status();
    size_t begin = 0;
    for (const SegmentPlan::Bound& bound : plan.partitions) {
      const absl::Status added =
          (*writer)->AddPartition(std::span(rows_).subspan(begin, bound.rows));
      if (!added.ok()) return added;
      begin += bound.rows;
    }
    const auto finished = (*writer)->Finish();
    if (!finished.ok()) return finished.status();
    std::vector<DamagedBlock> damaged;
    const absl::Status verified = VerifySegmentFile(files_, "data/s", &damaged);
    if (!verified.ok()) return verified;
    EXPECT_TRUE(damaged.empty());
    written_.bytes = files_.Bytes("data/s");
    written_.header = HeaderOf(written_.bytes);
    EXPECT_EQ(written_.header, *finished);
    auto entries = DecodeDirectory(written_.header, written_.SectionBytes(SectionKind::kDirectory));
    EXPECT_OK(entries);
    written_.entries = *std::move(entries);
    return absl::OkStatus();
  }

  // Rows with random doc ids and, if the schema has some, values, of which one in `tombstones` is a
  // tombstone. The strings live as long as the test.
  std::vector<SegmentRow> RandomRows(const TableSchema& schema, size_t count,
                                     const std::vector<size_t>& key_bytes, uint64_t tombstones) {
    std::vector<SegmentRow> rows;
    for (const size_t size : key_bytes) {
      for (std::string& key : DistinctKeys(random_, count / key_bytes.size(), size)) {
        SegmentRow row;
        row.key = Keep(std::move(key));
        row.doc_id = random_.Next() % (schema.DocIdMax() + 1);
        row.tombstone = tombstones != 0 && random_.OneIn(tombstones);
        if (schema.value_kind == ValueKind::kFixed) {
          row.value = Keep(random_.Bytes(schema.value_width));
        } else if (schema.value_kind == ValueKind::kBytes) {
          row.value = Keep(random_.Bytes(random_.Below(50)));
        }
        rows.push_back(row);
      }
    }
    return rows;
  }
  std::string_view Keep(std::string text) {
    return *kept_.emplace_back(std::make_unique<std::string>(std::move(text)));
  }

  // Calls `visit(partition, line address, entry address)` for the entries of all lines, in order.
  void ForEachEntry(
      const std::function<void(size_t, const uint8_t*, const uint8_t*)>& visit) const {
    const LineShape shape = ShapeOf();
    for (size_t p = 0; p < written_.entries.size(); ++p) {
      const uint8_t* const lines =
          written_.Section(SectionKind::kLines) + written_.entries[p].lines_offset;
      for (uint32_t i = 0; i < written_.entries[p].lines; ++i) {
        const uint8_t* const line = lines + i * shape.line_bytes();
        ASSERT_TRUE(shape.IsMark(shape.MarkAfter(line)));
        for (int entry = 0; entry < shape.MarkAfter(line) - kMarkBit; ++entry) {
          visit(p, line, shape.Entry(line, entry));
        }
      }
    }
  }
  LineShape ShapeOf() const {
    const SegmentHeader& header = written_.header;
    return header.layout == Layout::kLine ? LineShape::OfRows(header.schema, header.key_bytes_max)
                                          : LineShape::OfPointers(header.schema);
  }

  MemoryFileSystem files_;
  std::vector<std::unique_ptr<std::string>> kept_;
  std::vector<SegmentRow> rows_;
  Written written_;
};

const std::vector<TableSchema> kSchemas = {{},
                                           {.doc_id_bytes = 8},
                                           {.value_kind = ValueKind::kFixed, .value_width = 20},
                                           {.value_kind = ValueKind::kBytes},
                                           {.doc_id_bytes = 8, .value_kind = ValueKind::kBytes}};

// Hashes that are all the same leave no way to part the keys: an error, not a loop and not a wrong
// table.
TEST_F(SegmentWriterTest, KeysThatHashTooUnevenlyAreRefused) {
  for (const uint16_t key_bytes : {uint16_t{8}, uint16_t{300}}) {
    for (const uint64_t hash : {uint64_t{0}, UINT64_MAX, random_.Next()}) {
      std::vector<std::string> keys = DistinctKeys(random_, 1000, key_bytes);
      std::vector<SegmentRow> rows;
      for (const std::string& key : keys) rows.push_back({hash, 1, key, ""});
      MakeRoom();
      ASSERT_OK_AND_ASSIGN(const auto writer,
                           SegmentWriter::Create(files_, "data/s", PlanOf(rows.size(), key_bytes)));
      EXPECT_FAILS(writer->AddPartition(rows), kInvalidArgument,
                   AllOf(HasSubstr("partition 0"), HasSubstr("too unlike random")));
    }
  }
}

// As many keys of one hash as a line takes are no error, and one more is: no pilot parts them.
TEST_F(SegmentWriterTest, EqualHashesShareALine) {
  for (const uint16_t key_bytes : {uint16_t{8}, uint16_t{16}, uint16_t{100}, uint16_t{300}}) {
    const SegmentPlan plan = PlanOf(200, key_bytes);
    const uint32_t fit = plan.layout == Layout::kLine ? LineShape::OfRows({}, key_bytes).entries()
                                                      : LineShape::OfPointers({}).entries();
    const std::vector<std::string> keys = DistinctKeys(random_, 200, key_bytes);
    for (const uint64_t same : {uint64_t{0}, UINT64_MAX, random_.Next()}) {
      for (const uint32_t equal : {fit, fit + 1}) {
        std::vector<SegmentRow> rows;
        for (const std::string& key : keys) {
          rows.push_back({rows.size() < equal ? same : random_.Next(), rows.size(), key, ""});
        }
        std::sort(rows.begin(), rows.end(),
                  [](const SegmentRow& a, const SegmentRow& b) { return a.hash < b.hash; });
        MakeRoom();
        ASSERT_OK_AND_ASSIGN(const auto writer, SegmentWriter::Create(files_, "data/s", plan));
        if (equal > fit) {
          EXPECT_FAILS(writer->AddPartition(rows), kInvalidArgument, HasSubstr("too unlike"));
          continue;
        }
        ASSERT_OK(writer->AddPartition(rows));
        ASSERT_OK_AND_ASSIGN(const SegmentHeader header, writer->Finish());
        ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, "data/s"));
        EXPECT_EQ(segment->header(), header);
        // Pointers are followed to keys that must prove, by their own hash, that they belong there.
        if (plan.layout == Layout::kPointer) continue;
        for (const SegmentRow& row : rows) {
          RowRef found;
          ASSERT_EQ(ProbeOne(*segment, true, row.key, row.hash, &found), Held::kRow);
          EXPECT_EQ(found.doc_id, row.doc_id);
        }
      }
    }
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
  for (const uint16_t key_bytes : {uint16_t{8}, uint16_t{200}}) {
    SegmentPlan plan = PlanOf(100'000, key_bytes);
    plan.schema.value_kind = ValueKind::kBytes;
    plan.value_bytes = 5 << 20;
    plan.hash_list = HashListShape::For(150'000, 150'000);
    plan.partition_bits = 1;
    plan.partitions.push_back({50'000, uint64_t{50'000} * key_bytes});
    std::vector<std::string> keys = DistinctKeys(random_, 100, key_bytes);
    std::vector<SegmentRow> rows;
    for (const std::string& key : keys) {
      rows.push_back({HashBytes(key.data(), key.size(), plan.identity.seed), 7, key, "value"});
    }
    std::sort(rows.begin(), rows.end(),
              [](const SegmentRow& a, const SegmentRow& b) { return a.hash < b.hash; });
    const auto middle = std::find_if(rows.begin(), rows.end(),
                                     [](const SegmentRow& row) { return row.hash >> 63 == 1; });
    const std::string path = "data/s" + std::to_string(key_bytes);
    ASSERT_OK(files_.CreateDirectories("data"));
    ASSERT_OK_AND_ASSIGN(const auto writer, SegmentWriter::Create(files_, path, plan));
    ASSERT_OK(writer->AddPartition({rows.begin(), middle}));
    ASSERT_OK(writer->AddPartition({middle, rows.end()}));
    ASSERT_OK_AND_ASSIGN(const SegmentHeader header, writer->Finish());
    EXPECT_EQ(header.layout, key_bytes == 8 ? Layout::kLine : Layout::kPointer);
    std::vector<DamagedBlock> damaged;
    ASSERT_OK(VerifySegmentFile(files_, path, &damaged));
    EXPECT_TRUE(damaged.empty());
    ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, path));
    for (const SegmentRow& row : rows) {
      RowRef found;
      std::string_view value;
      ASSERT_EQ(ProbeOne(*segment, true, row.key, row.hash, &found), Held::kRow);
      ASSERT_TRUE(segment->ReadValue(found, row.hash, &value));
      EXPECT_EQ(value, "value");
    }
    EXPECT_OK(segment->ReadHashList());
  }
}

// Sections that grow large are aligned for large pages, whatever the plan's bounds were. And bounds
// that are just met suffice: no section of so many rows reaches into the next one.
TEST_F(SegmentWriterTest, LargeSectionsAreAligned) {
  for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
    TestTable table(files_, layout == LayoutChoice::kLine ? "lines" : "pointers", random_);
    table.options.layout = layout;
    table.options.schema.value_kind = ValueKind::kBytes;
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, 170'000, 20)) {
      rows.push_back({std::move(key), random_.Bytes(30)});
    }
    // A build knows exactly how many rows there are, and reads back what it wrote.
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(rows));
    int large = 0;
    for (const Section& section : built.header.sections) {
      if (&section == &built.header.sections.back()) break;  // of the checksums there are few
      const bool unused =
          layout == LayoutChoice::kLine && &section == &built.header.section(SectionKind::kRecords);
      if (&section != &built.header.sections.front() && !unused) {
        EXPECT_GT(section.size_bytes, kSectionAlignment);  // too large for the gap behind another
      }
      if (section.size_bytes < kLargeSectionAlignment) continue;
      ++large;
      EXPECT_EQ(section.offset % (2 << 20), 0u);
    }
    // Lines and values, or records and values: lines of pointers are small.
    EXPECT_EQ(large, 2);
  }
}

// Every key lies where its hash and its group's pilot lead, so a lookup reads one line.
TEST_F(SegmentWriterTest, KeysLieInTheLineOfTheirPilot) {
  for (const TableSchema& schema : kSchemas) {
    for (const Layout layout : {Layout::kLine, Layout::kPointer}) {
      for (const auto& [shard_bits, partition_bits] :
           std::vector<std::pair<uint8_t, uint8_t>>{{0, 0}, {0, 3}, {2, 2}}) {
        SegmentPlan plan = PlanOf(0, 16);
        plan.schema = schema;
        plan.layout = layout;
        plan.shard_bits = shard_bits;
        plan.partition_bits = partition_bits;
        std::vector<SegmentRow> rows = RandomRows(schema, 2000, {16}, 7);
        std::erase_if(rows, [&](const SegmentRow& row) {
          return TopBits(HashBytes(row.key.data(), 16, plan.identity.seed), shard_bits) != 0;
        });
        ASSERT_OK(Write(plan, rows));
        const LineShape shape = ShapeOf();
        const unsigned shift = shard_bits + partition_bits;
        std::set<std::string> seen;
        ForEachEntry([&](size_t p, const uint8_t* line, const uint8_t* entry) {
          const PartitionEntry& partition = written_.entries[p];
          std::string_view key;
          if (layout == Layout::kLine) {
            key = shape.KeyAt(entry);
          } else {
            PointedRecord record;
            ASSERT_TRUE(ReadPointedRecord(
                schema, written_.Section(SectionKind::kRecords) + partition.records_offset,
                partition.record_bytes, OffsetOfPointer(Load<uint64_t>(entry)), &record));
            key = record.key;
          }
          const uint64_t hash = HashBytes(key.data(), key.size(), plan.identity.seed);
          EXPECT_EQ(PartitionOf(hash, shard_bits, partition_bits), p);
          const uint8_t pilot = written_.Section(
              SectionKind::kPilots)[partition.first_pilot + GroupOf(hash, shift, partition.groups)];
          EXPECT_EQ(line, written_.Section(SectionKind::kLines) + partition.lines_offset +
                              LineOf(hash, pilot, partition.lines) * shape.line_bytes());
          EXPECT_TRUE(seen.emplace(key).second);
        });
        EXPECT_EQ(seen.size(), rows.size());
        for (const SegmentRow& row : rows) EXPECT_TRUE(seen.contains(std::string(row.key)));
      }
    }
  }
}

// No byte of pilots or lines is left to chance: pilots are never zero, and behind a line's entries
// are zeros up to its mark.
TEST_F(SegmentWriterTest, PilotsAndLinesAreWhole) {
  for (const TableSchema& schema : kSchemas) {
    for (const std::vector<size_t>& key_bytes : {std::vector<size_t>{20}, {1, 16, 300}}) {
      for (const size_t count : {0, 3, 3000}) {
        SegmentPlan plan = PlanOf(0, 20);
        plan.schema = schema;
        plan.layout = key_bytes.size() == 1 ? Layout::kLine : Layout::kPointer;
        plan.partition_bits = 2;  // of three rows, some have none
        ASSERT_OK(Write(plan, RandomRows(schema, count, key_bytes, 5)));
        const std::string_view pilots = written_.SectionBytes(SectionKind::kPilots);
        EXPECT_EQ(pilots.find('\0'), std::string_view::npos);
        const LineShape shape = ShapeOf();
        uint64_t entries = 0, lines_end = 0;
        for (const PartitionEntry& partition : written_.entries) {
          EXPECT_GE(partition.lines, LinesFor(partition.row_count, shape.entries()));
          EXPECT_LE(partition.lines, LinesBound(partition.row_count, shape.entries()));
          EXPECT_EQ(partition.groups, GroupsFor(partition.row_count));
          const std::string_view lines = written_.SectionBytes(SectionKind::kLines);
          // Between partitions, zeros up to the page.
          EXPECT_EQ(lines.substr(lines_end, partition.lines_offset - lines_end),
                    std::string(partition.lines_offset - lines_end, '\0'));
          uint64_t rows = 0;
          for (uint32_t i = 0; i < partition.lines; ++i) {
            const auto line =
                lines.substr(partition.lines_offset + i * shape.line_bytes(), shape.line_bytes());
            const auto mark = static_cast<uint8_t>(line.back());
            ASSERT_TRUE(shape.IsMark(mark));
            const size_t used = (mark & ~kMarkBit) * shape.entry_bytes();
            EXPECT_EQ(line.substr(used, shape.line_bytes() - 1 - used),
                      std::string(shape.line_bytes() - 1 - used, '\0'));
            rows += mark & ~kMarkBit;
          }
          EXPECT_EQ(rows, partition.row_count);
          entries += rows;
          lines_end = partition.lines_offset + uint64_t{partition.lines} * shape.line_bytes();
        }
        EXPECT_EQ(entries, rows_.size());
      }
    }
  }
}

// What was put in comes back, with the smallest and the largest doc ids too.
TEST_F(SegmentWriterTest, RowsReadBack) {
  for (const TableSchema& schema : kSchemas) {
    for (const std::vector<size_t>& key_bytes :
         {std::vector<size_t>{16}, {2}, {60}, {1, 30, 31, 127, 128, 5000, 32'766}}) {
      SegmentPlan plan = PlanOf(0, 16);
      plan.schema = schema;
      plan.layout = key_bytes.size() == 1 && LineShape::SuitsRows(schema, key_bytes[0])
                        ? Layout::kLine
                        : Layout::kPointer;
      plan.partition_bits = static_cast<uint8_t>(random_.Below(4));
      std::vector<SegmentRow> rows = RandomRows(schema, 140, key_bytes, 0);
      rows[0].doc_id = 0;
      rows[1].doc_id = schema.DocIdMax();
      ASSERT_OK(Write(plan, rows));
      ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, "data/s"));
      std::map<std::string_view, const SegmentRow*> expected;
      for (const SegmentRow& row : rows_) expected[row.key] = &row;
      ASSERT_OK(segment->ForEachRow([&](const StoredRow& row) {
        const auto at = expected.find(row.key);
        EXPECT_NE(at, expected.end());
        if (at == expected.end()) return absl::OkStatus();
        EXPECT_EQ(row.hash, at->second->hash);
        EXPECT_EQ(row.doc_id, at->second->doc_id);
        EXPECT_EQ(row.value, at->second->value);
        EXPECT_FALSE(row.tombstone);
        expected.erase(at);
        return absl::OkStatus();
      }));
      EXPECT_TRUE(expected.empty());
    }
  }
}

// Records of a partition lie in the order of their lines, one behind the other but for page ends.
TEST_F(SegmentWriterTest, RecordsLieInTheOrderOfTheirLines) {
  for (const TableSchema& schema : kSchemas) {
    SegmentPlan plan = PlanOf(0, 300);
    plan.schema = schema;
    plan.partition_bits = 1;
    ASSERT_OK(Write(plan, RandomRows(schema, 180, {1, 5, 30, 31, 32, 100, 1000, 3000, 5000}, 6)));
    ASSERT_EQ(written_.header.layout, Layout::kPointer);
    const uint8_t* const section = written_.Section(SectionKind::kRecords);
    std::vector<uint64_t> ends(written_.entries.size());
    uint64_t read = 0;
    ForEachEntry([&](size_t p, const uint8_t*, const uint8_t* entry) {
      const PartitionEntry& partition = written_.entries[p];
      const auto pointer = Load<uint64_t>(entry);
      const uint64_t offset = OffsetOfPointer(pointer);
      const uint8_t* const records = section + partition.records_offset;
      PointedRecord record;
      ASSERT_TRUE(ReadPointedRecord(schema, records, partition.record_bytes, offset, &record));
      const size_t size_bytes = PointedRecordBytes(schema, record.key.size());
      EXPECT_EQ(offset, PlacePointedRecord(ends[p], size_bytes));
      // A short one lies within a page.
      if (size_bytes <= kPageBytes) {
        EXPECT_LE(offset % kPageBytes + size_bytes, kPageBytes);
      } else {
        EXPECT_EQ(offset % kPageBytes, 0u);
      }
      EXPECT_TRUE(
          std::all_of(records + ends[p], records + offset, [](uint8_t byte) { return byte == 0; }));
      EXPECT_EQ(TagOfPointer(pointer),
                TagOf(HashBytes(record.key.data(), record.key.size(), plan.identity.seed)));
      ends[p] = offset + size_bytes;
      ++read;
    });
    EXPECT_EQ(read, rows_.size());
    for (size_t p = 0; p < ends.size(); ++p) EXPECT_EQ(ends[p], written_.entries[p].record_bytes);
  }
}

// The hash list has the top bits of all hashes, those of tombstones too, in ascending order.
TEST_F(SegmentWriterTest, HashListsHoldAllHashes) {
  for (const auto& [shard_bits, partition_bits] :
       std::vector<std::pair<uint8_t, uint8_t>>{{0, 0}, {0, 5}, {3, 0}, {3, 4}}) {
    for (const HashListShape& shape :
         {HashListShape::For(3000, 3000), HashListShape{20, 2}, HashListShape{30, 2},
          HashListShape{48, 4}, HashListShape{48, 5}, HashListShape{48, 6}, HashListShape{1, 3}}) {
      SegmentPlan plan = PlanOf(0, 16);
      plan.hash_list = shape;
      plan.shard_bits = shard_bits;
      plan.partition_bits = partition_bits;
      std::vector<SegmentRow> rows = RandomRows({}, 3000, {16}, 3);
      std::erase_if(rows, [&](const SegmentRow& row) {
        return TopBits(HashBytes(row.key.data(), 16, plan.identity.seed), shard_bits) != 0;
      });
      ASSERT_OK(Write(plan, rows));
      EXPECT_EQ(written_.header.hash_bits, plan.hash_list.hash_bits);
      EXPECT_EQ(written_.header.hash_delta_bytes, plan.hash_list.delta_bytes);
      ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, "data/s"));
      ASSERT_OK_AND_ASSIGN(const std::string_view list, segment->ReadHashList());
      EXPECT_EQ(list, written_.SectionBytes(SectionKind::kHashes));
      EXPECT_LE(list.size(), plan.hash_list.BytesBound(rows.size()));
      std::vector<uint64_t> prefixes, expected;
      ForEachHash(plan.hash_list, list, [&](uint64_t prefix) { prefixes.push_back(prefix); });
      for (const SegmentRow& row : rows_) {
        expected.push_back(row.hash << shard_bits >> (64 - plan.hash_list.hash_bits));
      }
      EXPECT_EQ(prefixes, expected);
      EXPECT_TRUE(std::is_sorted(prefixes.begin(), prefixes.end()));
    }
  }
}

TEST_F(SegmentWriterTest, HashListsOfNoRowsAndNone) {
  SegmentPlan plan = PlanOf(0, 16);
  ASSERT_OK(Write(plan, RandomRows({}, 100, {16}, 0)));
  EXPECT_EQ(written_.header.hash_bits, 0);
  EXPECT_EQ(written_.header.section(SectionKind::kHashes).size_bytes, 0u);
  ASSERT_OK_AND_ASSIGN(const auto without, Segment::Open(files_, "data/s"));
  EXPECT_FAILS(without->ReadHashList(), kFailedPrecondition,
               AllOf(HasSubstr("data/s"), HasSubstr("without a hash list")));
  plan.hash_list = HashListShape::For(0, 0);
  ASSERT_OK(Write(plan, {}));
  ASSERT_OK_AND_ASSIGN(const auto empty, Segment::Open(files_, "data/s"));
  ASSERT_OK_AND_ASSIGN(const std::string_view list, empty->ReadHashList());
  EXPECT_EQ(list, "");
}

// A hash list that a bit of is wrong says so, and says where; the segment opens all the same.
TEST_F(SegmentWriterTest, DamagedHashListsAreFoundOut) {
  SegmentPlan plan = PlanOf(0, 16);
  plan.hash_list = {40, 3};
  ASSERT_OK(Write(plan, RandomRows({}, 30'000, {16}, 0)));
  const Section& list = written_.header.section(SectionKind::kHashes);
  ASSERT_GT(list.size_bytes, kChecksumBlockBytes);
  for (const uint64_t at : {uint64_t{0}, kChecksumBlockBytes - 1, uint64_t{kChecksumBlockBytes},
                            list.size_bytes - 1, random_.Below(list.size_bytes)}) {
    std::string bytes = written_.bytes;
    bytes[list.offset + at] ^= static_cast<char>(1 << random_.Below(8));
    files_.Put("data/s", bytes);
    ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, "data/s"));
    const uint64_t block = list.offset + at / kChecksumBlockBytes * kChecksumBlockBytes;
    EXPECT_FAILS(segment->ReadHashList(), kDataLoss,
                 AllOf(HasSubstr("data/s"), HasSubstr("'hashes'"),
                       HasSubstr("offset " + std::to_string(block))));
  }
}

// A tombstone has no doc id and no value, and is told from a row and from nothing.
TEST_F(SegmentWriterTest, TombstonesAreTold) {
  for (const TableSchema& schema : kSchemas) {
    for (const Layout layout : {Layout::kLine, Layout::kPointer}) {
      for (const uint64_t tombstones : {1, 4}) {
        SegmentPlan plan = PlanOf(0, 16);
        plan.schema = schema;
        plan.layout = layout;
        const std::vector<SegmentRow> rows = RandomRows(schema, 1000, {16}, tombstones);
        ASSERT_OK(Write(plan, rows));
        const auto count = static_cast<uint64_t>(std::count_if(
            rows.begin(), rows.end(), [](const SegmentRow& row) { return row.tombstone; }));
        EXPECT_EQ(written_.header.tombstone_count, count);
        EXPECT_EQ(written_.header.row_count, rows.size());
        // Their values, which don't count, are nowhere.
        uint64_t value_bytes = 0;
        for (const SegmentRow& row : rows) {
          if (!row.tombstone) value_bytes += StoredValueBytes(row.value.size());
        }
        EXPECT_EQ(written_.header.section(SectionKind::kValues).size_bytes,
                  schema.value_kind == ValueKind::kBytes ? value_bytes : 0);
        ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, "data/s"));
        for (const SegmentRow& row : rows_) {
          RowRef found;
          ASSERT_EQ(ProbeOne(*segment, true, row.key, row.hash, &found),
                    row.tombstone ? Held::kTombstone : Held::kRow);
          if (row.tombstone) {
            EXPECT_TRUE(std::all_of(found.value, found.value + schema.InlineValueBytes(),
                                    [](uint8_t byte) { return byte == 0; }));
          } else {
            EXPECT_EQ(found.doc_id, row.doc_id);
          }
        }
        for (const std::string& key : DistinctKeys(random_, 200, 16)) {
          const uint64_t hash = HashBytes(key.data(), key.size(), plan.identity.seed);
          RowRef found;
          EXPECT_EQ(ProbeOne(*segment, true, key, hash, &found), Held::kNothing);
        }
        uint64_t told = 0;
        ASSERT_OK(segment->ForEachRow([&](const StoredRow& row) {
          told += row.tombstone;
          EXPECT_TRUE(!row.tombstone || (row.doc_id == 0 && row.value.empty()));
          return absl::OkStatus();
        }));
        EXPECT_EQ(told, count);
      }
    }
  }
}

// The two doc ids above the largest are what a hole and a tombstone read as.
TEST_F(SegmentWriterTest, DocIdsLeaveRoomForHolesAndTombstones) {
  for (const uint8_t bytes : {4, 8}) {
    const TableSchema schema = {.doc_id_bytes = bytes};
    const uint64_t all = bytes == 4 ? UINT32_MAX : UINT64_MAX;
    EXPECT_EQ(schema.DocIdMax(), all - 2);
    EXPECT_EQ(FieldOfDocId(all, bytes), kDocIdHole);
    EXPECT_EQ(FieldOfDocId(all - 1, bytes), kDocIdTombstone);
    EXPECT_EQ(FieldOfDocId(all - 2, bytes), kDocIdTombstone + 1);
    EXPECT_EQ(FieldOfDocId(0, bytes), all);
  }
}

// Prefixes are those of the first and the last key in the keys' order, tombstones included.
TEST_F(SegmentWriterTest, KeyPrefixesAreThoseOfTheOutermostKeys) {
  for (const std::vector<size_t>& key_bytes :
       {std::vector<size_t>{16}, {8}, {3}, {1, 7, 8, 9, 20}}) {
    for (const size_t count : {5, 200}) {
      SegmentPlan plan = PlanOf(0, 16);
      plan.layout = key_bytes.size() == 1 ? Layout::kLine : Layout::kPointer;
      plan.partition_bits = 3;
      ASSERT_OK(Write(plan, RandomRows({}, count, key_bytes, 2)));
      const auto [min, max] = std::minmax_element(
          rows_.begin(), rows_.end(),
          [](const SegmentRow& a, const SegmentRow& b) { return a.key < b.key; });
      EXPECT_EQ(written_.header.key_prefix_min, KeyPrefix(min->key));
      EXPECT_EQ(written_.header.key_prefix_max, KeyPrefix(max->key));
      ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, "data/s"));
      for (const SegmentRow& row : rows_) {
        ASSERT_TRUE(segment->MayHoldPrefix(KeyPrefix(row.key)));
        ASSERT_TRUE(segment->MayHoldLength(row.key.size()));
      }
      EXPECT_FALSE(segment->MayHoldLength(key_bytes.front() - 1));
      EXPECT_FALSE(segment->MayHoldLength(key_bytes.back() + 1));
      if (KeyPrefix(max->key) < UINT64_MAX) {
        EXPECT_FALSE(segment->MayHoldPrefix(KeyPrefix(max->key) + 1));
      }
      if (KeyPrefix(min->key) > 0) {
        EXPECT_FALSE(segment->MayHoldPrefix(KeyPrefix(min->key) - 1));
      }
    }
  }
  ASSERT_OK(Write(PlanOf(0, 0), {}));
  EXPECT_EQ(written_.header.key_prefix_min, 0u);
  EXPECT_EQ(written_.header.key_prefix_max, 0u);
  EXPECT_EQ(written_.header.key_bytes_max, 0u);
}

// Bit for bit the filter that its definition makes of the keys.
TEST_F(SegmentWriterTest, FiltersAreThoseOfTheKeys) {
  for (const uint8_t bits_per_key : {0, 1, 4, 10, 32}) {
    for (const size_t count : {0, 1, 5, 3000}) {
      SegmentPlan plan = PlanOf(0, 16);
      plan.filter_bits_per_key = bits_per_key;
      plan.partition_bits = 2;
      ASSERT_OK(Write(plan, RandomRows({}, count, {16}, 3)));
      const unsigned hashes = FilterHashesFor(bits_per_key);
      EXPECT_EQ(written_.header.filter_kind,
                bits_per_key == 0 ? FilterKind::kNone : FilterKind::kRegisterBlocked);
      EXPECT_EQ(written_.header.filter_bits_per_key, bits_per_key);
      EXPECT_EQ(written_.header.filter_hashes, hashes);
      std::vector<uint64_t> expected;
      for (size_t p = 0; p < 4; ++p) {
        const PartitionEntry& partition = written_.entries[p];
        const size_t first = expected.size();
        EXPECT_EQ(partition.filter_first_word, bits_per_key == 0 ? 0 : first);
        EXPECT_EQ(partition.filter_words, FilterWordsFor(partition.row_count, bits_per_key));
        expected.resize(first + partition.filter_words, 0);
        for (const SegmentRow& row : rows_) {
          if (bits_per_key == 0 || PartitionOf(row.hash, 0, 2) != p) continue;
          const uint64_t mixed = FilterHashOf(row.hash);
          expected[first + FilterWordOf(mixed, partition.filter_words)] |=
              FilterMask(mixed, hashes);
        }
      }
      // Zero is for holes only.
      std::replace(expected.begin(), expected.end(), uint64_t{0}, kEmptyFilterWord);
      const std::string_view filter = written_.SectionBytes(SectionKind::kFilter);
      std::string expected_bytes;
      for (const uint64_t word : expected) Append(&expected_bytes, word);
      EXPECT_EQ(filter, expected_bytes);
      ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, "data/s"));
      EXPECT_EQ(segment->has_filter(), bits_per_key > 0);
    }
  }
}

// The sections of a layout, and what the header says of the whole.
TEST_F(SegmentWriterTest, HeadersSayWhatWasWritten) {
  for (const TableSchema& schema : kSchemas) {
    for (const Layout layout : {Layout::kLine, Layout::kPointer}) {
      SegmentPlan plan = PlanOf(0, 16);
      plan.schema = schema;
      plan.layout = layout;
      plan.segment_id = random_.Next();
      plan.shard_bits = 5;
      plan.shard = 0;
      std::vector<SegmentRow> rows = RandomRows(schema, 3000, {16}, 0);
      std::erase_if(rows, [&](const SegmentRow& row) {
        return TopBits(HashBytes(row.key.data(), 16, plan.identity.seed), 5) != 0;
      });
      ASSERT_OK(Write(plan, rows));
      const SegmentHeader& header = written_.header;
      EXPECT_EQ(header.identity, plan.identity);
      EXPECT_EQ(header.schema, schema);
      EXPECT_EQ(header.segment_id, plan.segment_id);
      EXPECT_EQ(header.mandatory_features, 0u);
      EXPECT_EQ(header.optional_features, 0u);
      EXPECT_EQ(header.row_count, rows.size());
      EXPECT_EQ(header.layout, layout);
      EXPECT_EQ(header.shard_bits, 5);
      EXPECT_EQ(header.shard, 0);
      EXPECT_EQ(header.line_bytes, ShapeOf().line_bytes());
      EXPECT_EQ(header.key_bytes_min, 16);
      EXPECT_EQ(header.key_bytes_max, 16);
      EXPECT_EQ(header.file_bytes(), written_.bytes.size());
      EXPECT_EQ(header.section(SectionKind::kRecords).size_bytes == 0, layout == Layout::kLine);
      EXPECT_EQ(header.section(SectionKind::kValues).size_bytes == 0,
                schema.value_kind != ValueKind::kBytes);
    }
  }
}

}  // namespace
}  // namespace latchkey::test
