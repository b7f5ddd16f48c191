// Writes one segment file, partition by partition, in bounded memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/checked_math.h"
#include "core/base/hash.h"
#include "core/io/file_system.h"
#include "core/segment/format.h"

namespace latchkey {

// A row to be written. Its views must live until AddPartition returns.
struct SegmentRow {
  Hash128 hash;
  uint64_t doc_id = 0;
  std::string_view key;
  std::string_view value;
};

// What the writer must know before the first row: it decides where the sections lie.
struct SegmentPlan {
  TableIdentity identity;
  TableSchema schema;
  uint64_t segment_id = 0;
  Layout layout = Layout::kInline;
  uint8_t filter_bits_per_key = 10;  // 0: no filter
  uint8_t partition_bits = 0;
  uint16_t key_bytes_min = 0;  // of all rows; equal for the inline layout; 0 when there are none
  uint16_t key_bytes_max = 0;
  // Upper bounds for each partition: rows, and bytes of their keys. Bounds that are not met leave
  // holes.
  struct Bound {
    uint64_t rows = 0;
    uint64_t key_bytes = 0;
  };
  std::vector<Bound> partitions;
  uint64_t value_bytes = 0;  // an upper bound too, of all values of bytes with their lengths
};

// One thread. The file is complete once Finish returned OK; otherwise it is to be removed.
class SegmentWriter {
 public:
  static absl::StatusOr<std::unique_ptr<SegmentWriter>> Create(FileSystem& file_system,
                                                               const std::string& path,
                                                               const SegmentPlan& plan);
  ~SegmentWriter();

  // Adds the rows of the next partition: `rows` in the order of hash.low, keys distinct. Partitions
  // without rows are added too. Errors: what writing gives; InvalidArgument for an oversize
  // partition.
  absl::Status AddPartition(std::span<const SegmentRow> rows);

  // Writes checksums and header, syncs and closes. After the last partition.
  absl::StatusOr<SegmentHeader> Finish();

 private:
  class SectionWriter;

  explicit SegmentWriter(const SegmentPlan& plan);
  void PlanSections();
  absl::Status PlaceRows(std::span<const SegmentRow> rows, uint64_t slots_bound,
                         PartitionEntry* entry);
  absl::Status WriteFilter(std::span<const SegmentRow> rows, PartitionEntry* entry);
  absl::Status WriteInline(std::span<const SegmentRow> rows, PartitionEntry* entry);
  absl::Status WriteTermOrder(std::span<const SegmentRow> rows, PartitionEntry* entry);
  // Stores a row's value, or a locator of it after appending it to the values section.
  absl::Status StoreValue(const SegmentRow& row, uint8_t* to);
  SectionWriter& section(SectionKind kind) { return *sections_[static_cast<size_t>(kind)]; }

  const SegmentPlan plan_;
  SegmentHeader header_;
  std::unique_ptr<WritableFile> file_;
  std::vector<std::unique_ptr<SectionWriter>> sections_;  // by SectionKind, without the checksums
  std::string directory_;
  size_t partitions_added_ = 0;
  // Scratch of one partition, kept between calls.
  std::vector<uint32_t> row_slots_;  // the slot of each row
  std::vector<uint32_t> key_order_;
  std::vector<uint64_t> filter_words_;
  std::string control_, records_, slot_words_;
};

// Home slots for `rows`: a load of 3/4, as a table of linear probes wants it.
inline constexpr uint64_t HomeSlotsFor(uint64_t rows) {
  return rows == 0 ? 1 : rows + CeilDiv(rows, 3);
}

}  // namespace latchkey
