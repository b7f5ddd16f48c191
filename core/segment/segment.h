// One segment file, opened: mapped, validated, and seen as partitions ready to probe.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/hash.h"
#include "core/io/file_system.h"
#include "core/key/key_hash.h"
#include "core/segment/format.h"
#include "core/segment/inline_layout.h"
#include "core/segment/term_order_layout.h"

namespace latchkey {

// What a probe needs of a partition, in one cache line. Points into the segment's mapping.
struct alignas(64) Partition {
  const uint8_t* control = nullptr;     // slots + kGroupSlots bytes
  const uint8_t* filter = nullptr;      // filter_words words; null without a filter
  const uint8_t* records = nullptr;     // record_bytes
  const uint8_t* slot_words = nullptr;  // slots words; null but in term order
  uint64_t record_bytes = 0;
  uint32_t home_slots = 1;
  uint32_t slots = 1;
  uint32_t filter_words = 0;
};
static_assert(sizeof(Partition) == 64);

// Where the row of a key was found. Points into the segment's mapping.
struct RowRef {
  uint64_t doc_id = 0;
  const uint8_t* value = nullptr;  // a fixed value or a locator; null without values
};

enum class Candidate : uint8_t {
  kMatch,    // the wanted key: *row is set
  kOther,    // another key, which proved that it belongs here
  kDamaged,  // what stands there was never written
};

// A row as read back in bulk. Views into the segment's mapping.
struct StoredRow {
  std::string_view key;
  uint64_t doc_id = 0;
  std::string_view value;
};

// Immutable after Open; any thread may read it.
class Segment {
 public:
  // Maps and validates the header, the directory, and the bounds of everything. Does not read the
  // other sections. Errors name the file; DataLoss for damage, FailedPrecondition for another
  // format version.
  static absl::StatusOr<std::unique_ptr<const Segment>> Open(FileSystem& file_system,
                                                             const std::string& path);

  const std::string& path() const { return path_; }
  const SegmentHeader& header() const { return header_; }
  uint64_t header_checksum() const { return header_checksum_; }
  const std::vector<Partition>& partitions() const { return partitions_; }
  const InlineShape& inline_shape() const { return inline_shape_; }

  // Keys of other lengths are not in it.
  bool MayHoldLength(size_t key_bytes) const {
    return key_bytes >= header_.key_bytes_min && key_bytes <= header_.key_bytes_max;
  }
  const Partition& PartitionFor(const Hash128& hash) const;
  uint32_t HomeSlot(const Partition& partition, const Hash128& hash) const;

  // Compares the row in a full slot of the partition whose control byte is the wanted one. For
  // Layout kInline and kTermOrder respectively; what they read is bounded whatever the file holds.
  Candidate CompareInline(const Partition& partition, uint32_t slot, std::string_view key,
                          RowRef* row) const;
  // `mark`: SlotWordMark of the wanted key in that slot.
  Candidate CompareTermOrder(const Partition& partition, uint32_t slot, uint32_t mark,
                             std::string_view key, RowRef* row) const;

  // The first byte of the value that a locator points to; null for a locator that was never
  // written.
  const uint8_t* ValueAddress(uint64_t locator) const;
  // The value of `row`, found under `hash`; false when it is damaged. Cost: for values of bytes,
  // one pass over them, since a check of 16 bits ties them to their key.
  bool ReadValue(const RowRef& row, const Hash128& hash, std::string_view* value) const;

  // Calls `visit` for every row, in the table's order, until it returns an error. DataLoss at the
  // first row that can't be read, and in the end if there were not as many as there should be.
  absl::Status ForEachRow(const std::function<absl::Status(const StoredRow&)>& visit) const;

 private:
  Segment() = default;
  // False when the key stored in `slot` would not have been put there.
  bool Belongs(const Partition& partition, uint32_t slot, std::string_view stored_key) const;
  const uint8_t* section_data(SectionKind kind) const {
    return file_->data() + header_.section(kind).offset;
  }

  std::string path_;
  std::unique_ptr<MappedFile> file_;
  SegmentHeader header_;
  uint64_t header_checksum_ = 0;
  std::vector<Partition> partitions_;
  InlineShape inline_shape_;
};

// A block whose bytes are not those that were written.
struct DamagedBlock {
  std::string section;
  uint64_t offset = 0;  // in the file
  uint64_t size_bytes = 0;
};

// Reads the whole file, by read calls, against its checksums, and appends what does not match to
// *damaged. Errors: what Segment::Open says of the header, and what reading gives.
absl::Status VerifySegmentFile(FileSystem& file_system, const std::string& path,
                               std::vector<DamagedBlock>* damaged);

// What follows runs once or twice a key.

inline const Partition& Segment::PartitionFor(const Hash128& hash) const {
  return partitions_[PartitionOf(hash.low, header_.shard_bits, header_.partition_bits)];
}

inline uint32_t Segment::HomeSlot(const Partition& partition, const Hash128& hash) const {
  return static_cast<uint32_t>(
      HomeSlotOf(hash.low, header_.shard_bits + header_.partition_bits, partition.home_slots));
}

// Keys of one length: the branches on it are always the same.
inline bool SameBytes(const char* a, const char* b, size_t size_bytes) {
  if (size_bytes >= 8) {
    uint64_t differing = Load<uint64_t>(a + size_bytes - 8) ^ Load<uint64_t>(b + size_bytes - 8);
    for (size_t at = 0; at + 8 < size_bytes; at += 8) {
      differing |= Load<uint64_t>(a + at) ^ Load<uint64_t>(b + at);
    }
    return differing == 0;
  }
  if (size_bytes >= 4) {
    return ((Load<uint32_t>(a) ^ Load<uint32_t>(b)) |
            (Load<uint32_t>(a + size_bytes - 4) ^ Load<uint32_t>(b + size_bytes - 4))) == 0;
  }
  return std::memcmp(a, b, size_bytes) == 0;
}

inline Candidate Segment::CompareInline(const Partition& partition, uint32_t slot,
                                        std::string_view key, RowRef* row) const {
  const uint8_t* const record = partition.records + inline_shape_.RecordOffset(slot);
  const std::string_view stored = inline_shape_.KeyAt(record);
  const bool same = SameBytes(stored.data(), key.data(), stored.size());
  if (IsDocIdHole(record, inline_shape_.doc_id_bytes())) [[unlikely]]
    return Candidate::kDamaged;
  if (!same) [[unlikely]] {
    return Belongs(partition, slot, stored) ? Candidate::kOther : Candidate::kDamaged;
  }
  row->doc_id = LoadDocId(record, inline_shape_.doc_id_bytes());
  row->value = header_.schema.value_kind == ValueKind::kNone
                   ? nullptr
                   : record + inline_shape_.value_offset();
  return Candidate::kMatch;
}

inline Candidate Segment::CompareTermOrder(const Partition& partition, uint32_t slot, uint32_t mark,
                                           std::string_view key, RowRef* row) const {
  const auto word = Load<uint64_t>(partition.slot_words + uint64_t{slot} * 8);
  const uint64_t offset = PointerOf(word);
  if (offset == UINT64_MAX) [[unlikely]]
    return Candidate::kDamaged;
  if (MarkOf(word) != mark) return Candidate::kOther;
  TermRecord record;
  if (!ReadTermRecord(header_.schema, partition.records, partition.record_bytes, offset, &record))
      [[unlikely]] {
    return Candidate::kDamaged;
  }
  if (IsDocIdHole(record.doc_id, header_.schema.doc_id_bytes)) [[unlikely]] {
    return Candidate::kDamaged;
  }
  if (record.key != key) [[unlikely]] {
    return Belongs(partition, slot, record.key) ? Candidate::kOther : Candidate::kDamaged;
  }
  row->doc_id = LoadDocId(record.doc_id, header_.schema.doc_id_bytes);
  row->value = header_.schema.value_kind == ValueKind::kNone ? nullptr : record.value;
  return Candidate::kMatch;
}

}  // namespace latchkey
