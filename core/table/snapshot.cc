#include "core/table/snapshot.h"

#include <utility>

#include "core/base/error.h"
#include "core/base/status_macros.h"

namespace latchkey {
namespace {

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
  if (header.segment_id != ref.segment_id || segment.header_checksum() != ref.header_checksum ||
      header.file_bytes() != ref.file_bytes || header.row_count != ref.row_count) {
    return DataLoss(
        "{}: not the file that the manifest means: expected segment {:016x}, got {:016x}",
        segment.path(), ref.segment_id, header.segment_id);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Snapshot>> Snapshot::Open(FileSystem& file_system,
                                                               const std::string& table_dir,
                                                               Manifest manifest) {
  std::shared_ptr<Snapshot> snapshot(new Snapshot(std::move(manifest)));
  for (const SegmentRef& ref : snapshot->manifest_.segments) {
    LATCHKEY_ASSIGN_OR_RETURN(auto segment,
                              Segment::Open(file_system, JoinPath(table_dir, ref.file)));
    LATCHKEY_RETURN_IF_ERROR(CheckBelongs(snapshot->manifest_, ref, *segment));
    snapshot->segments_.push_back(std::move(segment));
  }
  return snapshot;
}

absl::StatusOr<std::shared_ptr<const Snapshot>> Snapshot::OpenNewest(FileSystem& file_system,
                                                                     const std::string& table_dir) {
  LATCHKEY_ASSIGN_OR_RETURN(Manifest manifest, ReadNewestManifest(file_system, table_dir));
  return Open(file_system, table_dir, std::move(manifest));
}

uint64_t Snapshot::row_count() const {
  uint64_t rows = 0;
  for (const auto& segment : segments_) rows += segment->header().row_count;
  return rows;
}

}  // namespace latchkey
