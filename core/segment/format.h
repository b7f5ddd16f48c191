// The header and the partition directory of a segment file: encode, and decode that validates
// everything. FORMAT.md beside this file accounts for every byte.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/key/key_kind.h"
#include "core/key/limits.h"

namespace latchkey {

inline constexpr std::string_view kSegmentMagic = "LATCHKEY";
inline constexpr uint16_t kFormatMajor = 1;
inline constexpr uint16_t kFormatMinor = 0;  // a reader takes any minor of its major

inline constexpr size_t kHeaderBytes = 4096;
inline constexpr size_t kPageBytes = 4096;             // lines and records do not straddle these
inline constexpr size_t kChecksumBlockBytes = 65'536;  // one checksum for each, section by section
inline constexpr size_t kSectionAlignment = 65'536;
inline constexpr size_t kLargeSectionAlignment = size_t{2} << 20;  // of sections at least as large

// How the rows lie in the segment's lines.
enum class Layout : uint8_t {
  kLine = 1,     // whole records, of keys of one length
  kPointer = 2,  // pointers to records of any length
};
enum class ValueKind : uint8_t { kNone = 0, kFixed = 1, kBytes = 2 };
// A kind that this program does not know filters nothing.
enum class FilterKind : uint8_t { kNone = 0, kRegisterBlocked = 1 };

std::string_view LayoutName(Layout layout);
std::string_view ValueKindName(ValueKind kind);

// What all segments of a table have in common, for the table's whole life.
struct TableSchema {
  KeyKind key_kind = KeyKind::kRaw;
  uint16_t key_bytes = 0;    // that every key has; 0: any
  uint8_t doc_id_bytes = 4;  // 4 or 8
  ValueKind value_kind = ValueKind::kNone;
  uint8_t value_width = 0;  // bytes of a fixed value, 1 to 64; else 0

  // "key kind hex(20), 32-bit doc ids, values of 20 bytes", for people.
  std::string ToString() const;
  // "key=hex(20)/1 doc_id=32 value=fixed(20)", as files say it; ParseSchema is its inverse. The
  // number behind the slash is the version of the key kind.
  std::string Descriptor() const;
  // "hex", or "hex(20)" for keys of 20 bytes only.
  std::string KeyKindText() const;
  // The inverse; InvalidArgument for what is no key kind, or a length that it can't have.
  absl::Status SetKeyKind(std::string_view text);
  // Identifies the schema in every segment.
  uint64_t Id() const;
  absl::Status Validate() const;

  // Bytes beside the key in a record: a fixed value, or the locator of one.
  size_t InlineValueBytes() const { return value_kind == ValueKind::kBytes ? 8 : value_width; }
  // The largest doc id: the two above it stand for a hole and a tombstone.
  uint64_t DocIdMax() const { return doc_id_bytes == 4 ? UINT32_MAX - 2 : UINT64_MAX - 2; }

  bool operator==(const TableSchema&) const = default;
};
// InvalidArgument for what is no descriptor, or one of things that this program does not know.
absl::StatusOr<TableSchema> ParseSchema(std::string_view descriptor);
inline constexpr size_t kSchemaDescriptorBytesMax = 1024;

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
  kPilots,
  kLines,
  kRecords,  // layout kPointer only
  kValues,   // tables with values of bytes only
  kHashes,   // the hash list, if the segment has one
  kChecksums,
};
inline constexpr size_t kSectionCount = 8;
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
  // Bits of things that a reader must know of, or may overlook. Unknown ones of the former are
  // refused; this version defines none.
  uint64_t mandatory_features = 0;
  uint64_t optional_features = 0;
  uint64_t row_count = 0;        // tombstones included
  uint64_t tombstone_count = 0;  // rows that say "deleted"
  Layout layout = Layout::kLine;
  FilterKind filter_kind = FilterKind::kNone;
  uint8_t filter_bits_per_key = 0;
  uint8_t filter_hashes = 0;
  uint8_t shard_bits = 0;
  uint16_t shard = 0;
  uint8_t partition_bits = 0;
  uint8_t hash_bits = 0;         // of each hash in the hash list; 0 without one
  uint8_t hash_delta_bytes = 0;  // of a difference in it
  uint16_t line_bytes = 0;
  uint16_t key_bytes_min = 0;  // 0 and 0 when there are no rows
  uint16_t key_bytes_max = 0;
  uint64_t key_prefix_min = 0;  // KeyPrefix of the smallest and the largest key
  uint64_t key_prefix_max = 0;
  std::array<Section, kSectionCount> sections;
  uint64_t checksums_checksum = 0;  // of the checksums section

  const Section& section(SectionKind kind) const { return sections[static_cast<size_t>(kind)]; }
  Section& section(SectionKind kind) { return sections[static_cast<size_t>(kind)]; }
  uint32_t partition_count() const { return uint32_t{1} << partition_bits; }
  uint64_t file_bytes() const { return section(SectionKind::kChecksums).end(); }
  bool operator==(const SegmentHeader&) const = default;
};

// The first eight bytes of a key as a number that orders as the keys do; shorter keys are filled up
// with zero bytes.
inline uint64_t KeyPrefix(std::string_view key) {
  uint64_t prefix = 0;
  if (key.size() >= sizeof(prefix)) {
    std::memcpy(&prefix, key.data(), sizeof(prefix));
  } else if (!key.empty()) {  // an empty key may have no address
    std::memcpy(&prefix, key.data(), key.size());
  }
  return __builtin_bswap64(prefix);
}

// kHeaderBytes of them.
std::string EncodeHeader(const SegmentHeader& header);

// DataLoss or FailedPrecondition (another version) with the offset of the first field that is
// wrong; `bytes` may have any size.
absl::StatusOr<SegmentHeader> DecodeHeader(std::string_view bytes);

// The checksum by which a manifest names a header.
uint64_t HeaderChecksum(std::string_view header_bytes);

// Where a partition lies in the sections. Offsets and indices are from the section's start.
struct PartitionEntry {
  uint64_t lines_offset = 0;  // a multiple of kPageBytes
  uint64_t first_pilot = 0;   // a byte each
  uint64_t filter_first_word = 0;
  uint64_t records_offset = 0;  // a multiple of kPageBytes
  uint64_t record_bytes = 0;
  uint32_t lines = 0;   // at least 1
  uint32_t groups = 0;  // at least 1
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
