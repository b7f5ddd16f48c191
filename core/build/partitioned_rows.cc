#include "core/build/partitioned_rows.h"

#include "core/base/hash.h"
#include "core/base/status_macros.h"

namespace latchkey {

PartitionedRows::PartitionedRows(Partitioner& partitioner, uint64_t seed)
    : partitioner_(partitioner), seed_(seed) {
  for (size_t i = 0; i < kBucketCount; ++i) {
    const Partitioner::Bucket& bucket = partitioner.buckets()[i];
    counts_.buckets[i] = {bucket.rows, bucket.key_bytes};
    counts_.rows += bucket.rows;
    counts_.value_bytes += bucket.value_bytes;
    counts_.working_bytes += 2 * bucket.packed_bytes;  // once more in the file
  }
}

absl::Status PartitionedRows::Take(size_t begin, size_t end, std::vector<TakenRow>* rows) {
  packed_.clear();
  LATCHKEY_RETURN_IF_ERROR(partitioner_.Take(begin, end, &packed_));
  for (const char* at = packed_.data(); at != packed_.data() + packed_.size();) {
    PackedRow packed;
    at = Partitioner::Unpack(at, &packed);
    TakenRow& row = rows->emplace_back();
    row.hash = HashBytes(packed.key.data(), packed.key.size(), seed_);
    row.doc_id = packed.doc_id;
    row.ordinal = packed.ordinal;
    row.key = packed.key;
    row.value = packed.value;
  }
  return absl::OkStatus();
}

}  // namespace latchkey
