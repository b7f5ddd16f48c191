// One segment file, opened: mapped, validated, and seen as partitions ready to probe.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/hash.h"
#include "core/io/file_system.h"
#include "core/io/memory_mode.h"
#include "core/key/key_hash.h"
#include "core/segment/format.h"
#include "core/segment/line_shape.h"

namespace latchkey {

class Segment;

// What a probe needs of a partition, in one cache line. Points into the segment's mapping.
struct alignas(64) Partition {
  const Segment* segment = nullptr;
  const uint8_t* pilots = nullptr;   // groups of them
  const uint8_t* lines = nullptr;    // lines of 2^line_shift bytes
  const uint8_t* filter = nullptr;   // filter_words words; null without a filter
  const uint8_t* records = nullptr;  // layout kPointer: record_bytes of them
  uint64_t record_bytes = 0;
  uint32_t group_count = 1;
  uint32_t line_count = 1;
  uint32_t filter_words = 0;
  uint8_t line_shift = 6;
  uint8_t hash_shift = 0;  // shard and partition bits: those that all its keys have in common

  // Where the lookup of a key begins …
  const uint8_t* PilotAddress(uint64_t hash) const {
    return pilots + GroupOf(hash, hash_shift, group_count);
  }
  // … and where that pilot, which is not zero, leads.
  const uint8_t* LineAddress(uint64_t hash, uint8_t pilot) const {
    return lines + (uint64_t{LineOf(hash, pilot, line_count)} << line_shift);
  }
  const uint8_t* FilterAddress(uint64_t hash) const {
    return filter + 8 * FilterWordOf(FilterHashOf(hash), filter_words);
  }
};
static_assert(sizeof(Partition) == 64);

// Where the row of a key was found. Points into the segment's mapping.
struct RowRef {
  uint64_t doc_id = 0;
  const uint8_t* value = nullptr;  // a fixed value or a locator; unset without values
};

// What a segment holds for a key.
enum class Held : uint8_t {
  kNothing,
  kRow,        // the RowRef is set
  kTombstone,  // the key is deleted here: older segments do not count
  kDamaged,
};

// A row as read back in bulk. Views into the segment's mapping.
struct StoredRow {
  std::string_view key;
  uint64_t hash = 0;
  bool tombstone = false;  // then without doc id and value
  uint64_t doc_id = 0;
  std::string_view value;
};

// Immutable after Open; any thread may read it.
class Segment {
 public:
  // Maps and validates the header, the directory, and the bounds of everything. Does not read the
  // other sections, but where `mode` takes all of the file into memory. Errors name the file;
  // DataLoss for damage, FailedPrecondition for another format version, ResourceExhausted when
  // `mode` asks for more memory than there is.
  static absl::StatusOr<std::unique_ptr<const Segment>> Open(FileSystem& file_system,
                                                             const std::string& path,
                                                             MemoryMode mode = MemoryMode::kMmap);

  const std::string& path() const { return path_; }
  const MappedFile& file() const { return *file_; }
  const SegmentHeader& header() const { return header_; }
  uint64_t header_checksum() const { return header_checksum_; }
  // What can't be relied on is quarantined: blocks that are not what was written, as CheckBlocks
  // found, and all of the file when pages of it were lost. A key whose lookup comes to it, and that
  // may be held here by its length and first bytes, is not known to be absent.
  bool quarantined() const { return FaultEpoch() != 0 && (damaged_ || file_->lost()); }
  // Whether any of [begin, begin + size_bytes) of the mapping is. Takes a lock.
  bool InQuarantine(const uint8_t* begin, uint64_t size_bytes) const;
  const std::vector<Partition>& partitions() const { return partitions_; }
  const LineShape& shape() const { return shape_; }
  // The same, if lines hold whole rows; else null.
  const LineShape* row_shape() const { return header_.layout == Layout::kLine ? &shape_ : nullptr; }

  // False: no key of that length, or with that KeyPrefix, is in it.
  bool MayHoldLength(size_t key_bytes) const {
    // Without rows the bounds are 0.
    return key_bytes != 0 && key_bytes >= header_.key_bytes_min &&
           key_bytes <= header_.key_bytes_max;
  }
  bool MayHoldPrefix(uint64_t key_prefix) const {
    return key_prefix >= header_.key_prefix_min && key_prefix <= header_.key_prefix_max;
  }
  // Whether prefixes tell much: they take up less than half of their range.
  bool keys_are_close() const {
    return header_.key_prefix_max - header_.key_prefix_min < UINT64_MAX / 2;
  }
  bool has_filter() const { return partitions_[0].filter != nullptr; }
  const Partition& PartitionFor(uint64_t hash) const {
    return partitions_[PartitionOf(hash, header_.shard_bits, header_.partition_bits)];
  }

  // Looks for a key in its line, as Partition::LineAddress has it; layout kLine.
  Held FindInLine(const uint8_t* line, std::string_view key, RowRef* row) const {
    const bool fits = key.size() == shape_.key_bytes();
    uint32_t same = fits ? MatchKeys(shape_, line, key.data()) : 0;
    const uint8_t mark = shape_.MarkAfter(line);
    if (!shape_.IsMark(mark)) [[unlikely]]
      return Held::kDamaged;
    same &= EntriesMask(mark);
    if (same == 0) return Held::kNothing;
    const uint8_t* const entry = shape_.Entry(line, std::countr_zero(same));
    return RowAt(entry, entry + shape_.value_offset(), row);
  }

  // Layout kPointer: bits of the entries that may point to the key's record; *held says kDamaged
  // when the line can't be read.
  uint32_t PointersInLine(const uint8_t* line, uint64_t hash, Held* held) const;
  // Layout kPointer: looks for the key in the records that those entries point to. Reads within
  // the partition's bounds, whatever the file holds.
  Held FindInRecords(const Partition& partition, const uint8_t* line, uint32_t pointers,
                     std::string_view key, uint64_t hash, RowRef* row) const;

  // The first byte of the value that a locator points to; null for a locator that was never
  // written.
  const uint8_t* ValueAddress(uint64_t locator) const;
  // What a value takes up on average, its length field included, and what the one at an address
  // that ValueAddress gave takes up; at most what the longest may.
  uint64_t ValueBytesExpected() const;
  uint64_t ValueBytesAt(const uint8_t* address) const;
  // The value of `row`, found under `hash`; false when it is damaged. Cost: for values of bytes,
  // one pass over them, since a check of 16 bits ties them to their key.
  bool ReadValue(const RowRef& row, uint64_t hash, std::string_view* value) const;

  // Reads [begin, end) of a section, which is of whole blocks but for the section's end, against
  // its checksums: by read calls from a mapped file, so that its pages need no place in the map,
  // else from memory. DataLoss, naming section and offset, for what does not match or can't be
  // read; then the segment is quarantined. Thread-safe.
  absl::Status CheckBlocks(SectionKind kind, uint64_t begin, uint64_t end) const;
  // Whether all blocks of a section were found to be sound since the segment was opened; those who
  // check them keep account of it here. The hash list is checked whenever it is read.
  bool checked(SectionKind kind) const { return (checked_sections_ & SectionBit(kind)) != 0; }
  void SetChecked(SectionKind kind) const { checked_sections_ |= SectionBit(kind); }
  // Of all sections but the hash list.
  uint64_t UncheckedBytes() const;

  // The hash list, checked against its checksums by reading all of it. FailedPrecondition when the
  // segment has none.
  absl::StatusOr<std::string_view> ReadHashList() const;

  // Calls `visit` for every row, in the table's order, until it returns an error. DataLoss at the
  // first row that can't be read, and in the end if there were not as many as there should be.
  absl::Status ForEachRow(const std::function<absl::Status(const StoredRow&)>& visit) const;
  // The same for one partition, whose number of rows is not checked; without values if not wanted.
  template <typename Visit>
  absl::Status ForEachRowOf(const Partition& partition, bool with_values, Visit visit) const {
    StoredRow row;
    for (uint32_t i = 0; i < partition.line_count; ++i) {
      const uint8_t* const line = partition.lines + (uint64_t{i} << partition.line_shift);
      // A hole that comes after this shows in the entries themselves.
      const uint8_t mark = shape_.MarkAfter(line);
      if (!shape_.IsMark(mark)) return Damaged(partition, i, "mark");
      for (int entry = 0; entry < mark - kMarkBit; ++entry) {
        const char* const what =
            ReadRow(partition, line, shape_.Entry(line, entry), with_values, &row);
        if (what != nullptr) return Damaged(partition, i, what);
        if (absl::Status status = visit(row); !status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

 private:
  Segment() = default;
  void OpenPartitions(const std::vector<PartitionEntry>& entries);
  absl::Status Damaged(const Partition& partition, uint32_t line, const char* what) const;
  // What of the row is damaged; null if nothing is.
  const char* ReadRow(const Partition& partition, const uint8_t* line, const uint8_t* entry,
                      bool with_value, StoredRow* row) const;
  // Whether a lookup of the key would come to `line`.
  bool LeadsTo(const Partition& partition, uint64_t hash, const uint8_t* line) const;
  Held RowAt(const uint8_t* doc_id, const uint8_t* value, RowRef* row) const {
    const unsigned doc_id_bytes = shape_.doc_id_bytes();
    const uint64_t field = LoadDocIdField(doc_id, doc_id_bytes);
    row->doc_id = DocIdOfField(field, doc_id_bytes);
    row->value = value;
    if (field > kDocIdTombstone) [[likely]]
      return Held::kRow;
    return field == kDocIdTombstone ? Held::kTombstone : Held::kDamaged;
  }
  const uint8_t* section_data(SectionKind kind) const {
    return file_->data() + header_.section(kind).offset;
  }
  static uint32_t SectionBit(SectionKind kind) { return 1u << static_cast<unsigned>(kind); }
  // The checksum of the block at `offset` of the section.
  uint64_t ChecksumAt(SectionKind kind, uint64_t offset) const;
  absl::Status CheckBlock(SectionKind kind, uint64_t offset, std::string_view block) const;
  std::string_view section_bytes(SectionKind kind) const {
    return {reinterpret_cast<const char*>(section_data(kind)), header_.section(kind).size_bytes};
  }

  std::string path_;
  std::unique_ptr<MappedFile> file_;
  SegmentHeader header_;
  uint64_t header_checksum_ = 0;
  std::vector<Partition> partitions_;
  LineShape shape_;
  mutable std::atomic<uint32_t> checked_sections_{SectionBit(SectionKind::kHashes)};
  mutable std::atomic<bool> damaged_{false};
  mutable std::mutex damage_mutex_;
  mutable std::vector<uint64_t> damaged_blocks_;  // offsets in the file; guarded by damage_mutex_
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

}  // namespace latchkey
