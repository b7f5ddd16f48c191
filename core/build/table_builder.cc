#include "core/build/table_builder.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/build/partitioned_rows.h"
#include "core/build/partitioner.h"
#include "core/segment/line_shape.h"

namespace latchkey {
namespace {

// One build, from its lock to its manifest.
class Build {
 public:
  Build(FileSystem& file_system, const BuildOptions& options, RecordSource& source,
        const ProgressFunction& progress)
      : file_system_(file_system),
        options_(options),
        source_(source),
        progress_(progress),
        change_(file_system, options.data_dir, options.table) {}

  absl::StatusOr<BuildResult> Run() {
    LATCHKEY_RETURN_IF_ERROR(CheckOptions());
    LATCHKEY_RETURN_IF_ERROR(change_.Begin(/*create=*/true));
    LATCHKEY_RETURN_IF_ERROR(StartManifest());
    // A quarter of the memory is for the partition that is being written.
    Partitioner partitioner(file_system_, JoinPath(change_.table_dir(), "spill.tmp"),
                            options_.memory_bytes / 4 * 3);
    LATCHKEY_RETURN_IF_ERROR(ReadRows(&partitioner));
    PartitionedRows rows(partitioner, change_.manifest().identity.seed);
    rows.SetKeyBytes(key_bytes_min_, key_bytes_max_);
    SegmentChoices choices;
    LATCHKEY_ASSIGN_OR_RETURN(choices.layout, ChooseLayout(rows.counts()));
    choices.filter_bits_per_key = options_.filter_bits_per_key;
    choices.hash_list = options_.hash_list;
    choices.duplicates = options_.duplicates;
    choices.memory_bytes = options_.memory_bytes;
    LATCHKEY_RETURN_IF_ERROR(change_.WriteSegment(
        choices, rows, [this](BuildProgress::Phase phase, uint64_t done, uint64_t total) {
          Report(phase, done, total);
        }));
    LATCHKEY_RETURN_IF_ERROR(change_.Publish());
    result_.generation = change_.manifest().generation;
    result_.rows_stored = change_.header().row_count;
    result_.duplicates_dropped = change_.duplicates_dropped();
    result_.spilled_bytes = partitioner.spilled_bytes();
    result_.header = change_.header();
    result_.segment_path = change_.segment_path();
    LATCHKEY_CHECK(result_.rows_read == result_.rows_stored + result_.duplicates_dropped);
    return result_;
  }

 private:
  absl::Status CheckOptions() const;
  absl::Status StartManifest();
  absl::Status ReadRows(Partitioner* partitioner);
  absl::StatusOr<Layout> ChooseLayout(const RowCounts& counts) const;
  void Report(BuildProgress::Phase phase, uint64_t rows, uint64_t rows_total) const {
    if (!progress_) return;
    progress_({phase, rows, rows_total, source_.bytes_read(), source_.total_bytes()});
  }

  FileSystem& file_system_;
  const BuildOptions& options_;
  RecordSource& source_;
  const ProgressFunction& progress_;
  TableChange change_;
  size_t key_bytes_min_ = SIZE_MAX, key_bytes_max_ = 0;
  std::string odd_length_at_;  // the first row whose key has another length than the one before
  BuildResult result_;
};

absl::Status Build::CheckOptions() const {
  if (absl::Status status = options_.schema.Validate(); !status.ok()) {
    return InvalidArgument("schema: {}", Message(status));
  }
  if (options_.filter_bits_per_key > kFilterBitsPerKeyMax) {
    return InvalidArgument("filter: expected at most {} bits a key, got {}", kFilterBitsPerKeyMax,
                           options_.filter_bits_per_key);
  }
  return CheckMemoryBytes(options_.memory_bytes);
}

absl::Status Build::StartManifest() {
  Manifest& manifest = change_.manifest();
  if (options_.append) {
    if (change_.newest_generation() == 0) {
      return NotFound("{} holds no table to append to", change_.table_dir());
    }
    if (manifest.schema != options_.schema) {
      return FailedPrecondition("cannot append: the table has {}, the rows have {}",
                                manifest.schema.ToString(), options_.schema.ToString());
    }
    LATCHKEY_RETURN_IF_ERROR(change_.CheckRoomForSegment());
    // What is published must open, older segments included.
    return change_.OpenNewest().status();
  }
  manifest.segments.clear();
  manifest.schema = options_.schema;
  return absl::OkStatus();
}

absl::Status Build::ReadRows(Partitioner* partitioner) {
  const TableSchema& schema = options_.schema;
  const uint64_t seed = change_.manifest().identity.seed;
  InputRow input;
  for (uint64_t ordinal = 0;; ++ordinal) {
    if (ordinal % kProgressRows == 0) Report(BuildProgress::Phase::kRead, ordinal, 0);
    LATCHKEY_ASSIGN_OR_RETURN(const bool more, source_.Next(&input));
    if (!more) break;
    const uint64_t doc_id = input.doc_id.value_or(ordinal);
    if (doc_id > schema.DocIdMax()) {
      return InvalidArgument("{}: doc id: expected at most {} for {}-bit doc ids, got {}",
                             source_.Position(), schema.DocIdMax(), schema.doc_id_bytes * 8,
                             doc_id);
    }
    if (schema.value_kind == ValueKind::kFixed && input.value.size() != schema.value_width) {
      return InvalidArgument("{}: value: expected {} bytes, got {}", source_.Position(),
                             schema.value_width, input.value.size());
    }
    if (schema.value_kind == ValueKind::kNone) input.value = {};
    const size_t key_bytes = input.key.size();
    if (schema.key_bytes != 0 && key_bytes != schema.key_bytes) {
      return InvalidArgument("{}: key: expected {} bytes, got {}", source_.Position(),
                             schema.key_bytes, key_bytes);
    }
    if (key_bytes != key_bytes_max_ && key_bytes_max_ > 0 && odd_length_at_.empty()) {
      odd_length_at_ = fmt::format("{}: a key of {} bytes after one of {}", source_.Position(),
                                   key_bytes, key_bytes_max_);
    }
    key_bytes_min_ = std::min(key_bytes_min_, key_bytes);
    key_bytes_max_ = std::max(key_bytes_max_, key_bytes);
    LATCHKEY_RETURN_IF_ERROR(partitioner->Add(HashBytes(input.key.data(), key_bytes, seed),
                                              {doc_id, ordinal, input.key, input.value}));
    ++result_.rows_read;
  }
  Report(BuildProgress::Phase::kRead, result_.rows_read, result_.rows_read);
  return absl::OkStatus();
}

absl::StatusOr<Layout> Build::ChooseLayout(const RowCounts& counts) const {
  if (options_.layout == LayoutChoice::kPointer) return Layout::kPointer;
  const TableSchema& schema = options_.schema;
  if (options_.layout == LayoutChoice::kAuto) return AutoLayout(schema, counts);
  const size_t longest = kLineRecordBytesMax - schema.doc_id_bytes - schema.InlineValueBytes();
  if (odd_length_at_.empty() && key_bytes_max_ <= longest) return Layout::kLine;
  return InvalidArgument(
      "layout line: expected keys of one length, at most {} bytes beside such values; got {}",
      longest,
      odd_length_at_.empty() ? fmt::format("keys of {} bytes", key_bytes_max_) : odd_length_at_);
}

}  // namespace

absl::StatusOr<BuildResult> BuildTable(FileSystem& file_system, const BuildOptions& options,
                                       RecordSource& source, const ProgressFunction& progress) {
  return Build(file_system, options, source, progress).Run();
}

}  // namespace latchkey
