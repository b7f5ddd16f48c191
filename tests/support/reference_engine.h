// What a table must answer, by the plainest means: one map a segment, asked one key at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/build/table_builder.h"
#include "core/lookup/lookup_results.h"
#include "core/segment/format.h"
#include "core/table/snapshot.h"
#include "tests/support/vector_source.h"

namespace latchkey::test {

class ReferenceEngine {
 public:
  // The same rows that a build was given, under the same rule and schema.
  void AddSegment(const std::vector<Row>& rows, DuplicateRule rule, const TableSchema& schema);
  void Clear() { segments_.clear(); }

  // The newest segment's row; its value points into this.
  LookupResult Lookup(std::string_view key) const;

  // The keys that it has; a key that several segments hold comes once.
  std::vector<std::string> Keys() const;

 private:
  struct Stored {
    uint64_t doc_id;
    std::string value;
  };
  std::vector<std::unordered_map<std::string, Stored>> segments_;  // oldest first
};

// Holds ProbeEngine, with batches of `batch_keys`, in full tiles and in tiles of changing widths at
// every SIMD level in turn, and LookupOne to the reference: outcome, doc id and value of each of
// `keys`, in their order. Fails the test at the first few that differ.
void ExpectSameAnswers(const Snapshot& snapshot, const ReferenceEngine& reference,
                       const std::vector<std::string>& keys, size_t batch_keys);

// "found, doc id 7, value 'x'".
std::string Describe(const LookupResult& result);

}  // namespace latchkey::test
