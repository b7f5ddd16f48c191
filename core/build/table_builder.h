// From rows to a published generation: the whole pipeline.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/build/record_source.h"
#include "core/build/table_change.h"
#include "core/io/file_system.h"
#include "core/segment/format.h"

namespace latchkey {

enum class LayoutChoice { kAuto, kLine, kPointer };

struct BuildOptions {
  std::string data_dir;
  std::string table;
  TableSchema schema;
  LayoutChoice layout = LayoutChoice::kAuto;
  DuplicateRule duplicates = DuplicateRule::kReject;
  uint8_t filter_bits_per_key = 10;  // 0: no filter
  // Of which a table of several segments makes its segment map. Two to three bytes a row.
  bool hash_list = true;
  uint64_t memory_bytes = uint64_t{256} << 20;
  // Adds a segment that wins over the table's present ones, instead of replacing them.
  bool append = false;
};

struct BuildResult {
  uint64_t generation = 0;
  uint64_t rows_read = 0;  // = rows_stored + duplicates_dropped
  uint64_t rows_stored = 0;
  uint64_t duplicates_dropped = 0;
  uint64_t spilled_bytes = 0;
  SegmentHeader header;  // of the segment that was written
  std::string segment_path;
};

// Reads all rows of `source` into a new segment and publishes a generation with it. Until the last
// step the table is as it was, and after an error it still is, unless that error came from syncing
// the folder after the manifest was renamed into place: then the new generation stands, whole.
// Memory: `memory_bytes`, or the rows of the largest of 1,024 partitions if that is more.
// `progress` is called now and then, from the calling thread. Errors: what the source gives;
// InvalidArgument for options or rows that contradict each other, and for duplicates under kReject;
// FailedPrecondition when another writer is at work.
absl::StatusOr<BuildResult> BuildTable(FileSystem& file_system, const BuildOptions& options,
                                       RecordSource& source, const ProgressFunction& progress);

}  // namespace latchkey
