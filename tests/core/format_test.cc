#include "core/segment/format.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/checked_math.h"
#include "core/base/hash.h"
#include "core/segment/bloom_filter.h"
#include "core/segment/hash_list.h"
#include "core/segment/line_shape.h"
#include "core/segment/pilot_search.h"
#include "tests/support/segment_bytes.h"
#include "tests/support/status_asserts.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Where the header's fields lie, as the format says.
constexpr size_t kAtMajor = 8, kAtMinor = 10, kAtSchemaId = 40, kAtMandatory = 56, kAtOptional = 64,
                 kAtSections = 120, kAtSchemaBytes = 256, kAtSchema = 258,
                 kAtChecksum = kHeaderBytes - 8;

std::string At(size_t offset) { return "offset " + std::to_string(offset) + ":"; }

// A header and a directory that agree with each other.
struct Described {
  SegmentHeader header;
  std::vector<PartitionEntry> entries;

  std::string Directory() const {
    std::string bytes;
    for (const PartitionEntry& entry : entries) AppendPartitionEntry(entry, &bytes);
    return bytes;
  }
};

struct Kind {
  Layout layout = Layout::kLine;
  TableSchema schema = {};
  uint8_t filter_bits = 10;
  bool hash_list = true;
};

// Of partitions with so many rows each, with keys of 16 bytes, or up to 300 for pointers.
Described Describe(const Kind& kind, const std::vector<uint32_t>& rows, Random& random) {
  Described described;
  SegmentHeader& header = described.header;
  header.identity = RandomIdentity(random);
  header.schema = kind.schema;
  header.segment_id = random.Next();
  header.optional_features = random.Next();
  header.layout = kind.layout;
  header.filter_kind = kind.filter_bits > 0 ? FilterKind::kRegisterBlocked : FilterKind::kNone;
  header.filter_bits_per_key = kind.filter_bits;
  header.filter_hashes = static_cast<uint8_t>(FilterHashesFor(kind.filter_bits));
  while (size_t{1} << header.partition_bits < rows.size()) ++header.partition_bits;
  const bool pointers = kind.layout == Layout::kPointer;
  const LineShape shape =
      pointers ? LineShape::OfPointers(kind.schema) : LineShape::OfRows(kind.schema, 16);
  header.line_bytes = static_cast<uint16_t>(shape.line_bytes());
  std::array<uint64_t, kSectionCount> bytes = {};
  const auto of = [&](SectionKind section) -> uint64_t& {
    return bytes[static_cast<size_t>(section)];
  };
  for (const uint32_t row_count : rows) {
    PartitionEntry entry;
    entry.row_count = row_count;
    entry.lines_offset = RoundUp(of(SectionKind::kLines), kPageBytes);
    entry.lines = static_cast<uint32_t>(LinesFor(row_count, shape.entries()));
    entry.first_pilot = of(SectionKind::kPilots);
    entry.groups = static_cast<uint32_t>(GroupsFor(row_count));
    entry.filter_first_word = of(SectionKind::kFilter) / 8;
    entry.filter_words = static_cast<uint32_t>(FilterWordsFor(row_count, kind.filter_bits));
    entry.records_offset = RoundUp(of(SectionKind::kRecords), kPageBytes);
    entry.record_bytes = pointers ? uint64_t{row_count} * 100 : 0;
    of(SectionKind::kLines) = entry.lines_offset + uint64_t{entry.lines} * shape.line_bytes();
    of(SectionKind::kPilots) += entry.groups;
    of(SectionKind::kFilter) += uint64_t{entry.filter_words} * 8;
    of(SectionKind::kRecords) = entry.records_offset + entry.record_bytes;
    header.row_count += row_count;
    described.entries.push_back(entry);
  }
  header.tombstone_count = header.row_count / 10;
  if (header.row_count > 0) {
    header.key_bytes_min = 16;
    header.key_bytes_max = pointers ? 300 : 16;
    header.key_prefix_min = random.Next() / 2;
    header.key_prefix_max = header.key_prefix_min + random.Next() / 2;
  }
  of(SectionKind::kDirectory) = rows.size() * kPartitionEntryBytes;
  if (kind.schema.value_kind == ValueKind::kBytes) {
    of(SectionKind::kValues) = header.row_count * 1000;
  }
  if (kind.hash_list) {
    const auto list = HashListShape::For(header.row_count, header.row_count);
    header.hash_bits = list.hash_bits;
    header.hash_delta_bytes = list.delta_bytes;
    of(SectionKind::kHashes) = header.row_count * list.delta_bytes;
  }
  uint64_t end = kHeaderBytes, blocks = 0;
  for (size_t i = 0; i < kSectionCount; ++i) {
    if (i + 1 == kSectionCount) bytes[i] = blocks * 8;
    blocks += ChecksumBlocks(bytes[i]);
    header.sections[i] = {RoundUp(end, i == 0 ? kPageBytes : SectionAlignment(bytes[i])), bytes[i]};
    end = header.sections[i].end();
  }
  header.checksums_checksum = random.Next();
  return described;
}

const TableSchema kWideSchema = {.doc_id_bytes = 8, .value_kind = ValueKind::kBytes};
const TableSchema kFixedSchema = {
    .key_kind = KeyKind::kHex, .value_kind = ValueKind::kFixed, .value_width = 20};

class FormatTest : public SeededTest {
 protected:
  // A small segment of each kind.
  std::vector<Described> SmallOnes() {
    std::vector<Described> all;
    for (const Layout layout : {Layout::kLine, Layout::kPointer}) {
      for (const TableSchema& schema : {TableSchema{}, kWideSchema, kFixedSchema}) {
        for (const bool filter_and_list : {false, true}) {
          const uint8_t filter_bits = filter_and_list ? 10 : 0;
          all.push_back(
              Describe({layout, schema, filter_bits, filter_and_list}, {70, 0, 80, 2000}, random_));
        }
      }
    }
    return all;
  }
  Described SmallOne() { return Describe({}, {70, 0, 80, 2000}, random_); }
};

void ExpectRoundTrip(const Described& described) {
  const std::string bytes = EncodeHeader(described.header);
  ASSERT_EQ(bytes.size(), kHeaderBytes);
  ASSERT_OK_AND_ASSIGN(const SegmentHeader header, DecodeHeader(bytes));
  EXPECT_EQ(header, described.header);
  EXPECT_EQ(header.file_bytes(), described.header.sections.back().end());
  ASSERT_OK_AND_ASSIGN(const auto entries, DecodeDirectory(header, described.Directory()));
  EXPECT_EQ(entries, described.entries);
  EXPECT_EQ(HeaderChecksum(bytes), Load<uint64_t>(bytes.data() + kAtChecksum));
}

TEST_F(FormatTest, RoundTrips) {
  for (const Described& described : SmallOnes()) ExpectRoundTrip(described);
  ExpectRoundTrip(Describe({}, std::vector<uint32_t>(1024, 40), random_));
  // No rows at all, and one.
  for (const Layout layout : {Layout::kLine, Layout::kPointer}) {
    Described empty = Describe({layout}, {0}, random_);
    if (layout == Layout::kLine) {
      empty.header.line_bytes = static_cast<uint16_t>(LineShape::OfRows({}, 0).line_bytes());
    }
    ExpectRoundTrip(empty);
    ExpectRoundTrip(Describe({layout}, {1}, random_));
  }
  Described shard = SmallOne();
  shard.header.shard_bits = 8;
  shard.header.shard = 255;
  ExpectRoundTrip(shard);
  // What follows the header is no part of it.
  EXPECT_OK(DecodeHeader(EncodeHeader(SmallOne().header) + "more"));
}

// The format is frozen: this many bytes at these offsets, whatever the code is like.
TEST_F(FormatTest, FieldsLieWhereTheFormatSays) {
  Described described = Describe({Layout::kPointer, kFixedSchema}, {70, 0, 80, 2000}, random_);
  SegmentHeader& header = described.header;
  header.shard_bits = 5;
  header.shard = 17;
  std::string bytes = EncodeHeader(header);
  const auto expect = [&](size_t offset, auto field) {
    EXPECT_EQ(Load<decltype(field)>(bytes.data() + offset), field) << offset;
  };
  EXPECT_EQ(bytes.substr(0, 8), "LATCHKEY");
  expect(8, uint16_t{1});
  expect(10, uint16_t{0});
  expect(12, uint32_t{4096});
  expect(16, header.identity.table_id);
  expect(32, header.identity.seed);
  expect(40, Checksum("key=hex/1 doc_id=32 value=fixed(20)", 35));
  expect(48, header.segment_id);
  expect(56, uint64_t{0});
  expect(64, header.optional_features);
  expect(72, uint64_t{2150});
  expect(80, uint64_t{215});
  expect(88, uint8_t{2});
  expect(89, uint8_t{1});
  expect(90, uint8_t{10});
  expect(91, uint8_t{5});
  expect(92, uint8_t{5});
  expect(93, uint8_t{2});
  expect(94, header.hash_bits);
  expect(95, header.hash_delta_bytes);
  expect(96, uint16_t{17});
  expect(98, uint16_t{64});
  expect(100, uint16_t{16});
  expect(102, uint16_t{300});
  expect(104, header.key_prefix_min);
  expect(112, header.key_prefix_max);
  for (size_t i = 0; i < 8; ++i) {
    expect(120 + 16 * i, header.sections[i].offset);
    expect(128 + 16 * i, header.sections[i].size_bytes);
  }
  expect(248, header.checksums_checksum);
  expect(256, uint16_t{35});
  EXPECT_EQ(bytes.substr(258, 35), "key=hex/1 doc_id=32 value=fixed(20)");
  EXPECT_EQ(bytes.substr(293, 4088 - 293), std::string(4088 - 293, '\0'));
  expect(4088, Checksum(bytes.data(), 4088));

  const PartitionEntry& last = described.entries.back();
  bytes = described.Directory();
  ASSERT_EQ(bytes.size(), 4u * 56);
  expect(168, last.lines_offset);
  expect(176, last.first_pilot);
  expect(184, last.filter_first_word);
  expect(192, last.records_offset);
  expect(200, last.record_bytes);
  expect(208, last.lines);
  expect(212, last.groups);
  expect(216, last.filter_words);
  expect(220, last.row_count);

  std::vector<std::string_view> names;
  for (size_t i = 0; i < kSectionCount; ++i) {
    names.push_back(SectionName(static_cast<SectionKind>(i)));
  }
  EXPECT_THAT(names, testing::ElementsAre("directory", "filter", "pilots", "lines", "records",
                                          "values", "hashes", "checksums"));
}

TEST_F(FormatTest, NumbersBeyond32Bits) {
  const std::vector<uint32_t> one = {1'600'000'000};
  const std::vector<uint32_t> most(1024, 800'000'000);
  for (const TableSchema& schema :
       {TableSchema{.doc_id_bytes = 8}, TableSchema{.value_kind = ValueKind::kBytes},
        TableSchema{.value_kind = ValueKind::kFixed, .value_width = 64}}) {
    for (const Layout layout : {Layout::kLine, Layout::kPointer}) {
      for (const std::vector<uint32_t>& rows : {one, most}) {
        const Described described = Describe({layout, schema, 32}, rows, random_);
        const auto bytes_of = [&](SectionKind kind) {
          return described.header.section(kind).size_bytes;
        };
        EXPECT_GT(bytes_of(SectionKind::kFilter) * 8, uint64_t{1} << 32);
        EXPECT_GT(bytes_of(SectionKind::kLines), uint64_t{1} << 33);
        EXPECT_GT(bytes_of(SectionKind::kHashes), uint64_t{1} << 31);
        if (layout == Layout::kPointer) {
          EXPECT_GT(bytes_of(SectionKind::kRecords), uint64_t{1} << 35);
        }
        if (rows.size() > 1) {
          EXPECT_GT(described.header.row_count, uint64_t{1} << 39);
          EXPECT_GT(described.entries.back().first_pilot, uint64_t{1} << 37);
        }
        ExpectRoundTrip(described);
        // A number that is one off, far beyond 32 bits, does not get lost.
        for (const auto field :
             {&PartitionEntry::lines_offset, &PartitionEntry::first_pilot,
              &PartitionEntry::filter_first_word, &PartitionEntry::records_offset}) {
          Described off = described;
          off.entries.back().*field += kPageBytes;
          EXPECT_FALSE(DecodeDirectory(off.header, off.Directory()).ok());
        }
        for (const SectionKind kind :
             {SectionKind::kLines, SectionKind::kPilots, SectionKind::kFilter}) {
          SegmentHeader off = described.header;
          off.section(kind).size_bytes ^= uint64_t{1} << 32;
          EXPECT_FALSE(DecodeDirectory(off, described.Directory()).ok());
        }
        SegmentHeader off = described.header;
        off.row_count += uint64_t{1} << 32;
        EXPECT_FALSE(DecodeDirectory(off, described.Directory()).ok());
      }
    }
  }
}

TEST_F(FormatTest, EveryCutOfAHeaderIsRefused) {
  const std::string bytes = EncodeHeader(SmallOne().header);
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    // A copy of its own size, so that a sanitizer sees a read beyond it.
    const std::vector<char> shorter(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(cut));
    EXPECT_FAILS(DecodeHeader({shorter.data(), shorter.size()}), kDataLoss, HasSubstr("cut off"));
  }
}

TEST_F(FormatTest, EveryDamagedByteOfAHeaderIsRefused) {
  for (const Described& described : SmallOnes()) {
    const std::string pristine = EncodeHeader(described.header);
    std::string bytes = pristine;
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        bytes[at] = static_cast<char>(pristine[at] ^ (1 << bit));
        ASSERT_FALSE(DecodeHeader(bytes).ok()) << at << ", bit " << bit;
      }
      for (const char byte : {'\0', '\xFF'}) {
        bytes[at] = byte;
        ASSERT_EQ(DecodeHeader(bytes).ok(), byte == pristine[at]) << at;
      }
      bytes[at] = pristine[at];
    }
  }
}

// Whatever was decoded of `bytes` gives the same bytes again, but for what a later minor version
// put where this one has nothing.
void ExpectSaysTheSame(const SegmentHeader& header, std::string bytes) {
  if (Load<uint16_t>(bytes.data() + kAtMinor) != 0) {
    Store(bytes.data() + kAtMinor, uint16_t{0});
    const size_t end = kAtSchema + Load<uint16_t>(bytes.data() + kAtSchemaBytes);
    std::fill(bytes.begin() + static_cast<ptrdiff_t>(end), bytes.end(), '\0');
    SealHeader(&bytes);
  }
  ASSERT_EQ(EncodeHeader(header), bytes);
}

// A flipped bit under a checksum that is right, as only a bug or a forger makes one: refused, or
// another header that says what the bytes say.
TEST_F(FormatTest, EveryForgedBitOfAHeaderIsRefusedOrMeansSomething) {
  for (const Described& described : SmallOnes()) {
    const std::string pristine = EncodeHeader(described.header);
    const size_t end = kAtSchema + described.header.schema.Descriptor().size();
    size_t refused = 0, accepted = 0;
    for (size_t at = 0; at < kAtChecksum; ++at) {
      // Of the many that are kept for later, one bit each.
      const auto first = static_cast<int>(at < end ? 0 : random_.Below(8));
      for (int bit = first; bit < (at < end ? 8 : first + 1); ++bit) {
        std::string bytes = pristine;
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
        SealHeader(&bytes);
        const auto header = DecodeHeader(bytes);
        if (!header.ok()) {
          ++refused;
          continue;
        }
        ++accepted;
        // Of one bit that is overlooked there is no telling, so there is none but the minor
        // version.
        ASSERT_EQ(*header == described.header, at == kAtMinor || at == kAtMinor + 1) << at;
        ExpectSaysTheSame(*header, bytes);
      }
    }
    // Ids, features, counts, key prefixes, the checksum of checksums: about 80 bytes are free.
    EXPECT_GT(accepted, 8 * 60u);
    EXPECT_LT(accepted, 8 * 110u);
    EXPECT_EQ(refused + accepted, 8 * end + (kAtChecksum - end));
  }
}

// Random bytes under a right checksum: refused, or a header that encodes to the same bytes.
TEST_F(FormatTest, RandomForgeriesAreRefusedOrConsistent) {
  const std::vector<Described> ones = SmallOnes();
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = EncodeHeader(random_.Pick(ones).header);
    for (uint64_t i = random_.Between(1, 3); i > 0; --i) {
      bytes[random_.Between(kAtMinor, 320)] =
          static_cast<char>(random_.OneIn(3) ? 0 : random_.Next());
    }
    SealHeader(&bytes);
    const auto header = DecodeHeader(bytes);
    if (!header.ok()) continue;
    ++accepted;
    ExpectSaysTheSame(*header, bytes);
  }
  EXPECT_GT(accepted, 0);
}

// A number written over a header's bytes.
struct Poke {
  size_t offset, bytes;
  uint64_t value;
};
struct BadHeader {
  std::string field;
  size_t offset;
  std::vector<Poke> pokes;
};

// Headers with one field out of its range, as changes of a good one of 2,150 rows and 4 partitions.
std::vector<BadHeader> BadHeaders(const SegmentHeader& good) {
  const size_t directory = kAtSections, checksums = kAtSections + 16 * (kSectionCount - 1);
  const Poke no_rows = {72, 8, 0}, no_tombstones = {80, 8, 0};
  std::vector<BadHeader> all = {{"filter bits a key", 90, {{89, 1, 0}, {90, 1, 1}, {91, 1, 0}}},
                                {"filter bits a key", 90, {{89, 1, 1}, {90, 1, 0}, {91, 1, 5}}},
                                {"filter bits a key", 90, {{89, 1, 1}, {90, 1, 33}, {91, 1, 5}}},
                                {"filter hashes", 91, {{89, 1, 1}, {90, 1, 10}, {91, 1, 0}}},
                                {"filter hashes", 91, {{89, 1, 1}, {90, 1, 10}, {91, 1, 6}}},
                                {"filter hashes", 91, {{89, 1, 0}, {90, 1, 0}, {91, 1, 1}}},
                                {"partition bits", 93, {{92, 1, 4}, {93, 1, 7}, {96, 2, 3}}},
                                {"hash bits", 94, {{94, 1, 49}, {95, 1, 4}}},
                                {"hash bits", 94, {{94, 1, 255}, {95, 1, 4}}},
                                {"hash difference", 95, {{94, 1, 0}, {95, 1, 2}}},
                                {"hash difference", 95, {{94, 1, 20}, {95, 1, 0}}},
                                {"hash difference", 95, {{94, 1, 20}, {95, 1, 1}}},
                                {"hash difference", 95, {{94, 1, 20}, {95, 1, 7}}},
                                {"shard", 96, {{92, 1, 3}, {96, 2, 8}}},
                                {"shard", 96, {{92, 1, 8}, {96, 2, UINT16_MAX}}},
                                {"shortest key", 100, {{100, 2, 32'767}, {102, 2, 32'767}}},
                                {"shortest key", 100, {no_rows, no_tombstones}},
                                {"longest key", 102, {no_rows, no_tombstones, {100, 2, 0}}},
                                {"largest key's prefix", 112, {{104, 8, 8}, {112, 8, 7}}},
                                {"largest key's prefix", 112, {{104, 8, UINT64_MAX}, {112, 8, 0}}}};
  const auto add = [&](const char* field, size_t offset, size_t bytes,
                       const std::vector<uint64_t>& values) {
    for (const uint64_t value : values) all.push_back({field, offset, {{offset, bytes, value}}});
  };
  add("row count", 72, 8, {kSegmentRowsMax + 1, UINT64_MAX});
  add("tombstone count", 80, 8, {2151, UINT64_MAX});
  add("layout", 88, 1, {0, 3, 255});
  add("shard bits", 92, 1, {11, 255});
  add("partition bits", 93, 1, {11, 255});
  add("shard", 96, 2, {1, UINT16_MAX});
  add("line bytes", 98, 2, {0, 65, 512, good.line_bytes / 2u, good.line_bytes * 2u});
  add("shortest key", 100, 2, {0});
  add("longest key", 102, 2, {15, 32'767, UINT16_MAX});
  add("directory", directory, 8, {0});
  add("directory", directory + 8, 8, {4 * 56 - 1, 5 * 56});
  add("checksums", checksums + 8, 8, {0, good.sections.back().size_bytes + 8});
  for (size_t i = 0; i < kSectionCount; ++i) {
    const std::string name(SectionName(static_cast<SectionKind>(i)));
    const size_t at = kAtSections + 16 * i;
    std::vector<uint64_t> offsets = {1,
                                     kPageBytes - 1,
                                     UINT64_MAX,
                                     uint64_t{1} << 63,
                                     ~uint64_t{0xFFFF},
                                     good.sections[i].offset + 512};
    if (i > 0) offsets.push_back(good.sections[i - 1].offset);  // into the one before it
    for (const uint64_t offset : offsets) all.push_back({name, at, {{at, 8, offset}}});
    for (const uint64_t size : {UINT64_MAX, uint64_t{INT64_MAX}, uint64_t{1} << 63}) {
      all.push_back({name, at, {{at + 8, 8, size}}});
    }
  }
  return all;
}

TEST_F(FormatTest, FieldsOutOfRangeAreNamed) {
  for (const Described& described : SmallOnes()) {
    const std::string pristine = EncodeHeader(described.header);
    for (const BadHeader& bad : BadHeaders(described.header)) {
      std::string bytes = pristine;
      for (const Poke& poke : bad.pokes) std::memcpy(&bytes[poke.offset], &poke.value, poke.bytes);
      // Where the section before is empty, both begin at the same offset.
      if (bytes == pristine) continue;
      SealHeader(&bytes);
      EXPECT_FAILS(DecodeHeader(bytes), kDataLoss,
                   AllOf(HasSubstr("'" + bad.field), HasSubstr(At(bad.offset))));
    }
  }
}

// Rows that lie in lines have keys of one length, and are at most 127 bytes long.
TEST_F(FormatTest, LineKeysHaveOneLength) {
  struct Case {
    TableSchema schema;
    uint16_t longest;
  };
  for (const Case& c : std::vector<Case>{{{}, 123}, {kWideSchema, 111}, {kFixedSchema, 103}}) {
    SegmentHeader header = Describe({Layout::kLine, c.schema}, {70}, random_).header;
    const auto decode = [&](int min, int max) {
      header.key_bytes_min = static_cast<uint16_t>(min);
      header.key_bytes_max = static_cast<uint16_t>(max);
      header.line_bytes = static_cast<uint16_t>(
          LineShape::OfRows(c.schema, std::min<size_t>(header.key_bytes_max, 200)).line_bytes());
      return DecodeHeader(EncodeHeader(header));
    };
    for (int key_bytes = 1; key_bytes <= c.longest; ++key_bytes) {
      EXPECT_OK(decode(key_bytes, key_bytes)) << key_bytes;
    }
    for (const auto& [min, max] : std::vector<std::pair<int, int>>{{16, 17},
                                                                   {1, 123},
                                                                   {c.longest + 1, c.longest + 1},
                                                                   {c.longest, c.longest + 1},
                                                                   {1000, 1000},
                                                                   {32'766, 32'766}}) {
      EXPECT_FAILS(decode(min, max), kDataLoss,
                   AllOf(HasSubstr("'longest key"), HasSubstr(At(102))));
    }
  }
}

// Sections that the layout, the filter, the values or the hash list do not have must be empty.
TEST_F(FormatTest, SectionsThatMustBeEmpty) {
  const Described plain = Describe({Layout::kLine, {}, 0, false}, {70}, random_);
  for (const SectionKind kind :
       {SectionKind::kFilter, SectionKind::kRecords, SectionKind::kValues, SectionKind::kHashes}) {
    SegmentHeader header = plain.header;
    header.section(kind).size_bytes = 8;
    // One block more to be checked, so that this is not what is wrong.
    header.section(SectionKind::kChecksums).size_bytes += 8;
    for (size_t i = static_cast<size_t>(kind) + 1; i < kSectionCount; ++i) {
      header.sections[i].offset += kSectionAlignment;
    }
    EXPECT_FAILS(DecodeHeader(EncodeHeader(header)), kDataLoss,
                 AllOf(HasSubstr("'" + std::string(SectionName(kind)) + "'"), HasSubstr("got 8")));
  }
}

TEST_F(FormatTest, FieldsThatNoStructHolds) {
  const Described described = SmallOne();
  const std::string pristine = EncodeHeader(described.header);
  const auto forged = [&](size_t offset) {
    std::string bytes = pristine;
    bytes[offset] = static_cast<char>(bytes[offset] + 1);
    SealHeader(&bytes);
    return DecodeHeader(bytes);
  };
  for (size_t at = 0; at < 8; ++at) {
    EXPECT_FAILS(forged(at), kDataLoss, HasSubstr("not a Latchkey segment"));
  }
  for (size_t at = 12; at < 16; ++at) {
    EXPECT_FAILS(forged(at), kDataLoss, AllOf(HasSubstr("header bytes"), HasSubstr("offset 12")));
  }
  for (size_t at = kAtSchemaId; at < kAtSchemaId + 8; ++at) {
    EXPECT_FAILS(forged(at), kDataLoss, AllOf(HasSubstr("schema id"), HasSubstr("offset 40")));
  }
  // Every byte that is kept for later must be zero in this version.
  const size_t schema_bytes = described.header.schema.Descriptor().size();
  for (size_t at = kAtSchema + schema_bytes; at < kAtChecksum; ++at) {
    EXPECT_FAILS(forged(at), kDataLoss, AllOf(HasSubstr("reserved"), HasSubstr(At(at))));
  }
}

TEST_F(FormatTest, OtherMajorVersionsAreRefused) {
  const std::string pristine = EncodeHeader(SmallOne().header);
  for (const auto& [major, minor] : std::vector<std::pair<uint16_t, uint16_t>>{
           {0, 1}, {0, 0}, {0, 9}, {2, 0}, {256, 0}, {UINT16_MAX, UINT16_MAX}}) {
    const std::string version = std::to_string(major) + "." + std::to_string(minor);
    for (const bool sealed : {true, false}) {
      std::string bytes = pristine;
      Store(bytes.data() + kAtMajor, major);
      Store(bytes.data() + kAtMinor, minor);
      // Another version's header may be quite unlike this one's.
      if (!sealed) std::fill(bytes.begin() + 12, bytes.end(), '\x5A');
      if (sealed) SealHeader(&bytes);
      EXPECT_FAILS(DecodeHeader(bytes), kFailedPrecondition,
                   AllOf(HasSubstr("offset 8"), HasSubstr("reads 1.x"), HasSubstr(version),
                         HasSubstr(major < 1 ? "build the table again" : "a newer program")));
    }
  }
}

// A later minor version may say more than this program knows, and all that it knows still holds.
TEST_F(FormatTest, LaterMinorVersionsAreRead) {
  for (const Described& described : SmallOnes()) {
    for (const uint16_t minor : {uint16_t{1}, uint16_t{2}, uint16_t{255}, uint16_t{UINT16_MAX}}) {
      std::string bytes = EncodeHeader(described.header);
      Store(bytes.data() + kAtMinor, minor);
      SealHeader(&bytes);
      ASSERT_OK_AND_ASSIGN(const SegmentHeader same, DecodeHeader(bytes));
      EXPECT_EQ(same, described.header);
      const size_t end = kAtSchema + described.header.schema.Descriptor().size();
      for (size_t at = end; at < kAtChecksum; ++at) bytes[at] = static_cast<char>(random_.Next());
      EXPECT_FALSE(DecodeHeader(bytes).ok());  // not without its checksum
      SealHeader(&bytes);
      ASSERT_OK_AND_ASSIGN(const SegmentHeader more, DecodeHeader(bytes));
      EXPECT_EQ(more, described.header);
      // The same bytes are no 1.0.
      Store(bytes.data() + kAtMinor, uint16_t{0});
      SealHeader(&bytes);
      EXPECT_FAILS(DecodeHeader(bytes), kDataLoss, HasSubstr("reserved"));
      // And a field that is out of range is so in every version.
      Store(bytes.data() + kAtMinor, minor);
      bytes[88] = 3;
      SealHeader(&bytes);
      EXPECT_FAILS(DecodeHeader(bytes), kDataLoss, HasSubstr("'layout'"));
    }
  }
}

TEST_F(FormatTest, UnknownMandatoryFeaturesAreRefusedAndOptionalOnesKept) {
  SegmentHeader header = SmallOne().header;
  for (int bit = 0; bit < 64; ++bit) {
    header.mandatory_features = uint64_t{1} << bit;
    header.optional_features = 0;
    for (const uint16_t minor : {0, 1}) {
      std::string bytes = EncodeHeader(header);
      Store(bytes.data() + kAtMinor, minor);
      SealHeader(&bytes);
      EXPECT_EQ(Load<uint64_t>(bytes.data() + kAtMandatory), header.mandatory_features);
      EXPECT_FAILS(DecodeHeader(bytes), kFailedPrecondition,
                   AllOf(HasSubstr("mandatory features at offset 56"), HasSubstr("newer")));
    }
    header.mandatory_features = 0;
    header.optional_features = uint64_t{1} << bit;
    const std::string bytes = EncodeHeader(header);
    EXPECT_EQ(Load<uint64_t>(bytes.data() + kAtOptional), header.optional_features);
    ASSERT_OK_AND_ASSIGN(const SegmentHeader read, DecodeHeader(bytes));
    EXPECT_EQ(read, header);
  }
  // A program that lacks a feature can't know what else has changed: that is what it says.
  header.mandatory_features = 6;
  header.layout = static_cast<Layout>(9);
  EXPECT_FAILS(DecodeHeader(EncodeHeader(header)), kFailedPrecondition, HasSubstr("0x6"));
}

TEST_F(FormatTest, UnknownFilterKindsAreAccepted) {
  for (const Described& described : SmallOnes()) {
    if (described.header.filter_kind == FilterKind::kNone) continue;
    for (const uint8_t kind : {2, 77, 255}) {
      Described unknown = described;
      unknown.header.filter_kind = static_cast<FilterKind>(kind);
      ExpectRoundTrip(unknown);
      // What its parameters and its part of the directory mean, only another program knows.
      unknown.header.filter_bits_per_key = static_cast<uint8_t>(random_.Next());
      unknown.header.filter_hashes = static_cast<uint8_t>(random_.Next());
      for (PartitionEntry& entry : unknown.entries) {
        entry.filter_first_word = random_.Next();
        entry.filter_words = static_cast<uint32_t>(random_.Next());
      }
      ExpectRoundTrip(unknown);
    }
  }
}

TEST_F(FormatTest, DirectoriesOfAnotherSizeAreRefused) {
  const Described described = SmallOne();
  const std::string bytes = described.Directory();
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(DecodeDirectory(described.header, bytes.substr(0, cut)).ok());
  }
  EXPECT_FALSE(DecodeDirectory(described.header, bytes + std::string(56, '\0')).ok());
}

// Holds for a forged directory: it is refused, unless all that was changed is where the lines or
// the records of partition `entry` end, within the page that the next one's begin behind.
void ExpectRefusedOrInPage(const Described& described, size_t entry, const std::string& forged) {
  const auto entries = DecodeDirectory(described.header, forged);
  if (!entries.ok()) {
    EXPECT_FAILS(entries, kDataLoss, HasSubstr("directory"));
    return;
  }
  ASSERT_LT(entry + 1, entries->size());
  PartitionEntry changed = (*entries)[entry];
  const PartitionEntry& next = described.entries[entry + 1];
  EXPECT_EQ(RoundUp(changed.lines_offset + uint64_t{changed.lines} * described.header.line_bytes,
                    kPageBytes),
            next.lines_offset);
  EXPECT_EQ(RoundUp(changed.records_offset + changed.record_bytes, kPageBytes),
            next.records_offset);
  changed.lines = described.entries[entry].lines;
  changed.record_bytes = described.entries[entry].record_bytes;
  EXPECT_EQ(changed, described.entries[entry]);
}

TEST_F(FormatTest, ForgedDirectoryEntriesAreRefused) {
  for (const Described& described : SmallOnes()) {
    const std::string pristine = described.Directory();
    for (size_t entry = 0; entry < described.entries.size(); ++entry) {
      for (size_t byte = 0; byte < kPartitionEntryBytes; ++byte) {
        for (int bit = 0; bit < 8; ++bit) {
          std::string bytes = pristine;
          bytes[entry * kPartitionEntryBytes + byte] ^= static_cast<char>(1 << bit);
          ExpectRefusedOrInPage(described, entry, bytes);
        }
      }
    }
  }
}

TEST_F(FormatTest, DirectoryFieldsOffByOneAreRefused) {
  for (const Described& described : SmallOnes()) {
    for (size_t entry = 0; entry < described.entries.size(); ++entry) {
      const auto expect_refused = [&](auto field, bool or_in_page) {
        for (const int by : {-1, 1}) {
          Described off = described;
          auto& number = off.entries[entry].*field;
          number += static_cast<std::remove_reference_t<decltype(number)>>(by);
          if (or_in_page) {
            ExpectRefusedOrInPage(described, entry, off.Directory());
          } else {
            EXPECT_FAILS(DecodeDirectory(off.header, off.Directory()), kDataLoss,
                         HasSubstr("directory"));
          }
        }
      };
      expect_refused(&PartitionEntry::lines_offset, false);
      expect_refused(&PartitionEntry::first_pilot, false);
      expect_refused(&PartitionEntry::filter_first_word, false);
      expect_refused(&PartitionEntry::records_offset, false);
      expect_refused(&PartitionEntry::record_bytes, true);
      expect_refused(&PartitionEntry::lines, true);
      expect_refused(&PartitionEntry::groups, false);
      expect_refused(&PartitionEntry::filter_words, false);
      expect_refused(&PartitionEntry::row_count, false);
    }
  }
}

// The header's sums, too.
TEST_F(FormatTest, DirectoriesOfAnotherHeaderAreRefused) {
  for (const Described& described : SmallOnes()) {
    ASSERT_OK(DecodeDirectory(described.header, described.Directory()));
    std::vector<SectionKind> summed = {SectionKind::kPilots, SectionKind::kLines,
                                       SectionKind::kRecords};
    if (described.header.filter_kind != FilterKind::kNone) summed.push_back(SectionKind::kFilter);
    for (const SectionKind kind : summed) {
      for (const int64_t by : {-1, 1, 8, 64, 4096, 65'536}) {
        SegmentHeader header = described.header;
        header.section(kind).size_bytes += static_cast<uint64_t>(by);
        EXPECT_FAILS(DecodeDirectory(header, described.Directory()), kDataLoss, HasSubstr("sums"));
      }
    }
    for (const int by : {-1, 1}) {
      SegmentHeader header = described.header;
      header.row_count += static_cast<uint64_t>(by);
      EXPECT_FAILS(DecodeDirectory(header, described.Directory()), kDataLoss,
                   AllOf(HasSubstr("2150 rows"), HasSubstr(std::to_string(2150 + by))));
    }
  }
}

TEST_F(FormatTest, DirectoryEntriesOutOfRangeAreNamed) {
  const std::vector<std::function<void(PartitionEntry*)>> forgeries = {
      [](auto* e) { e->lines = 0; },
      [](auto* e) { e->groups = 0; },
      [](auto* e) { e->row_count = (uint32_t{1} << 31) + 1; },
      [](auto* e) { e->row_count = UINT32_MAX; },
      [](auto* e) { e->lines_offset = ~uint64_t{0}; },
      [](auto* e) { e->lines_offset = ~uint64_t{0} - 4095; },
      [](auto* e) { e->lines_offset += 64; },
      [](auto* e) { e->lines_offset += kPageBytes; },
      [](auto* e) { e->first_pilot = ~uint64_t{0}; },
      [](auto* e) { e->records_offset = ~uint64_t{0} - 4095; },
      [](auto* e) { e->records_offset += 8; },
      [](auto* e) { e->record_bytes = (uint64_t{1} << 40) + 1; },
      [](auto* e) { e->record_bytes = ~uint64_t{0}; },
      [](auto* e) { e->record_bytes = e->row_count == 0 ? ~uint64_t{0} : e->row_count - 1; },
      [](auto* e) { e->filter_first_word = uint64_t{1} << 61; },
      [](auto* e) { e->filter_words = e->filter_words == 0 ? 1 : 0; },
  };
  for (const Described& described : SmallOnes()) {
    for (size_t entry = 0; entry < described.entries.size(); ++entry) {
      for (const auto& forge : forgeries) {
        Described forged = described;
        forge(&forged.entries[entry]);
        const size_t offset = described.header.sections[0].offset + entry * kPartitionEntryBytes;
        EXPECT_FAILS(DecodeDirectory(forged.header, forged.Directory()), kDataLoss,
                     AllOf(HasSubstr("entry " + std::to_string(entry)),
                           HasSubstr("offset " + std::to_string(offset))));
      }
    }
  }
}

// All schemas that there can be, but for key lengths, of which there are a few.
std::vector<TableSchema> AllSchemas() {
  std::vector<TableSchema> schemas;
  for (const KeyKind kind :
       {KeyKind::kRaw, KeyKind::kText, KeyKind::kHex, KeyKind::kUuid, KeyKind::kU64}) {
    for (const uint16_t key_bytes : {0, 1, 9, 20, 32'766}) {
      if (key_bytes != 0 && KeyKindWidth(kind) != 0) continue;
      for (const uint8_t doc_id_bytes : {4, 8}) {
        schemas.push_back({kind, key_bytes, doc_id_bytes, ValueKind::kNone, 0});
        schemas.push_back({kind, key_bytes, doc_id_bytes, ValueKind::kBytes, 0});
        for (uint8_t width = 1; width <= kFixedValueBytesMax; ++width) {
          schemas.push_back({kind, key_bytes, doc_id_bytes, ValueKind::kFixed, width});
        }
      }
    }
  }
  return schemas;
}

TEST_F(FormatTest, SchemasRoundTripAsText) {
  for (const TableSchema& schema : AllSchemas()) {
    EXPECT_OK(schema.Validate());
    ASSERT_OK_AND_ASSIGN(const TableSchema parsed, ParseSchema(schema.Descriptor()));
    EXPECT_EQ(parsed, schema);
    EXPECT_EQ(parsed.Id(), schema.Id());
    EXPECT_LE(schema.Descriptor().size(), kSchemaDescriptorBytesMax);
    TableSchema set = {.doc_id_bytes = 8};
    EXPECT_OK(set.SetKeyKind(schema.KeyKindText()));
    EXPECT_EQ(set, (TableSchema{schema.key_kind, schema.key_bytes, 8, ValueKind::kNone, 0}));
    // And in a header.
    Described described = Describe({Layout::kPointer, schema}, {70}, random_);
    ExpectRoundTrip(described);
  }
}

// Texts and ids stand in files for ever. The ids come from another implementation of XXH3.
TEST_F(FormatTest, SchemasAreTheseTexts) {
  const auto expect = [](const TableSchema& schema, std::string_view descriptor, uint64_t id,
                         std::string_view for_people) {
    EXPECT_EQ(schema.Descriptor(), descriptor);
    EXPECT_EQ(schema.Id(), id);
    EXPECT_EQ(schema.ToString(), for_people);
  };
  expect({}, "key=raw/1 doc_id=32 value=none", 0xbe67f30e53083b6d,
         "key kind raw, 32-bit doc ids, no values");
  expect({KeyKind::kHex, 20, 4, ValueKind::kFixed, 20}, "key=hex(20)/1 doc_id=32 value=fixed(20)",
         0xa1b66178f6ef06c9, "key kind hex(20), 32-bit doc ids, values of 20 bytes");
  expect({KeyKind::kU64, 0, 8, ValueKind::kBytes, 0}, "key=u64/1 doc_id=64 value=bytes",
         0xfd328cf000c2a731, "key kind u64, 64-bit doc ids, values of any length");
  expect({KeyKind::kText, 32'766, 8, ValueKind::kFixed, 64},
         "key=text(32766)/1 doc_id=64 value=fixed(64)", 0x2a476695470cd57a,
         "key kind text(32766), 64-bit doc ids, values of 64 bytes");
  expect({KeyKind::kUuid, 0, 4, ValueKind::kBytes, 0}, "key=uuid/1 doc_id=32 value=bytes",
         0xef80a52c364d5fed, "key kind uuid, 32-bit doc ids, values of any length");
}

TEST_F(FormatTest, SchemasThatDifferHaveDifferentIds) {
  std::set<uint64_t> ids;
  for (const TableSchema& schema : AllSchemas()) EXPECT_TRUE(ids.insert(schema.Id()).second);
}

// The parts of a text between bars.
std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t bar; (bar = text.find('|')) != std::string_view::npos; text.remove_prefix(bar + 1)) {
    parts.emplace_back(text.substr(0, bar));
  }
  parts.emplace_back(text);
  return parts;
}

std::vector<std::string> BadKeyKinds() {
  std::vector<std::string> bad = Split(
      "|foo|HEX|Hex| hex|hex |hex(|hex()|hex(0)|hex(020)|hex(+5)|hex( 5)|hex(5 )|hex(5|hex5|"
      "hex(5))|hex((5)|hex(5)x|hex(5)(5)|hex(-1)|hex(0x5)|hex(5.0)|hex(32767)|hex(65535)|"
      "hex(65536)|hex(65556)|hex(4294967316)|hex(99999999999999999999)|(20)|uuid(16)|uuid()|"
      "u64(8)|u64(0)|raw,text|unknown|hex/1");
  bad.emplace_back("hex\0", 4);
  return bad;
}

TEST_F(FormatTest, KeyKindsThatAreNoneAreRefused) {
  for (const std::string& text : BadKeyKinds()) {
    for (const TableSchema& before :
         {kWideSchema, kFixedSchema, TableSchema{.key_kind = KeyKind::kText, .key_bytes = 7}}) {
      TableSchema schema = before;
      EXPECT_FAILS(schema.SetKeyKind(text), kInvalidArgument, HasSubstr("key kind"));
      EXPECT_EQ(schema, before) << text;
    }
  }
  TableSchema schema;
  EXPECT_FAILS(schema.SetKeyKind("hexx"), kInvalidArgument,
               AllOf(HasSubstr("raw, text, hex, uuid or u64"), HasSubstr("'hexx'")));
  EXPECT_FAILS(schema.SetKeyKind("uuid(16)"), kInvalidArgument, HasSubstr("16 bytes"));
  EXPECT_FAILS(schema.SetKeyKind("raw(40000)"), kInvalidArgument, HasSubstr("40000 bytes"));
  // Another kind takes the place of the one before, with its length.
  EXPECT_OK(schema.SetKeyKind("hex(20)"));
  EXPECT_EQ(schema, (TableSchema{.key_kind = KeyKind::kHex, .key_bytes = 20}));
  EXPECT_OK(schema.SetKeyKind("uuid"));
  EXPECT_EQ(schema, (TableSchema{.key_kind = KeyKind::kUuid}));
}

// Puts a schema's text into a header, under checksums that are right.
std::string WithDescriptor(std::string header, const std::string& text) {
  std::fill(header.begin() + kAtSchema, header.begin() + kAtChecksum, '\0');
  header.replace(kAtSchema, text.size(), text);
  Store(header.data() + kAtSchemaBytes, static_cast<uint16_t>(text.size()));
  Store(header.data() + kAtSchemaId, Checksum(text.data(), text.size()));
  SealHeader(&header);
  return header;
}

TEST_F(FormatTest, SchemasThatThisProgramDoesNotKnowAreRefused) {
  std::vector<std::string> bad = Split(
      "| |key=hex/1|key=hex/1 doc_id=32|doc_id=32 value=none|key=hex/1 value=none doc_id=32|"
      "key=hex/1  doc_id=32 value=none|key=hex/1 doc_id=32 value=none | key=hex/1 doc_id=32 "
      "value=none|key=hex/1 doc_id=32 value=none\n|key=hex/1 doc_id=32 value=none order=key|"
      "key=hex/1 key=raw/1 doc_id=32 value=none|key=hex doc_id=32 value=none");
  // A later version of a key kind may order or check its keys another way.
  for (const char* key : {"hex/", "hex/0", "hex/2", "hex/11", "hex/1/1", "hex/01", "/1"}) {
    bad.push_back(fmt::format("key={} doc_id=32 value=none", key));
  }
  for (const char* bits : {"", "0", "16", "40", "128", "064", "32.0"}) {
    bad.push_back(fmt::format("key=hex/1 doc_id={} value=none", bits));
  }
  for (const std::string& value :
       Split("|x|None|fixed|fixed()|fixed(0)|fixed(65)|fixed(020)|"
             "fixed(276)|fixed(-1)|fixed(20|fixed(20))|bytes(20)|bytess")) {
    bad.push_back("key=hex/1 doc_id=32 value=" + value);
  }
  bad.emplace_back("key=hex/1 doc_id=32 value=none\0", 31);
  bad.emplace_back(1024, 'x');
  for (const std::string& kind : BadKeyKinds()) {
    bad.push_back("key=" + kind + "/1 doc_id=32 value=none");
  }
  const std::string header = EncodeHeader(SmallOne().header);
  ASSERT_OK(DecodeHeader(WithDescriptor(header, "key=hex/1 doc_id=32 value=none")));
  for (const std::string& text : bad) {
    EXPECT_FAILS(ParseSchema(text), kInvalidArgument, HasSubstr("does not know the schema"));
    EXPECT_FAILS(DecodeHeader(WithDescriptor(header, text)), kFailedPrecondition,
                 AllOf(HasSubstr("'schema'"), HasSubstr("offset 258"), HasSubstr(text)));
  }
  // More than there is room for: nothing is read beyond it.
  for (const uint16_t size : {uint16_t{1025}, uint16_t{4096}, uint16_t{UINT16_MAX}}) {
    std::string bytes = header;
    Store(bytes.data() + kAtSchemaBytes, size);
    SealHeader(&bytes);
    EXPECT_FAILS(DecodeHeader(bytes), kDataLoss,
                 AllOf(HasSubstr("'schema bytes'"), HasSubstr("offset 256")));
  }
}

// A text has one meaning and a meaning one text: whatever parses gives itself back.
TEST_F(FormatTest, ChangedSchemasAreRefusedOrConsistent) {
  const std::vector<TableSchema> schemas = AllSchemas();
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = random_.Pick(schemas).Descriptor();
    const std::string other = random_.Pick(schemas).Descriptor();
    switch (random_.Below(4)) {
      case 0:
        text[random_.Below(text.size())] = random_.Pick(other);
        break;
      case 1:
        text.insert(random_.Below(text.size() + 1), 1, random_.Pick(other));
        break;
      case 2:
        text.erase(random_.Below(text.size()), random_.Between(1, 3));
        break;
      default:
        text = text.substr(0, text.find(' ')) + other.substr(other.find(' '));
    }
    const auto schema = ParseSchema(text);
    if (!schema.ok()) continue;
    ++accepted;
    ASSERT_EQ(schema->Descriptor(), text);
    ASSERT_OK(schema->Validate());
  }
  EXPECT_GT(accepted, 5000);  // of those that are put together from two
  EXPECT_LT(accepted, 10'000);
}

TEST_F(FormatTest, SchemasOutOfRangeAreNamed) {
  const auto invalid = [](const TableSchema& schema, const std::string& named) {
    EXPECT_FAILS(schema.Validate(), kInvalidArgument, HasSubstr(named));
  };
  invalid({.key_kind = static_cast<KeyKind>(0)}, "key kind");
  invalid({.key_kind = static_cast<KeyKind>(6)}, "key kind");
  invalid({.key_kind = KeyKind::kUuid, .key_bytes = 16}, "16 bytes");
  invalid({.key_kind = KeyKind::kU64, .key_bytes = 8}, "8 bytes");
  invalid({.key_bytes = 32'767}, "32767 bytes");
  for (const uint8_t doc_id_bytes : {0, 1, 5, 16, 255})
    invalid({.doc_id_bytes = doc_id_bytes}, "doc id");
  invalid({.value_kind = static_cast<ValueKind>(3)}, "value kind");
  invalid({.value_width = 1}, "value width");
  invalid({.value_kind = ValueKind::kFixed, .value_width = 0}, "value width");
  invalid({.value_kind = ValueKind::kFixed, .value_width = 65}, "value width");
  invalid({.value_kind = ValueKind::kBytes, .value_width = 8}, "value width");
}

// Prefixes tell of two keys what comparing them tells, as far as eight bytes go.
TEST_F(FormatTest, KeyPrefixesOrderAsKeysDo) {
  EXPECT_EQ(KeyPrefix(""), 0u);
  EXPECT_EQ(KeyPrefix({}), 0u);  // a key that has no address
  EXPECT_EQ(KeyPrefix("a"), 0x6100000000000000u);
  EXPECT_EQ(KeyPrefix("abcdefgh"), 0x6162636465666768u);
  EXPECT_EQ(KeyPrefix("abcdefghijk"), 0x6162636465666768u);
  EXPECT_EQ(KeyPrefix(std::string(20, '\xFF')), UINT64_MAX);
  int differing = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::string a = random_.Bytes(random_.Below(14));
    std::string b = random_.Bytes(random_.Below(14));
    // Most share their first bytes, and some bytes are zero or signed.
    const size_t common = random_.Below(std::min(a.size(), b.size()) + 1);
    std::copy_n(a.begin(), common, b.begin());
    if (!b.empty() && random_.OneIn(4)) random_.Pick(b) = random_.OneIn(2) ? '\0' : '\x80';
    // Bytes of their own size, so that a sanitizer sees a read beyond them.
    const std::vector<char> a_bytes(a.begin(), a.end()), b_bytes(b.begin(), b.end());
    const uint64_t of_a = KeyPrefix({a_bytes.data(), a_bytes.size()});
    const uint64_t of_b = KeyPrefix({b_bytes.data(), b_bytes.size()});
    if (of_a != of_b) {
      ++differing;
      ASSERT_EQ(of_a < of_b, a < b);
    } else {
      // Alike in their first eight bytes, up to zeros that fill them.
      a.resize(8);
      b.resize(8);
      ASSERT_EQ(a, b);
    }
  }
  EXPECT_GT(differing, 10'000);
}

}  // namespace
}  // namespace latchkey::test
