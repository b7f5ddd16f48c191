#include "tests/bench/peers/known_ranges.h"

#include <fmt/format.h>

namespace latchkey {
namespace {

constexpr uint64_t kRows = 10'000'000;
constexpr double kTolerance = 1.25;

struct KnownRange {
  std::string_view figure;
  double ns_a_key_min;
  double ns_a_key_max;
};

// 10,000,000 keys, batches of 4,000 with 10% misses, everything in memory, one thread of a virtual
// machine with two cores of an AMD EPYC 7xx3, 24 GiB, Linux 6.18. Lucene was its main branch of
// August 2026 on JDK 25; RocksDB was 7.8, LMDB 0.9, Abseil 20220623, as in Debian 12. The memory's
// limit was that of 2 GiB.
constexpr KnownRange kKnownRanges[] = {
    {"warm/uuid16/s15/batch_vs_lucene", 9'450, 9'800},
    {"warm/uuid16/s15/single_vs_lucene", 9'900, 10'000},
    {"warm/uuid16/s15/batch_vs_lucene_bloom", 3'450, 3'450},
    {"warm/uuid16/s15/single_vs_lucene_bloom", 3'450, 3'450},
    {"warm/uuid36/s15/batch_vs_lucene", 19'200, 31'250},
    {"warm/uuid36/s15/single_vs_lucene", 12'500, 12'500},
    {"warm/uuid36/s15/batch_vs_lucene_bloom", 4'700, 4'700},
    {"warm/uuid36/s15/single_vs_lucene_bloom", 4'700, 4'700},
    {"warm/uuid16/s1/batch_vs_rocksdb", 4'500, 5'700},
    {"warm/uuid16/s1/batch_vs_lmdb", 1'400, 1'500},
    {"warm/uuid16/s1/batch_vs_tinycdb", 445, 494},
    {"warm/uuid16/s1/batch_vs_flat_hash_map", 140, 215},
    {"warm/uuid16/s1/batch_vs_memory_limit", 40, 59},
    {"warm/uuid16/s1/batch_vs_memory_limit_huge", 12, 29},
};

}  // namespace

std::string WhyInvalid(std::string_view figure, uint64_t rows, double peer_ns_a_key) {
  // Fewer rows only make a peer faster; of more, nothing is known.
  if (rows > kRows) return {};
  for (const KnownRange& known : kKnownRanges) {
    if (known.figure != figure || peer_ns_a_key <= known.ns_a_key_max * kTolerance) continue;
    return fmt::format("the peer took {:.0f} ns a key; {:.0f} to {:.0f} are known of it",
                       peer_ns_a_key, known.ns_a_key_min, known.ns_a_key_max);
  }
  return {};
}

}  // namespace latchkey
