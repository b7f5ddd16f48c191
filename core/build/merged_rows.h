// The rows of several segments, as what writes one takes them: the newest segment's first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/build/partitioned_rows.h"
#include "core/build/partitioner.h"
#include "core/build/table_change.h"
#include "core/io/file_system.h"
#include "core/segment/segment.h"

namespace latchkey {

// Each segment is read once, partition by partition, and its rows stay views into its mapping. What
// a partition holds beyond the range that is taken is kept. Where the segments are so many that
// this would take more than a quarter of the memory, the rest of them is spilled to disk first.
// One thread.
class MergedRows final : public RowsByBucket {
 public:
  // `segments`, the newest first, must outlive it. Call Prepare before anything else.
  MergedRows(FileSystem& file_system, std::vector<const Segment*> segments, std::string spill_path,
             uint64_t memory_bytes);
  ~MergedRows() override;

  // Counts the rows, by hash lists where that can be. DataLoss names the file and the place.
  absl::Status Prepare();

  const RowCounts& counts() const override { return counts_; }
  absl::Status Take(size_t begin, size_t end, std::vector<TakenRow>* rows) override;
  // Whether all that was taken was as it is in the files, and all that there is; after the last
  // Take, and after what was done with its rows.
  absl::Status CheckIntact() const;
  uint64_t spilled_bytes() const { return spilled_bytes_; }

 private:
  struct Source;

  absl::Status CountSource(Source* source);
  absl::Status Spill();
  absl::Status TakeSpilled(size_t begin, size_t end);
  absl::Status TakeFrom(Source* source, size_t end, std::vector<TakenRow>* rows);

  FileSystem& file_system_;
  const std::string spill_path_;
  const uint64_t memory_bytes_;
  std::vector<Source> sources_;
  RowCounts counts_;
  std::unique_ptr<Partitioner> partitioner_;  // of what is spilled, if anything is
  std::optional<PartitionedRows> spilled_;
  std::vector<TakenRow> spilled_rows_, scratch_;
  uint64_t spilled_bytes_ = 0;
};

}  // namespace latchkey
