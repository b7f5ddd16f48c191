// Reading whole generations: every row that counts, and what differs between two of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/lookup/lookup_results.h"
#include "core/segment/segment.h"
#include "core/table/snapshot.h"

namespace latchkey {

// Calls `visit` for every row that no newer segment hides and that is no tombstone, in no stated
// order, until it returns an error. Every row of the table is read on the way, so DataLoss where
// one can't be, or where pages were lost.
absl::Status ForEachVisibleRow(const Snapshot& snapshot,
                               const std::function<absl::Status(const StoredRow&)>& visit);

// A key whose answer differs. One of them is absent, or doc ids or values differ.
struct Difference {
  std::string_view key;
  LookupResult before, after;
};

struct DifferenceCounts {
  uint64_t added = 0, removed = 0, changed = 0;
  uint64_t all() const { return added + removed + changed; }
  bool operator==(const DifferenceCounts&) const = default;
};

// Compares the visible rows of two generations; `visit`, which may be null, is called once for
// every key that differs, in no stated order, until it returns an error. Reads the segments that
// only one of them has, and looks their keys up; the oldest ones that both share are not read.
// They may differ in schema and hash seed. DataLoss for what can't be read.
absl::StatusOr<DifferenceCounts> CompareGenerations(
    const Snapshot& before, const Snapshot& after,
    const std::function<absl::Status(const Difference&)>& visit);

}  // namespace latchkey
