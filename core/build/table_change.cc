#include "core/build/table_change.h"

#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/segment/line_shape.h"
#include "core/segment/segment.h"
#include "core/segment/segment_writer.h"

namespace latchkey {
namespace {

// Partitions of so many rows are built within the second-level cache.
constexpr uint64_t kPartitionRowsWanted = 49'152;

void FillRandom(void* to, size_t size_bytes) {
  LATCHKEY_CHECK(::getrandom(to, size_bytes, 0) == static_cast<ssize_t>(size_bytes));
}

// Takes the tombstones out; returns how many there were.
uint64_t DropTombstones(std::vector<SegmentRow>* rows) {
  return std::erase_if(*rows, [](const SegmentRow& row) { return row.tombstone; });
}

}  // namespace

void ChooseAsIn(const SegmentHeader& newest, SegmentChoices* choices) {
  const bool filter = newest.filter_kind == FilterKind::kRegisterBlocked;
  choices->filter_bits_per_key = filter ? newest.filter_bits_per_key : 0;
  choices->hash_list = newest.hash_bits != 0;
}

Layout AutoLayout(const TableSchema& schema, const RowCounts& counts) {
  const bool one_length = counts.key_bytes_min >= counts.key_bytes_max;
  return one_length && LineShape::SuitsRows(schema, counts.key_bytes_max) ? Layout::kLine
                                                                          : Layout::kPointer;
}

unsigned PartitionBitsFor(const RowCounts& counts, uint64_t memory_bytes) {
  // A partition takes what its rows take, what sorting them needs, and its part of the file.
  const uint64_t working_bytes = counts.working_bytes + 3 * sizeof(TakenRow) * counts.rows;
  unsigned bits = 0;
  while (bits < kPartitionBitsMax &&
         (counts.rows >> bits > kPartitionRowsWanted || working_bytes >> bits > memory_bytes / 5)) {
    ++bits;
  }
  return bits;
}

absl::Status CheckMemoryBytes(uint64_t memory_bytes) {
  if (memory_bytes >= kBuildMemoryBytesMin) return absl::OkStatus();
  return InvalidArgument("memory: expected at least {} MiB, got {}", kBuildMemoryBytesMin >> 20,
                         memory_bytes >> 20);
}

TableChange::TableChange(FileSystem& file_system, const std::string& data_dir,
                         const std::string& table)
    : file_system_(file_system), table_(table), table_dir_(JoinPath(data_dir, table)) {}

TableChange::~TableChange() {
  if (!keep_segment_) (void)file_system_.Remove(segment_path_);
}

absl::Status TableChange::Begin(bool create) {
  LATCHKEY_RETURN_IF_ERROR(ValidateTableName(table_));
  if (create) {
    LATCHKEY_RETURN_IF_ERROR(file_system_.CreateDirectories(table_dir_));
  } else {
    // Before the lock, whose file would stay in a folder that is no table.
    LATCHKEY_RETURN_IF_ERROR(ReadNewestManifest(file_system_, table_dir_).status());
  }
  LATCHKEY_ASSIGN_OR_RETURN(lock_, file_system_.Lock(JoinPath(table_dir_, "lock")));
  LATCHKEY_RETURN_IF_ERROR(RemoveOrphans(file_system_, table_dir_));
  LATCHKEY_ASSIGN_OR_RETURN(const auto generations, ListGenerations(file_system_, table_dir_));
  if (!generations.empty()) {
    LATCHKEY_ASSIGN_OR_RETURN(newest_, ReadManifest(file_system_, table_dir_, generations.back()));
    manifest_ = newest_;
    if (manifest_.shard_bits != 0) {
      return FailedPrecondition(
          "{}: it is one of {} shards of a table, which this program only reads", table_dir_,
          1u << manifest_.shard_bits);
    }
  } else {
    FillRandom(&manifest_.identity.seed, sizeof(manifest_.identity.seed));
    FillRandom(manifest_.identity.table_id.data(), manifest_.identity.table_id.size());
  }
  ++manifest_.generation;
  manifest_.created_unix_s = CreatedAfter(manifest_.created_unix_s);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Snapshot>> TableChange::OpenNewest() const {
  return Snapshot::Open(file_system_, table_dir_, newest_, {.segment_map_bytes_max = 0});
}

absl::Status TableChange::CheckRoomForSegment() const {
  if (manifest_.segments.size() < kSegmentsPerGenerationMax) return absl::OkStatus();
  return FailedPrecondition("{}: the table has {} segments already, and can't have more",
                            table_dir_, kSegmentsPerGenerationMax);
}

SegmentPlan TableChange::PlanSegment(const SegmentChoices& choices, const RowCounts& counts) const {
  SegmentPlan plan;
  plan.identity = manifest_.identity;
  plan.schema = manifest_.schema;
  plan.shard_bits = manifest_.shard_bits;
  plan.shard = manifest_.shard;
  FillRandom(&plan.segment_id, sizeof(plan.segment_id));
  plan.layout = choices.layout;
  plan.filter_bits_per_key = choices.filter_bits_per_key;
  if (choices.hash_list) {
    uint64_t table_rows = counts.rows;
    for (const SegmentRef& ref : manifest_.segments) table_rows += ref.row_count;
    plan.hash_list = HashListShape::For(counts.rows, table_rows);
  }
  plan.key_bytes_min = static_cast<uint16_t>(counts.rows == 0 ? 0 : counts.key_bytes_min);
  plan.key_bytes_max = static_cast<uint16_t>(counts.key_bytes_max);
  plan.partition_bits = static_cast<uint8_t>(PartitionBitsFor(counts, choices.memory_bytes));
  plan.partitions.resize(size_t{1} << plan.partition_bits);
  for (size_t i = 0; i < kBucketCount; ++i) {
    SegmentPlan::Bound& bound = plan.partitions[i >> (kPartitionBitsMax - plan.partition_bits)];
    bound.rows += counts.buckets[i].rows;
    bound.key_bytes += counts.buckets[i].key_bytes;
  }
  if (plan.schema.value_kind == ValueKind::kBytes) plan.value_bytes = counts.value_bytes;
  return plan;
}

absl::Status TableChange::WriteSegment(const SegmentChoices& choices, RowsByBucket& rows,
                                       const Report& report) {
  segment_file_ = SegmentFileName(manifest_.generation, 0);
  segment_path_ = JoinPath(table_dir_, segment_file_);
  keep_segment_ = false;
  LATCHKEY_RETURN_IF_ERROR(WriteRows(choices, rows, report));
  report(BuildProgress::Phase::kCheck, 0, header_.row_count);
  LATCHKEY_RETURN_IF_ERROR(Recheck());
  report(BuildProgress::Phase::kCheck, header_.row_count, header_.row_count);
  return absl::OkStatus();
}

absl::Status TableChange::WriteRows(const SegmentChoices& choices, RowsByBucket& rows,
                                    const Report& report) {
  const RowCounts& counts = rows.counts();
  const SegmentPlan plan = PlanSegment(choices, counts);
  LATCHKEY_ASSIGN_OR_RETURN(auto writer, SegmentWriter::Create(file_system_, segment_path_, plan));
  Duplicates duplicates;
  std::vector<TakenRow> taken, scratch;
  std::vector<SegmentRow> distinct;
  uint64_t rows_done = 0, rows_stored = 0;
  const size_t buckets = kBucketCount >> plan.partition_bits;
  for (size_t begin = 0; begin < kBucketCount; begin += buckets) {
    taken.clear();
    LATCHKEY_RETURN_IF_ERROR(rows.Take(begin, begin + buckets, &taken));
    SortByHash(plan.partition_bits, &taken, &scratch);
    DropDuplicates(taken, choices.duplicates, &distinct, &duplicates);
    if (choices.drop_tombstones) tombstones_dropped_ += DropTombstones(&distinct);
    LATCHKEY_RETURN_IF_ERROR(writer->AddPartition(distinct));
    rows_done += taken.size();
    rows_stored += distinct.size();
    report(BuildProgress::Phase::kWrite, rows_done, counts.rows);
  }
  if (choices.duplicates == DuplicateRule::kReject && duplicates.dropped > 0) {
    return RejectDuplicates(duplicates, manifest_.schema.key_kind);
  }
  duplicates_dropped_ = duplicates.dropped;
  if (rows_stored == 0 && counts.rows > 0) {
    // A segment without rows has no lengths of keys, which had to be stated first.
    LATCHKEY_RETURN_IF_ERROR(file_system_.Remove(segment_path_));
    SegmentChoices empty = choices;
    empty.layout = AutoLayout(manifest_.schema, RowCounts());
    LATCHKEY_ASSIGN_OR_RETURN(writer, SegmentWriter::Create(file_system_, segment_path_,
                                                            PlanSegment(empty, RowCounts())));
    LATCHKEY_RETURN_IF_ERROR(writer->AddPartition({}));
  }
  LATCHKEY_ASSIGN_OR_RETURN(header_, writer->Finish());
  LATCHKEY_CHECK(rows_done == header_.row_count + duplicates_dropped_ + tombstones_dropped_);
  return absl::OkStatus();
}

// What was written is read back, before anybody relies on it.
absl::Status TableChange::Recheck() {
  std::vector<DamagedBlock> damaged;
  LATCHKEY_RETURN_IF_ERROR(VerifySegmentFile(file_system_, segment_path_, &damaged));
  if (!damaged.empty()) {
    return DataLoss(
        "{}: reads back other bytes than were written, first in section '{}' at offset {}",
        segment_path_, damaged[0].section, damaged[0].offset);
  }
  LATCHKEY_ASSIGN_OR_RETURN(const auto segment, Segment::Open(file_system_, segment_path_));
  if (segment->header() != header_) {
    return DataLoss("{}: reads back another header than was written", segment_path_);
  }
  segment_ref_ = {segment_file_, segment->header().file_bytes(), segment->header().segment_id,
                  segment->header_checksum(), segment->header().row_count};
  return absl::OkStatus();
}

absl::Status TableChange::Publish() {
  manifest_.segments.insert(manifest_.segments.begin(), segment_ref_);
  const absl::Status published = PublishManifest(file_system_, table_dir_, manifest_);
  // A manifest may stand there although publishing it failed afterwards: then its segment stays.
  keep_segment_ = published.ok() || MayBePublished();
  return published;
}

bool TableChange::MayBePublished() const {
  const auto generations = ListGenerations(file_system_, table_dir_);
  return !generations.ok() ||
         (!generations->empty() && generations->back() == manifest_.generation);
}

}  // namespace latchkey
