// The rows of a partitioner, as what writes segments takes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/build/partitioner.h"
#include "core/build/table_change.h"

namespace latchkey {

class PartitionedRows final : public RowsByBucket {
 public:
  // Every row must have been added.
  PartitionedRows(Partitioner& partitioner, uint64_t seed);

  const RowCounts& counts() const override { return counts_; }
  absl::Status Take(size_t begin, size_t end, std::vector<TakenRow>* rows) override;

  // The shortest and the longest key, which a partitioner does not know.
  void SetKeyBytes(size_t key_bytes_min, size_t key_bytes_max) {
    counts_.key_bytes_min = key_bytes_min;
    counts_.key_bytes_max = key_bytes_max;
  }

 private:
  Partitioner& partitioner_;
  const uint64_t seed_;
  RowCounts counts_;
  std::string packed_;
};

}  // namespace latchkey
