#include "core/lookup/visible_rows.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/key/key_hash.h"
#include "core/lookup/probe_engine.h"

namespace latchkey {
namespace {

absl::Status CheckPages(const Snapshot& snapshot) {
  snapshot.TouchEnds();
  for (const auto& segment : snapshot.segments()) {
    if (!segment->quarantined()) continue;
    return DataLoss("{}: pages of it were lost while it was read", segment->path());
  }
  return absl::OkStatus();
}

// Whether one of the snapshot's `count` newest segments has a row or a tombstone for the key.
absl::StatusOr<bool> NewestHold(const Snapshot& snapshot, size_t count, std::string_view key,
                                uint64_t hash) {
  for (size_t i = 0; i < count; ++i) {
    const Segment& segment = *snapshot.segments()[i];
    RowRef row;
    switch (ProbeOne(segment, /*use_filter=*/true, key, hash, &row)) {
      case Held::kRow:
      case Held::kTombstone:
        return true;
      case Held::kDamaged:
        return DataLoss("{}: what it holds for a key can't be read", segment.path());
      case Held::kNothing:
        break;
    }
  }
  return false;
}

absl::StatusOr<LookupResult> Answer(const Snapshot& snapshot, std::string_view key) {
  const LookupResult result = LookupOne(snapshot, key);
  if (result.outcome != Outcome::kDamaged) return result;
  return DataLoss("generation {}: what it holds for a key can't be read", snapshot.generation());
}

// How many of the oldest segments are the same in both.
size_t SharedOldest(const Snapshot& before, const Snapshot& after) {
  const auto& ours = before.segments();
  const auto& theirs = after.segments();
  const auto same = [](const auto& a, const auto& b) {
    return a->header() == b->header() && a->header_checksum() == b->header_checksum();
  };
  const auto differ =
      std::mismatch(ours.rbegin(), ours.rend(), theirs.rbegin(), theirs.rend(), same);
  return static_cast<size_t>(differ.first - ours.rbegin());
}

}  // namespace

absl::Status ForEachVisibleRow(const Snapshot& snapshot,
                               const std::function<absl::Status(const StoredRow&)>& visit) {
  const auto& segments = snapshot.segments();
  for (size_t i = 0; i < segments.size(); ++i) {
    LATCHKEY_RETURN_IF_ERROR(segments[i]->ForEachRow([&](const StoredRow& row) -> absl::Status {
      if (row.tombstone) return absl::OkStatus();
      LATCHKEY_ASSIGN_OR_RETURN(const bool hidden, NewestHold(snapshot, i, row.key, row.hash));
      return hidden ? absl::OkStatus() : visit(row);
    }));
  }
  return CheckPages(snapshot);
}

absl::StatusOr<DifferenceCounts> CompareGenerations(
    const Snapshot& before, const Snapshot& after,
    const std::function<absl::Status(const Difference&)>& visit) {
  // A key that no other segment has, not even as a tombstone, is answered by the shared ones alike.
  const size_t shared = SharedOldest(before, after);
  const size_t only_before = before.segments().size() - shared;
  const size_t only_after = after.segments().size() - shared;
  DifferenceCounts counts;
  const auto compare = [&](std::string_view key) -> absl::Status {
    Difference difference{key, {}, {}};
    LATCHKEY_ASSIGN_OR_RETURN(difference.before, Answer(before, key));
    LATCHKEY_ASSIGN_OR_RETURN(difference.after, Answer(after, key));
    if (difference.before == difference.after) return absl::OkStatus();
    const bool was = difference.before.outcome == Outcome::kFound;
    const bool is = difference.after.outcome == Outcome::kFound;
    ++(was && is ? counts.changed : is ? counts.added : counts.removed);
    return visit ? visit(difference) : absl::OkStatus();
  };
  const auto hash_before = [&](const std::string_view key) {
    return HashBytes(key.data(), key.size(), before.seed());
  };
  // Each key once: where it comes first.
  for (size_t i = 0; i < only_before; ++i) {
    LATCHKEY_RETURN_IF_ERROR(
        before.segments()[i]->ForEachRow([&](const StoredRow& row) -> absl::Status {
          LATCHKEY_ASSIGN_OR_RETURN(const bool seen, NewestHold(before, i, row.key, row.hash));
          return seen ? absl::OkStatus() : compare(row.key);
        }));
  }
  for (size_t i = 0; i < only_after; ++i) {
    LATCHKEY_RETURN_IF_ERROR(
        after.segments()[i]->ForEachRow([&](const StoredRow& row) -> absl::Status {
          LATCHKEY_ASSIGN_OR_RETURN(bool seen, NewestHold(after, i, row.key, row.hash));
          if (!seen) {
            LATCHKEY_ASSIGN_OR_RETURN(
                seen, NewestHold(before, only_before, row.key, hash_before(row.key)));
          }
          return seen ? absl::OkStatus() : compare(row.key);
        }));
  }
  LATCHKEY_RETURN_IF_ERROR(CheckPages(before));
  LATCHKEY_RETURN_IF_ERROR(CheckPages(after));
  return counts;
}

}  // namespace latchkey
