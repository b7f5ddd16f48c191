// What every change of a table has in common, be it a build, a deletion or a merge: one writer at a
// time, a new segment written in bounded memory and read back, and a generation published last.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/build/distinct_rows.h"
#include "core/build/partitioner.h"
#include "core/io/file_system.h"
#include "core/segment/format.h"
#include "core/table/manifest.h"
#include "core/table/snapshot.h"

namespace latchkey {

inline constexpr uint64_t kBuildMemoryBytesMin = uint64_t{16} << 20;
inline constexpr uint64_t kProgressRows = 65'536;  // between two calls

struct BuildProgress {
  enum class Phase { kRead, kWrite, kCheck };
  Phase phase = Phase::kRead;
  uint64_t rows = 0;        // done in this phase
  uint64_t rows_total = 0;  // 0 if unknown
  uint64_t bytes = 0;       // of input read, in phase kRead
  uint64_t bytes_total = 0;
};
using ProgressFunction = std::function<void(const BuildProgress&)>;

// What is known of rows before they are written: upper bounds, since some may not count.
struct RowCounts {
  struct Bucket {
    uint64_t rows = 0;
    uint64_t key_bytes = 0;
  };
  std::array<Bucket, kBucketCount> buckets = {};
  uint64_t rows = 0;           // sum over the buckets
  uint64_t value_bytes = 0;    // of values of bytes, as they are stored
  uint64_t working_bytes = 0;  // of memory that taking all rows at once takes, TakenRows aside
  size_t key_bytes_min = SIZE_MAX, key_bytes_max = 0;

  void AddKeyBytes(size_t key_bytes) {
    key_bytes_min = std::min(key_bytes_min, key_bytes);
    key_bytes_max = std::max(key_bytes_max, key_bytes);
  }
};

// Rows to be written, by ranges of the 1,024 buckets that their hashes' top bits make.
class RowsByBucket {
 public:
  virtual ~RowsByBucket() = default;
  virtual const RowCounts& counts() const = 0;
  // Appends the rows of buckets [begin, end) to *rows, in the order of the input within each key.
  // Ranges ascend, and no bucket is taken twice. Views are valid until the next call.
  virtual absl::Status Take(size_t begin, size_t end, std::vector<TakenRow>* rows) = 0;
};

struct SegmentChoices {
  Layout layout = Layout::kLine;
  uint8_t filter_bits_per_key = 10;
  bool hash_list = true;
  DuplicateRule duplicates = DuplicateRule::kReject;
  bool drop_tombstones = false;  // where no older segment is left that they hide
  uint64_t memory_bytes = uint64_t{256} << 20;
};

// Filter and hash list as in `newest`.
void ChooseAsIn(const SegmentHeader& newest, SegmentChoices* choices);

// kLine where it suits rows with such keys.
Layout AutoLayout(const TableSchema& schema, const RowCounts& counts);

// How finely such rows are to be split, as 2^bits partitions, to be written within the memory.
unsigned PartitionBitsFor(const RowCounts& counts, uint64_t memory_bytes);

absl::Status CheckMemoryBytes(uint64_t memory_bytes);

// One thread. What was written goes away with it, unless it was published.
class TableChange {
 public:
  TableChange(FileSystem& file_system, const std::string& data_dir, const std::string& table);
  ~TableChange();
  TableChange(const TableChange&) = delete;
  TableChange& operator=(const TableChange&) = delete;

  // Takes the table's lock, removes what killed writers left, and reads the newest manifest.
  // `create`: a table that is not there is begun; else it is NotFound. FailedPrecondition when
  // another writer is at work, and for a shard of a table.
  absl::Status Begin(bool create);

  const std::string& table_dir() const { return table_dir_; }
  // 0 if there is none.
  uint64_t newest_generation() const { return manifest_.generation - 1; }
  // That generation, without a segment map: making one takes longer than what a change does with
  // it.
  absl::StatusOr<std::shared_ptr<const Snapshot>> OpenNewest() const;
  // Of the generation to be published: at first the newest one's, with the next number and the
  // present time. Segments that the new one replaces are to be taken out before it is written.
  Manifest& manifest() { return manifest_; }
  // FailedPrecondition when there are as many segments as there may be.
  absl::Status CheckRoomForSegment() const;

  using Report = std::function<void(BuildProgress::Phase, uint64_t rows, uint64_t rows_total)>;
  // Writes the rows that count and reads the file back.
  absl::Status WriteSegment(const SegmentChoices& choices, RowsByBucket& rows,
                            const Report& report);
  // Of the segment that was written.
  const SegmentHeader& header() const { return header_; }
  const std::string& segment_path() const { return segment_path_; }
  uint64_t duplicates_dropped() const { return duplicates_dropped_; }
  uint64_t tombstones_dropped() const { return tombstones_dropped_; }

  // Publishes the manifest with the segment as its newest. After an error the table is as it was,
  // unless the error came from syncing the folder after the manifest was renamed into place: then
  // the new generation stands, whole.
  absl::Status Publish();

 private:
  SegmentPlan PlanSegment(const SegmentChoices& choices, const RowCounts& counts) const;
  absl::Status WriteRows(const SegmentChoices& choices, RowsByBucket& rows, const Report& report);
  absl::Status Recheck();
  bool MayBePublished() const;

  FileSystem& file_system_;
  const std::string table_;
  const std::string table_dir_;
  std::unique_ptr<FileLock> lock_;
  Manifest newest_, manifest_;
  std::string segment_file_, segment_path_;
  bool keep_segment_ = true;
  SegmentRef segment_ref_;
  SegmentHeader header_;
  uint64_t duplicates_dropped_ = 0;
  uint64_t tombstones_dropped_ = 0;
};

}  // namespace latchkey
