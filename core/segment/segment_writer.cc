#include "core/segment/segment_writer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/key/key_hash.h"
#include "core/segment/bloom_filter.h"
#include "core/segment/record_pointer.h"
#include "core/segment/value_locator.h"

namespace latchkey {
namespace {

// Bytes that records may take, whatever their order: each page loses less than the longest record.
uint64_t RecordsBound(const TableSchema& schema, const SegmentPlan::Bound& bound,
                      size_t key_bytes_max) {
  const size_t longest = PointedRecordBytes(schema, key_bytes_max);
  const uint64_t bytes = bound.key_bytes + bound.rows * (longest - key_bytes_max);
  const uint64_t worst = 2 * bytes + kPageBytes;
  if (longest >= kPageBytes / 2) return worst;
  return std::min(worst, CeilDiv(bytes, kPageBytes - longest) * kPageBytes);
}

}  // namespace

// Appends to one section, and takes a checksum of every block as it leaves the buffer.
class SegmentWriter::SectionWriter {
 public:
  SectionWriter(WritableFile& file, uint64_t offset) : file_(file), section_{offset, 0} {}

  absl::Status Append(std::string_view data) {
    while (!data.empty()) {
      const size_t taken = std::min(data.size(), kBufferBytes - buffer_.size());
      buffer_.append(data.substr(0, taken));
      data.remove_prefix(taken);
      section_.size_bytes += taken;
      if (buffer_.size() == kBufferBytes) LATCHKEY_RETURN_IF_ERROR(Flush());
    }
    return absl::OkStatus();
  }

  // Zero bytes up to a multiple of kPageBytes.
  absl::Status AlignToPage() {
    static constexpr char kZeros[kPageBytes] = {};
    return Append({kZeros, RoundUp(section_.size_bytes, kPageBytes) - section_.size_bytes});
  }

  absl::Status Flush() {
    for (size_t at = 0; at < buffer_.size(); at += kChecksumBlockBytes) {
      latchkey::Append(&checksums_, Checksum(buffer_.data() + at,
                                             std::min(kChecksumBlockBytes, buffer_.size() - at)));
    }
    LATCHKEY_RETURN_IF_ERROR(file_.WriteAt(section_.end() - buffer_.size(), buffer_));
    buffer_.clear();
    return absl::OkStatus();
  }

  const Section& section() const { return section_; }
  const std::string& checksums() const { return checksums_; }

 private:
  static constexpr size_t kBufferBytes = 32 * kChecksumBlockBytes;

  WritableFile& file_;
  Section section_;
  std::string buffer_;
  std::string checksums_;
};

SegmentWriter::SegmentWriter(const SegmentPlan& plan)
    : plan_(plan),
      shape_(plan.layout == Layout::kLine ? LineShape::OfRows(plan.schema, plan.key_bytes_max)
                                          : LineShape::OfPointers(plan.schema)),
      hash_list_(plan.hash_list, plan.shard_bits) {
  header_.identity = plan.identity;
  header_.schema = plan.schema;
  header_.segment_id = plan.segment_id;
  header_.layout = plan.layout;
  if (plan.filter_bits_per_key > 0) {
    header_.filter_kind = FilterKind::kRegisterBlocked;
    header_.filter_bits_per_key = plan.filter_bits_per_key;
    header_.filter_hashes = static_cast<uint8_t>(FilterHashesFor(plan.filter_bits_per_key));
  }
  header_.hash_bits = plan.hash_list.hash_bits;
  header_.hash_delta_bytes = plan.hash_list.delta_bytes;
  header_.line_bytes = static_cast<uint16_t>(shape_.line_bytes());
  header_.shard_bits = plan.shard_bits;
  header_.shard = plan.shard;
  header_.partition_bits = plan.partition_bits;
  header_.key_bytes_min = plan.key_bytes_min;
  header_.key_bytes_max = plan.key_bytes_max;
}

SegmentWriter::~SegmentWriter() = default;

absl::StatusOr<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(FileSystem& file_system,
                                                                     const std::string& path,
                                                                     const SegmentPlan& plan) {
  LATCHKEY_CHECK(plan.partitions.size() == size_t{1} << plan.partition_bits);
  LATCHKEY_CHECK(plan.layout != Layout::kLine || plan.key_bytes_min == plan.key_bytes_max);
  std::unique_ptr<SegmentWriter> writer(new SegmentWriter(plan));
  LATCHKEY_ASSIGN_OR_RETURN(writer->file_, file_system.Create(path));
  writer->PlanSections();
  return writer;
}

void SegmentWriter::PlanSections() {
  std::array<uint64_t, kSectionCount> bounds = {};
  const auto bound = [&](SectionKind kind) -> uint64_t& {
    return bounds[static_cast<size_t>(kind)];
  };
  bound(SectionKind::kDirectory) = plan_.partitions.size() * kPartitionEntryBytes;
  uint64_t rows = 0;
  for (const SegmentPlan::Bound& partition : plan_.partitions) {
    rows += partition.rows;
    bound(SectionKind::kFilter) += 8 * FilterWordsFor(partition.rows, plan_.filter_bits_per_key);
    bound(SectionKind::kPilots) += GroupsFor(partition.rows);
    bound(SectionKind::kLines) +=
        RoundUp(LinesBound(partition.rows, shape_.entries()) << shape_.line_shift(), kPageBytes);
    if (plan_.layout == Layout::kPointer) {
      bound(SectionKind::kRecords) +=
          RoundUp(RecordsBound(plan_.schema, partition, plan_.key_bytes_max), kPageBytes);
    }
  }
  if (plan_.hash_list.hash_bits != 0) {
    bound(SectionKind::kHashes) = plan_.hash_list.BytesBound(rows);
  }
  bound(SectionKind::kValues) = plan_.value_bytes;
  uint64_t end = kHeaderBytes;
  for (size_t i = 0; i + 1 < kSectionCount; ++i) {
    // The directory shares the first 64 KiB with the header.
    const uint64_t alignment = static_cast<SectionKind>(i) == SectionKind::kDirectory
                                   ? kPageBytes
                                   : SectionAlignment(bounds[i]);
    const uint64_t offset = RoundUp(end, alignment);
    sections_.push_back(std::make_unique<SectionWriter>(*file_, offset));
    end = offset + bounds[i];
  }
}

absl::Status SegmentWriter::AddPartition(std::span<const SegmentRow> rows) {
  LATCHKEY_CHECK(partitions_added_ < plan_.partitions.size());
  const uint64_t rows_bound = plan_.partitions[partitions_added_].rows;
  LATCHKEY_CHECK(rows.size() <= rows_bound);
  if (rows.size() > kPartitionRowsMax) {
    return InvalidArgument("partition {} has {} rows: too many for {} partitions",
                           partitions_added_, rows.size(), plan_.partitions.size());
  }
  PartitionEntry entry;
  entry.row_count = static_cast<uint32_t>(rows.size());
  LATCHKEY_RETURN_IF_ERROR(PlaceRows(rows, rows_bound, &entry));
  LATCHKEY_RETURN_IF_ERROR(WriteFilter(rows, &entry));
  lines_.assign(uint64_t{entry.lines} << shape_.line_shift(), '\0');
  LATCHKEY_RETURN_IF_ERROR(plan_.layout == Layout::kLine ? WriteLines(rows)
                                                         : WriteRecords(rows, &entry));
  for (uint64_t end = shape_.line_bytes(); end <= lines_.size(); end += shape_.line_bytes()) {
    lines_[end - 1] = static_cast<char>(lines_[end - 1] | kMarkBit);
  }
  LATCHKEY_RETURN_IF_ERROR(section(SectionKind::kLines).Append(lines_));
  LATCHKEY_RETURN_IF_ERROR(WriteHashes(rows));
  AppendPartitionEntry(entry, &directory_);
  for (const SegmentRow& row : rows) {
    const uint64_t prefix = KeyPrefix(row.key);
    const bool first = header_.row_count++ == 0;
    header_.key_prefix_min = first ? prefix : std::min(header_.key_prefix_min, prefix);
    header_.key_prefix_max = std::max(header_.key_prefix_max, prefix);
    header_.tombstone_count += row.tombstone;
  }
  ++partitions_added_;
  return absl::OkStatus();
}

absl::Status SegmentWriter::PlaceRows(std::span<const SegmentRow> rows, uint64_t rows_bound,
                                      PartitionEntry* entry) {
  hashes_.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) hashes_[i] = rows[i].hash;
  if (!pilots_.Place(hashes_, header_.shard_bits + header_.partition_bits, shape_.entries()) ||
      pilots_.lines() > LinesBound(rows_bound, shape_.entries())) {
    return InvalidArgument("partition {}: the hashes of {} keys are too unlike random ones",
                           partitions_added_, rows.size());
  }
  entry->lines = pilots_.lines();
  entry->groups = static_cast<uint32_t>(pilots_.pilots().size());
  entry->first_pilot = section(SectionKind::kPilots).section().size_bytes;
  LATCHKEY_RETURN_IF_ERROR(section(SectionKind::kLines).AlignToPage());
  entry->lines_offset = section(SectionKind::kLines).section().size_bytes;
  return section(SectionKind::kPilots)
      .Append({reinterpret_cast<const char*>(pilots_.pilots().data()), entry->groups});
}

absl::Status SegmentWriter::WriteFilter(std::span<const SegmentRow> rows, PartitionEntry* entry) {
  const uint64_t words = FilterWordsFor(rows.size(), plan_.filter_bits_per_key);
  if (words == 0) return absl::OkStatus();
  entry->filter_first_word = section(SectionKind::kFilter).section().size_bytes / 8;
  entry->filter_words = static_cast<uint32_t>(words);
  filter_words_.assign(words, 0);
  for (const SegmentRow& row : rows) {
    const uint64_t hash = FilterHashOf(row.hash);
    filter_words_[FilterWordOf(hash, words)] |= FilterMask(hash, header_.filter_hashes);
  }
  std::replace(filter_words_.begin(), filter_words_.end(), uint64_t{0}, kEmptyFilterWord);
  return section(SectionKind::kFilter)
      .Append({reinterpret_cast<const char*>(filter_words_.data()), words * 8});
}

absl::StatusOr<uint8_t*> SegmentWriter::StoreRow(const SegmentRow& row, uint8_t* to) {
  const TableSchema& schema = plan_.schema;
  StoreDocIdField(to,
                  row.tombstone ? kDocIdTombstone : FieldOfDocId(row.doc_id, schema.doc_id_bytes),
                  schema.doc_id_bytes);
  to += schema.doc_id_bytes;
  uint8_t* const after = to + schema.InlineValueBytes();
  if (row.tombstone) return after;
  if (schema.value_kind == ValueKind::kFixed) {
    LATCHKEY_CHECK(row.value.size() == schema.value_width);
    std::memcpy(to, row.value.data(), row.value.size());
  } else if (schema.value_kind == ValueKind::kBytes) {
    SectionWriter& values = section(SectionKind::kValues);
    Store(to, MakeLocator(values.section().size_bytes, ValueCheck(row.value, row.hash)));
    uint8_t length[kVarintBytesMax];
    const auto length_bytes =
        static_cast<size_t>(StoreVarint(length, row.value.size() + 1) - length);
    LATCHKEY_RETURN_IF_ERROR(values.Append({reinterpret_cast<const char*>(length), length_bytes}));
    LATCHKEY_RETURN_IF_ERROR(values.Append(row.value));
  }
  return after;
}

uint8_t* SegmentWriter::EntryOf(size_t row) {
  auto* const line = reinterpret_cast<uint8_t*>(lines_.data()) +
                     (uint64_t{pilots_.row_lines()[row]} << shape_.line_shift());
  // The line's last byte counts its entries on the way.
  return line + line[shape_.line_bytes() - 1]++ * shape_.entry_bytes();
}

absl::Status SegmentWriter::WriteLines(std::span<const SegmentRow> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    LATCHKEY_ASSIGN_OR_RETURN(uint8_t* const to, StoreRow(rows[i], EntryOf(i)));
    std::memcpy(to, rows[i].key.data(), rows[i].key.size());
  }
  return absl::OkStatus();
}

void SegmentWriter::SortByLine(size_t rows) {
  line_begins_.assign(pilots_.lines() + 1, 0);
  for (size_t i = 0; i < rows; ++i) ++line_begins_[pilots_.row_lines()[i] + 1];
  std::partial_sum(line_begins_.begin(), line_begins_.end(), line_begins_.begin());
  line_order_.resize(rows);
  for (size_t i = 0; i < rows; ++i) {
    line_order_[line_begins_[pilots_.row_lines()[i]]++] = static_cast<uint32_t>(i);
  }
}

absl::Status SegmentWriter::WriteRecords(std::span<const SegmentRow> rows, PartitionEntry* entry) {
  LATCHKEY_RETURN_IF_ERROR(section(SectionKind::kRecords).AlignToPage());
  entry->records_offset = section(SectionKind::kRecords).section().size_bytes;
  SortByLine(rows.size());
  records_.clear();
  for (const uint32_t i : line_order_) {
    const SegmentRow& row = rows[i];
    const size_t size_bytes = PointedRecordBytes(plan_.schema, row.key.size());
    const uint64_t offset = PlacePointedRecord(records_.size(), size_bytes);
    if (offset + size_bytes >= kPartitionRecordBytesMax) {
      return InvalidArgument("partition {}: records take more than {} bytes", partitions_added_,
                             kPartitionRecordBytesMax);
    }
    records_.resize(offset + size_bytes);
    LATCHKEY_ASSIGN_OR_RETURN(uint8_t * to,
                              StoreRow(row, reinterpret_cast<uint8_t*>(records_.data()) + offset));
    to = StoreVarint(to, row.key.size());
    std::memcpy(to, row.key.data(), row.key.size());
    Store(EntryOf(i), MakePointer(offset, TagOf(row.hash)));
  }
  entry->record_bytes = records_.size();
  return section(SectionKind::kRecords).Append(records_);
}

absl::Status SegmentWriter::WriteHashes(std::span<const SegmentRow> rows) {
  if (header_.hash_bits == 0) return absl::OkStatus();
  hash_bytes_.clear();
  for (const SegmentRow& row : rows) hash_list_.Append(row.hash, &hash_bytes_);
  return section(SectionKind::kHashes).Append(hash_bytes_);
}

absl::StatusOr<SegmentHeader> SegmentWriter::Finish() {
  LATCHKEY_CHECK(partitions_added_ == plan_.partitions.size());
  LATCHKEY_RETURN_IF_ERROR(section(SectionKind::kDirectory).Append(directory_));
  std::string checksums;
  uint64_t end = 0;
  for (size_t i = 0; i < sections_.size(); ++i) {
    LATCHKEY_RETURN_IF_ERROR(sections_[i]->Flush());
    header_.sections[i] = sections_[i]->section();
    end = sections_[i]->section().end();
    checksums += sections_[i]->checksums();
  }
  Section& last = header_.section(SectionKind::kChecksums);
  last = {RoundUp(end, SectionAlignment(checksums.size())), checksums.size()};
  header_.checksums_checksum = Checksum(checksums.data(), checksums.size());
  LATCHKEY_RETURN_IF_ERROR(file_->WriteAt(last.offset, checksums));
  LATCHKEY_RETURN_IF_ERROR(file_->WriteAt(0, EncodeHeader(header_)));
  LATCHKEY_RETURN_IF_ERROR(file_->Sync());
  LATCHKEY_RETURN_IF_ERROR(file_->Close());
  return header_;
}

}  // namespace latchkey
