// A generation, opened: its manifest and its segments, mapped and validated.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/io/file_system.h"
#include "core/segment/segment.h"
#include "core/table/manifest.h"
#include "core/table/segment_map.h"

namespace latchkey {

struct SnapshotOptions {
  MemoryMode memory_mode = MemoryMode::kMmap;
  // A segment map that would take more is not made; 0: never.
  uint64_t segment_map_bytes_max = uint64_t{64} << 30;
};

// Immutable after Open; any thread may read it. Whatever was found in it is valid as long as it
// lives.
class Snapshot {
 public:
  // Opens every segment that `manifest` names in `table_dir`. As long as it lives, Gc leaves the
  // generation alone; NotFound if its manifest is not there any more. Fails as a whole if any can't
  // be opened, is not the file that the manifest means, or belongs to another table; errors name
  // the file. `previous`, an older generation of the table that serves on meanwhile, may be null:
  // segments that both have are shared with it, map and all, and its segment map is extended where
  // this one only adds segments. ResourceExhausted, before anything is opened, when there is not
  // the memory for all of it: new segments, unless they are only mapped, and, beside `previous`,
  // the segment map; without `previous` one that does not fit is left out.
  static absl::StatusOr<std::shared_ptr<const Snapshot>> Open(FileSystem& file_system,
                                                              const std::string& table_dir,
                                                              Manifest manifest,
                                                              const SnapshotOptions& options = {},
                                                              const Snapshot* previous = nullptr);
  // The newest generation.
  static absl::StatusOr<std::shared_ptr<const Snapshot>> OpenNewest(
      FileSystem& file_system, const std::string& table_dir, const SnapshotOptions& options = {});

  const Manifest& manifest() const { return manifest_; }
  uint64_t generation() const { return manifest_.generation; }
  const TableSchema& schema() const { return manifest_.schema; }
  uint64_t seed() const { return manifest_.identity.seed; }
  // Newest first.
  const std::vector<std::shared_ptr<const Segment>>& segments() const { return segments_; }
  // Sum over the segments: a key that several have counts in each.
  uint64_t row_count() const;
  uint64_t unchecked_bytes() const;  // sum of Segment::UncheckedBytes
  // Whether one of its segments is.
  bool quarantined() const;
  // Touches the last byte of each file, so that one that was cut shows as quarantined. A page that
  // is cut in its middle reads as zeros from there on without any fault. To be called after what
  // was read, or copied, within ReadStably.
  void TouchEnds() const;
  // Null for one segment, which needs none, and where none could be had; then segment_map_status
  // says why.
  const SegmentMap* segment_map() const { return segment_map_.get(); }
  const absl::Status& segment_map_status() const { return segment_map_status_; }
  MemoryMode memory_mode() const { return memory_mode_; }
  // Whether all of its rows were in memory when it was opened, as whoever warmed it up found.
  bool warm() const { return memory_mode_ != MemoryMode::kMmap || warm_; }
  void SetWarm() const { warm_ = true; }
  // Of the files' bytes, those that were mapped by pages of 2 MiB once it was open. Those of mode
  // kMmap are mapped as they are used, and not counted.
  uint64_t huge_bytes() const { return huge_bytes_; }
  // Of memory, beside the files.
  uint64_t segment_map_bytes() const { return segment_map_ ? segment_map_->size_bytes() : 0; }

 private:
  explicit Snapshot(HeldManifest held)
      : lock_(std::move(held.lock)), manifest_(std::move(held.manifest)) {}
  static absl::StatusOr<std::shared_ptr<const Snapshot>> OpenHeld(FileSystem& file_system,
                                                                  const std::string& table_dir,
                                                                  HeldManifest held,
                                                                  const SnapshotOptions& options,
                                                                  const Snapshot* previous);
  absl::Status CheckMemory(const std::string& table_dir, const SnapshotOptions& options,
                           const Snapshot* previous) const;
  void MakeSegmentMap(uint64_t bytes_max, const Snapshot* previous);

  const std::unique_ptr<FileLock> lock_;  // shared, of the manifest
  const Manifest manifest_;
  std::vector<std::shared_ptr<const Segment>> segments_;  // shared among generations
  std::unique_ptr<const SegmentMap> segment_map_;
  absl::Status segment_map_status_;
  MemoryMode memory_mode_ = MemoryMode::kMmap;
  mutable std::atomic<bool> warm_{false};
  uint64_t huge_bytes_ = 0;
};

}  // namespace latchkey
