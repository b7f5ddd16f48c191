#include "core/build/table_merger.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/build/merged_rows.h"
#include "core/segment/segment.h"
#include "core/table/snapshot.h"

namespace latchkey {
namespace {

absl::StatusOr<SegmentHeader> ReadHeader(FileSystem& file_system, const std::string& path) {
  LATCHKEY_ASSIGN_OR_RETURN(const auto file, file_system.Open(path));
  std::string bytes(kHeaderBytes, '\0');
  LATCHKEY_ASSIGN_OR_RETURN(const size_t got, file->ReadAt(0, kHeaderBytes, bytes.data()));
  bytes.resize(got);
  absl::StatusOr<SegmentHeader> header = DecodeHeader(bytes);
  if (!header.ok()) return Prefixed(header.status(), path);
  return header;
}

// One merge, from its lock to its manifest.
class Merge {
 public:
  Merge(FileSystem& file_system, const MergeOptions& options, const ProgressFunction& progress)
      : file_system_(file_system),
        options_(options),
        progress_(progress),
        change_(file_system, options.data_dir, options.table) {}

  absl::StatusOr<MergeResult> Run() {
    LATCHKEY_RETURN_IF_ERROR(CheckMemoryBytes(options_.memory_bytes));
    LATCHKEY_RETURN_IF_ERROR(change_.Begin(/*create=*/false));
    Manifest& manifest = change_.manifest();
    result_.generation = change_.newest_generation();
    LATCHKEY_ASSIGN_OR_RETURN(
        result_.plan, PlanTableMerge(file_system_, change_.table_dir(), manifest, options_.policy));
    if (result_.plan.segments == 0) return result_;
    const size_t count = result_.plan.segments;
    LATCHKEY_RETURN_IF_ERROR(Verify(std::span(manifest.segments).first(count)));
    LATCHKEY_ASSIGN_OR_RETURN(const auto snapshot, change_.OpenNewest());
    manifest.segments.erase(manifest.segments.begin(),
                            manifest.segments.begin() + static_cast<ptrdiff_t>(count));
    LATCHKEY_RETURN_IF_ERROR(Write(*snapshot, count));
    LATCHKEY_RETURN_IF_ERROR(change_.Publish());
    result_.published = true;
    result_.generation = manifest.generation;
    return result_;
  }

 private:
  // Rows are not checked as they are read: whatever a disk made of them would be copied, under new
  // checksums. Besides, reading a file in its order brings it to memory fastest.
  absl::Status Verify(std::span<const SegmentRef> segments);
  // The `count` newest segments of the snapshot become one.
  absl::Status Write(const Snapshot& snapshot, size_t count);

  FileSystem& file_system_;
  const MergeOptions& options_;
  const ProgressFunction& progress_;
  TableChange change_;
  MergeResult result_;
};

absl::Status Merge::Verify(std::span<const SegmentRef> segments) {
  BuildProgress progress;
  progress.rows_total = result_.plan.rows;
  progress.bytes_total = result_.plan.file_bytes;
  for (const SegmentRef& ref : segments) {
    if (progress_) progress_(progress);
    const std::string path = JoinPath(change_.table_dir(), ref.file);
    std::vector<DamagedBlock> damaged;
    LATCHKEY_RETURN_IF_ERROR(VerifySegmentFile(file_system_, path, &damaged));
    if (!damaged.empty()) {
      return DataLoss("{}: section '{}' is damaged at offset {}", path, damaged[0].section,
                      damaged[0].offset);
    }
    progress.rows += ref.row_count;
    progress.bytes += ref.file_bytes;
  }
  if (progress_) progress_(progress);
  return absl::OkStatus();
}

absl::Status Merge::Write(const Snapshot& snapshot, size_t count) {
  std::vector<const Segment*> segments;
  for (size_t i = 0; i < count; ++i) segments.push_back(snapshot.segments()[i].get());
  MergedRows rows(file_system_, segments, JoinPath(change_.table_dir(), "spill.tmp"),
                  options_.memory_bytes);
  LATCHKEY_RETURN_IF_ERROR(rows.Prepare());
  SegmentChoices choices;
  ChooseAsIn(segments.front()->header(), &choices);
  choices.layout = AutoLayout(snapshot.schema(), rows.counts());
  choices.duplicates = DuplicateRule::kFirst;
  choices.drop_tombstones = change_.manifest().segments.empty();
  choices.memory_bytes = options_.memory_bytes;
  LATCHKEY_RETURN_IF_ERROR(change_.WriteSegment(
      choices, rows, [this](BuildProgress::Phase phase, uint64_t done, uint64_t total) {
        if (progress_) progress_({phase, done, total, 0, 0});
      }));
  LATCHKEY_RETURN_IF_ERROR(rows.CheckIntact());
  result_.rows_read = rows.counts().rows;
  result_.rows_stored = change_.header().row_count;
  result_.rows_hidden = change_.duplicates_dropped();
  result_.tombstones_dropped = change_.tombstones_dropped();
  result_.spilled_bytes = rows.spilled_bytes();
  result_.header = change_.header();
  result_.segment_path = change_.segment_path();
  LATCHKEY_CHECK(result_.rows_read ==
                 result_.rows_stored + result_.rows_hidden + result_.tombstones_dropped);
  return absl::OkStatus();
}

}  // namespace

size_t PlanMerge(std::span<const SegmentSize> segments, MergePolicy policy) {
  const size_t count = segments.size();
  if (policy == MergePolicy::kAll) {
    return count == 1 && segments[0].tombstones == 0 ? 0 : count;
  }
  size_t run = 0;
  for (uint64_t rows = 0; run < count; rows += segments[run++].rows) {
    if (run > 0 && segments[run].rows > kTierFactor * rows) break;
  }
  if (run < kTierSegmentsMin) run = 0;
  const size_t surplus = count > kTieredSegmentsMax ? count - kTieredSegmentsMax + 1 : 0;
  return std::max(run, surplus);
}

absl::StatusOr<MergePlan> PlanTableMerge(FileSystem& file_system, const std::string& table_dir,
                                         const Manifest& manifest, MergePolicy policy) {
  std::vector<SegmentSize> sizes;
  for (const SegmentRef& ref : manifest.segments)
    sizes.push_back({ref.row_count, 0, ref.file_bytes});
  // Only of a segment alone do the tombstones decide.
  if (sizes.size() == 1) {
    LATCHKEY_ASSIGN_OR_RETURN(
        const SegmentHeader header,
        ReadHeader(file_system, JoinPath(table_dir, manifest.segments[0].file)));
    sizes[0].tombstones = header.tombstone_count;
  }
  MergePlan plan;
  plan.table_segments = sizes.size();
  plan.segments = PlanMerge(sizes, policy);
  for (size_t i = 0; i < plan.segments; ++i) {
    plan.rows += sizes[i].rows;
    plan.file_bytes += sizes[i].file_bytes;
  }
  return plan;
}

absl::StatusOr<MergeResult> MergeTable(FileSystem& file_system, const MergeOptions& options,
                                       const ProgressFunction& progress) {
  return Merge(file_system, options, progress).Run();
}

}  // namespace latchkey
