#include "core/lookup/probe_engine.h"

#include <algorithm>

#include "core/key/key_hash.h"

namespace latchkey {

LookupResult LookupOne(const Snapshot& snapshot, std::string_view key) {
  const Hash128 hash = HashBytes(key.data(), key.size(), snapshot.seed());
  LookupResult result;
  for (const auto& segment : snapshot.segments()) PrefetchProbe(*segment, hash);
  for (const auto& segment : snapshot.segments()) {
    RowRef row;
    result.outcome = ProbeOne(*segment, key, hash, &row);
    if (result.outcome == Outcome::kAbsent) continue;
    if (result.outcome == Outcome::kFound) {
      if (segment->ReadValue(row, hash, &result.value)) {
        result.doc_id = row.doc_id;
      } else {
        result = {Outcome::kDamaged, 0, {}};
      }
    }
    break;
  }
  return result;
}

void ProbeEngine::Lookup(const Snapshot& snapshot, std::span<const std::string_view> keys,
                         LookupResults* results) {
  results->outcomes.resize(keys.size());
  results->doc_ids.resize(keys.size());
  results->values.resize(keys.size());
  hashes_.resize(keys.size());
  HashMany(keys, snapshot.seed(), hashes_.data());
  for (size_t begin = 0; begin < keys.size(); begin += kTileKeys) {
    tile_.count = std::min(kTileKeys, keys.size() - begin);
    tile_.keys = keys.data() + begin;
    tile_.hashes = hashes_.data() + begin;
    StartTile(&tile_);
    for (const auto& segment : snapshot.segments()) {
      if (tile_.live_count == 0) break;
      ProbeSegment(*segment, &tile_);
    }
    ReadValues(&tile_, results->values.data() + begin);
    for (size_t i = 0; i < tile_.count; ++i) {
      const bool found = tile_.outcomes[i] == Outcome::kFound;
      results->outcomes[begin + i] = tile_.outcomes[i];
      results->doc_ids[begin + i] = found ? tile_.rows[i].doc_id : 0;
    }
  }
}

}  // namespace latchkey
