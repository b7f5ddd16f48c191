// Writes one segment file, partition by partition, in bounded memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/io/file_system.h"
#include "core/segment/format.h"
#include "core/segment/hash_list.h"
#include "core/segment/line_shape.h"
#include "core/segment/pilot_search.h"

namespace latchkey {

// A row to be written. Its views must live until AddPartition returns.
struct SegmentRow {
  uint64_t hash = 0;
  uint64_t doc_id = 0;
  std::string_view key;
  std::string_view value;
  bool tombstone = false;  // "deleted here": doc id and value do not count
};

// What the writer must know before the first row: it decides where the sections lie.
struct SegmentPlan {
  TableIdentity identity;
  TableSchema schema;
  uint64_t segment_id = 0;
  uint8_t shard_bits = 0;  // of the table's place, as the manifest has it
  uint16_t shard = 0;
  Layout layout = Layout::kLine;
  uint8_t filter_bits_per_key = 10;  // 0: no filter
  HashListShape hash_list;           // of no bits: no hash list
  uint8_t partition_bits = 0;
  uint16_t key_bytes_min = 0;  // of all rows; equal for the line layout; 0 when there are none
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

  // Adds the rows of the next partition: `rows` in the order of their hashes, keys distinct.
  // Partitions without rows are added too. Errors: what writing gives; InvalidArgument for an
  // oversize partition.
  absl::Status AddPartition(std::span<const SegmentRow> rows);

  // Writes checksums and header, syncs and closes. After the last partition.
  absl::StatusOr<SegmentHeader> Finish();

 private:
  class SectionWriter;

  explicit SegmentWriter(const SegmentPlan& plan);
  void PlanSections();
  absl::Status PlaceRows(std::span<const SegmentRow> rows, uint64_t rows_bound,
                         PartitionEntry* entry);
  absl::Status WriteFilter(std::span<const SegmentRow> rows, PartitionEntry* entry);
  absl::Status WriteLines(std::span<const SegmentRow> rows);
  absl::Status WriteRecords(std::span<const SegmentRow> rows, PartitionEntry* entry);
  // Fills line_order_ with the indices of the rows, ordered by their lines.
  void SortByLine(size_t rows);
  absl::Status WriteHashes(std::span<const SegmentRow> rows);
  // Stores a row's doc id and its value, or a locator of it after appending it to the values
  // section; returns where the key goes.
  absl::StatusOr<uint8_t*> StoreRow(const SegmentRow& row, uint8_t* to);
  // The next free entry of a row's line, in lines_.
  uint8_t* EntryOf(size_t row);
  SectionWriter& section(SectionKind kind) { return *sections_[static_cast<size_t>(kind)]; }

  const SegmentPlan plan_;
  SegmentHeader header_;
  std::unique_ptr<WritableFile> file_;
  std::vector<std::unique_ptr<SectionWriter>> sections_;  // by SectionKind, without the checksums
  std::string directory_;
  size_t partitions_added_ = 0;
  LineShape shape_;
  HashListWriter hash_list_;
  PilotSearch pilots_;
  // Scratch of one partition, kept between calls.
  std::vector<uint64_t> hashes_;
  std::vector<uint32_t> line_begins_, line_order_;
  std::vector<uint64_t> filter_words_;
  std::string lines_, records_, hash_bytes_;
};

}  // namespace latchkey
