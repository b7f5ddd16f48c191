#include "core/build/merged_rows.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/key/key_hash.h"
#include "core/segment/hash_list.h"

namespace latchkey {
namespace {

size_t BucketOf(uint64_t hash) { return PartitionOf(hash, 0, kPartitionBitsMax); }

TakenRow TakenOf(const StoredRow& stored) {
  TakenRow row;
  row.hash = stored.hash;
  row.doc_id = stored.doc_id;
  row.tombstone = stored.tombstone;
  row.key = stored.key;
  row.value = stored.value;
  return row;
}

void LetGo(const Segment& segment, const Partition& partition) {
  const MappedFile& file = segment.file();
  file.LetGo(partition.lines,
             partition.lines + (uint64_t{partition.line_count} << partition.line_shift));
  file.LetGo(partition.records, partition.records + partition.record_bytes);
}

}  // namespace

struct MergedRows::Source {
  const Segment* segment = nullptr;
  uint64_t rank = 0;
  uint64_t partition_rows_max = 0;
  uint64_t key_bytes = 0;
  bool spilled = false;
  size_t next_partition = 0;   // to be read
  size_t first_used = 0;       // of those that were, the first that rows may point into
  std::vector<TakenRow> kept;  // of the partition before the next, in the order of their hashes
  size_t kept_begin = 0;       // those before it were taken
  const uint8_t* values_end = nullptr;  // of those that were read
  const uint8_t* values_used = nullptr;
  uint64_t rows_read = 0;

  size_t buckets_per_partition() const { return kBucketCount >> segment->header().partition_bits; }
  // Reads the next partition.
  template <typename Visit>
  absl::Status Read(Visit visit) {
    const Partition& partition = segment->partitions()[next_partition++];
    const auto take = [&](const StoredRow& row) -> absl::Status {
      ++rows_read;
      const auto* const end = reinterpret_cast<const uint8_t*>(row.value.data() + row.value.size());
      if (segment->header().schema.value_kind == ValueKind::kBytes && !row.value.empty()) {
        if (values_used == nullptr) values_used = end - row.value.size();
        values_end = std::max(values_end, end);
      }
      return visit(TakenOf(row));
    };
    return segment->ForEachRowOf(partition, /*with_values=*/true, take);
  }
  // Lets go of what no row points into any more.
  void LetGoOfTaken() {
    const bool keeps = kept_begin < kept.size();
    for (const size_t end = next_partition - keeps; first_used < end; ++first_used) {
      LetGo(*segment, segment->partitions()[first_used]);
    }
    if (keeps || values_end == values_used) return;
    segment->file().LetGo(values_used, values_end);
    values_used = values_end;
  }
};

MergedRows::MergedRows(FileSystem& file_system, std::vector<const Segment*> segments,
                       std::string spill_path, uint64_t memory_bytes)
    : file_system_(file_system), spill_path_(std::move(spill_path)), memory_bytes_(memory_bytes) {
  for (const Segment* segment : segments) {
    Source& source = sources_.emplace_back();
    source.segment = segment;
    source.rank = sources_.size() - 1;
  }
}

MergedRows::~MergedRows() = default;

absl::Status MergedRows::Prepare() {
  for (Source& source : sources_) LATCHKEY_RETURN_IF_ERROR(CountSource(&source));
  // Each step may mean more partitions, and so more segments that are coarser than they are.
  for (bool changed = true; changed;) {
    changed = false;
    const unsigned bits = PartitionBitsFor(counts_, memory_bytes_);
    uint64_t kept_bytes = 0;
    for (Source& source : sources_) {
      const SegmentHeader& header = source.segment->header();
      if (source.spilled || header.partition_bits >= bits) continue;
      const uint64_t bytes = sizeof(TakenRow) * source.partition_rows_max;
      if (kept_bytes + bytes <= memory_bytes_ / 4) {
        kept_bytes += bytes;
        continue;
      }
      source.spilled = changed = true;
      // Lengths and numbers take some bytes more; once more for what is written.
      counts_.working_bytes += 2 * (source.key_bytes + 16 * header.row_count +
                                    header.section(SectionKind::kValues).size_bytes);
    }
  }
  return Spill();
}

absl::Status MergedRows::CountSource(Source* source) {
  const Segment& segment = *source->segment;
  const SegmentHeader& header = segment.header();
  if (header.row_count == 0) return absl::OkStatus();
  counts_.AddKeyBytes(header.key_bytes_min);
  counts_.AddKeyBytes(header.key_bytes_max);
  if (header.schema.value_kind == ValueKind::kBytes) {
    counts_.value_bytes += header.section(SectionKind::kValues).size_bytes;
  }
  std::array<RowCounts::Bucket, kBucketCount> buckets = {};
  if (header.hash_bits >= kPartitionBitsMax && header.key_bytes_min == header.key_bytes_max) {
    LATCHKEY_ASSIGN_OR_RETURN(const std::string_view list, segment.ReadHashList());
    const unsigned shift = header.hash_bits - kPartitionBitsMax;
    const uint64_t count = ForEachHash({header.hash_bits, header.hash_delta_bytes}, list,
                                       [&](uint64_t prefix) { ++buckets[prefix >> shift].rows; });
    if (count != header.row_count) {
      return DataLoss("{}: section 'hashes': expected {} hashes, found {}", segment.path(),
                      header.row_count, count);
    }
    for (RowCounts::Bucket& bucket : buckets) bucket.key_bytes = bucket.rows * header.key_bytes_max;
    const auto* const begin = reinterpret_cast<const uint8_t*>(list.data());
    segment.file().LetGo(begin, begin + list.size());
  } else {
    for (const Partition& partition : segment.partitions()) {
      LATCHKEY_RETURN_IF_ERROR(segment.ForEachRowOf(
          partition, /*with_values=*/false, [&](const StoredRow& row) -> absl::Status {
            RowCounts::Bucket& bucket = buckets[BucketOf(row.hash)];
            ++bucket.rows;
            bucket.key_bytes += row.key.size();
            return absl::OkStatus();
          }));
      LetGo(segment, partition);
    }
  }
  uint64_t partition_rows = 0;
  for (size_t i = 0; i < kBucketCount; ++i) {
    counts_.buckets[i].rows += buckets[i].rows;
    counts_.buckets[i].key_bytes += buckets[i].key_bytes;
    counts_.rows += buckets[i].rows;
    source->key_bytes += buckets[i].key_bytes;
    if (i % source->buckets_per_partition() == 0) partition_rows = 0;
    partition_rows += buckets[i].rows;
    source->partition_rows_max = std::max(source->partition_rows_max, partition_rows);
  }
  return absl::OkStatus();
}

absl::Status MergedRows::Spill() {
  for (Source& source : sources_) {
    if (!source.spilled) continue;
    if (partitioner_ == nullptr) {
      partitioner_ = std::make_unique<Partitioner>(file_system_, spill_path_, memory_bytes_ / 4);
    }
    while (source.next_partition < source.segment->partitions().size()) {
      LATCHKEY_RETURN_IF_ERROR(source.Read([&](const TakenRow& row) {
        return partitioner_->Add(row.hash,
                                 {row.doc_id, 2 * source.rank + row.tombstone, row.key, row.value});
      }));
      source.LetGoOfTaken();
    }
  }
  if (partitioner_ == nullptr) return absl::OkStatus();
  spilled_.emplace(*partitioner_, sources_[0].segment->header().identity.seed);
  spilled_bytes_ = partitioner_->spilled_bytes();
  return absl::OkStatus();
}

// Into spilled_rows_, the newest segment's first.
absl::Status MergedRows::TakeSpilled(size_t begin, size_t end) {
  spilled_rows_.clear();
  if (!spilled_) return absl::OkStatus();
  LATCHKEY_RETURN_IF_ERROR(spilled_->Take(begin, end, &spilled_rows_));
  for (TakenRow& row : spilled_rows_) {
    row.tombstone = row.ordinal % 2;
    row.ordinal = row.ordinal / 2;
  }
  std::sort(spilled_rows_.begin(), spilled_rows_.end(),
            [](const TakenRow& a, const TakenRow& b) { return a.ordinal < b.ordinal; });
  return absl::OkStatus();
}

absl::Status MergedRows::Take(size_t begin, size_t end, std::vector<TakenRow>* rows) {
  LATCHKEY_RETURN_IF_ERROR(TakeSpilled(begin, end));
  auto spilled = spilled_rows_.begin();
  for (Source& source : sources_) {
    if (!source.spilled) {
      LATCHKEY_RETURN_IF_ERROR(TakeFrom(&source, end, rows));
      continue;
    }
    for (; spilled != spilled_rows_.end() && spilled->ordinal == source.rank; ++spilled) {
      rows->push_back(*spilled);
    }
  }
  return absl::OkStatus();
}

absl::Status MergedRows::TakeFrom(Source* source, size_t end, std::vector<TakenRow>* rows) {
  source->LetGoOfTaken();
  const auto take_kept = [&] {
    std::vector<TakenRow>& kept = source->kept;
    size_t& at = source->kept_begin;
    for (; at < kept.size() && BucketOf(kept[at].hash) < end; ++at) rows->push_back(kept[at]);
  };
  take_kept();
  const size_t step = source->buckets_per_partition();
  while (source->next_partition * step < end && source->next_partition * step < kBucketCount) {
    const bool whole = (source->next_partition + 1) * step <= end;
    std::vector<TakenRow>* const to = whole ? rows : &source->kept;
    if (!whole) {
      source->kept.clear();
      source->kept.reserve(source->partition_rows_max);
      source->kept_begin = 0;
    }
    LATCHKEY_RETURN_IF_ERROR(source->Read([to](const TakenRow& row) {
      to->push_back(row);
      return absl::OkStatus();
    }));
    if (whole) continue;
    SortByHash(source->segment->header().partition_bits, &source->kept, &scratch_);
    take_kept();
  }
  return absl::OkStatus();
}

absl::Status MergedRows::CheckIntact() const {
  for (const Source& source : sources_) {
    const Segment& segment = *source.segment;
    // A page that is cut in its middle reads as zeros without any fault; the end tells.
    (void)LoadAfter(segment.file().data() + segment.file().size_bytes() - 1);
    if (segment.quarantined()) {
      return DataLoss("{}: pages of it were lost while it was read", segment.path());
    }
    if (source.rows_read != segment.header().row_count) {
      return DataLoss("{}: expected {} rows, found {}", segment.path(), segment.header().row_count,
                      source.rows_read);
    }
  }
  return absl::OkStatus();
}

}  // namespace latchkey
