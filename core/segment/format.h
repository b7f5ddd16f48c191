// The header and the partition directory of a segment file: encode, and decode that validates
// everything. FORMAT.md beside this file accounts for every byte.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/key/key_kind.h"
#include "core/key/limits.h"

namespace latchkey {

inline constexpr std::string_view kSegmentMagic = "LATCHKEY";
inline constexpr uint16_t kFormatMajor = 0;
inline constexpr uint16_t kFormatMinor = 1;

inline constexpr size_t kHeaderBytes = 4096;
inline constexpr size_t kPageBytes = 4096;             // records do not straddle these
inline constexpr size_t kChecksumBlockBytes = 65'536;  // one checksum for each, section by section
inline constexpr size_t kSectionAlignment = 65'536;
inline constexpr size_t kLargeSectionAlignment = size_t{2} << 20;  // of sections at least as large

enum class Layout : uint8_t { kInline = 1, kTermOrder = 2 };
enum class ValueKind : uint8_t { kNone = 0, kFixed = 1, kBytes = 2 };
enum class FilterKind : uint8_t { kNone = 0, kRegisterBlocked = 1 };

std::string_view LayoutName(Layout layout);
std::string_view ValueKindName(ValueKind kind);

// What all segments of a table have in common, for the table's whole life.
struct TableSchema {
  KeyKind key_kind = KeyKind::kRaw;
  uint8_t doc_id_bytes = 4;  // 4 or 8
  ValueKind value_kind = ValueKind::kNone;
  uint8_t value_width = 0;  // bytes of a fixed value, 1 to 64; else 0

  // "key kind hex, 32-bit doc ids, values of 20 bytes".
  std::string ToString() const;
  // Identifies the schema in every segment.
  uint64_t Id() const;
  absl::Status Validate() const;

  // Bytes beside the key in a record: a fixed value, or the locator of one.
  size_t InlineValueBytes() const { return value_kind == ValueKind::kBytes ? 8 : value_width; }
  // The largest doc id; the one above it is kept as zero bytes, which mean damage.
  uint64_t DocIdMax() const { return doc_id_bytes == 4 ? UINT32_MAX - 1 : UINT64_MAX - 1; }

  bool operator==(const TableSchema&) const = default;
};

// Who a segment belongs to.
struct TableIdentity {
  std::array<uint8_t, 16> table_id = {};  // random, for the table's whole life
  uint64_t seed = 0;                      // of the hash, for the table's whole life
  bool operator==(const TableIdentity&) const = default;
};
std::string TableIdText(const std::array<uint8_t, 16>& table_id);  // 32 hexadecimal digits

// In this order in the header, in the file and in the checksums.
enum class SectionKind : uint8_t {
  kDirectory = 0,
  kFilter,
  kControl,
  kSlotWords,  // term order only
  kRecords,
  kValues,  // tables with values of bytes only
  kChecksums,
};
inline constexpr size_t kSectionCount = 7;
std::string_view SectionName(SectionKind kind);

struct Section {
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
  uint64_t end() const { return offset + size_bytes; }
  bool operator==(const Section&) const = default;
};

struct SegmentHeader {
  TableIdentity identity;
  TableSchema schema;
  uint64_t segment_id = 0;  // random; ties the manifest's entry to this very file
  Layout layout = Layout::kInline;
  FilterKind filter_kind = FilterKind::kNone;
  uint8_t filter_bits_per_key = 0;
  uint8_t filter_hashes = 0;
  uint8_t shard_bits = 0;
  uint16_t shard = 0;
  uint8_t partition_bits = 0;
  uint16_t key_bytes_min = 0;  // 0 and 0 when there are no rows
  uint16_t key_bytes_max = 0;
  uint32_t displacement_max = 0;  // the farthest that a row lies from its home slot
  uint64_t row_count = 0;
  uint64_t slot_count = 0;
  std::array<Section, kSectionCount> sections;
  uint64_t checksums_checksum = 0;  // of the checksums section

  const Section& section(SectionKind kind) const { return sections[static_cast<size_t>(kind)]; }
  Section& section(SectionKind kind) { return sections[static_cast<size_t>(kind)]; }
  uint32_t partition_count() const { return uint32_t{1} << partition_bits; }
  uint64_t file_bytes() const { return section(SectionKind::kChecksums).end(); }
  bool operator==(const SegmentHeader&) const = default;
};

// kHeaderBytes of them.
std::string EncodeHeader(const SegmentHeader& header);

// DataLoss or FailedPrecondition (another version) with the offset of the first field that is
// wrong; `bytes` may have any size.
absl::StatusOr<SegmentHeader> DecodeHeader(std::string_view bytes);

// The checksum by which a manifest names a header.
uint64_t HeaderChecksum(std::string_view header_bytes);

// Where a partition lies in the sections. Offsets and indices are from the section's start.
struct PartitionEntry {
  uint64_t first_slot = 0;  // its first control byte; a partition has slots + kGroupSlots of them
  uint64_t filter_first_word = 0;
  uint64_t records_offset = 0;  // a multiple of kPageBytes
  uint64_t record_bytes = 0;
  uint64_t first_slot_word = 0;  // term order only
  uint32_t home_slots = 0;       // that hashes map to, at least 1
  uint32_t slots = 0;            // those, and what overflowed beyond them
  uint32_t filter_words = 0;
  uint32_t row_count = 0;
  bool operator==(const PartitionEntry&) const = default;
};
inline constexpr size_t kPartitionEntryBytes = 56;

void AppendPartitionEntry(const PartitionEntry& entry, std::string* to);

// Decodes and checks the whole directory against the header: bounds, order, sums.
absl::StatusOr<std::vector<PartitionEntry>> DecodeDirectory(const SegmentHeader& header,
                                                            std::string_view bytes);

// Number of 64 KiB blocks, the last one possibly short.
inline constexpr uint64_t ChecksumBlocks(uint64_t size_bytes) {
  return size_bytes / kChecksumBlockBytes + (size_bytes % kChecksumBlockBytes != 0);
}

inline constexpr uint64_t SectionAlignment(uint64_t size_bytes) {
  return size_bytes >= kLargeSectionAlignment ? kLargeSectionAlignment : kSectionAlignment;
}

}  // namespace latchkey
