#include "core/segment/format.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/checked_math.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/segment/bloom_filter.h"
#include "core/segment/group.h"
#include "core/segment/inline_layout.h"
#include "core/segment/term_order_layout.h"

namespace latchkey {
namespace {

// Offsets of the header's fields.
constexpr size_t kAtMagic = 0, kAtMajor = 8, kAtMinor = 10, kAtHeaderBytes = 12, kAtTableId = 16,
                 kAtSeed = 32, kAtSchemaId = 40, kAtSegmentId = 48, kAtKeyKind = 56,
                 kAtDocIdBytes = 57, kAtValueKind = 58, kAtValueWidth = 59, kAtLayout = 60,
                 kAtFilterKind = 61, kAtFilterBitsPerKey = 62, kAtFilterHashes = 63,
                 kAtShardBits = 64, kAtPartitionBits = 65, kAtShard = 66, kAtKeyBytesMin = 68,
                 kAtKeyBytesMax = 70, kAtDisplacementMax = 72, kAtReserved = 76, kAtRowCount = 80,
                 kAtSlotCount = 88, kAtSections = 96, kSectionEntryBytes = 16,
                 kAtChecksumsChecksum = kAtSections + kSectionCount * kSectionEntryBytes,
                 kAtZeros = kAtChecksumsChecksum + 8, kAtHeaderChecksum = kHeaderBytes - 8;
static_assert(kAtZeros == 216);

absl::Status BadField(size_t offset, std::string_view field, uint64_t expected, uint64_t got) {
  return DataLoss("header field '{}' at offset {}: expected {}, got {}", field, offset, expected,
                  got);
}
absl::Status OutOfRange(size_t offset, std::string_view field, uint64_t low, uint64_t high,
                        uint64_t got) {
  return DataLoss("header field '{}' at offset {}: expected {} to {}, got {}", field, offset, low,
                  high, got);
}

// The fields whose range depends on nothing else.
absl::Status CheckScalars(const SegmentHeader& header) {
  const auto range = [](size_t offset, std::string_view field, uint64_t low, uint64_t high,
                        uint64_t got) {
    return got >= low && got <= high ? absl::OkStatus() : OutOfRange(offset, field, low, high, got);
  };
  LATCHKEY_RETURN_IF_ERROR(header.schema.Validate());
  LATCHKEY_RETURN_IF_ERROR(range(kAtLayout, "layout", 1, 2, static_cast<uint64_t>(header.layout)));
  LATCHKEY_RETURN_IF_ERROR(
      range(kAtFilterKind, "filter kind", 0, 1, static_cast<uint64_t>(header.filter_kind)));
  const bool filter = header.filter_kind != FilterKind::kNone;
  LATCHKEY_RETURN_IF_ERROR(range(kAtFilterBitsPerKey, "filter bits a key", filter ? 1 : 0,
                                 filter ? kFilterBitsPerKeyMax : 0, header.filter_bits_per_key));
  LATCHKEY_RETURN_IF_ERROR(range(kAtFilterHashes, "filter hashes", filter ? 1 : 0,
                                 filter ? kFilterHashesMax : 0, header.filter_hashes));
  LATCHKEY_RETURN_IF_ERROR(
      range(kAtShardBits, "shard bits", 0, kPartitionBitsMax, header.shard_bits));
  LATCHKEY_RETURN_IF_ERROR(range(kAtPartitionBits, "partition bits", 0,
                                 kPartitionBitsMax - header.shard_bits, header.partition_bits));
  LATCHKEY_RETURN_IF_ERROR(
      range(kAtShard, "shard", 0, (uint64_t{1} << header.shard_bits) - 1, header.shard));
  LATCHKEY_RETURN_IF_ERROR(range(kAtRowCount, "row count", 0, kSegmentRowsMax, header.row_count));
  const uint64_t key_low = header.row_count == 0 ? 0 : 1;
  const uint64_t key_high = header.row_count == 0 ? 0 : kKeyBytesMax;
  LATCHKEY_RETURN_IF_ERROR(
      range(kAtKeyBytesMin, "shortest key", key_low, key_high, header.key_bytes_min));
  LATCHKEY_RETURN_IF_ERROR(
      range(kAtKeyBytesMax, "longest key", header.key_bytes_min, key_high, header.key_bytes_max));
  LATCHKEY_RETURN_IF_ERROR(range(kAtDisplacementMax, "largest displacement", 0,
                                 std::max<uint64_t>(header.slot_count, 1) - 1,
                                 header.displacement_max));
  if (header.layout == Layout::kInline) {
    LATCHKEY_RETURN_IF_ERROR(
        range(kAtKeyBytesMax, "longest key of an inline layout", header.key_bytes_min,
              std::min<uint64_t>(header.key_bytes_min, kInlineKeyBytesMax), header.key_bytes_max));
  }
  return absl::OkStatus();
}

// Sections lie in order, aligned, without overlap, and those that must be empty are.
absl::Status CheckSections(const SegmentHeader& header) {
  uint64_t end = kHeaderBytes;
  for (size_t i = 0; i < kSectionCount; ++i) {
    const Section& section = header.sections[i];
    const auto kind = static_cast<SectionKind>(i);
    const size_t at = kAtSections + i * kSectionEntryBytes;
    const uint64_t alignment =
        kind == SectionKind::kDirectory ? kPageBytes : SectionAlignment(section.size_bytes);
    uint64_t section_end;
    if (section.offset < end || section.offset % alignment != 0 ||
        !CheckedAdd(section.offset, section.size_bytes, &section_end) || section_end > INT64_MAX) {
      return DataLoss(
          "header section '{}' at offset {}: expected a range that begins at {} or later on a "
          "multiple of {}, got offset {} and {} bytes",
          SectionName(kind), at, end, alignment, section.offset, section.size_bytes);
    }
    end = section_end;
  }
  const auto expect_size = [&](SectionKind kind, uint64_t expected) {
    const size_t at = kAtSections + static_cast<size_t>(kind) * kSectionEntryBytes + 8;
    const uint64_t got = header.section(kind).size_bytes;
    return got == expected ? absl::OkStatus() : BadField(at, SectionName(kind), expected, got);
  };
  uint64_t blocks = 0;
  for (size_t i = 0; i + 1 < kSectionCount; ++i) {
    blocks += ChecksumBlocks(header.sections[i].size_bytes);
  }
  LATCHKEY_RETURN_IF_ERROR(expect_size(SectionKind::kChecksums, blocks * 8));
  LATCHKEY_RETURN_IF_ERROR(
      expect_size(SectionKind::kDirectory, header.partition_count() * kPartitionEntryBytes));
  if (header.filter_kind == FilterKind::kNone) {
    LATCHKEY_RETURN_IF_ERROR(expect_size(SectionKind::kFilter, 0));
  }
  if (header.schema.value_kind != ValueKind::kBytes) {
    LATCHKEY_RETURN_IF_ERROR(expect_size(SectionKind::kValues, 0));
  }
  uint64_t control_bytes, slot_word_bytes;
  if (!CheckedAdd(header.slot_count, header.partition_count() * uint64_t{kGroupSlots},
                  &control_bytes) ||
      !CheckedMul(header.slot_count, 8, &slot_word_bytes)) {
    return OutOfRange(kAtSlotCount, "slot count", 0, UINT64_MAX / 8, header.slot_count);
  }
  LATCHKEY_RETURN_IF_ERROR(expect_size(SectionKind::kControl, control_bytes));
  return expect_size(SectionKind::kSlotWords,
                     header.layout == Layout::kTermOrder ? slot_word_bytes : 0);
}

}  // namespace

std::string_view LayoutName(Layout layout) {
  return layout == Layout::kInline ? "inline" : "term-order";
}

std::string_view ValueKindName(ValueKind kind) {
  switch (kind) {
    case ValueKind::kFixed:
      return "fixed";
    case ValueKind::kBytes:
      return "bytes";
    default:
      return "none";
  }
}

std::string_view SectionName(SectionKind kind) {
  constexpr std::string_view kNames[kSectionCount] = {
      "directory", "filter", "control", "slot_words", "records", "values", "checksums"};
  return kNames[static_cast<size_t>(kind)];
}

std::string TableIdText(const std::array<uint8_t, 16>& table_id) {
  std::string text;
  for (const uint8_t byte : table_id) text += fmt::format("{:02x}", byte);
  return text;
}

std::string TableSchema::ToString() const {
  std::string values;
  switch (value_kind) {
    case ValueKind::kNone:
      values = "no values";
      break;
    case ValueKind::kFixed:
      values = fmt::format("values of {} bytes", value_width);
      break;
    case ValueKind::kBytes:
      values = "values of any length";
      break;
  }
  return fmt::format("key kind {}, {}-bit doc ids, {}", KeyKindName(key_kind), doc_id_bytes * 8,
                     values);
}

uint64_t TableSchema::Id() const {
  const std::string text = ToString();
  return Checksum(text.data(), text.size());
}

absl::Status TableSchema::Validate() const {
  if (key_kind < KeyKind::kRaw || key_kind > KeyKind::kU64) {
    return OutOfRange(kAtKeyKind, "key kind", 1, 5, static_cast<uint64_t>(key_kind));
  }
  if (doc_id_bytes != 4 && doc_id_bytes != 8) {
    return DataLoss("header field 'doc id bytes' at offset {}: expected 4 or 8, got {}",
                    kAtDocIdBytes, doc_id_bytes);
  }
  if (value_kind > ValueKind::kBytes) {
    return OutOfRange(kAtValueKind, "value kind", 0, 2, static_cast<uint64_t>(value_kind));
  }
  const bool fixed = value_kind == ValueKind::kFixed;
  if (value_width < (fixed ? 1 : 0) || value_width > (fixed ? kFixedValueBytesMax : 0)) {
    return OutOfRange(kAtValueWidth, "value width", fixed ? 1 : 0, fixed ? kFixedValueBytesMax : 0,
                      value_width);
  }
  return absl::OkStatus();
}

std::string EncodeHeader(const SegmentHeader& header) {
  std::string bytes(kHeaderBytes, '\0');
  char* const to = bytes.data();
  std::copy(kSegmentMagic.begin(), kSegmentMagic.end(), to + kAtMagic);
  Store(to + kAtMajor, kFormatMajor);
  Store(to + kAtMinor, kFormatMinor);
  Store(to + kAtHeaderBytes, static_cast<uint32_t>(kHeaderBytes));
  std::copy(header.identity.table_id.begin(), header.identity.table_id.end(), to + kAtTableId);
  Store(to + kAtSeed, header.identity.seed);
  Store(to + kAtSchemaId, header.schema.Id());
  Store(to + kAtSegmentId, header.segment_id);
  Store(to + kAtKeyKind, header.schema.key_kind);
  Store(to + kAtDocIdBytes, header.schema.doc_id_bytes);
  Store(to + kAtValueKind, header.schema.value_kind);
  Store(to + kAtValueWidth, header.schema.value_width);
  Store(to + kAtLayout, header.layout);
  Store(to + kAtFilterKind, header.filter_kind);
  Store(to + kAtFilterBitsPerKey, header.filter_bits_per_key);
  Store(to + kAtFilterHashes, header.filter_hashes);
  Store(to + kAtShardBits, header.shard_bits);
  Store(to + kAtPartitionBits, header.partition_bits);
  Store(to + kAtShard, header.shard);
  Store(to + kAtKeyBytesMin, header.key_bytes_min);
  Store(to + kAtKeyBytesMax, header.key_bytes_max);
  Store(to + kAtDisplacementMax, header.displacement_max);
  Store(to + kAtRowCount, header.row_count);
  Store(to + kAtSlotCount, header.slot_count);
  for (size_t i = 0; i < kSectionCount; ++i) {
    Store(to + kAtSections + i * kSectionEntryBytes, header.sections[i].offset);
    Store(to + kAtSections + i * kSectionEntryBytes + 8, header.sections[i].size_bytes);
  }
  Store(to + kAtChecksumsChecksum, header.checksums_checksum);
  Store(to + kAtHeaderChecksum, Checksum(to, kAtHeaderChecksum));
  return bytes;
}

uint64_t HeaderChecksum(std::string_view header_bytes) {
  return Load<uint64_t>(header_bytes.data() + kAtHeaderChecksum);
}

absl::StatusOr<SegmentHeader> DecodeHeader(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes) {
    return DataLoss("header cut off: expected {} bytes, got {}", kHeaderBytes, bytes.size());
  }
  const char* const from = bytes.data();
  if (bytes.substr(kAtMagic, kSegmentMagic.size()) != kSegmentMagic) {
    return DataLoss("not a Latchkey segment: no '{}' at offset 0", kSegmentMagic);
  }
  const auto major = Load<uint16_t>(from + kAtMajor), minor = Load<uint16_t>(from + kAtMinor);
  if (major != kFormatMajor || minor != kFormatMinor) {
    return FailedPrecondition(
        "format version at offset {}: this program reads {}.{}, the file has {}.{}; build the "
        "table again",
        kAtMajor, kFormatMajor, kFormatMinor, major, minor);
  }
  if (const auto checksum = Checksum(from, kAtHeaderChecksum);
      checksum != Load<uint64_t>(from + kAtHeaderChecksum)) {
    return DataLoss("header checksum at offset {}: expected {:016x}, got {:016x}",
                    kAtHeaderChecksum, checksum, Load<uint64_t>(from + kAtHeaderChecksum));
  }
  if (const auto size = Load<uint32_t>(from + kAtHeaderBytes); size != kHeaderBytes) {
    return BadField(kAtHeaderBytes, "header bytes", kHeaderBytes, size);
  }
  SegmentHeader header;
  std::copy_n(from + kAtTableId, header.identity.table_id.size(),
              reinterpret_cast<char*>(header.identity.table_id.data()));
  header.identity.seed = Load<uint64_t>(from + kAtSeed);
  header.segment_id = Load<uint64_t>(from + kAtSegmentId);
  header.schema.key_kind = Load<KeyKind>(from + kAtKeyKind);
  header.schema.doc_id_bytes = Load<uint8_t>(from + kAtDocIdBytes);
  header.schema.value_kind = Load<ValueKind>(from + kAtValueKind);
  header.schema.value_width = Load<uint8_t>(from + kAtValueWidth);
  header.layout = Load<Layout>(from + kAtLayout);
  header.filter_kind = Load<FilterKind>(from + kAtFilterKind);
  header.filter_bits_per_key = Load<uint8_t>(from + kAtFilterBitsPerKey);
  header.filter_hashes = Load<uint8_t>(from + kAtFilterHashes);
  header.shard_bits = Load<uint8_t>(from + kAtShardBits);
  header.partition_bits = Load<uint8_t>(from + kAtPartitionBits);
  header.shard = Load<uint16_t>(from + kAtShard);
  header.key_bytes_min = Load<uint16_t>(from + kAtKeyBytesMin);
  header.key_bytes_max = Load<uint16_t>(from + kAtKeyBytesMax);
  header.displacement_max = Load<uint32_t>(from + kAtDisplacementMax);
  header.row_count = Load<uint64_t>(from + kAtRowCount);
  header.slot_count = Load<uint64_t>(from + kAtSlotCount);
  for (size_t i = 0; i < kSectionCount; ++i) {
    header.sections[i].offset = Load<uint64_t>(from + kAtSections + i * kSectionEntryBytes);
    header.sections[i].size_bytes = Load<uint64_t>(from + kAtSections + i * kSectionEntryBytes + 8);
  }
  header.checksums_checksum = Load<uint64_t>(from + kAtChecksumsChecksum);
  for (size_t at = kAtReserved; at < kAtHeaderChecksum; ++at) {
    if (at == kAtReserved + 4) at = kAtZeros;
    if (bytes[at] != '\0') {
      return BadField(at, "reserved", 0, static_cast<uint8_t>(bytes[at]));
    }
  }
  LATCHKEY_RETURN_IF_ERROR(CheckScalars(header));
  if (const auto id = Load<uint64_t>(from + kAtSchemaId); id != header.schema.Id()) {
    return BadField(kAtSchemaId, "schema id", header.schema.Id(), id);
  }
  LATCHKEY_RETURN_IF_ERROR(CheckSections(header));
  return header;
}

void AppendPartitionEntry(const PartitionEntry& entry, std::string* to) {
  Append(to, entry.first_slot);
  Append(to, entry.filter_first_word);
  Append(to, entry.records_offset);
  Append(to, entry.record_bytes);
  Append(to, entry.first_slot_word);
  Append(to, entry.home_slots);
  Append(to, entry.slots);
  Append(to, entry.filter_words);
  Append(to, entry.row_count);
}

absl::StatusOr<std::vector<PartitionEntry>> DecodeDirectory(const SegmentHeader& header,
                                                            std::string_view bytes) {
  if (bytes.size() != header.partition_count() * kPartitionEntryBytes) {
    return DataLoss("directory: expected {} bytes, got {}",
                    header.partition_count() * kPartitionEntryBytes, bytes.size());
  }
  const bool inline_layout = header.layout == Layout::kInline;
  const InlineShape shape(header.schema, header.key_bytes_max);
  std::vector<PartitionEntry> entries(header.partition_count());
  uint64_t control = 0, filter_words = 0, records = 0, slot_words = 0, slots = 0, rows = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const char* const from = bytes.data() + i * kPartitionEntryBytes;
    PartitionEntry& entry = entries[i];
    entry = {Load<uint64_t>(from),      Load<uint64_t>(from + 8),  Load<uint64_t>(from + 16),
             Load<uint64_t>(from + 24), Load<uint64_t>(from + 32), Load<uint32_t>(from + 40),
             Load<uint32_t>(from + 44), Load<uint32_t>(from + 48), Load<uint32_t>(from + 52)};
    const uint64_t inline_bytes = inline_layout ? shape.RecordBytes(entry.slots) : 0;
    const bool good = entry.first_slot == control && entry.filter_first_word == filter_words &&
                      entry.first_slot_word == slot_words &&
                      entry.records_offset == RoundUp(records, kPageBytes) &&
                      entry.home_slots >= 1 && entry.home_slots <= kPartitionSlotsMax &&
                      entry.slots >= entry.home_slots && entry.row_count <= entry.slots &&
                      entry.slots <= UINT32_MAX - kGroupSlots &&
                      entry.record_bytes <= kPartitionRecordBytesMax &&
                      (inline_layout ? entry.record_bytes == inline_bytes
                                     : entry.row_count <= entry.record_bytes) &&
                      (entry.filter_words >= 1) == (header.filter_kind != FilterKind::kNone);
    if (!good) {
      return DataLoss("directory entry {} at offset {} is inconsistent", i,
                      header.section(SectionKind::kDirectory).offset + i * kPartitionEntryBytes);
    }
    control += uint64_t{entry.slots} + kGroupSlots;
    filter_words += entry.filter_words;
    slot_words += inline_layout ? 0 : entry.slots;
    records = entry.records_offset + entry.record_bytes;
    slots += entry.slots;
    rows += entry.row_count;
  }
  if (slots != header.slot_count || rows != header.row_count ||
      filter_words * 8 != header.section(SectionKind::kFilter).size_bytes ||
      records != header.section(SectionKind::kRecords).size_bytes) {
    return DataLoss("directory: its sums ({} slots, {} rows) do not match the header's ({}, {})",
                    slots, rows, header.slot_count, header.row_count);
  }
  return entries;
}

}  // namespace latchkey
