#include "core/segment/segment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/low_priority.h"
#include "core/base/status_macros.h"
#include "core/key/key_hash.h"
#include "core/segment/hash_list.h"
#include "core/segment/record_pointer.h"
#include "core/segment/value_locator.h"

namespace latchkey {
namespace {

std::string_view AsText(const uint8_t* data, uint64_t size_bytes) {
  return {reinterpret_cast<const char*>(data), size_bytes};
}

// What every device reads ahead at once.
constexpr uint64_t kReadAheadBytes = uint64_t{128} << 10;

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
                                                             const std::string& path,
                                                             MemoryMode mode) {
  std::unique_ptr<Segment> segment(new Segment);
  segment->path_ = path;
  LATCHKEY_ASSIGN_OR_RETURN(segment->file_, MapFile(file_system, path, mode));
  const MappedFile& file = *segment->file_;
  // The little that is read here shall not bring megabytes around it.
  if (mode == MemoryMode::kMmap) file.SetReadAround(false);
  const auto validate = [&]() -> absl::Status {
    const auto bytes = AsText(file.data(), file.size_bytes());
    LATCHKEY_ASSIGN_OR_RETURN(segment->header_, DecodeHeader(bytes));
    const SegmentHeader& header = segment->header_;
    LATCHKEY_RETURN_IF_ERROR(CheckFileSize(header, file.size_bytes()));
    segment->header_checksum_ = HeaderChecksum(bytes);
    const Section& checksums = header.section(SectionKind::kChecksums);
    for (uint64_t at = 0; at < checksums.size_bytes; at += kReadAheadBytes) {
      file.ReadAhead(checksums.offset + at, kReadAheadBytes);
    }
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
    segment->shape_ = header.layout == Layout::kLine
                          ? LineShape::OfRows(header.schema, header.key_bytes_max)
                          : LineShape::OfPointers(header.schema);
    segment->OpenPartitions(entries);
    segment->SetChecked(SectionKind::kDirectory);
    segment->SetChecked(SectionKind::kChecksums);
    return absl::OkStatus();
  };
  LATCHKEY_RETURN_IF_ERROR(Prefixed(validate(), path));
  if (mode == MemoryMode::kMmap) file.SetReadAround(true);
  return segment;
}

void Segment::OpenPartitions(const std::vector<PartitionEntry>& entries) {
  partitions_.reserve(entries.size());
  for (const PartitionEntry& entry : entries) {
    Partition partition;
    partition.segment = this;
    partition.pilots = section_data(SectionKind::kPilots) + entry.first_pilot;
    partition.lines = section_data(SectionKind::kLines) + entry.lines_offset;
    if (header_.filter_kind == FilterKind::kRegisterBlocked) {
      partition.filter = section_data(SectionKind::kFilter) + entry.filter_first_word * 8;
    }
    partition.records = section_data(SectionKind::kRecords) + entry.records_offset;
    partition.record_bytes = entry.record_bytes;
    partition.group_count = entry.groups;
    partition.line_count = entry.lines;
    partition.filter_words = entry.filter_words;
    partition.line_shift = static_cast<uint8_t>(shape_.line_shift());
    partition.hash_shift = static_cast<uint8_t>(header_.shard_bits + header_.partition_bits);
    partitions_.push_back(partition);
  }
}

bool Segment::LeadsTo(const Partition& partition, uint64_t hash, const uint8_t* line) const {
  const uint8_t pilot = *partition.PilotAddress(hash);
  return &PartitionFor(hash) == &partition && pilot != 0 &&
         partition.LineAddress(hash, pilot) == line;
}

uint32_t Segment::PointersInLine(const uint8_t* line, uint64_t hash, Held* held) const {
  uint32_t same = 0;
  for (uint32_t i = 0; i < shape_.entries(); ++i) {
    same |=
        static_cast<uint32_t>(TagOfPointer(Load<uint64_t>(shape_.Entry(line, i))) == TagOf(hash))
        << i;
  }
  const uint8_t mark = shape_.MarkAfter(line);
  const bool is_mark = shape_.IsMark(mark);
  *held = is_mark ? Held::kNothing : Held::kDamaged;
  return is_mark ? same & EntriesMask(mark) : 0;
}

Held Segment::FindInRecords(const Partition& partition, const uint8_t* line, uint32_t pointers,
                            std::string_view key, uint64_t hash, RowRef* row) const {
  for (; pointers != 0; pointers &= pointers - 1) {
    const auto pointer = Load<uint64_t>(shape_.Entry(line, std::countr_zero(pointers)));
    PointedRecord record;
    if (!ReadPointedRecord(header_.schema, partition.records, partition.record_bytes,
                           OffsetOfPointer(pointer), &record)) [[unlikely]] {
      return Held::kDamaged;
    }
    if (quarantined()) [[unlikely]] {
      const auto* const end =
          reinterpret_cast<const uint8_t*>(record.key.data()) + record.key.size();
      if (InQuarantine(record.doc_id, static_cast<uint64_t>(end - record.doc_id))) {
        return Held::kDamaged;
      }
    }
    if (record.key == key) return RowAt(record.doc_id, record.value, row);
    // Another key with this tag must prove that it belongs here: else it may be the wanted one,
    // damaged.
    const uint64_t other = HashBytes(record.key.data(), record.key.size(), header_.identity.seed);
    if (TagOf(other) != TagOf(hash) || !LeadsTo(partition, other, line)) return Held::kDamaged;
  }
  return Held::kNothing;
}

const uint8_t* Segment::ValueAddress(uint64_t locator) const {
  const uint64_t offset = LocatorOffset(locator);
  if (offset >= header_.section(SectionKind::kValues).size_bytes) return nullptr;
  return section_data(SectionKind::kValues) + offset;
}

uint64_t Segment::ValueBytesExpected() const {
  const uint64_t rows = std::max<uint64_t>(1, header_.row_count - header_.tombstone_count);
  return std::max<uint64_t>(1, header_.section(SectionKind::kValues).size_bytes / rows);
}

uint64_t Segment::ValueBytesAt(const uint8_t* address) const {
  const uint8_t* const end =
      section_data(SectionKind::kValues) + header_.section(SectionKind::kValues).size_bytes;
  uint64_t stored_length;
  const uint8_t* const bytes = LoadVarint(address, end, &stored_length);
  if (bytes == nullptr || stored_length == 0) return 1;
  return static_cast<uint64_t>(bytes - address) +
         std::min<uint64_t>(stored_length - 1, kValueBytesMax);
}

bool Segment::ReadValue(const RowRef& row, uint64_t hash, std::string_view* value) const {
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
      stored_length - 1 > static_cast<uint64_t>(end - bytes) ||
      (quarantined() && InQuarantine(begin, ValueBytesAt(begin)))) {
    return false;
  }
  *value = AsText(bytes, stored_length - 1);
  return ValueCheck(*value, hash) == LocatorCheck(locator);
}

uint64_t Segment::ChecksumAt(SectionKind kind, uint64_t offset) const {
  uint64_t block = offset / kChecksumBlockBytes;
  for (size_t i = 0; i < static_cast<size_t>(kind); ++i) {
    block += ChecksumBlocks(header_.sections[i].size_bytes);
  }
  return Load<uint64_t>(section_data(SectionKind::kChecksums) + block * 8);
}

absl::Status Segment::CheckBlock(SectionKind kind, uint64_t offset, std::string_view block) const {
  GiveWay();
  if (Checksum(block.data(), block.size()) == ChecksumAt(kind, offset)) return absl::OkStatus();
  // Checksums are read through the map, and may be lost themselves.
  if (file_->lost()) return DataLoss("{}: pages of its file are lost", path_);
  return DataLoss("{}: section '{}' is damaged at offset {}", path_, SectionName(kind),
                  header_.section(kind).offset + offset);
}

absl::Status Segment::CheckBlocks(SectionKind kind, uint64_t begin, uint64_t end) const {
  const Section& section = header_.section(kind);
  LATCHKEY_CHECK(begin % kChecksumBlockBytes == 0 && end <= section.size_bytes);
  const bool in_memory = file_->fd() < 0;
  std::vector<char> buffer(in_memory ? 0 : end - begin);
  const auto read = [&](uint64_t at, size_t size_bytes) {
    return ::pread(file_->fd(), buffer.data() + (at - begin), size_bytes,
                   static_cast<off_t>(section.offset + at)) == static_cast<ssize_t>(size_bytes);
  };
  // All at once, or else block by block, to see which can't be read.
  const bool all_read = in_memory || read(begin, end - begin);
  absl::Status first;
  for (uint64_t at = begin; at < end; at += kChecksumBlockBytes) {
    const size_t block_bytes = std::min<uint64_t>(kChecksumBlockBytes, end - at);
    absl::Status status;
    if (all_read || read(at, block_bytes)) {
      status = CheckBlock(kind, at,
                          in_memory ? section_bytes(kind).substr(at, block_bytes)
                                    : std::string_view(buffer.data() + (at - begin), block_bytes));
    } else {
      status = DataLoss("{}: section '{}' can't be read at offset {}", path_, SectionName(kind),
                        section.offset + at);
    }
    if (status.ok()) continue;
    first.Update(status);
    const std::lock_guard<std::mutex> lock(damage_mutex_);
    damaged_blocks_.push_back(section.offset + at);
    damaged_ = true;
    CountLoss();
  }
  return first;
}

bool Segment::InQuarantine(const uint8_t* begin, uint64_t size_bytes) const {
  if (file_->lost()) return true;
  const auto first = static_cast<uint64_t>(begin - file_->data());
  const std::lock_guard<std::mutex> lock(damage_mutex_);
  return std::any_of(damaged_blocks_.begin(), damaged_blocks_.end(), [&](uint64_t block) {
    return first < block + kChecksumBlockBytes && first + size_bytes > block;
  });
}

uint64_t Segment::UncheckedBytes() const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < kSectionCount; ++i) {
    const auto kind = static_cast<SectionKind>(i);
    if (!checked(kind)) bytes += header_.section(kind).size_bytes;
  }
  return bytes;
}

absl::StatusOr<std::string_view> Segment::ReadHashList() const {
  if (header_.hash_bits == 0) {
    return FailedPrecondition("{}: it was built without a hash list", path_);
  }
  const std::string_view bytes = section_bytes(SectionKind::kHashes);
  for (size_t at = 0; at < bytes.size(); at += kChecksumBlockBytes) {
    LATCHKEY_RETURN_IF_ERROR(
        CheckBlock(SectionKind::kHashes, at, bytes.substr(at, kChecksumBlockBytes)));
  }
  return bytes;
}

const char* Segment::ReadRow(const Partition& partition, const uint8_t* line, const uint8_t* entry,
                             bool with_value, StoredRow* row) const {
  PointedRecord record{entry, entry + shape_.value_offset(), shape_.KeyAt(entry)};
  const bool pointed = header_.layout == Layout::kPointer;
  if (pointed && !ReadPointedRecord(header_.schema, partition.records, partition.record_bytes,
                                    OffsetOfPointer(Load<uint64_t>(entry)), &record)) {
    return "pointer";
  }
  row->key = record.key;
  row->hash = HashBytes(row->key.data(), row->key.size(), header_.identity.seed);
  const uint64_t field = LoadDocIdField(record.doc_id, header_.schema.doc_id_bytes);
  if (field == kDocIdHole || row->key.empty() || !LeadsTo(partition, row->hash, line) ||
      (pointed && TagOfPointer(Load<uint64_t>(entry)) != TagOf(row->hash))) {
    return "record";
  }
  row->tombstone = field == kDocIdTombstone;
  row->doc_id = row->tombstone ? 0 : DocIdOfField(field, header_.schema.doc_id_bytes);
  row->value = {};
  if (with_value && !row->tombstone &&
      !ReadValue({row->doc_id, record.value}, row->hash, &row->value)) {
    return "value";
  }
  return nullptr;
}

absl::Status Segment::Damaged(const Partition& partition, uint32_t line, const char* what) const {
  return DataLoss("{}: the {} in line {} of partition {} is damaged", path_, what, line,
                  &partition - partitions_.data());
}

absl::Status Segment::ForEachRow(const std::function<absl::Status(const StoredRow&)>& visit) const {
  uint64_t rows = 0;
  const auto count = [&](const StoredRow& row) {
    ++rows;
    return visit(row);
  };
  for (const Partition& partition : partitions_) {
    LATCHKEY_RETURN_IF_ERROR(ForEachRowOf(partition, /*with_values=*/true, count));
  }
  if (quarantined()) return DataLoss("{}: pages of it were lost while it was read", path_);
  if (rows == header_.row_count) return absl::OkStatus();
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
