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
#include "core/segment/group.h"
#include "core/segment/inline_layout.h"
#include "core/segment/term_order_layout.h"
#include "core/segment/value_locator.h"

namespace latchkey {
namespace {

// Slots that rows may overflow into behind a partition's home slots. At a load of 3/4 the chance
// that the last chain is longer falls by 0.57 nepers a slot: far below 1e-60 with any seeded hash.
uint64_t OverflowBound(uint64_t rows) { return std::min(rows, 256 + rows / 64); }
uint64_t SlotsBound(uint64_t rows) { return HomeSlotsFor(rows) + OverflowBound(rows); }

// Bytes that term-order records may take, whatever their order: each page loses less than the
// longest record.
uint64_t TermRecordsBound(const TableSchema& schema, const SegmentPlan::Bound& bound,
                          size_t key_bytes_max) {
  const size_t longest = TermRecordBytes(schema, key_bytes_max);
  const uint64_t bytes =
      bound.key_bytes + bound.rows * (TermRecordBytes(schema, key_bytes_max) - key_bytes_max);
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
  static constexpr size_t kBufferBytes = 4 * kChecksumBlockBytes;

  WritableFile& file_;
  Section section_;
  std::string buffer_;
  std::string checksums_;
};

SegmentWriter::SegmentWriter(const SegmentPlan& plan) : plan_(plan) {
  header_.identity = plan.identity;
  header_.schema = plan.schema;
  header_.segment_id = plan.segment_id;
  header_.layout = plan.layout;
  if (plan.filter_bits_per_key > 0) {
    header_.filter_kind = FilterKind::kRegisterBlocked;
    header_.filter_bits_per_key = plan.filter_bits_per_key;
    header_.filter_hashes = static_cast<uint8_t>(FilterHashesFor(plan.filter_bits_per_key));
  }
  header_.partition_bits = plan.partition_bits;
  header_.key_bytes_min = plan.key_bytes_min;
  header_.key_bytes_max = plan.key_bytes_max;
}

SegmentWriter::~SegmentWriter() = default;

absl::StatusOr<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(FileSystem& file_system,
                                                                     const std::string& path,
                                                                     const SegmentPlan& plan) {
  LATCHKEY_CHECK(plan.partitions.size() == size_t{1} << plan.partition_bits);
  LATCHKEY_CHECK(plan.layout != Layout::kInline || (plan.key_bytes_min == plan.key_bytes_max &&
                                                    plan.key_bytes_max <= kInlineKeyBytesMax));
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
  const InlineShape shape(plan_.schema, plan_.key_bytes_max);
  for (const SegmentPlan::Bound& partition : plan_.partitions) {
    const uint64_t slots = SlotsBound(partition.rows);
    bound(SectionKind::kFilter) += 8 * FilterWordsFor(partition.rows, plan_.filter_bits_per_key);
    bound(SectionKind::kControl) += slots + kGroupSlots;
    if (plan_.layout == Layout::kInline) {
      bound(SectionKind::kRecords) +=
          RoundUp(shape.RecordBytes(static_cast<uint32_t>(slots)), kPageBytes);
    } else {
      bound(SectionKind::kSlotWords) += 8 * slots;
      bound(SectionKind::kRecords) +=
          RoundUp(TermRecordsBound(plan_.schema, partition, plan_.key_bytes_max), kPageBytes);
    }
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
  if (HomeSlotsFor(rows.size()) > kPartitionSlotsMax) {
    return InvalidArgument("partition {} has {} rows: too many for {} partitions",
                           partitions_added_, rows.size(), plan_.partitions.size());
  }
  PartitionEntry entry;
  entry.row_count = static_cast<uint32_t>(rows.size());
  entry.home_slots = static_cast<uint32_t>(HomeSlotsFor(rows.size()));
  entry.first_slot = section(SectionKind::kControl).section().size_bytes;
  entry.filter_first_word = section(SectionKind::kFilter).section().size_bytes / 8;
  entry.first_slot_word = section(SectionKind::kSlotWords).section().size_bytes / 8;
  LATCHKEY_RETURN_IF_ERROR(PlaceRows(rows, SlotsBound(rows_bound), &entry));
  LATCHKEY_RETURN_IF_ERROR(WriteFilter(rows, &entry));
  LATCHKEY_RETURN_IF_ERROR(section(SectionKind::kRecords).AlignToPage());
  entry.records_offset = section(SectionKind::kRecords).section().size_bytes;
  LATCHKEY_RETURN_IF_ERROR(plan_.layout == Layout::kInline ? WriteInline(rows, &entry)
                                                           : WriteTermOrder(rows, &entry));
  AppendPartitionEntry(entry, &directory_);
  header_.row_count += entry.row_count;
  header_.slot_count += entry.slots;
  ++partitions_added_;
  return absl::OkStatus();
}

absl::Status SegmentWriter::PlaceRows(std::span<const SegmentRow> rows, uint64_t slots_bound,
                                      PartitionEntry* entry) {
  // Rows come in the order of their home slots, so the first free slot from a row's home on is
  // either its home or the one behind the row before it. A reader's linear probe finds it there.
  row_slots_.resize(rows.size());
  uint64_t next = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint64_t home = HomeSlotOf(rows[i].hash.low, header_.shard_bits + header_.partition_bits,
                                     entry->home_slots);
    const uint64_t slot = std::max(home, next);
    next = slot + 1;
    header_.displacement_max =
        std::max(header_.displacement_max, static_cast<uint32_t>(slot - home));
    row_slots_[i] = static_cast<uint32_t>(slot);
  }
  const uint64_t slots = std::max<uint64_t>(entry->home_slots, next);
  if (slots > slots_bound) {
    return InvalidArgument("partition {}: keys hash too unevenly ({} rows overflow by {} slots)",
                           partitions_added_, rows.size(), slots - entry->home_slots);
  }
  entry->slots = static_cast<uint32_t>(slots);
  control_.assign(slots + kGroupSlots, static_cast<char>(kControlEmpty));
  for (size_t i = 0; i < rows.size(); ++i) {
    control_[row_slots_[i]] = static_cast<char>(ControlOf(rows[i].hash.low));
  }
  return section(SectionKind::kControl).Append(control_);
}

absl::Status SegmentWriter::WriteFilter(std::span<const SegmentRow> rows, PartitionEntry* entry) {
  const uint64_t words = FilterWordsFor(rows.size(), plan_.filter_bits_per_key);
  if (words == 0) return absl::OkStatus();
  entry->filter_words = static_cast<uint32_t>(words);
  filter_words_.assign(words, 0);
  for (const SegmentRow& row : rows) {
    filter_words_[FilterWordOf(row.hash.high, words)] |=
        FilterMask(row.hash.high, header_.filter_hashes);
  }
  std::replace(filter_words_.begin(), filter_words_.end(), uint64_t{0}, kEmptyFilterWord);
  return section(SectionKind::kFilter)
      .Append({reinterpret_cast<const char*>(filter_words_.data()), words * 8});
}

absl::Status SegmentWriter::StoreValue(const SegmentRow& row, uint8_t* to) {
  if (plan_.schema.value_kind == ValueKind::kFixed) {
    LATCHKEY_CHECK(row.value.size() == plan_.schema.value_width);
    std::memcpy(to, row.value.data(), row.value.size());
  } else if (plan_.schema.value_kind == ValueKind::kBytes) {
    SectionWriter& values = section(SectionKind::kValues);
    Store(to, MakeLocator(values.section().size_bytes, ValueCheck(row.value, row.hash)));
    uint8_t length[kVarintBytesMax];
    const auto length_bytes =
        static_cast<size_t>(StoreVarint(length, row.value.size() + 1) - length);
    LATCHKEY_RETURN_IF_ERROR(values.Append({reinterpret_cast<const char*>(length), length_bytes}));
    LATCHKEY_RETURN_IF_ERROR(values.Append(row.value));
  }
  return absl::OkStatus();
}

absl::Status SegmentWriter::WriteInline(std::span<const SegmentRow> rows, PartitionEntry* entry) {
  const InlineShape shape(plan_.schema, plan_.key_bytes_max);
  entry->record_bytes = shape.RecordBytes(entry->slots);
  records_.assign(entry->record_bytes, '\0');
  for (size_t i = 0; i < rows.size(); ++i) {
    auto* const record =
        reinterpret_cast<uint8_t*>(records_.data()) + shape.RecordOffset(row_slots_[i]);
    StoreDocId(record, rows[i].doc_id, plan_.schema.doc_id_bytes);
    LATCHKEY_RETURN_IF_ERROR(StoreValue(rows[i], record + shape.value_offset()));
    std::memcpy(record + shape.key_offset(), rows[i].key.data(), shape.key_bytes());
  }
  return section(SectionKind::kRecords).Append(records_);
}

absl::Status SegmentWriter::WriteTermOrder(std::span<const SegmentRow> rows,
                                           PartitionEntry* entry) {
  key_order_.resize(rows.size());
  std::iota(key_order_.begin(), key_order_.end(), 0u);
  std::sort(key_order_.begin(), key_order_.end(),
            [&](uint32_t a, uint32_t b) { return rows[a].key < rows[b].key; });
  slot_words_.assign(uint64_t{entry->slots} * 8, '\0');
  records_.clear();
  for (const uint32_t i : key_order_) {
    const SegmentRow& row = rows[i];
    const size_t size_bytes = TermRecordBytes(plan_.schema, row.key.size());
    const uint64_t offset = PlaceTermRecord(records_.size(), size_bytes);
    if (offset + size_bytes >= kPartitionRecordBytesMax) {
      return InvalidArgument("partition {}: records take more than {} bytes", partitions_added_,
                             kPartitionRecordBytesMax);
    }
    records_.resize(offset + size_bytes);
    auto* to = reinterpret_cast<uint8_t*>(records_.data()) + offset;
    StoreDocId(to, row.doc_id, plan_.schema.doc_id_bytes);
    to += plan_.schema.doc_id_bytes;
    LATCHKEY_RETURN_IF_ERROR(StoreValue(row, to));
    to = StoreVarint(to + plan_.schema.InlineValueBytes(), row.key.size());
    std::memcpy(to, row.key.data(), row.key.size());
    const auto home = static_cast<uint32_t>(
        HomeSlotOf(row.hash.low, header_.shard_bits + header_.partition_bits, entry->home_slots));
    Store(slot_words_.data() + uint64_t{row_slots_[i]} * 8,
          MakeSlotWord(offset, row_slots_[i] - home, TagOf(row.hash.low)));
  }
  entry->record_bytes = records_.size();
  LATCHKEY_RETURN_IF_ERROR(section(SectionKind::kSlotWords).Append(slot_words_));
  return section(SectionKind::kRecords).Append(records_);
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
