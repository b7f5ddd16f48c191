#include "core/build/table_builder.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/build/partitioner.h"
#include "core/key/key_hash.h"
#include "core/segment/segment_writer.h"
#include "core/table/snapshot.h"

namespace latchkey {
namespace {

constexpr uint64_t kProgressRows = 65'536;
// Partitions of so many rows are built within the second-level cache.
constexpr uint64_t kPartitionRowsWanted = 49'152;

void FillRandom(void* to, size_t size_bytes) {
  LATCHKEY_CHECK(::getrandom(to, size_bytes, 0) == static_cast<ssize_t>(size_bytes));
}

struct Duplicates {
  uint64_t dropped = 0;
  std::string first_key;  // an example, for the message
  uint64_t first_ordinal = 0, second_ordinal = 0;
};

// A row of a partition, before it is known to be the one that counts.
struct SortedRow {
  uint64_t hash = 0;
  PackedRow row;
};

// Puts rows in the order of their hashes, rows of equal hashes in the order of the input. The bits
// above `partition_bits` are equal in all of them. One counting pass by the next bits leaves about
// one row a bucket.
void SortByHash(unsigned partition_bits, std::vector<SortedRow>* rows,
                std::vector<SortedRow>* scratch) {
  const unsigned bits = std::bit_width(rows->size());
  std::vector<uint32_t> starts((size_t{1} << bits) + 1);
  const auto bucket_of = [&](const SortedRow& row) {
    return TopBits(row.hash << partition_bits, bits);
  };
  for (const SortedRow& row : *rows) ++starts[bucket_of(row) + 1];
  for (size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
  scratch->resize(rows->size());
  for (const SortedRow& row : *rows) (*scratch)[starts[bucket_of(row)]++] = row;
  rows->swap(*scratch);
  for (size_t i = 1; i < rows->size(); ++i) {
    for (size_t j = i; j > 0 && (*rows)[j].hash < (*rows)[j - 1].hash; --j) {
      std::swap((*rows)[j], (*rows)[j - 1]);
    }
  }
}

// Copies the rows that count to *distinct. Rows of one key have equal hashes, so they lie side by
// side.
void DropDuplicates(const std::vector<SortedRow>& rows, DuplicateRule rule,
                    std::vector<SegmentRow>* distinct, Duplicates* duplicates) {
  distinct->clear();
  size_t group_begin = 0;  // in *distinct: rows of the present hash
  uint64_t group_hash = 0;
  std::vector<uint64_t> ordinals;  // of the rows in *distinct of the present hash
  for (const SortedRow& sorted : rows) {
    const PackedRow& row = sorted.row;
    if (distinct->empty() || sorted.hash != group_hash) {
      group_begin = distinct->size();
      group_hash = sorted.hash;
      ordinals.clear();
    }
    const auto same =
        std::find_if(distinct->begin() + static_cast<ptrdiff_t>(group_begin), distinct->end(),
                     [&](const SegmentRow& other) { return other.key == row.key; });
    if (same == distinct->end()) {
      distinct->push_back({sorted.hash, row.doc_id, row.key, row.value});
      ordinals.push_back(row.ordinal);
      continue;
    }
    const uint64_t earlier = ordinals[static_cast<size_t>(same - distinct->begin()) - group_begin];
    if (duplicates->dropped++ == 0 || row.ordinal < duplicates->second_ordinal) {
      duplicates->first_key = row.key;
      duplicates->first_ordinal = earlier;
      duplicates->second_ordinal = row.ordinal;
    }
    if (rule == DuplicateRule::kLast) {
      same->doc_id = row.doc_id;
      same->value = row.value;
    }
  }
}

// Removes a file unless it was kept.
class FileRemover {
 public:
  FileRemover(FileSystem& file_system, std::string path)
      : file_system_(file_system), path_(std::move(path)) {}
  ~FileRemover() {
    if (!kept_) (void)file_system_.Remove(path_);
  }
  void Keep() { kept_ = true; }

 private:
  FileSystem& file_system_;
  const std::string path_;
  bool kept_ = false;
};

// One build, from its lock to its manifest.
class Build {
 public:
  Build(FileSystem& file_system, const BuildOptions& options, RecordSource& source,
        const std::function<void(const BuildProgress&)>& progress)
      : file_system_(file_system),
        options_(options),
        source_(source),
        progress_(progress),
        table_dir_(JoinPath(options.data_dir, options.table)) {}

  absl::StatusOr<BuildResult> Run() {
    LATCHKEY_RETURN_IF_ERROR(CheckOptions());
    LATCHKEY_RETURN_IF_ERROR(file_system_.CreateDirectories(table_dir_));
    LATCHKEY_ASSIGN_OR_RETURN(const auto lock, file_system_.Lock(JoinPath(table_dir_, "lock")));
    LATCHKEY_RETURN_IF_ERROR(RemoveOrphans(file_system_, table_dir_));
    LATCHKEY_RETURN_IF_ERROR(StartManifest());
    // A quarter of the memory is for the partition that is being written.
    Partitioner partitioner(file_system_, JoinPath(table_dir_, "spill.tmp"),
                            options_.memory_bytes / 4 * 3);
    LATCHKEY_RETURN_IF_ERROR(ReadRows(&partitioner));
    result_.spilled_bytes = partitioner.spilled_bytes();
    const std::string file = SegmentFileName(manifest_.generation, 0);
    result_.segment_path = JoinPath(table_dir_, file);
    FileRemover remover(file_system_, result_.segment_path);
    LATCHKEY_RETURN_IF_ERROR(WriteSegment(&partitioner));
    LATCHKEY_RETURN_IF_ERROR(RecheckSegment(file));
    const absl::Status published = PublishManifest(file_system_, table_dir_, manifest_);
    // A manifest may stand there although publishing it failed afterwards: then its segment stays.
    if (published.ok() || MayBePublished()) remover.Keep();
    LATCHKEY_RETURN_IF_ERROR(published);
    return result_;
  }

 private:
  absl::Status CheckOptions() const;
  absl::Status StartManifest();
  absl::Status ReadRows(Partitioner* partitioner);
  absl::StatusOr<Layout> ChooseLayout() const;
  absl::StatusOr<SegmentPlan> PlanSegment(const Partitioner& partitioner) const;
  absl::Status WriteSegment(Partitioner* partitioner);
  absl::Status RejectDuplicates(const Duplicates& duplicates) const;
  absl::Status RecheckSegment(const std::string& file);
  bool MayBePublished() const {
    const auto generations = ListGenerations(file_system_, table_dir_);
    return !generations.ok() ||
           (!generations->empty() && generations->back() == manifest_.generation);
  }
  void Report(BuildProgress::Phase phase, uint64_t rows, uint64_t rows_total) const {
    if (!progress_) return;
    progress_({phase, rows, rows_total, source_.bytes_read(), source_.total_bytes()});
  }

  FileSystem& file_system_;
  const BuildOptions& options_;
  RecordSource& source_;
  const std::function<void(const BuildProgress&)>& progress_;
  const std::string table_dir_;
  Manifest manifest_;  // of the generation that will be published
  size_t key_bytes_min_ = SIZE_MAX, key_bytes_max_ = 0;
  std::string odd_length_at_;  // the first row whose key has another length than the one before
  BuildResult result_;
};

absl::Status Build::CheckOptions() const {
  LATCHKEY_RETURN_IF_ERROR(ValidateTableName(options_.table));
  if (absl::Status status = options_.schema.Validate(); !status.ok()) {
    return InvalidArgument("schema: {}", Message(status));
  }
  if (options_.filter_bits_per_key > kFilterBitsPerKeyMax) {
    return InvalidArgument("filter: expected at most {} bits a key, got {}", kFilterBitsPerKeyMax,
                           options_.filter_bits_per_key);
  }
  if (options_.memory_bytes < kBuildMemoryBytesMin) {
    return InvalidArgument("memory: expected at least {} MiB, got {}", kBuildMemoryBytesMin >> 20,
                           options_.memory_bytes >> 20);
  }
  return absl::OkStatus();
}

absl::Status Build::StartManifest() {
  LATCHKEY_ASSIGN_OR_RETURN(const auto generations, ListGenerations(file_system_, table_dir_));
  if (generations.empty()) {
    if (options_.append) return NotFound("{} holds no table to append to", table_dir_);
    FillRandom(&manifest_.identity.seed, sizeof(manifest_.identity.seed));
    FillRandom(manifest_.identity.table_id.data(), manifest_.identity.table_id.size());
  } else {
    LATCHKEY_ASSIGN_OR_RETURN(manifest_,
                              ReadManifest(file_system_, table_dir_, generations.back()));
    if (manifest_.shard_bits != 0) {
      return FailedPrecondition(
          "{}: it is one of {} shards of a table, which this program only reads", table_dir_,
          1u << manifest_.shard_bits);
    }
    if (!options_.append) manifest_.segments.clear();
    if (options_.append && manifest_.schema != options_.schema) {
      return FailedPrecondition("cannot append: the table has {}, the rows have {}",
                                manifest_.schema.ToString(), options_.schema.ToString());
    }
    if (manifest_.segments.size() == kSegmentsPerGenerationMax) {
      return FailedPrecondition("cannot append: the table has {} segments already",
                                kSegmentsPerGenerationMax);
    }
  }
  ++manifest_.generation;
  manifest_.schema = options_.schema;
  manifest_.created_unix_s = std::chrono::duration_cast<std::chrono::seconds>(
                                 std::chrono::system_clock::now().time_since_epoch())
                                 .count();
  result_.generation = manifest_.generation;
  return absl::OkStatus();
}

absl::Status Build::ReadRows(Partitioner* partitioner) {
  const TableSchema& schema = options_.schema;
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
    LATCHKEY_RETURN_IF_ERROR(
        partitioner->Add(HashBytes(input.key.data(), key_bytes, manifest_.identity.seed),
                         {doc_id, ordinal, input.key, input.value}));
    ++result_.rows_read;
  }
  Report(BuildProgress::Phase::kRead, result_.rows_read, result_.rows_read);
  return absl::OkStatus();
}

absl::StatusOr<Layout> Build::ChooseLayout() const {
  const TableSchema& schema = options_.schema;
  switch (options_.layout) {
    case LayoutChoice::kPointer:
      return Layout::kPointer;
    case LayoutChoice::kAuto:
      return odd_length_at_.empty() && LineShape::SuitsRows(schema, key_bytes_max_)
                 ? Layout::kLine
                 : Layout::kPointer;
    case LayoutChoice::kLine:
      break;
  }
  const size_t longest = kLineRecordBytesMax - schema.doc_id_bytes - schema.InlineValueBytes();
  if (odd_length_at_.empty() && key_bytes_max_ <= longest) return Layout::kLine;
  return InvalidArgument(
      "layout line: expected keys of one length, at most {} bytes beside such values; got {}",
      longest,
      odd_length_at_.empty() ? fmt::format("keys of {} bytes", key_bytes_max_) : odd_length_at_);
}

absl::StatusOr<SegmentPlan> Build::PlanSegment(const Partitioner& partitioner) const {
  SegmentPlan plan;
  plan.identity = manifest_.identity;
  plan.schema = options_.schema;
  plan.shard_bits = manifest_.shard_bits;
  plan.shard = manifest_.shard;
  FillRandom(&plan.segment_id, sizeof(plan.segment_id));
  LATCHKEY_ASSIGN_OR_RETURN(plan.layout, ChooseLayout());
  plan.filter_bits_per_key = options_.filter_bits_per_key;
  if (options_.hash_list) {
    uint64_t table_rows = result_.rows_read;
    for (const SegmentRef& ref : manifest_.segments) table_rows += ref.row_count;
    plan.hash_list = HashListShape::For(result_.rows_read, table_rows);
  }
  plan.key_bytes_min = static_cast<uint16_t>(result_.rows_read == 0 ? 0 : key_bytes_min_);
  plan.key_bytes_max = static_cast<uint16_t>(key_bytes_max_);

  uint64_t packed_bytes = 0;
  for (const auto& bucket : partitioner.buckets()) packed_bytes += bucket.packed_bytes;
  // A partition takes its packed rows, what sorting them needs, and its part of the file.
  const uint64_t working_bytes = 2 * packed_bytes + 3 * sizeof(SortedRow) * result_.rows_read;
  while (plan.partition_bits < kPartitionBitsMax &&
         (result_.rows_read >> plan.partition_bits > kPartitionRowsWanted ||
          working_bytes >> plan.partition_bits > options_.memory_bytes / 5)) {
    ++plan.partition_bits;
  }
  plan.partitions.resize(size_t{1} << plan.partition_bits);
  for (size_t i = 0; i < kBucketCount; ++i) {
    SegmentPlan::Bound& bound = plan.partitions[i >> (kPartitionBitsMax - plan.partition_bits)];
    bound.rows += partitioner.buckets()[i].rows;
    bound.key_bytes += partitioner.buckets()[i].key_bytes;
    if (plan.schema.value_kind == ValueKind::kBytes) {
      plan.value_bytes += partitioner.buckets()[i].value_bytes;
    }
  }
  return plan;
}

absl::Status Build::WriteSegment(Partitioner* partitioner) {
  LATCHKEY_ASSIGN_OR_RETURN(const SegmentPlan plan, PlanSegment(*partitioner));
  LATCHKEY_ASSIGN_OR_RETURN(const auto writer,
                            SegmentWriter::Create(file_system_, result_.segment_path, plan));
  Duplicates duplicates;
  std::string packed;
  std::vector<SortedRow> rows, scratch;
  std::vector<SegmentRow> distinct;
  uint64_t rows_done = 0;
  const size_t buckets = kBucketCount >> plan.partition_bits;
  for (size_t begin = 0; begin < kBucketCount; begin += buckets) {
    packed.clear();
    LATCHKEY_RETURN_IF_ERROR(partitioner->Take(begin, begin + buckets, &packed));
    rows.clear();
    for (const char* at = packed.data(); at != packed.data() + packed.size();) {
      SortedRow sorted;
      at = Partitioner::Unpack(at, &sorted.row);
      sorted.hash = HashBytes(sorted.row.key.data(), sorted.row.key.size(), plan.identity.seed);
      rows.push_back(sorted);
    }
    SortByHash(plan.partition_bits, &rows, &scratch);
    DropDuplicates(rows, options_.duplicates, &distinct, &duplicates);
    LATCHKEY_RETURN_IF_ERROR(writer->AddPartition(distinct));
    rows_done += rows.size();
    Report(BuildProgress::Phase::kWrite, rows_done, result_.rows_read);
  }
  if (options_.duplicates == DuplicateRule::kReject && duplicates.dropped > 0) {
    return RejectDuplicates(duplicates);
  }
  LATCHKEY_ASSIGN_OR_RETURN(result_.header, writer->Finish());
  result_.rows_stored = result_.header.row_count;
  result_.duplicates_dropped = duplicates.dropped;
  LATCHKEY_CHECK(result_.rows_read == result_.rows_stored + result_.duplicates_dropped);
  return absl::OkStatus();
}

absl::Status Build::RejectDuplicates(const Duplicates& duplicates) const {
  std::string key = KeyToText(options_.schema.key_kind, duplicates.first_key);
  if (key.size() > 80) key = key.substr(0, 77) + "...";
  return InvalidArgument(
      "{} rows repeat a key; the first is row {} of the input, with the key '{}' of row {} (rows "
      "are counted from 1); keep one with --duplicates first or last",
      duplicates.dropped, duplicates.second_ordinal + 1, key, duplicates.first_ordinal + 1);
}

// What was written is read back, before anybody relies on it.
absl::Status Build::RecheckSegment(const std::string& file) {
  Report(BuildProgress::Phase::kCheck, 0, result_.rows_stored);
  std::vector<DamagedBlock> damaged;
  LATCHKEY_RETURN_IF_ERROR(VerifySegmentFile(file_system_, result_.segment_path, &damaged));
  if (!damaged.empty()) {
    return DataLoss(
        "{}: reads back other bytes than were written, first in section '{}' at offset {}",
        result_.segment_path, damaged[0].section, damaged[0].offset);
  }
  LATCHKEY_ASSIGN_OR_RETURN(const auto segment, Segment::Open(file_system_, result_.segment_path));
  if (segment->header() != result_.header) {
    return DataLoss("{}: reads back another header than was written", result_.segment_path);
  }
  manifest_.segments.insert(manifest_.segments.begin(),
                            {file, segment->header().file_bytes(), segment->header().segment_id,
                             segment->header_checksum(), segment->header().row_count});
  Report(BuildProgress::Phase::kCheck, result_.rows_stored, result_.rows_stored);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BuildResult> BuildTable(FileSystem& file_system, const BuildOptions& options,
                                       RecordSource& source,
                                       const std::function<void(const BuildProgress&)>& progress) {
  return Build(file_system, options, source, progress).Run();
}

}  // namespace latchkey
