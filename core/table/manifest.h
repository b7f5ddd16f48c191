// A manifest names the segments of one generation of a table. It is written last, by rename: before
// that, the generation does not exist.
//
// In a table's folder: g00000007.manifest, and the segment files that generation 7 added:
// g00000007-0.segment …
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/io/file_system.h"
#include "core/segment/format.h"

namespace latchkey {

struct SegmentRef {
  std::string file;  // a name in the table's folder
  uint64_t file_bytes = 0;
  uint64_t segment_id = 0;
  uint64_t header_checksum = 0;
  uint64_t row_count = 0;
  bool operator==(const SegmentRef&) const = default;
};

struct Manifest {
  uint64_t generation = 0;  // from 1
  TableIdentity identity;
  TableSchema schema;
  // The table's place among the 2^shard_bits parts that a larger one was split into by its keys'
  // hashes; 0 of 1 for a whole one.
  uint16_t shard = 0;
  uint8_t shard_bits = 0;
  int64_t created_unix_s = 0;
  std::vector<SegmentRef>
      segments;  // newest first; a key's row is that of the first segment that has it
  bool operator==(const Manifest&) const = default;
};

// JSON text, and a last line with its checksum.
std::string EncodeManifest(const Manifest& manifest);
// DataLoss for damage, FailedPrecondition for another version.
absl::StatusOr<Manifest> DecodeManifest(std::string_view text);

std::string ManifestFileName(uint64_t generation);
std::string SegmentFileName(uint64_t generation, size_t index);
// Whether it is a name that SegmentFileName gives.
bool IsSegmentFileName(std::string_view name);
// Whether it is one of what writers make on the way, which is of no use to anybody else.
bool IsTemporaryFileName(std::string_view name);

// OK for 1 to kTableNameBytesMax letters, digits, '-', '_', '.', not beginning with '.'.
absl::Status ValidateTableName(std::string_view name);

// Names of the folders in `data_dir` that hold a table, sorted.
absl::StatusOr<std::vector<std::string>> ListTables(FileSystem& file_system,
                                                    const std::string& data_dir);
// Generations whose manifests lie in `table_dir`, ascending.
absl::StatusOr<std::vector<uint64_t>> ListGenerations(FileSystem& file_system,
                                                      const std::string& table_dir);
// Errors name the file; NotFound if it is not there.
absl::StatusOr<Manifest> ReadManifest(FileSystem& file_system, const std::string& table_dir,
                                      uint64_t generation);
// The newest generation's; NotFound if the table has none.
absl::StatusOr<Manifest> ReadNewestManifest(FileSystem& file_system, const std::string& table_dir);

// A manifest of a generation that stays as long as this lives: Gc removes none that is held.
struct HeldManifest {
  Manifest manifest;
  std::unique_ptr<FileLock> lock;
};
absl::StatusOr<HeldManifest> HoldManifest(FileSystem& file_system, const std::string& table_dir,
                                          uint64_t generation);
// The newest generation's, also when others publish and remove meanwhile.
absl::StatusOr<HeldManifest> HoldNewestManifest(FileSystem& file_system,
                                                const std::string& table_dir);

// When a generation that follows one of that time is created: now, but never before it, wherever
// the clock has gone.
int64_t CreatedAfter(int64_t before_unix_s);

// Publishes: writes aside, syncs, renames, syncs the folder. The segment files must be synced
// already.
absl::Status PublishManifest(FileSystem& file_system, const std::string& table_dir,
                             const Manifest& manifest);

// Removes what a killed writer left: temporaries, and segment files of generations that were never
// published. Under the table's lock.
absl::Status RemoveOrphans(FileSystem& file_system, const std::string& table_dir);

}  // namespace latchkey
