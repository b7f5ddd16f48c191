// Makes one segment of a table's newest ones, so that lookups and updates stay fast.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/build/table_change.h"
#include "core/io/file_system.h"
#include "core/segment/format.h"
#include "core/table/manifest.h"

namespace latchkey {

enum class MergePolicy {
  kAll,     // everything becomes one segment without tombstones
  kTiered,  // what is of like size, so that a row is rewritten a few times only as deltas arrive
};

inline constexpr size_t kTierSegmentsMin = 4;  // that are worth a merge
inline constexpr uint64_t kTierFactor = 4;
inline constexpr size_t kTieredSegmentsMax = 15;  // that a table is left with

// What a policy must know of a segment.
struct SegmentSize {
  uint64_t rows = 0;
  uint64_t tombstones = 0;
  uint64_t file_bytes = 0;
};

// How many of the newest of `segments`, the newest first, are to become one; 0: none are. Runs
// begin at the newest segment under any policy: those behind it are older, and larger. kAll: all of
// them, but not one that is alone and without tombstones. kTiered: as long as the next segment has
// at most kTierFactor times the rows of those before it together; fewer than kTierSegmentsMin are
// left alone. Where the table would still have more than kTieredSegmentsMax segments, as many more
// as it takes.
size_t PlanMerge(std::span<const SegmentSize> segments, MergePolicy policy);

// What a merge would do.
struct MergePlan {
  size_t table_segments = 0;
  size_t segments = 0;  // of them, the newest, that become one; 0: there is nothing to merge
  uint64_t rows = 0;    // in those, tombstones and hidden rows included
  uint64_t file_bytes = 0;
};
absl::StatusOr<MergePlan> PlanTableMerge(FileSystem& file_system, const std::string& table_dir,
                                         const Manifest& manifest, MergePolicy policy);

struct MergeOptions {
  std::string data_dir;
  std::string table;
  MergePolicy policy = MergePolicy::kAll;
  uint64_t memory_bytes = uint64_t{256} << 20;
};

struct MergeResult {
  bool published = false;   // false if there was nothing to merge
  uint64_t generation = 0;  // the newest there is
  MergePlan plan;
  uint64_t rows_read = 0;           // = stored + hidden + tombstones_dropped
  uint64_t rows_stored = 0;         // tombstones included that hide rows of older segments
  uint64_t rows_hidden = 0;         // of keys that a newer segment of these has
  uint64_t tombstones_dropped = 0;  // nothing older is left
  uint64_t spilled_bytes = 0;
  SegmentHeader header;  // of the segment that was written, if any
  std::string segment_path;
};

// Merges by the policy, and publishes a generation that gives the same answers. The old segments'
// files stay for the generations that have them. Each segment is read against its checksums first.
// The new one's layout is chosen as a build does; filter and hash list are as in the newest. Killed
// at any point, or after an error, the table is as it was, but as BuildTable has it.
// Memory as BuildTable; the segments are mapped beside it, and their pages let go as they are done.
// `progress` as in BuildTable; what kRead reads are files. Errors: NotFound without such a table;
// FailedPrecondition when another writer is at work; DataLoss, naming file and place, when a
// segment is damaged.
absl::StatusOr<MergeResult> MergeTable(FileSystem& file_system, const MergeOptions& options,
                                       const ProgressFunction& progress);

}  // namespace latchkey
