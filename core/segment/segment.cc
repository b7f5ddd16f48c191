#include "core/segment/segment.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/key/key_hash.h"
#include "core/segment/group.h"
#include "core/segment/term_order_layout.h"
#include "core/segment/value_locator.h"

namespace latchkey {
namespace {

std::string_view AsText(const uint8_t* data, uint64_t size_bytes) {
  return {reinterpret_cast<const char*>(data), size_bytes};
}

absl::Status CheckFileSize(const SegmentHeader& header, uint64_t size_bytes) {
  if (size_bytes == header.file_bytes()) return absl::OkStatus();
  return DataLoss("file size: expected {} bytes, got {}", header.file_bytes(), size_bytes);
}

// The checksums of all sections but the last, in order; `bytes` is the checksums section.
absl::Status CheckChecksumsSection(const SegmentHeader& header, std::string_view bytes) {
  if (Checksum(bytes.data(), bytes.size()) == header.checksums_checksum) return absl::OkStatus();
  return DataLoss("section 'checksums' at offset {} is damaged",
                  header.section(SectionKind::kChecksums).offset);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Segment>> Segment::Open(FileSystem& file_system,
                                                             const std::string& path) {
  std::unique_ptr<Segment> segment(new Segment);
  segment->path_ = path;
  LATCHKEY_ASSIGN_OR_RETURN(segment->file_, file_system.Map(path));
  const MappedFile& file = *segment->file_;
  const auto validate = [&]() -> absl::Status {
    const auto bytes = AsText(file.data(), file.size_bytes());
    LATCHKEY_ASSIGN_OR_RETURN(segment->header_, DecodeHeader(bytes));
    const SegmentHeader& header = segment->header_;
    LATCHKEY_RETURN_IF_ERROR(CheckFileSize(header, file.size_bytes()));
    segment->header_checksum_ = HeaderChecksum(bytes);
    const auto part = [&](SectionKind kind) {
      return bytes.substr(header.section(kind).offset, header.section(kind).size_bytes);
    };
    LATCHKEY_RETURN_IF_ERROR(CheckChecksumsSection(header, part(SectionKind::kChecksums)));
    // The directory fits one block, whose checksum is the first; it decides what is read, so it is
    // checked now.
    static_assert((size_t{1} << kPartitionBitsMax) * kPartitionEntryBytes <= kChecksumBlockBytes);
    const auto directory = part(SectionKind::kDirectory);
    if (Checksum(directory.data(), directory.size()) !=
        Load<uint64_t>(part(SectionKind::kChecksums).data())) {
      return DataLoss("section 'directory' at offset {} is damaged",
                      header.section(SectionKind::kDirectory).offset);
    }
    LATCHKEY_ASSIGN_OR_RETURN(const auto entries, DecodeDirectory(header, directory));
    segment->inline_shape_ = InlineShape(header.schema, header.key_bytes_max);
    segment->partitions_.reserve(entries.size());
    for (const PartitionEntry& entry : entries) {
      Partition partition;
      partition.control = segment->section_data(SectionKind::kControl) + entry.first_slot;
      if (header.filter_kind != FilterKind::kNone) {
        partition.filter =
            segment->section_data(SectionKind::kFilter) + entry.filter_first_word * 8;
      }
      partition.records = segment->section_data(SectionKind::kRecords) + entry.records_offset;
      if (header.layout == Layout::kTermOrder) {
        partition.slot_words =
            segment->section_data(SectionKind::kSlotWords) + entry.first_slot_word * 8;
      }
      partition.record_bytes = entry.record_bytes;
      partition.home_slots = entry.home_slots;
      partition.slots = entry.slots;
      partition.filter_words = entry.filter_words;
      segment->partitions_.push_back(partition);
    }
    return absl::OkStatus();
  };
  LATCHKEY_RETURN_IF_ERROR(Prefixed(validate(), path));
  return segment;
}

bool Segment::Belongs(const Partition& partition, uint32_t slot,
                      std::string_view stored_key) const {
  const Hash128 hash = HashBytes(stored_key.data(), stored_key.size(), header_.identity.seed);
  const uint32_t home = HomeSlot(partition, hash);
  if (ControlOf(hash.low) != partition.control[slot] || &PartitionFor(hash) != &partition ||
      home > slot || slot - home > header_.displacement_max) {
    return false;
  }
  if (header_.layout != Layout::kTermOrder) return true;
  const auto word = Load<uint64_t>(partition.slot_words + uint64_t{slot} * 8);
  return MarkOf(word) == SlotWordMark(slot - home, TagOf(hash.low));
}

const uint8_t* Segment::ValueAddress(uint64_t locator) const {
  const uint64_t offset = LocatorOffset(locator);
  if (offset >= header_.section(SectionKind::kValues).size_bytes) return nullptr;
  return section_data(SectionKind::kValues) + offset;
}

bool Segment::ReadValue(const RowRef& row, const Hash128& hash, std::string_view* value) const {
  switch (header_.schema.value_kind) {
    case ValueKind::kNone:
      *value = {};
      return true;
    case ValueKind::kFixed:
      *value = AsText(row.value, header_.schema.value_width);
      return true;
    case ValueKind::kBytes:
      break;
  }
  const auto locator = Load<uint64_t>(row.value);
  const uint8_t* const begin = ValueAddress(locator);
  if (begin == nullptr) return false;
  const uint8_t* const end =
      section_data(SectionKind::kValues) + header_.section(SectionKind::kValues).size_bytes;
  uint64_t stored_length;
  const uint8_t* const bytes = LoadVarint(begin, end, &stored_length);
  if (bytes == nullptr || stored_length == 0 || stored_length - 1 > kValueBytesMax ||
      stored_length - 1 > static_cast<uint64_t>(end - bytes)) {
    return false;
  }
  *value = AsText(bytes, stored_length - 1);
  return ValueCheck(*value, hash) == LocatorCheck(locator);
}

absl::Status Segment::ForEachRow(const std::function<absl::Status(const StoredRow&)>& visit) const {
  uint64_t rows = 0;
  for (const Partition& partition : partitions_) {
    for (uint32_t slot = 0; slot < partition.slots; ++slot) {
      if (partition.control[slot] == kControlEmpty) continue;
      const auto damaged = [&](std::string_view what) {
        return DataLoss("{}: the {} of slot {} of partition {} is damaged", path_, what, slot,
                        &partition - partitions_.data());
      };
      if (partition.control[slot] < 0x80) return damaged("control byte");
      const uint8_t* doc_id;
      RowRef row;
      StoredRow stored;
      if (header_.layout == Layout::kInline) {
        doc_id = partition.records + inline_shape_.RecordOffset(slot);
        stored.key = inline_shape_.KeyAt(doc_id);
        row.value = doc_id + inline_shape_.value_offset();
      } else {
        const auto word = Load<uint64_t>(partition.slot_words + uint64_t{slot} * 8);
        TermRecord record;
        if (!ReadTermRecord(header_.schema, partition.records, partition.record_bytes,
                            PointerOf(word), &record)) {
          return damaged("slot word");
        }
        doc_id = record.doc_id;
        stored.key = record.key;
        row.value = record.value;
      }
      if (IsDocIdHole(doc_id, header_.schema.doc_id_bytes) || stored.key.empty() ||
          !Belongs(partition, slot, stored.key)) {
        return damaged("record");
      }
      stored.doc_id = LoadDocId(doc_id, header_.schema.doc_id_bytes);
      const Hash128 hash = HashBytes(stored.key.data(), stored.key.size(), header_.identity.seed);
      if (!ReadValue(row, hash, &stored.value)) return damaged("value");
      LATCHKEY_RETURN_IF_ERROR(visit(stored));
      ++rows;
    }
  }
  if (rows == header_.row_count) return absl::OkStatus();
  // Control bytes are damaged so that they read as those of empty slots.
  return DataLoss("{}: expected {} rows, found {}", path_, header_.row_count, rows);
}

namespace {

bool AllZero(std::string_view bytes) {
  return bytes.find_first_not_of('\0') == std::string_view::npos;
}

// Reads the gap [begin, end) between sections, which holds zero bytes only.
absl::Status VerifyGap(const ReadableFile& file, uint64_t begin, uint64_t end, std::string* buffer,
                       std::vector<DamagedBlock>* damaged) {
  for (uint64_t at = begin; at < end;) {
    const size_t size_bytes = std::min<uint64_t>(end - at, buffer->size());
    LATCHKEY_ASSIGN_OR_RETURN(const size_t got, file.ReadAt(at, size_bytes, buffer->data()));
    if (got != size_bytes || !AllZero({buffer->data(), got})) {
      damaged->push_back({"padding", at, size_bytes});
    }
    at += size_bytes;
  }
  return absl::OkStatus();
}

// Reads a section in multiples of blocks; `checksums` holds one for each.
absl::Status VerifySection(const ReadableFile& file, SectionKind kind, const Section& section,
                           std::string_view checksums, std::string* buffer,
                           std::vector<DamagedBlock>* damaged) {
  LATCHKEY_CHECK(buffer->size() % kChecksumBlockBytes == 0);
  for (uint64_t done = 0; done < section.size_bytes;) {
    const size_t size_bytes = std::min<uint64_t>(section.size_bytes - done, buffer->size());
    LATCHKEY_ASSIGN_OR_RETURN(const size_t got,
                              file.ReadAt(section.offset + done, size_bytes, buffer->data()));
    for (size_t at = 0; at < size_bytes; at += kChecksumBlockBytes) {
      const size_t block_bytes = std::min(kChecksumBlockBytes, size_bytes - at);
      const uint64_t expected =
          Load<uint64_t>(checksums.data() + (done + at) / kChecksumBlockBytes * 8);
      if (at + block_bytes > got || Checksum(buffer->data() + at, block_bytes) != expected) {
        damaged->push_back(
            {std::string(SectionName(kind)), section.offset + done + at, block_bytes});
      }
    }
    done += size_bytes;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifySegmentFile(FileSystem& file_system, const std::string& path,
                               std::vector<DamagedBlock>* damaged) {
  LATCHKEY_ASSIGN_OR_RETURN(const auto file, file_system.Open(path));
  std::string buffer(16 * kChecksumBlockBytes, '\0');
  LATCHKEY_ASSIGN_OR_RETURN(const size_t got, file->ReadAt(0, kHeaderBytes, buffer.data()));
  absl::StatusOr<SegmentHeader> header = DecodeHeader({buffer.data(), got});
  if (!header.ok()) return Prefixed(header.status(), path);
  LATCHKEY_ASSIGN_OR_RETURN(const uint64_t file_bytes, file->SizeBytes());
  LATCHKEY_RETURN_IF_ERROR(Prefixed(CheckFileSize(*header, file_bytes), path));
  const Section& last = header->section(SectionKind::kChecksums);
  std::string checksums(last.size_bytes, '\0');
  LATCHKEY_RETURN_IF_ERROR(file->ReadAt(last.offset, last.size_bytes, checksums.data()).status());
  LATCHKEY_RETURN_IF_ERROR(Prefixed(CheckChecksumsSection(*header, checksums), path));

  uint64_t end = kHeaderBytes, blocks = 0;
  for (size_t i = 0; i < kSectionCount; ++i) {
    const Section& section = header->sections[i];
    LATCHKEY_RETURN_IF_ERROR(VerifyGap(*file, end, section.offset, &buffer, damaged));
    end = section.end();
    if (i + 1 == kSectionCount) break;
    LATCHKEY_RETURN_IF_ERROR(VerifySection(*file, static_cast<SectionKind>(i), section,
                                           std::string_view(checksums).substr(blocks * 8), &buffer,
                                           damaged));
    blocks += ChecksumBlocks(section.size_bytes);
  }
  return absl::OkStatus();
}

}  // namespace latchkey
