// Tables of generated keys for the benchmarks: key number i of the set has doc id i.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/build/table_builder.h"
#include "core/table/snapshot.h"
#include "tests/bench/key_sets.h"

namespace latchkey {

// Aborts with a message: a benchmark has nothing to go on with.
template <typename T>
T OrDie(absl::StatusOr<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "bench: %s\n", Message(result.status()).c_str());
    std::exit(3);
  }
  return *std::move(result);
}

// Rows of segments for `rows` keys: one, or fifteen sized 10:3:1, five of each, the largest first.
std::vector<uint64_t> SegmentSizes(uint64_t rows, int segments);

// What a benchmark chooses of a table; the rest is as a build has it by default.
struct BenchTableOptions {
  uint8_t filter_bits_per_key = 10;
  bool hash_list = true;
};

// Builds them in `data_dir`, one segment after the other, so that the last is the newest.
std::shared_ptr<const Snapshot> BuildBenchTable(const std::string& data_dir, KeyShape shape,
                                                const std::vector<uint64_t>& segment_rows,
                                                const BenchTableOptions& options = {});
// Opens it again, otherwise.
std::shared_ptr<const Snapshot> OpenBenchTable(const std::string& data_dir,
                                               const SnapshotOptions& options);

// Bytes of the segments' sections and headers, and of the segment map.
uint64_t BytesOf(const Snapshot& snapshot);

// Makes batches of keys: `hit_percent` of them present, the others absent, in random order.
class KeyBatchMaker {
 public:
  KeyBatchMaker(KeyShape shape, uint64_t rows, int hit_percent, size_t batch_keys, uint64_t seed);

  // Replaces the batch. Views into this.
  void Next();
  const std::vector<std::string_view>& keys() const { return keys_; }
  // The doc id of each key; UINT64_MAX for an absent one.
  const std::vector<uint64_t>& doc_ids() const { return doc_ids_; }

 private:
  const KeyShape shape_;
  const uint64_t rows_;
  const int hit_percent_;
  uint64_t state_;
  std::string bytes_;
  std::vector<std::string_view> keys_;
  std::vector<uint64_t> doc_ids_;
};

}  // namespace latchkey
