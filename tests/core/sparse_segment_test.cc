// Segments with more groups, lines, filter bits and bytes than 32 bits can count: by arithmetic,
// and as files with holes, written by hand, in which only what the lookups of some keys read is
// there.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/hash.h"
#include "core/key/key_hash.h"
#include "core/lookup/probe_engine.h"
#include "core/segment/bloom_filter.h"
#include "core/segment/record_pointer.h"
#include "core/segment/segment_writer.h"
#include "core/segment/value_locator.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using Wide = unsigned __int128;

constexpr uint64_t kFourGib = uint64_t{1} << 32;
constexpr uint8_t kShardBits = 3;
constexpr uint16_t kShard = 5;
constexpr uint64_t kRecordBytes[] = {uint64_t{1} << 36, uint64_t{1} << 37};
constexpr uint64_t kValueBytes = uint64_t{1} << 36;

// Two partitions, the second of which has as much of everything as there can be.
struct Sizes {
  uint32_t lines, groups, filter_words;
};
constexpr Sizes kSizes[] = {{(uint32_t{1} << 31) + 3, (uint32_t{1} << 31) + 5, 3'000'000'007},
                            {UINT32_MAX, UINT32_MAX, UINT32_MAX}};

class SparseSegmentTest : public SeededTest, public testing::WithParamInterface<Layout> {
 protected:
  SparseSegmentTest() {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0644);
    EXPECT_GE(fd_, 0);
    manifest_.generation = 1;
    manifest_.identity = RandomIdentity(random_);
    manifest_.schema = {.doc_id_bytes = 8, .value_kind = ValueKind::kBytes};
    manifest_.shard_bits = kShardBits;
    manifest_.shard = kShard;
    DescribeSegment();
  }
  ~SparseSegmentTest() override { ::close(fd_); }

  const Section& section(SectionKind kind) const { return header_.section(kind); }
  bool has_lines() const { return GetParam() == Layout::kLine; }

  void DescribeSegment() {
    header_.identity = manifest_.identity;
    header_.schema = manifest_.schema;
    header_.segment_id = 7;
    header_.shard_bits = kShardBits;
    header_.shard = kShard;
    header_.partition_bits = 1;
    header_.layout = GetParam();
    header_.filter_kind = FilterKind::kRegisterBlocked;
    header_.filter_bits_per_key = 32;
    header_.filter_hashes = kFilterHashesMax;
    header_.key_bytes_min = 12;
    header_.key_bytes_max = has_lines() ? 12 : 40;
    header_.key_prefix_max = UINT64_MAX;
    header_.row_count = 2 * kPartitionRowsMax;
    shape_ =
        has_lines() ? LineShape::OfRows(header_.schema, 12) : LineShape::OfPointers(header_.schema);
    ASSERT_EQ(shape_.line_bytes(), 64u);
    header_.line_bytes = 64;
    uint64_t lines = 0, pilots = 0, words = 0, records = 0;
    for (int i = 0; i < 2; ++i) {
      PartitionEntry& entry = entries_[i];
      entry.lines_offset = RoundUp(lines, kPageBytes);
      entry.first_pilot = pilots;
      entry.filter_first_word = words;
      entry.records_offset = records;
      entry.record_bytes = has_lines() ? 0 : kRecordBytes[i];
      entry.lines = kSizes[i].lines;
      entry.groups = kSizes[i].groups;
      entry.filter_words = kSizes[i].filter_words;
      entry.row_count = uint32_t{1} << 31;
      lines = entry.lines_offset + uint64_t{entry.lines} * 64;
      pilots += entry.groups;
      words += entry.filter_words;
      records += entry.record_bytes;
    }
    const std::array<uint64_t, kSectionCount - 1> sizes = {
        2 * kPartitionEntryBytes, words * 8, pilots, lines, records, kValueBytes, 0};
    uint64_t end = kHeaderBytes, blocks = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const uint64_t alignment = i == 0 ? kPageBytes : SectionAlignment(sizes[i]);
      header_.sections[i] = {RoundUp(end, alignment), sizes[i]};
      end = header_.sections[i].end();
      blocks += ChecksumBlocks(sizes[i]);
    }
    header_.sections.back() = {RoundUp(end, SectionAlignment(blocks * 8)), blocks * 8};
  }

  void Write(uint64_t offset, std::string_view bytes) {
    ASSERT_EQ(::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
  }
  template <typename T>
  void WriteNumber(uint64_t offset, T number) {
    Write(offset, {reinterpret_cast<const char*>(&number), sizeof(T)});
  }

  // Header, directory, and checksums: of the directory alone, which is all that is read at Open.
  void WriteHeader() {
    ASSERT_EQ(::ftruncate(fd_, static_cast<off_t>(header_.file_bytes())), 0);
    std::string directory;
    for (const PartitionEntry& entry : entries_) AppendPartitionEntry(entry, &directory);
    Write(section(SectionKind::kDirectory).offset, directory);
    std::string checksums(section(SectionKind::kChecksums).size_bytes, '\0');
    Store(checksums.data(), Checksum(directory.data(), directory.size()));
    WriteNumber(section(SectionKind::kChecksums).offset, Load<uint64_t>(checksums.data()));
    header_.checksums_checksum = Checksum(checksums.data(), checksums.size());
    const std::string header = EncodeHeader(header_);
    Write(0, header);
    manifest_.segments = {{"sparse.segment", header_.file_bytes(), header_.segment_id,
                           HeaderChecksum(header), header_.row_count}};
  }

  // Where a key's lookup goes, by arithmetic that can't overflow. Offsets are in the file.
  struct Way {
    uint64_t hash;
    size_t partition;
    uint64_t word, group, line;
    uint64_t word_at, pilot_at, line_at;
  };
  Way WayOf(std::string_view key, uint8_t pilot) const {
    Way way{};
    way.hash = HashBytes(key.data(), key.size(), manifest_.identity.seed);
    way.partition = (way.hash >> (63 - kShardBits)) & 1;
    const PartitionEntry& entry = entries_[way.partition];
    const uint64_t filter_hash = way.hash * 0x9FB21C651E98DF25;
    way.word = static_cast<uint64_t>((Wide{filter_hash >> 30} * entry.filter_words) >> 34);
    const uint64_t group_bits = way.hash << (kShardBits + 1) >> 32;
    way.group = static_cast<uint64_t>((Wide{group_bits} * entry.groups) >> 32);
    const uint64_t mixed = (way.hash ^ pilot * 0x9E3779B97F4A7C15) * 0xD6E8FEB86659FD93;
    way.line = static_cast<uint64_t>((Wide{mixed >> 32} * entry.lines) >> 32);
    way.word_at = section(SectionKind::kFilter).offset + 8 * (entry.filter_first_word + way.word);
    way.pilot_at = section(SectionKind::kPilots).offset + entry.first_pilot + way.group;
    way.line_at = section(SectionKind::kLines).offset + entry.lines_offset + 64 * way.line;
    return way;
  }

  // A new key of the shard, with a filter word, a pilot and a line of its own.
  std::string NewKey(uint8_t* pilot) {
    for (;;) {
      std::string key = random_.Bytes(has_lines() ? 12 : random_.Between(12, 40));
      *pilot = static_cast<uint8_t>(random_.Between(1, kPilotMax));
      const Way way = WayOf(key, *pilot);
      if (way.hash >> (64 - kShardBits) != kShard) continue;
      if (taken_.contains(way.word_at) || taken_.contains(way.pilot_at) ||
          taken_.contains(way.line_at)) {
        continue;
      }
      taken_.insert({way.word_at, way.pilot_at, way.line_at});
      return key;
    }
  }

  // How much of a key's row is there.
  enum class There {
    kAll,
    kTombstone,
    kNoFilterBits,  // the row is, but its filter word says no
    kOthers,        // its line, with other keys only
    kPilotOnly,
    kNoRecord,  // of the pointer layout: the line points to a hole
    kNothing,
  };

  void Place(const std::string& key, uint8_t pilot, There there, uint64_t doc_id,
             const std::string& value) {
    if (there == There::kNothing) return;
    const Way way = WayOf(key, pilot);
    const uint64_t mask = FilterMask(FilterHashOf(way.hash), header_.filter_hashes);
    WriteNumber(way.word_at, there == There::kNoFilterBits ? ~mask : mask);
    WriteNumber(way.pilot_at, pilot);
    if (there == There::kPilotOnly) return;
    // A place of its own for the value, and for the record, spread over the whole sections.
    ++next_;
    const uint64_t value_at = next_ * (kValueBytes / 700) + random_.Below(1 << 20);
    uint8_t length[kVarintBytesMax];
    const auto length_bytes = static_cast<size_t>(StoreVarint(length, value.size() + 1) - length);
    Write(section(SectionKind::kValues).offset + value_at,
          std::string(reinterpret_cast<const char*>(length), length_bytes) + value);
    std::string row(16, '\0');
    StoreDocIdField(reinterpret_cast<uint8_t*>(row.data()),
                    there == There::kTombstone ? kDocIdTombstone : FieldOfDocId(doc_id, 8), 8);
    Store(row.data() + 8, MakeLocator(value_at, ValueCheck(value, way.hash)));

    const auto count = static_cast<uint32_t>(random_.Between(1, shape_.entries()));
    const uint32_t index =
        there == There::kOthers ? count : static_cast<uint32_t>(random_.Below(count));
    std::string line(64, '\0');
    line[63] = static_cast<char>(0x80 | count);
    for (uint32_t i = 0; i < count; ++i) {
      std::string entry = random_.Bytes(shape_.entry_bytes());
      if (!has_lines()) {
        Store(entry.data(), MakePointer(random_.Below(1 << 30), TagOf(way.hash) ^ 1));
      }
      if (i == index && has_lines()) entry = row + key;
      if (i == index && !has_lines()) {
        const uint64_t record_bytes = entries_[way.partition].record_bytes;
        const uint64_t record_at =
            next_ * (record_bytes / 700) / kPageBytes * kPageBytes + random_.Below(3000);
        Store(entry.data(), MakePointer(record_at, TagOf(way.hash)));
        if (there != There::kNoRecord) {
          Write(section(SectionKind::kRecords).offset + entries_[way.partition].records_offset +
                    record_at,
                row + static_cast<char>(key.size()) + key);
        }
      }
      line.replace(i * shape_.entry_bytes(), entry.size(), entry);
    }
    Write(way.line_at, line);
  }

  const TempDir folder_;
  const std::string path_ = folder_.Path("sparse.segment");
  int fd_ = -1;
  Manifest manifest_;
  SegmentHeader header_;
  PartitionEntry entries_[2];
  LineShape shape_;
  std::set<uint64_t> taken_;  // offsets in the file
  uint64_t next_ = 0;
};

TEST_P(SparseSegmentTest, FindsRowsBeyond32Bits) {
  ASSERT_NO_FATAL_FAILURE(WriteHeader());
  ASSERT_GT(header_.row_count, UINT32_MAX);
  ASSERT_GT(entries_[1].first_pilot, uint64_t{1} << 31);
  for (const SectionKind kind :
       {SectionKind::kFilter, SectionKind::kPilots, SectionKind::kLines, SectionKind::kValues}) {
    ASSERT_GT(section(kind).size_bytes, kFourGib) << SectionName(kind);
  }
  std::vector<std::string> keys, values;
  std::vector<LookupResult> expected, expected_by_filter;
  uint64_t largest_line = 0, largest_group = 0, largest_word = 0;
  const auto add = [&](There there) {
    uint8_t pilot;
    keys.push_back(NewKey(&pilot));
    const Way way = WayOf(keys.back(), pilot);
    largest_line = std::max(largest_line, way.line);
    largest_group = std::max(largest_group, way.group);
    largest_word = std::max(largest_word, way.word);
    const uint64_t doc_id = random_.Next() >> 1;
    values.push_back(random_.Bytes(random_.Below(300)));
    Place(keys.back(), pilot, there, doc_id, values.back());
    LookupResult result;
    if (there == There::kAll || there == There::kNoFilterBits) {
      result = {Outcome::kFound, doc_id, {}};
    } else {
      values.back().clear();
      const bool absent = there == There::kTombstone || there == There::kOthers;
      result.outcome = absent ? Outcome::kAbsent : Outcome::kDamaged;
    }
    expected.push_back(result);
    if (there == There::kNoFilterBits) result = {};
    expected_by_filter.push_back(result);
  };
  for (int i = 0; i < 400; ++i) add(There::kAll);
  for (int i = 0; i < 30; ++i) {
    for (const There there : {There::kTombstone, There::kNoFilterBits, There::kOthers,
                              There::kPilotOnly, There::kNothing}) {
      add(there);
    }
    if (!has_lines()) add(There::kNoRecord);
  }
  // That they reach far is not by chance.
  EXPECT_GT(largest_line, uint64_t{4'000'000'000});
  EXPECT_GT(largest_group, uint64_t{4'000'000'000});
  EXPECT_GT(largest_word, uint64_t{4'000'000'000});
  for (size_t i = 0; i < keys.size(); ++i) {
    expected[i].value = values[i];
    if (expected_by_filter[i].outcome == Outcome::kFound) expected_by_filter[i].value = values[i];
  }

  ASSERT_OK(PublishManifest(PosixFileSystem(), folder_.path(), manifest_));
  ASSERT_OK_AND_ASSIGN(const auto snapshot,
                       Snapshot::Open(PosixFileSystem(), folder_.path(), manifest_));
  const Segment& segment = *snapshot->segments()[0];
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  ProbeEngine engine;
  LookupResults results;
  engine.Lookup(*snapshot, views, &results);
  for (size_t i = 0; i < views.size(); ++i) {
    ASSERT_EQ(results.at(i), expected[i])
        << i << ": expected " << Describe(expected[i]) << "; got " << Describe(results.at(i));
    ASSERT_EQ(LookupOne(*snapshot, views[i]), expected[i]) << i;
    RowRef row;
    const uint64_t hash = HashBytes(keys[i].data(), keys[i].size(), snapshot->seed());
    const Held held = ProbeOne(segment, /*use_filter=*/true, views[i], hash, &row);
    switch (expected_by_filter[i].outcome) {
      case Outcome::kFound:
        ASSERT_EQ(held, Held::kRow);
        ASSERT_EQ(row.doc_id, expected[i].doc_id);
        break;
      case Outcome::kAbsent:
        ASSERT_TRUE(held == Held::kNothing || held == Held::kTombstone);
        break;
      case Outcome::kDamaged:
        ASSERT_EQ(held, Held::kDamaged);
        break;
      case Outcome::kStopped:
        FAIL() << "nothing stops it";
    }
  }
  // A batch of absent keys makes the engine ask the filter.
  const std::string_view absent(views[402]);
  ASSERT_EQ(LookupOne(*snapshot, absent).outcome, Outcome::kAbsent);
  engine.Lookup(*snapshot, {&absent, 1}, &results);
  engine.Lookup(*snapshot, views, &results);
  for (size_t i = 0; i < views.size(); ++i) {
    ASSERT_EQ(results.at(i), expected_by_filter[i]) << i << ": " << Describe(results.at(i));
  }
}

// The writer sets sections apart by bounds; those of a huge table lie far beyond 32 bits.
TEST_P(SparseSegmentTest, WriterWithHugeBounds) {
  SegmentPlan plan;
  plan.identity = manifest_.identity;
  plan.schema = manifest_.schema;
  plan.layout = GetParam();
  plan.partition_bits = 2;
  plan.key_bytes_min = plan.key_bytes_max = 12;
  plan.partitions.assign(4, {kPartitionRowsMax, 12 * kPartitionRowsMax});
  plan.value_bytes = kValueBytes;
  plan.filter_bits_per_key = 32;
  plan.hash_list = HashListShape::For(400, 400);  // else it would be long, of few rows far apart
  const std::string path = folder_.Path("huge.segment");
  ASSERT_OK_AND_ASSIGN(const auto writer, SegmentWriter::Create(PosixFileSystem(), path, plan));
  const std::vector<std::string> keys = DistinctKeys(random_, 400, 12);
  std::vector<SegmentRow> parts[4];
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t hash = HashBytes(keys[i].data(), keys[i].size(), plan.identity.seed);
    parts[hash >> 62].push_back({hash, i, keys[i], keys[i]});
  }
  for (auto& part : parts) {
    std::sort(part.begin(), part.end(),
              [](const SegmentRow& a, const SegmentRow& b) { return a.hash < b.hash; });
    ASSERT_OK(writer->AddPartition(part));
  }
  ASSERT_OK_AND_ASSIGN(const SegmentHeader header, writer->Finish());
  // What each section may take, before the next one begins.
  const uint64_t rows = 4 * kPartitionRowsMax;
  const auto room = [&](SectionKind kind) {
    const auto next = static_cast<size_t>(kind) + 1;
    return header.sections[next].offset - header.section(kind).offset;
  };
  EXPECT_GE(room(SectionKind::kFilter), rows * 4);
  EXPECT_GE(room(SectionKind::kPilots), rows * 2 / 5);
  // Rows of 28 bytes, two to a line; pointers, seven to a line.
  EXPECT_GE(room(SectionKind::kLines), rows / (has_lines() ? 2 : 7) * 64);
  EXPECT_GE(room(SectionKind::kRecords), has_lines() ? 0 : rows * 29);
  EXPECT_GE(room(SectionKind::kValues), kValueBytes);
  EXPECT_GT(header.file_bytes(), rows * 28);
  ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(PosixFileSystem(), path));
  for (size_t i = 0; i < keys.size(); ++i) {
    RowRef row;
    const uint64_t hash = HashBytes(keys[i].data(), keys[i].size(), plan.identity.seed);
    ASSERT_EQ(ProbeOne(*segment, true, keys[i], hash, &row), Held::kRow);
    EXPECT_EQ(row.doc_id, i);
    std::string_view value;
    ASSERT_TRUE(segment->ReadValue(row, hash, &value));
    EXPECT_EQ(value, keys[i]);
  }
  uint64_t count = 0;
  ASSERT_OK(segment->ForEachRow([&](const StoredRow&) {
    ++count;
    return absl::OkStatus();
  }));
  EXPECT_EQ(count, keys.size());
  EXPECT_OK(segment->ReadHashList());
}

// Offsets of a partition beyond 32 bits are taken whole: one that is right but for what 32 bits
// can't hold is refused.
TEST_P(SparseSegmentTest, DirectoryOffsetsHave64Bits) {
  std::string directory;
  for (const PartitionEntry& entry : entries_) AppendPartitionEntry(entry, &directory);
  ASSERT_OK_AND_ASSIGN(const auto decoded, DecodeDirectory(header_, directory));
  EXPECT_TRUE(std::equal(decoded.begin(), decoded.end(), entries_, entries_ + 2));
  const auto refused = [&](PartitionEntry second) {
    std::string forged = directory.substr(0, kPartitionEntryBytes);
    AppendPartitionEntry(second, &forged);
    return absl::IsDataLoss(DecodeDirectory(header_, forged).status());
  };
  EXPECT_FALSE(refused(entries_[1]));
  for (uint64_t PartitionEntry::*field :
       {&PartitionEntry::lines_offset, &PartitionEntry::first_pilot,
        &PartitionEntry::filter_first_word, &PartitionEntry::records_offset,
        &PartitionEntry::record_bytes}) {
    PartitionEntry forged = entries_[1];
    forged.*field += kFourGib;
    EXPECT_TRUE(refused(forged));
    forged.*field &= UINT32_MAX;
    EXPECT_EQ(refused(forged), !(forged == entries_[1]));
  }
  // Sums that agree with the header's in their low 32 bits only.
  for (const SectionKind kind :
       {SectionKind::kFilter, SectionKind::kPilots, SectionKind::kLines, SectionKind::kRecords}) {
    SegmentHeader larger = header_;
    larger.section(kind).size_bytes += kFourGib;
    EXPECT_TRUE(absl::IsDataLoss(DecodeDirectory(larger, directory).status()));
  }
  SegmentHeader header = header_;
  header.row_count -= kFourGib;
  EXPECT_TRUE(absl::IsDataLoss(DecodeDirectory(header, directory).status()));
}

INSTANTIATE_TEST_SUITE_P(Layouts, SparseSegmentTest,
                         testing::Values(Layout::kLine, Layout::kPointer),
                         [](const testing::TestParamInfo<Layout>& layout) {
                           return layout.param == Layout::kLine ? "Line" : "Pointer";
                         });

class LargeNumbersTest : public SeededTest {};

// Against arithmetic of 128 bits.
TEST_F(LargeNumbersTest, PlacesWithinTheLargestPartitions) {
  for (int round = 0; round < 100'000; ++round) {
    const uint64_t edges[] = {0, UINT64_MAX, uint64_t{1} << 63, UINT32_MAX, random_.Next()};
    const uint64_t hash = round % 2 == 0 ? random_.Next() : edges[random_.Below(5)];
    const uint32_t n =
        round % 3 == 0 ? UINT32_MAX : static_cast<uint32_t>(random_.Between(1, UINT32_MAX));
    const auto shift = static_cast<unsigned>(random_.Below(kPartitionBitsMax + 1));
    const uint64_t group_bits = (hash << shift) >> 32;
    ASSERT_EQ(GroupOf(hash, shift, n), static_cast<uint64_t>(Wide{group_bits} * n >> 32));
    ASSERT_LT(GroupOf(hash, shift, n), n);
    const auto pilot = static_cast<uint8_t>(random_.Between(1, kPilotMax));
    const uint64_t mixed = (hash ^ pilot * 0x9E3779B97F4A7C15) * 0xD6E8FEB86659FD93;
    ASSERT_EQ(LineOf(hash, pilot, n), static_cast<uint64_t>(Wide{mixed >> 32} * n >> 32));
    ASSERT_LT(LineOf(hash, pilot, n), n);
    const uint64_t words = random_.Between(1, kPartitionFilterWordsMax);
    ASSERT_EQ(FilterWordOf(hash, words), static_cast<uint64_t>(Wide{hash >> 30} * words >> 34));
    ASSERT_LT(FilterWordOf(hash, words), words);
  }
  EXPECT_EQ(GroupOf(UINT64_MAX, 0, UINT32_MAX), UINT32_MAX - 1);
  EXPECT_EQ(FilterWordOf(UINT64_MAX, kPartitionFilterWordsMax), kPartitionFilterWordsMax - 1);
}

// What a directory entry counts in 32 bits fits them for as many rows as a partition may have.
TEST_F(LargeNumbersTest, CountsOfTheLargestPartitionFit) {
  for (const uint64_t rows : {kPartitionRowsMax, kPartitionRowsMax - 1, uint64_t{1} << 30}) {
    EXPECT_LT(GroupsFor(rows), kFourGib);
    EXPECT_GE(GroupsFor(rows), rows / 5 * 2);
    for (uint32_t entries = 1; entries <= 15; ++entries) {
      EXPECT_GE(LinesFor(rows, entries) * entries, rows);
      EXPECT_GT(LinesBound(rows, entries), LinesFor(rows, entries));
      EXPECT_LT(LinesBound(rows, entries), kFourGib) << entries;
    }
    for (unsigned bits = 1; bits <= kFilterBitsPerKeyMax; ++bits) {
      EXPECT_EQ(FilterWordsFor(rows, bits), CeilDiv(rows * bits, 64));
      EXPECT_LT(FilterWordsFor(rows, bits), kFourGib);
    }
  }
}

TEST_F(LargeNumbersTest, PointersAndLocatorsAtTheirLimits) {
  constexpr uint64_t kOffsetMax = kPartitionRecordBytesMax - 2, kValueMax = (uint64_t{1} << 48) - 2;
  for (int round = 0; round < 10'000; ++round) {
    const uint64_t offsets[] = {0, UINT32_MAX, kFourGib, kOffsetMax, random_.Below(kOffsetMax)};
    const uint64_t offset = offsets[random_.Below(5)];
    const auto tag = static_cast<uint32_t>(random_.Below(1 << 24));
    const uint64_t pointer = MakePointer(offset, tag);
    ASSERT_EQ(OffsetOfPointer(pointer), offset);
    ASSERT_EQ(TagOfPointer(pointer), tag);
    const uint64_t value_offset = round % 5 == 0 ? kValueMax : random_.Below(kValueMax);
    const auto check = static_cast<uint16_t>(random_.Next());
    ASSERT_EQ(LocatorOffset(MakeLocator(value_offset, check)), value_offset);
    ASSERT_EQ(LocatorCheck(MakeLocator(value_offset, check)), check);
  }
  EXPECT_EQ(OffsetOfPointer(0x123456), UINT64_MAX) << "a hole, whatever its tag";
  EXPECT_EQ(LocatorOffset(0x1234), UINT64_MAX);
}

}  // namespace
}  // namespace latchkey::test
