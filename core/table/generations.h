// The generations of a table: which there are, one's content published again, old ones removed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/io/file_system.h"
#include "core/table/manifest.h"

namespace latchkey {

struct GenerationInfo {
  uint64_t generation = 0;
  bool newest = false;
  // Why its manifest can't be read; then what follows is unset, but for `held`.
  absl::Status status;
  int64_t created_unix_s = 0;
  uint64_t segments = 0;
  uint64_t rows = 0;         // sum over the segments: a key that several have counts in each
  uint64_t file_bytes = 0;   // of the segments, those that other generations name too included
  std::optional<bool> held;  // by a reader; nothing where that can't be told
};

// Ascending. NotFound if the table has none.
absl::StatusOr<std::vector<GenerationInfo>> ListTableGenerations(FileSystem& file_system,
                                                                 const std::string& table_dir);

// "1, 3 to 7", of ascending numbers.
std::string GenerationsText(const std::vector<uint64_t>& generations);

// As HoldManifest, but where there is no such generation, the error lists those there are.
absl::StatusOr<HeldManifest> HoldGeneration(FileSystem& file_system, const std::string& table_dir,
                                            uint64_t generation);

// Publishes a new generation with the content of an earlier one, and returns its manifest. It reads
// no rows, but every segment file must be there, and be the one that was meant, by its size and its
// header. Errors: as HoldGeneration; FailedPrecondition for the newest generation itself, and when
// another writer is at work; else what Snapshot::Open gives. After an error the table is as it was,
// unless it came from syncing the folder in the end.
absl::StatusOr<Manifest> Rollback(FileSystem& file_system, const std::string& table_dir,
                                  uint64_t generation);

struct GcOptions {
  uint64_t keep = 1;     // so many of the newest generations; at least 1
  bool dry_run = false;  // tells what it would do; needs no right to write
};

struct GcResult {
  // Generations, ascending; together all that there were.
  std::vector<uint64_t> kept;  // the newest
  std::vector<uint64_t> held;  // older ones that stay because a reader holds them
  std::vector<uint64_t> removed;
  // Names of the files that were removed: manifests, segments, and what killed writers left.
  std::vector<std::string> files;
  uint64_t bytes = 0;  // of them
};

// Removes old generations, and files that no remaining one names. The manifests go first, durably:
// killed in between, it leaves files that the next one removes. Errors: InvalidArgument for keep 0,
// NotFound if the table has no generation, FailedPrecondition when another writer is at work, or
// when all generations that would stay lack files, as one does that is still being copied;
// and what reading gives of a manifest that stays, for whose files it can't know: then no segment
// is removed.
absl::StatusOr<GcResult> Gc(FileSystem& file_system, const std::string& table_dir,
                            const GcOptions& options);

}  // namespace latchkey
