#include "core/segment/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/checked_math.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/segment/bloom_filter.h"
#include "core/segment/hash_list.h"
#include "core/segment/line_shape.h"
#include "core/segment/pilot_search.h"

namespace latchkey {
namespace {

// Offsets of the header's fields.
constexpr size_t kAtMagic = 0, kAtMajor = 8, kAtMinor = 10, kAtHeaderBytes = 12, kAtTableId = 16,
                 kAtSeed = 32, kAtSchemaId = 40, kAtSegmentId = 48, kAtMandatoryFeatures = 56,
                 kAtOptionalFeatures = 64, kAtRowCount = 72, kAtTombstoneCount = 80, kAtLayout = 88,
                 kAtFilterKind = 89, kAtFilterBitsPerKey = 90, kAtFilterHashes = 91,
                 kAtShardBits = 92, kAtPartitionBits = 93, kAtHashBits = 94, kAtHashDeltaBytes = 95,
                 kAtShard = 96, kAtLineBytes = 98, kAtKeyBytesMin = 100, kAtKeyBytesMax = 102,
                 kAtKeyPrefixMin = 104, kAtKeyPrefixMax = 112, kAtSections = 120,
                 kSectionEntryBytes = 16,
                 kAtChecksumsChecksum = kAtSections + kSectionCount * kSectionEntryBytes,
                 kAtSchemaBytes = kAtChecksumsChecksum + 8, kAtSchema = kAtSchemaBytes + 2,
                 kAtZeros = kAtSchema + kSchemaDescriptorBytesMax,
                 kAtHeaderChecksum = kHeaderBytes - 8;
static_assert(kAtSchema == 258 && kAtZeros == 1282);

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
  LATCHKEY_RETURN_IF_ERROR(range(kAtLayout, "layout", 1, 2, static_cast<uint64_t>(header.layout)));
  switch (header.filter_kind) {
    case FilterKind::kNone:
      LATCHKEY_RETURN_IF_ERROR(
          range(kAtFilterBitsPerKey, "filter bits a key", 0, 0, header.filter_bits_per_key));
      LATCHKEY_RETURN_IF_ERROR(range(kAtFilterHashes, "filter hashes", 0, 0, header.filter_hashes));
      break;
    case FilterKind::kRegisterBlocked:
      LATCHKEY_RETURN_IF_ERROR(range(kAtFilterBitsPerKey, "filter bits a key", 1,
                                     kFilterBitsPerKeyMax, header.filter_bits_per_key));
      LATCHKEY_RETURN_IF_ERROR(
          range(kAtFilterHashes, "filter hashes", 1, kFilterHashesMax, header.filter_hashes));
      break;
  }
  LATCHKEY_RETURN_IF_ERROR(
      range(kAtShardBits, "shard bits", 0, kPartitionBitsMax, header.shard_bits));
  LATCHKEY_RETURN_IF_ERROR(range(kAtPartitionBits, "partition bits", 0,
                                 kPartitionBitsMax - header.shard_bits, header.partition_bits));
  LATCHKEY_RETURN_IF_ERROR(
      range(kAtShard, "shard", 0, (uint64_t{1} << header.shard_bits) - 1, header.shard));
  const bool hashes = header.hash_bits != 0;
  LATCHKEY_RETURN_IF_ERROR(range(kAtHashBits, "hash bits", 0, kHashBitsMax, header.hash_bits));
  LATCHKEY_RETURN_IF_ERROR(range(kAtHashDeltaBytes, "hash difference",
                                 hashes ? kHashDeltaBytesMin : 0, hashes ? kHashDeltaBytesMax : 0,
                                 header.hash_delta_bytes));
  LATCHKEY_RETURN_IF_ERROR(range(kAtRowCount, "row count", 0, kSegmentRowsMax, header.row_count));
  LATCHKEY_RETURN_IF_ERROR(
      range(kAtTombstoneCount, "tombstone count", 0, header.row_count, header.tombstone_count));
  const uint64_t key_low = header.row_count == 0 ? 0 : 1;
  const uint64_t key_high = header.row_count == 0 ? 0 : kKeyBytesMax;
  LATCHKEY_RETURN_IF_ERROR(
      range(kAtKeyBytesMin, "shortest key", key_low, key_high, header.key_bytes_min));
  LATCHKEY_RETURN_IF_ERROR(
      range(kAtKeyBytesMax, "longest key", header.key_bytes_min, key_high, header.key_bytes_max));
  LATCHKEY_RETURN_IF_ERROR(range(kAtKeyPrefixMax, "largest key's prefix", header.key_prefix_min,
                                 UINT64_MAX, header.key_prefix_max));
  LineShape shape = LineShape::OfPointers(header.schema);
  if (header.layout == Layout::kLine) {
    const uint64_t longest =
        kLineRecordBytesMax - header.schema.doc_id_bytes - header.schema.InlineValueBytes();
    LATCHKEY_RETURN_IF_ERROR(
        range(kAtKeyBytesMax, "longest key of a line layout", header.key_bytes_min,
              std::min<uint64_t>(header.key_bytes_min, longest), header.key_bytes_max));
    shape = LineShape::OfRows(header.schema, header.key_bytes_max);
  }
  return range(kAtLineBytes, "line bytes", shape.line_bytes(), shape.line_bytes(),
               header.line_bytes);
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
  const auto expect_empty_unless = [&](SectionKind kind, bool used) {
    return used ? absl::OkStatus() : expect_size(kind, 0);
  };
  LATCHKEY_RETURN_IF_ERROR(
      expect_empty_unless(SectionKind::kFilter, header.filter_kind != FilterKind::kNone));
  LATCHKEY_RETURN_IF_ERROR(
      expect_empty_unless(SectionKind::kRecords, header.layout == Layout::kPointer));
  LATCHKEY_RETURN_IF_ERROR(
      expect_empty_unless(SectionKind::kValues, header.schema.value_kind == ValueKind::kBytes));
  return expect_empty_unless(SectionKind::kHashes, header.hash_bits != 0);
}

}  // namespace

std::string_view LayoutName(Layout layout) { return layout == Layout::kLine ? "line" : "pointer"; }

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
  constexpr std::string_view kNames[kSectionCount] = {"directory", "filter", "pilots", "lines",
                                                      "records",   "values", "hashes", "checksums"};
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
  return fmt::format("key kind {}, {}-bit doc ids, {}", KeyKindText(), doc_id_bytes * 8, values);
}

std::string TableSchema::Descriptor() const {
  std::string value(ValueKindName(value_kind));
  if (value_kind == ValueKind::kFixed) value += fmt::format("({})", value_width);
  return fmt::format("key={}/1 doc_id={} value={}", KeyKindText(), doc_id_bytes * 8, value);
}

std::string TableSchema::KeyKindText() const {
  return key_bytes == 0 ? std::string(KeyKindName(key_kind))
                        : fmt::format("{}({})", KeyKindName(key_kind), key_bytes);
}

absl::Status TableSchema::SetKeyKind(std::string_view text) {
  const size_t bracket = text.find('(');
  const auto kind = ParseKeyKind(text.substr(0, bracket));
  uint16_t bytes = 0;
  if (bracket != std::string_view::npos) {
    std::from_chars(text.data() + bracket + 1, text.data() + text.size(), bytes);
  }
  if (kind) {
    TableSchema parsed = *this;
    parsed.key_kind = *kind;
    parsed.key_bytes = bytes;
    LATCHKEY_RETURN_IF_ERROR(parsed.Validate());
    if (parsed.KeyKindText() == text) {
      *this = parsed;
      return absl::OkStatus();
    }
  }
  return InvalidArgument(
      "key kind: expected raw, text, hex, uuid or u64, or the first three with the bytes that "
      "every key has, as in hex(20); got '{}'",
      text);
}

absl::StatusOr<TableSchema> ParseSchema(std::string_view descriptor) {
  // What is written has one form only, so whatever gives back the same text was understood whole.
  TableSchema schema;
  const auto field = [&](std::string_view name) {
    const size_t at = descriptor.find(name);
    if (at == std::string_view::npos) return std::string_view();
    const std::string_view rest = descriptor.substr(at + name.size());
    return rest.substr(0, rest.find(' '));
  };
  const std::string_view key = field("key="), value = field("value=");
  const bool good_key = schema.SetKeyKind(key.substr(0, key.find('/'))).ok();
  if (field("doc_id=") == "64") schema.doc_id_bytes = 8;
  if (value == "bytes") {
    schema.value_kind = ValueKind::kBytes;
  } else if (value.starts_with("fixed(")) {
    schema.value_kind = ValueKind::kFixed;
    std::from_chars(value.data() + 6, value.data() + value.size(), schema.value_width);
  }
  if (!good_key || schema.Descriptor() != descriptor || !schema.Validate().ok()) {
    return InvalidArgument("this program does not know the schema '{}'", descriptor);
  }
  return schema;
}

uint64_t TableSchema::Id() const {
  const std::string text = Descriptor();
  return Checksum(text.data(), text.size());
}

absl::Status TableSchema::Validate() const {
  if (key_kind < KeyKind::kRaw || key_kind > KeyKind::kU64) {
    return InvalidArgument("key kind: expected 1 to 5, got {}", static_cast<int>(key_kind));
  }
  if (key_bytes > (KeyKindWidth(key_kind) != 0 ? 0 : kKeyBytesMax)) {
    return InvalidArgument("key kind {}: keys of {} bytes can't be had", KeyKindName(key_kind),
                           key_bytes);
  }
  if (doc_id_bytes != 4 && doc_id_bytes != 8) {
    return InvalidArgument("doc id: expected 32 or 64 bits, got {}", doc_id_bytes * 8);
  }
  if (value_kind > ValueKind::kBytes) {
    return InvalidArgument("value kind: expected 0 to 2, got {}", static_cast<int>(value_kind));
  }
  const bool fixed = value_kind == ValueKind::kFixed;
  if (value_width < (fixed ? 1 : 0) || value_width > (fixed ? kFixedValueBytesMax : 0)) {
    return InvalidArgument("value width: expected {} to {} bytes, got {}", fixed ? 1 : 0,
                           fixed ? kFixedValueBytesMax : 0, value_width);
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
  Store(to + kAtMandatoryFeatures, header.mandatory_features);
  Store(to + kAtOptionalFeatures, header.optional_features);
  Store(to + kAtRowCount, header.row_count);
  Store(to + kAtTombstoneCount, header.tombstone_count);
  Store(to + kAtLayout, header.layout);
  Store(to + kAtFilterKind, header.filter_kind);
  Store(to + kAtFilterBitsPerKey, header.filter_bits_per_key);
  Store(to + kAtFilterHashes, header.filter_hashes);
  Store(to + kAtShardBits, header.shard_bits);
  Store(to + kAtPartitionBits, header.partition_bits);
  Store(to + kAtHashBits, header.hash_bits);
  Store(to + kAtHashDeltaBytes, header.hash_delta_bytes);
  Store(to + kAtShard, header.shard);
  Store(to + kAtLineBytes, header.line_bytes);
  Store(to + kAtKeyBytesMin, header.key_bytes_min);
  Store(to + kAtKeyBytesMax, header.key_bytes_max);
  Store(to + kAtKeyPrefixMin, header.key_prefix_min);
  Store(to + kAtKeyPrefixMax, header.key_prefix_max);
  const std::string schema = header.schema.Descriptor();
  LATCHKEY_CHECK(schema.size() <= kSchemaDescriptorBytesMax);
  Store(to + kAtSchemaBytes, static_cast<uint16_t>(schema.size()));
  std::copy(schema.begin(), schema.end(), to + kAtSchema);
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
  if (major != kFormatMajor) {
    return FailedPrecondition(
        "format version at offset {}: this program reads {}.x, the file has {}.{}; {}", kAtMajor,
        kFormatMajor, major, minor,
        major < kFormatMajor ? "build the table again" : "it takes a newer program");
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
  header.mandatory_features = Load<uint64_t>(from + kAtMandatoryFeatures);
  header.optional_features = Load<uint64_t>(from + kAtOptionalFeatures);
  header.row_count = Load<uint64_t>(from + kAtRowCount);
  header.tombstone_count = Load<uint64_t>(from + kAtTombstoneCount);
  header.layout = Load<Layout>(from + kAtLayout);
  header.filter_kind = Load<FilterKind>(from + kAtFilterKind);
  header.filter_bits_per_key = Load<uint8_t>(from + kAtFilterBitsPerKey);
  header.filter_hashes = Load<uint8_t>(from + kAtFilterHashes);
  header.shard_bits = Load<uint8_t>(from + kAtShardBits);
  header.partition_bits = Load<uint8_t>(from + kAtPartitionBits);
  header.hash_bits = Load<uint8_t>(from + kAtHashBits);
  header.hash_delta_bytes = Load<uint8_t>(from + kAtHashDeltaBytes);
  header.shard = Load<uint16_t>(from + kAtShard);
  header.line_bytes = Load<uint16_t>(from + kAtLineBytes);
  header.key_bytes_min = Load<uint16_t>(from + kAtKeyBytesMin);
  header.key_bytes_max = Load<uint16_t>(from + kAtKeyBytesMax);
  header.key_prefix_min = Load<uint64_t>(from + kAtKeyPrefixMin);
  header.key_prefix_max = Load<uint64_t>(from + kAtKeyPrefixMax);
  for (size_t i = 0; i < kSectionCount; ++i) {
    header.sections[i].offset = Load<uint64_t>(from + kAtSections + i * kSectionEntryBytes);
    header.sections[i].size_bytes = Load<uint64_t>(from + kAtSections + i * kSectionEntryBytes + 8);
  }
  header.checksums_checksum = Load<uint64_t>(from + kAtChecksumsChecksum);
  if (header.mandatory_features != 0) {
    return FailedPrecondition(
        "mandatory features at offset {}: the file has {:#x}, of which this program knows none; it "
        "takes a newer one to read it",
        kAtMandatoryFeatures, header.mandatory_features);
  }
  const auto schema_bytes = Load<uint16_t>(from + kAtSchemaBytes);
  if (schema_bytes > kSchemaDescriptorBytesMax) {
    return OutOfRange(kAtSchemaBytes, "schema bytes", 0, kSchemaDescriptorBytesMax, schema_bytes);
  }
  const std::string_view descriptor = bytes.substr(kAtSchema, schema_bytes);
  const auto schema = ParseSchema(descriptor);
  if (!schema.ok()) {
    return FailedPrecondition("header field 'schema' at offset {}: {}", kAtSchema,
                              Message(schema.status()));
  }
  header.schema = *schema;
  if (const auto id = Load<uint64_t>(from + kAtSchemaId); id != header.schema.Id()) {
    return BadField(kAtSchemaId, "schema id", header.schema.Id(), id);
  }
  // A later minor version may have put something here that can be overlooked.
  for (size_t at = kAtSchema + schema_bytes; minor == kFormatMinor && at < kAtHeaderChecksum;
       ++at) {
    if (bytes[at] != '\0') return BadField(at, "reserved", 0, static_cast<uint8_t>(bytes[at]));
  }
  LATCHKEY_RETURN_IF_ERROR(CheckScalars(header));
  LATCHKEY_RETURN_IF_ERROR(CheckSections(header));
  return header;
}

void AppendPartitionEntry(const PartitionEntry& entry, std::string* to) {
  Append(to, entry.lines_offset);
  Append(to, entry.first_pilot);
  Append(to, entry.filter_first_word);
  Append(to, entry.records_offset);
  Append(to, entry.record_bytes);
  Append(to, entry.lines);
  Append(to, entry.groups);
  Append(to, entry.filter_words);
  Append(to, entry.row_count);
}

absl::StatusOr<std::vector<PartitionEntry>> DecodeDirectory(const SegmentHeader& header,
                                                            std::string_view bytes) {
  if (bytes.size() != header.partition_count() * kPartitionEntryBytes) {
    return DataLoss("directory: expected {} bytes, got {}",
                    header.partition_count() * kPartitionEntryBytes, bytes.size());
  }
  const bool pointers = header.layout == Layout::kPointer;
  std::vector<PartitionEntry> entries(header.partition_count());
  uint64_t lines = 0, pilots = 0, filter_words = 0, records = 0, rows = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const char* const from = bytes.data() + i * kPartitionEntryBytes;
    PartitionEntry& entry = entries[i];
    entry = {Load<uint64_t>(from),      Load<uint64_t>(from + 8),  Load<uint64_t>(from + 16),
             Load<uint64_t>(from + 24), Load<uint64_t>(from + 32), Load<uint32_t>(from + 40),
             Load<uint32_t>(from + 44), Load<uint32_t>(from + 48), Load<uint32_t>(from + 52)};
    const bool good_filter =
        header.filter_kind == FilterKind::kNone
            ? entry.filter_first_word == 0 && entry.filter_words == 0
            : header.filter_kind != FilterKind::kRegisterBlocked ||
                  (entry.filter_first_word == filter_words && entry.filter_words >= 1);
    const bool good = good_filter && entry.lines_offset == RoundUp(lines, kPageBytes) &&
                      entry.first_pilot == pilots &&
                      entry.records_offset == RoundUp(records, kPageBytes) && entry.lines >= 1 &&
                      entry.groups >= 1 && entry.row_count <= kPartitionRowsMax &&
                      entry.record_bytes <= kPartitionRecordBytesMax &&
                      (pointers ? entry.row_count <= entry.record_bytes : entry.record_bytes == 0);
    if (!good) {
      return DataLoss("directory entry {} at offset {} is inconsistent", i,
                      header.section(SectionKind::kDirectory).offset + i * kPartitionEntryBytes);
    }
    lines = entry.lines_offset + uint64_t{entry.lines} * header.line_bytes;
    pilots += entry.groups;
    filter_words += entry.filter_words;
    records = entry.records_offset + entry.record_bytes;
    rows += entry.row_count;
  }
  if (rows != header.row_count || lines != header.section(SectionKind::kLines).size_bytes ||
      pilots != header.section(SectionKind::kPilots).size_bytes ||
      (header.filter_kind == FilterKind::kRegisterBlocked &&
       filter_words * 8 != header.section(SectionKind::kFilter).size_bytes) ||
      records != header.section(SectionKind::kRecords).size_bytes) {
    return DataLoss("directory: its sums ({} rows) do not match the header's ({})", rows,
                    header.row_count);
  }
  return entries;
}

}  // namespace latchkey
