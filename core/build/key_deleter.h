// Deletes keys of a table: a new segment that says of each that it is gone.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "core/build/record_source.h"
#include "core/build/table_change.h"
#include "core/io/file_system.h"
#include "core/key/key_kind.h"
#include "core/segment/format.h"

namespace latchkey {

struct DeleteOptions {
  std::string data_dir;
  std::string table;
  KeyKind key_kind = KeyKind::kRaw;  // that the source reads; must be the table's
  uint64_t memory_bytes = uint64_t{256} << 20;
};

struct DeleteResult {
  bool published = false;   // false if none of the keys was there
  uint64_t generation = 0;  // the newest there is
  uint64_t keys_read = 0;   // = deleted + absent + repeated
  uint64_t deleted = 0;
  uint64_t absent = 0;    // not in the table, or deleted already
  uint64_t repeated = 0;  // keys that came before in the same input
  uint64_t spilled_bytes = 0;
  SegmentHeader header;  // of the segment that was written, if any
  std::string segment_path;
};

// Reads keys, values and doc ids aside, looks each up in the newest generation, and publishes one
// in which those that were there are not. All of them are gone in it, or, after an error, none;
// when none was there, nothing is published. Its segment has filter and hash list as the newest one
// has. Memory as BuildTable; the table's files are mapped beside it. `progress` as in BuildTable.
// Errors: what the source gives; NotFound without such a table; InvalidArgument for keys of another
// length than the table's; FailedPrecondition for another key kind, and when another writer is at
// work; DataLoss when what the table holds for a key can't be read.
absl::StatusOr<DeleteResult> DeleteKeys(FileSystem& file_system, const DeleteOptions& options,
                                        RecordSource& source, const ProgressFunction& progress);

}  // namespace latchkey
