#include "core/segment/format.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/checked_math.h"
#include "core/segment/bloom_filter.h"
#include "core/segment/group.h"
#include "core/segment/inline_layout.h"
#include "core/segment/segment_writer.h"
#include "tests/support/segment_bytes.h"
#include "tests/support/status_asserts.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A header and a directory that agree with each other, for partitions of so many slots and rows.
struct Described {
  SegmentHeader header;
  std::vector<PartitionEntry> entries;

  std::string Directory() const {
    std::string bytes;
    for (const PartitionEntry& entry : entries) AppendPartitionEntry(entry, &bytes);
    return bytes;
  }
};

struct Size {
  uint32_t slots;
  uint32_t rows;
};

Described Describe(Layout layout, const TableSchema& schema, uint8_t filter_bits,
                   const std::vector<Size>& sizes, Random& random) {
  Described described;
  SegmentHeader& header = described.header;
  header.identity = RandomIdentity(random);
  header.schema = schema;
  header.segment_id = random.Next();
  header.layout = layout;
  header.filter_kind = filter_bits > 0 ? FilterKind::kRegisterBlocked : FilterKind::kNone;
  header.filter_bits_per_key = filter_bits;
  header.filter_hashes = static_cast<uint8_t>(FilterHashesFor(filter_bits));
  while (size_t{1} << header.partition_bits < sizes.size()) ++header.partition_bits;
  header.key_bytes_min = 16;
  header.key_bytes_max = layout == Layout::kInline ? 16 : 300;
  const InlineShape shape(schema, 16);
  std::array<uint64_t, kSectionCount> bytes = {};
  const auto of = [&](SectionKind kind) -> uint64_t& { return bytes[static_cast<size_t>(kind)]; };
  for (const Size& size : sizes) {
    PartitionEntry entry;
    entry.slots = size.slots;
    entry.home_slots = size.slots - size.slots / 50;
    entry.row_count = size.rows;
    entry.first_slot = of(SectionKind::kControl);
    entry.filter_first_word = of(SectionKind::kFilter) / 8;
    entry.filter_words = static_cast<uint32_t>(FilterWordsFor(size.rows, filter_bits));
    entry.first_slot_word = of(SectionKind::kSlotWords) / 8;
    entry.records_offset = RoundUp(of(SectionKind::kRecords), kPageBytes);
    entry.record_bytes = layout == Layout::kInline ? shape.RecordBytes(size.slots)
                                                   : uint64_t{size.rows} * 100;
    of(SectionKind::kControl) += size.slots + uint64_t{kGroupSlots};
    of(SectionKind::kFilter) += uint64_t{entry.filter_words} * 8;
    if (layout == Layout::kTermOrder) of(SectionKind::kSlotWords) += uint64_t{size.slots} * 8;
    of(SectionKind::kRecords) = entry.records_offset + entry.record_bytes;
    header.row_count += size.rows;
    header.slot_count += size.slots;
    described.entries.push_back(entry);
  }
  of(SectionKind::kDirectory) = sizes.size() * kPartitionEntryBytes;
  if (schema.value_kind == ValueKind::kBytes) of(SectionKind::kValues) = header.row_count * 1000;
  uint64_t end = kHeaderBytes, blocks = 0;
  for (size_t i = 0; i < kSectionCount; ++i) {
    if (i + 1 == kSectionCount) bytes[i] = blocks * 8;
    blocks += ChecksumBlocks(bytes[i]);
    header.sections[i] = {RoundUp(end, i == 0 ? kPageBytes : SectionAlignment(bytes[i])), bytes[i]};
    end = header.sections[i].end();
  }
  header.checksums_checksum = random.Next();
  header.displacement_max = 5;
  return described;
}

class FormatTest : public SeededTest {
 protected:
  // A small segment of each kind.
  std::vector<Described> SmallOnes() {
    std::vector<Described> all;
    for (const Layout layout : {Layout::kInline, Layout::kTermOrder}) {
      for (const TableSchema& schema :
           {TableSchema{}, TableSchema{.doc_id_bytes = 8, .value_kind = ValueKind::kBytes},
            TableSchema{.value_kind = ValueKind::kFixed, .value_width = 20}}) {
        for (const uint8_t filter_bits : {0, 10}) {
          all.push_back(Describe(layout, schema, filter_bits,
                                 {{100, 70}, {1, 0}, {80, 80}, {3000, 2000}}, random_));
        }
      }
    }
    return all;
  }
};

void ExpectRoundTrip(const Described& described) {
  const std::string bytes = EncodeHeader(described.header);
  ASSERT_EQ(bytes.size(), kHeaderBytes);
  ASSERT_OK_AND_ASSIGN(const SegmentHeader header, DecodeHeader(bytes));
  EXPECT_EQ(header, described.header);
  EXPECT_EQ(header.file_bytes(), described.header.sections.back().end());
  ASSERT_OK_AND_ASSIGN(const auto entries, DecodeDirectory(header, described.Directory()));
  EXPECT_EQ(entries, described.entries);
  EXPECT_EQ(HeaderChecksum(bytes), Load<uint64_t>(bytes.data() + kHeaderBytes - 8));
}

TEST_F(FormatTest, RoundTrips) {
  for (const Described& described : SmallOnes()) ExpectRoundTrip(described);
  ExpectRoundTrip(Describe(Layout::kInline, {}, 10, std::vector<Size>(1024, {60, 40}), random_));
  // What follows the header is no part of it.
  const std::string bytes = EncodeHeader(SmallOnes()[0].header) + "more";
  EXPECT_OK(DecodeHeader(bytes));
}

TEST_F(FormatTest, NumbersBeyond32Bits) {
  const std::vector<Size> one = {{(uint32_t{1} << 31) + (uint32_t{1} << 25), 1'600'000'000}};
  const std::vector<Size> most(1024, {uint32_t{1} << 30, 800'000'000});
  for (const TableSchema& schema :
       {TableSchema{.doc_id_bytes = 8}, TableSchema{.value_kind = ValueKind::kBytes},
        TableSchema{.value_kind = ValueKind::kFixed, .value_width = 64}}) {
    for (const Layout layout : {Layout::kInline, Layout::kTermOrder}) {
      for (const std::vector<Size>& sizes : {one, most}) {
        const Described described = Describe(layout, schema, 32, sizes, random_);
        EXPECT_GT(described.header.slot_count, uint64_t{1} << 31);
        EXPECT_GT(described.header.section(SectionKind::kFilter).size_bytes * 8, uint64_t{1} << 32);
        EXPECT_GT(described.header.section(SectionKind::kRecords).size_bytes, uint64_t{1} << 35);
        ExpectRoundTrip(described);
        // A number that is one off, far beyond 32 bits, does not get lost.
        Described off = described;
        off.entries.back().records_offset += kPageBytes;
        EXPECT_FALSE(DecodeDirectory(off.header, off.Directory()).ok());
        off = described;
        off.header.slot_count += uint64_t{1} << 32;
        EXPECT_FALSE(DecodeHeader(EncodeHeader(off.header)).ok());
      }
    }
  }
}

TEST_F(FormatTest, EveryCutOfAHeaderIsRefused) {
  const std::string bytes = EncodeHeader(SmallOnes()[0].header);
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

struct BadHeader {
  std::string field;
  size_t offset;
  std::function<void(SegmentHeader*)> forge;
};

// Headers whose checksum is right, each with one field out of its range.
TEST_F(FormatTest, FieldsOutOfRangeAreNamed) {
  const auto section = [](SectionKind kind) { return 96 + 16 * static_cast<size_t>(kind); };
  const std::vector<BadHeader> any = {
      {"key kind", 56, [](auto* h) { h->schema.key_kind = static_cast<KeyKind>(0); }},
      {"key kind", 56, [](auto* h) { h->schema.key_kind = static_cast<KeyKind>(6); }},
      {"doc id bytes", 57, [](auto* h) { h->schema.doc_id_bytes = 0; }},
      {"doc id bytes", 57, [](auto* h) { h->schema.doc_id_bytes = 5; }},
      {"doc id bytes", 57, [](auto* h) { h->schema.doc_id_bytes = 255; }},
      {"value kind", 58, [](auto* h) { h->schema.value_kind = static_cast<ValueKind>(3); }},
      {"value width", 59, [](auto* h) { h->schema = {.value_width = 1}; }},
      {"value width", 59,
       [](auto* h) { h->schema = {.value_kind = ValueKind::kFixed, .value_width = 0}; }},
      {"value width", 59,
       [](auto* h) { h->schema = {.value_kind = ValueKind::kFixed, .value_width = 65}; }},
      {"value width", 59,
       [](auto* h) { h->schema = {.value_kind = ValueKind::kBytes, .value_width = 8}; }},
      {"layout", 60, [](auto* h) { h->layout = static_cast<Layout>(0); }},
      {"layout", 60, [](auto* h) { h->layout = static_cast<Layout>(3); }},
      {"filter kind", 61, [](auto* h) { h->filter_kind = static_cast<FilterKind>(2); }},
      {"filter bits a key", 62,
       [](auto* h) { h->filter_kind = FilterKind::kNone; h->filter_bits_per_key = 1; }},
      {"filter bits a key", 62,
       [](auto* h) { h->filter_kind = FilterKind::kRegisterBlocked; h->filter_bits_per_key = 0; }},
      {"filter bits a key", 62,
       [](auto* h) { h->filter_kind = FilterKind::kRegisterBlocked; h->filter_bits_per_key = 33; }},
      {"filter hashes", 63, [](auto* h) {
         h->filter_kind = FilterKind::kRegisterBlocked; h->filter_bits_per_key = 10;
         h->filter_hashes = 0;
       }},
      {"filter hashes", 63, [](auto* h) {
         h->filter_kind = FilterKind::kRegisterBlocked; h->filter_bits_per_key = 10;
         h->filter_hashes = 6;
       }},
      {"filter hashes", 63, [](auto* h) {
         h->filter_kind = FilterKind::kNone; h->filter_bits_per_key = 0; h->filter_hashes = 1;
       }},
      {"shard bits", 64, [](auto* h) { h->shard_bits = 11; }},
      {"shard bits", 64, [](auto* h) { h->shard_bits = 255; }},
      {"partition bits", 65, [](auto* h) { h->partition_bits = 11; }},
      {"partition bits", 65, [](auto* h) { h->shard_bits = 4; h->partition_bits = 7; }},
      {"shard", 66, [](auto* h) { h->shard = 1; }},
      {"shard", 66, [](auto* h) { h->shard_bits = 3; h->shard = 8; }},
      {"shortest key", 68, [](auto* h) { h->key_bytes_min = 0; }},
      {"shortest key", 68, [](auto* h) { h->key_bytes_min = h->key_bytes_max = 32'767; }},
      {"shortest key", 68, [](auto* h) { h->row_count = 0; }},
      {"longest key", 70, [](auto* h) { h->key_bytes_max = 15; }},
      {"longest key", 70, [](auto* h) { h->key_bytes_max = 65'535; }},
      {"longest key", 70, [](auto* h) { h->row_count = 0; h->key_bytes_min = 0; }},
      {"largest displacement", 72,
       [](auto* h) { h->displacement_max = static_cast<uint32_t>(h->slot_count); }},
      {"largest displacement", 72, [](auto* h) { h->displacement_max = UINT32_MAX; }},
      {"row count", 80, [](auto* h) { h->row_count = kSegmentRowsMax + 1; }},
      {"row count", 80, [](auto* h) { h->row_count = UINT64_MAX; }},
      {"control", section(SectionKind::kControl) + 8, [](auto* h) { ++h->slot_count; }},
      {"slot count", 88, [](auto* h) { h->slot_count = UINT64_MAX; }},
      {"slot count", 88, [](auto* h) { h->slot_count = uint64_t{1} << 61; }},
      {"directory", section(SectionKind::kDirectory),
       [](auto* h) { h->section(SectionKind::kDirectory).offset = 0; }},
      {"directory", section(SectionKind::kDirectory) + 8,
       [](auto* h) { h->section(SectionKind::kDirectory).size_bytes -= 1; }},
      {"directory", section(SectionKind::kDirectory) + 8,
       [](auto* h) { h->section(SectionKind::kDirectory).size_bytes += 56; }},
      {"control", section(SectionKind::kControl) + 8,
       [](auto* h) { --h->section(SectionKind::kControl).size_bytes; }},
  };
  std::vector<BadHeader> all = any;
  for (size_t i = 0; i < kSectionCount; ++i) {
    const auto kind = static_cast<SectionKind>(i);
    const std::string name(SectionName(kind));
    for (const uint64_t offset : {uint64_t{1}, uint64_t{kPageBytes - 1}, ~uint64_t{0},
                                  uint64_t{1} << 63, ~uint64_t{0xFFFF}}) {
      all.push_back({name, section(kind), [=](auto* h) { h->sections[i].offset = offset; }});
    }
    all.push_back({name, section(kind), [=](auto* h) { h->sections[i].offset += 512; }});
    for (const uint64_t size_bytes : {~uint64_t{0}, uint64_t{INT64_MAX}, uint64_t{1} << 63}) {
      all.push_back({name, section(kind), [=](auto* h) { h->sections[i].size_bytes = size_bytes; }});
    }
    // Into the section before it.
    if (i > 0) {
      all.push_back({name, section(kind),
                     [=](auto* h) { h->sections[i].offset = h->sections[i - 1].offset; }});
    }
  }
  all.push_back({"checksums", section(SectionKind::kChecksums) + 8,
                 [](auto* h) { h->sections[6].size_bytes += 8; }});
  all.push_back({"checksums", section(SectionKind::kChecksums) + 8,
                 [](auto* h) { h->sections[6].size_bytes = 0; }});
  for (const Described& described : SmallOnes()) {
    for (const BadHeader& bad : all) {
      SegmentHeader header = described.header;
      bad.forge(&header);
      if (header == described.header) continue;
      EXPECT_FAILS(DecodeHeader(EncodeHeader(header)), kDataLoss,
                   AllOf(HasSubstr("'" + bad.field),
                         HasSubstr("offset " + std::to_string(bad.offset) + ":")));
    }
  }
}

TEST_F(FormatTest, InlineKeysHaveOneLengthOfAtMost31) {
  const Described inline_one = Describe(Layout::kInline, {}, 10, {{100, 70}}, random_);
  for (const auto& [min, max] : std::vector<std::pair<int, int>>{{16, 17}, {32, 32}, {31, 32}}) {
    SegmentHeader header = inline_one.header;
    header.key_bytes_min = static_cast<uint16_t>(min);
    header.key_bytes_max = static_cast<uint16_t>(max);
    EXPECT_FAILS(DecodeHeader(EncodeHeader(header)), kDataLoss,
                 AllOf(HasSubstr("'longest key"), HasSubstr("offset 70")));
  }
}

// Sections that the layout, the filter or the values do not have must be empty.
TEST_F(FormatTest, SectionsThatMustBeEmpty) {
  const Described plain = Describe(Layout::kInline, {}, 0, {{100, 70}}, random_);
  for (const SectionKind kind : {SectionKind::kFilter, SectionKind::kSlotWords, SectionKind::kValues}) {
    SegmentHeader header = plain.header;
    header.section(kind).size_bytes = 8;
    // One block more to be checked, so that this is not what is wrong.
    header.section(SectionKind::kChecksums).size_bytes += 8;
    for (size_t i = static_cast<size_t>(kind) + 1; i < kSectionCount; ++i) {
      header.sections[i].offset += kSectionAlignment;
    }
    EXPECT_FAILS(DecodeHeader(EncodeHeader(header)), kDataLoss,
                 HasSubstr("'" + std::string(SectionName(kind)) + "'"));
  }
}

TEST_F(FormatTest, FieldsThatNoStructHolds) {
  const std::string pristine = EncodeHeader(SmallOnes()[0].header);
  const auto forged = [&](size_t offset, uint8_t byte) {
    std::string bytes = pristine;
    bytes[offset] = static_cast<char>(static_cast<uint8_t>(bytes[offset]) + byte);
    SealHeader(&bytes);
    return DecodeHeader(bytes);
  };
  for (size_t at = 0; at < 8; ++at) {
    EXPECT_FAILS(forged(at, 1), kDataLoss, HasSubstr("not a Latchkey segment"));
  }
  for (size_t at = 8; at < 12; ++at) {
    EXPECT_FAILS(forged(at, 1), kFailedPrecondition,
                 AllOf(HasSubstr("version"), HasSubstr("offset 8")));
  }
  for (size_t at = 12; at < 16; ++at) {
    EXPECT_FAILS(forged(at, 1), kDataLoss, AllOf(HasSubstr("header bytes"), HasSubstr("offset 12")));
  }
  for (size_t at = 40; at < 48; ++at) {
    EXPECT_FAILS(forged(at, 1), kDataLoss, AllOf(HasSubstr("schema id"), HasSubstr("offset 40")));
  }
  // Every byte that is kept for later must be zero.
  std::vector<size_t> reserved = {76, 77, 78, 79};
  for (size_t at = 216; at < kHeaderBytes - 8; ++at) reserved.push_back(at);
  for (const size_t at : reserved) {
    EXPECT_FAILS(forged(at, 1), kDataLoss,
                 AllOf(HasSubstr("reserved"), HasSubstr("offset " + std::to_string(at) + ":")));
  }
}

// Random bytes under a right checksum: refused, or a header that encodes to the same bytes.
TEST_F(FormatTest, RandomForgeriesAreRefusedOrConsistent) {
  const std::vector<Described> ones = SmallOnes();
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = EncodeHeader(random_.Pick(ones).header);
    for (uint64_t i = random_.Between(1, 3); i > 0; --i) {
      bytes[random_.Between(12, 216)] = static_cast<char>(random_.OneIn(3) ? 0 : random_.Next());
    }
    SealHeader(&bytes);
    const auto header = DecodeHeader(bytes);
    if (!header.ok()) continue;
    ++accepted;
    ASSERT_EQ(EncodeHeader(*header), bytes);
  }
  EXPECT_GT(accepted, 0);
}

TEST_F(FormatTest, DirectoriesOfAnotherSizeAreRefused) {
  const Described described = SmallOnes()[0];
  const std::string bytes = described.Directory();
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(DecodeDirectory(described.header, bytes.substr(0, cut)).ok());
  }
  EXPECT_FALSE(DecodeDirectory(described.header, bytes + std::string(56, '\0')).ok());
}

// No field of a directory entry can be changed alone, but for two within bounds that are checked.
TEST_F(FormatTest, ForgedDirectoryEntriesAreRefused) {
  for (const Described& described : SmallOnes()) {
    const SegmentHeader& header = described.header;
    const std::string pristine = described.Directory();
    for (size_t entry = 0; entry < described.entries.size(); ++entry) {
      for (size_t byte = 0; byte < kPartitionEntryBytes; ++byte) {
        const bool record_bytes = byte >= 24 && byte < 32 && header.layout == Layout::kTermOrder;
        const bool home_slots = byte >= 40 && byte < 44;
        for (int bit = 0; bit < 8; ++bit) {
          std::string bytes = pristine;
          bytes[entry * kPartitionEntryBytes + byte] ^= static_cast<char>(1 << bit);
          const auto entries = DecodeDirectory(header, bytes);
          if (entries.ok() && home_slots) {
            // Any home slot is one of the slots.
            EXPECT_GE((*entries)[entry].home_slots, 1u);
            EXPECT_LE((*entries)[entry].home_slots, (*entries)[entry].slots);
          } else if (entries.ok() && record_bytes && entry + 1 < entries->size()) {
            // Records end before the page that the next partition's begin with.
            EXPECT_LE((*entries)[entry].records_offset + (*entries)[entry].record_bytes,
                      (*entries)[entry + 1].records_offset);
          } else {
            EXPECT_FAILS(entries, kDataLoss, HasSubstr("directory"));
          }
        }
      }
    }
  }
}

TEST_F(FormatTest, DirectoryEntriesOutOfRangeAreNamed) {
  const std::vector<std::function<void(PartitionEntry*)>> forgeries = {
      [](auto* e) { e->home_slots = 0; },
      [](auto* e) { e->home_slots = e->slots + 1; },
      [](auto* e) { e->home_slots = UINT32_MAX; e->slots = UINT32_MAX; },
      [](auto* e) { e->slots = 0; },
      [](auto* e) { e->row_count = e->slots + 1; },
      [](auto* e) { e->first_slot = ~uint64_t{0}; },
      [](auto* e) { e->records_offset = ~uint64_t{0} - 4095; },
      [](auto* e) { e->record_bytes = (uint64_t{1} << 40) + 1; },
      [](auto* e) { e->record_bytes = ~uint64_t{0}; },
      [](auto* e) { e->filter_first_word = uint64_t{1} << 61; },
      [](auto* e) { e->filter_words = e->filter_words == 0 ? 1 : 0; },
      [](auto* e) { e->first_slot_word = uint64_t{1} << 61; },
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

TEST_F(FormatTest, SchemasThatDifferHaveDifferentIds) {
  std::vector<TableSchema> schemas;
  for (const KeyKind kind : {KeyKind::kRaw, KeyKind::kText, KeyKind::kHex, KeyKind::kUuid,
                             KeyKind::kU64}) {
    for (const uint8_t doc_id_bytes : {4, 8}) {
      schemas.push_back({kind, doc_id_bytes, ValueKind::kNone, 0});
      schemas.push_back({kind, doc_id_bytes, ValueKind::kBytes, 0});
      for (uint8_t width = 1; width <= kFixedValueBytesMax; ++width) {
        schemas.push_back({kind, doc_id_bytes, ValueKind::kFixed, width});
      }
    }
  }
  std::vector<uint64_t> ids;
  for (const TableSchema& schema : schemas) {
    EXPECT_OK(schema.Validate());
    ids.push_back(schema.Id());
  }
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace
}  // namespace latchkey::test
