#include "core/table/snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/low_priority.h"
#include "core/base/status_macros.h"
#include "core/io/anonymous_memory.h"
#include "core/io/available_memory.h"

namespace latchkey {
namespace {

// So little needs no look at what memory is left.
constexpr uint64_t kSmallBytes = uint64_t{1} << 20;

absl::Status CheckBelongs(const Manifest& manifest, const SegmentRef& ref, const Segment& segment) {
  const SegmentHeader& header = segment.header();
  if (header.identity.table_id != manifest.identity.table_id) {
    return DataLoss("{}: a segment of another table: expected table {}, got {}", segment.path(),
                    TableIdText(manifest.identity.table_id), TableIdText(header.identity.table_id));
  }
  if (header.identity != manifest.identity) {
    return DataLoss("{}: hash seed: expected {:016x}, got {:016x}", segment.path(),
                    manifest.identity.seed, header.identity.seed);
  }
  if (header.schema != manifest.schema) {
    return DataLoss("{}: schema: expected {}, got {}", segment.path(), manifest.schema.ToString(),
                    header.schema.ToString());
  }
  if (header.shard_bits != manifest.shard_bits || header.shard != manifest.shard) {
    return DataLoss("{}: shard: expected {} of {}, got {} of {}", segment.path(), manifest.shard,
                    1u << manifest.shard_bits, header.shard, 1u << header.shard_bits);
  }
  const auto differs = [&](std::string_view what, uint64_t expected, uint64_t got) {
    return DataLoss("{}: not the file that the manifest means: {}: expected {}, got {}",
                    segment.path(), what, expected, got);
  };
  if (header.segment_id != ref.segment_id) {
    return DataLoss(
        "{}: not the file that the manifest means: expected segment {:016x}, got {:016x}",
        segment.path(), ref.segment_id, header.segment_id);
  }
  if (header.file_bytes() != ref.file_bytes) {
    return differs("file bytes", ref.file_bytes, header.file_bytes());
  }
  if (header.row_count != ref.row_count) return differs("rows", ref.row_count, header.row_count);
  if (segment.header_checksum() != ref.header_checksum) {
    return DataLoss(
        "{}: not the file that the manifest means: header checksum: expected {:016x}, got {:016x}",
        segment.path(), ref.header_checksum, segment.header_checksum());
  }
  return absl::OkStatus();
}

// The segment that `ref` means, if `previous` has it open in the same way. One that is quarantined
// is to be opened anew: its file may be sound again.
std::shared_ptr<const Segment> FindShared(const Snapshot* previous, const std::string& path,
                                          const SegmentRef& ref, MemoryMode memory_mode) {
  if (previous == nullptr || previous->memory_mode() != memory_mode) return nullptr;
  for (const auto& segment : previous->segments()) {
    if (segment->header().segment_id == ref.segment_id && segment->path() == path &&
        !segment->quarantined()) {
      return segment;
    }
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Snapshot>> Snapshot::Open(FileSystem& file_system,
                                                               const std::string& table_dir,
                                                               Manifest manifest,
                                                               const SnapshotOptions& options,
                                                               const Snapshot* previous) {
  const std::string path = JoinPath(table_dir, ManifestFileName(manifest.generation));
  auto lock = file_system.LockShared(path);
  if (absl::IsNotFound(lock.status())) {
    return NotFound("{}: it is gone: generation {} was removed", path, manifest.generation);
  }
  LATCHKEY_RETURN_IF_ERROR(lock.status());
  return OpenHeld(file_system, table_dir, {std::move(manifest), *std::move(lock)}, options,
                  previous);
}

absl::StatusOr<std::shared_ptr<const Snapshot>> Snapshot::OpenHeld(FileSystem& file_system,
                                                                   const std::string& table_dir,
                                                                   HeldManifest held,
                                                                   const SnapshotOptions& options,
                                                                   const Snapshot* previous) {
  std::shared_ptr<Snapshot> snapshot(new Snapshot(std::move(held)));
  snapshot->memory_mode_ = options.memory_mode;
  LATCHKEY_RETURN_IF_ERROR(snapshot->CheckMemory(table_dir, options, previous));
  for (const SegmentRef& ref : snapshot->manifest_.segments) {
    const std::string path = JoinPath(table_dir, ref.file);
    auto segment = FindShared(previous, path, ref, options.memory_mode);
    if (segment == nullptr) {
      LATCHKEY_ASSIGN_OR_RETURN(segment, Segment::Open(file_system, path, options.memory_mode));
    }
    LATCHKEY_RETURN_IF_ERROR(CheckBelongs(snapshot->manifest_, ref, *segment));
    if (options.memory_mode != MemoryMode::kMmap) {
      snapshot->huge_bytes_ += HugePageBytes(segment->file().data(), segment->file().size_bytes());
    }
    snapshot->segments_.push_back(std::move(segment));
    GiveWay();
  }
  if (snapshot->segments_.size() > 1) {
    snapshot->MakeSegmentMap(options.segment_map_bytes_max, previous);
  }
  for (const auto& segment : snapshot->segments_) {
    if (!segment->quarantined()) continue;
    return DataLoss("{}: it was damaged, or pages of it were lost, while it was opened",
                    segment->path());
  }
  return snapshot;
}

absl::StatusOr<std::shared_ptr<const Snapshot>> Snapshot::OpenNewest(
    FileSystem& file_system, const std::string& table_dir, const SnapshotOptions& options) {
  LATCHKEY_ASSIGN_OR_RETURN(HeldManifest held, HoldNewestManifest(file_system, table_dir));
  return OpenHeld(file_system, table_dir, std::move(held), options, nullptr);
}

absl::Status Snapshot::CheckMemory(const std::string& table_dir, const SnapshotOptions& options,
                                   const Snapshot* previous) const {
  uint64_t file_bytes = 0, map_bytes = 0;
  std::vector<uint64_t> rows;  // the oldest first
  for (const SegmentRef& ref : manifest_.segments) {
    rows.insert(rows.begin(), ref.row_count);
    if (options.memory_mode == MemoryMode::kMmap ||
        FindShared(previous, JoinPath(table_dir, ref.file), ref, options.memory_mode) != nullptr) {
      continue;
    }
    file_bytes += ref.file_bytes;
  }
  if (previous != nullptr && manifest_.segments.size() > 1) {
    map_bytes = SegmentMap::SizeBytes(rows);
    if (map_bytes > options.segment_map_bytes_max) map_bytes = 0;
    if (AnonymousMemory::HasSpare(map_bytes)) map_bytes = 0;
  }
  if (file_bytes + map_bytes < kSmallBytes) return absl::OkStatus();
  const std::string beside =
      previous == nullptr ? "" : fmt::format(" beside generation {}", previous->generation());
  return CheckMemorySuffices(
      fmt::format("{}: generation {}{}: {} MiB of segments and {} MiB of segment map", table_dir,
                  generation(), beside, file_bytes >> 20, map_bytes >> 20),
      file_bytes + map_bytes);
}

void Snapshot::MakeSegmentMap(uint64_t bytes_max, const Snapshot* previous) {
  std::vector<const Segment*> segments;  // the oldest first, as the map numbers them
  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    segments.push_back(segment->get());
  }
  const auto make = [&] {
    const SegmentMap* const before = previous == nullptr ? nullptr : previous->segment_map();
    if (before == nullptr) return SegmentMap::Build(segments, bytes_max);
    const auto same = [](const auto& ours, const auto& theirs) {
      return ours->header().segment_id == theirs->header().segment_id;
    };
    // The oldest segments, as many as both generations have.
    const auto kept_end =
        std::mismatch(segments_.rbegin(), segments_.rend(), previous->segments_.rbegin(),
                      previous->segments_.rend(), same)
            .first;
    return before->Extend(segments, static_cast<size_t>(kept_end - segments_.rbegin()), bytes_max);
  };
  auto map = make();
  segment_map_status_ = map.status();
  if (map.ok()) segment_map_ = *std::move(map);
}

bool Snapshot::quarantined() const {
  return std::any_of(segments_.begin(), segments_.end(),
                     [](const auto& segment) { return segment->quarantined(); });
}

void Snapshot::TouchEnds() const {
  for (const auto& segment : segments_) {
    const MappedFile& file = segment->file();
    (void)LoadAfter(file.data() + file.size_bytes() - 1);
  }
}

uint64_t Snapshot::row_count() const {
  uint64_t rows = 0;
  for (const auto& segment : segments_) rows += segment->header().row_count;
  return rows;
}

uint64_t Snapshot::unchecked_bytes() const {
  uint64_t bytes = 0;
  for (const auto& segment : segments_) bytes += segment->UncheckedBytes();
  return bytes;
}

}  // namespace latchkey
