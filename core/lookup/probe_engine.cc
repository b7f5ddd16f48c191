#include "core/lookup/probe_engine.h"

#include <algorithm>

#include "core/base/prefetch.h"
#include "core/io/fault_guard.h"

namespace latchkey {
namespace {

// Pilots of so many segments are asked for before it is known which of them is needed.
constexpr size_t kPilotsAskedMax = 17;

LookupResult ResultOf(Held held, const Segment& segment, const RowRef& row, uint64_t hash) {
  LookupResult result;
  if (held == Held::kRow && segment.ReadValue(row, hash, &result.value)) {
    result.outcome = Outcome::kFound;
    result.doc_id = row.doc_id;
  } else if (held != Held::kTombstone) {
    result = {Outcome::kDamaged, 0, {}};
  }
  return result;
}

LookupResult LookupOneOnce(const Snapshot& snapshot, std::string_view key) {
  const uint64_t hash = HashBytes(key.data(), key.size(), snapshot.seed());
  RowRef row;
  if (const SegmentMap* const map = snapshot.segment_map()) {
    const MapProbe probe = map->ProbeFor(hash);
    PrefetchLine(probe.bucket);
    // While the bucket is on its way: one of these is needed next, and they are likely to be near.
    if (map->segments().size() <= kPilotsAskedMax) {
      for (size_t i = 1; i < map->segments().size(); ++i) {
        PrefetchLine(map->segments()[i]->PartitionFor(hash).PilotAddress(hash));
      }
    }
    uint32_t number = UINT32_MAX;
    while ((number = map->NextSegment(probe, number)) != 0) {
      const Segment& segment = *map->segments()[number];
      const Held held = ProbeOne(segment, /*use_filter=*/false, key, hash, &row);
      if (held != Held::kNothing) return ResultOf(held, segment, row, hash);
    }
    return {};
  }
  const auto& segments = snapshot.segments();
  const bool use_filters = segments.size() > 1;
  if (use_filters) {
    // All of them at once: most are needed.
    for (const auto& segment : segments) {
      if (segment->has_filter()) PrefetchLine(segment->PartitionFor(hash).FilterAddress(hash));
    }
  }
  for (const auto& segment : segments) {
    const Held held = ProbeOne(*segment, use_filters, key, hash, &row);
    if (held != Held::kNothing) return ResultOf(held, *segment, row, hash);
  }
  return {};
}

}  // namespace

LookupResult LookupOne(const Snapshot& snapshot, std::string_view key) {
  LookupResult result;
  ReadStably([&] { result = LookupOneOnce(snapshot, key); });
  return result;
}

void ProbeEngine::Lookup(const Snapshot& snapshot, std::span<const std::string_view> keys,
                         LookupResults* results) {
  ReadStably([&] { LookupOnce(snapshot, keys, results); });
}

void ProbeEngine::LookupOnce(const Snapshot& snapshot, std::span<const std::string_view> keys,
                             LookupResults* results) {
  const bool has_values = snapshot.schema().value_kind != ValueKind::kNone;
  results->outcomes.resize(keys.size());
  results->doc_ids.resize(keys.size());
  results->values.resize(has_values ? keys.size() : 0);
  if (FaultEpoch() != 0 && snapshot.quarantined()) [[unlikely]] {
    for (size_t i = 0; i < keys.size(); ++i) {
      const LookupResult result = LookupOneOnce(snapshot, keys[i]);
      results->outcomes[i] = result.outcome;
      results->doc_ids[i] = result.doc_id;
      if (has_values) results->values[i] = result.value;
    }
    return;
  }
  hashes_.resize(keys.size());
  HashMany(keys, snapshot.seed(), hashes_.data());
  const SegmentMap* const map = snapshot.segment_map();
  size_t found = 0;
  for (size_t begin = 0; begin < keys.size(); begin += options_.tile_keys) {
    tile_.count = std::min(options_.tile_keys, keys.size() - begin);
    tile_.keys = keys.data() + begin;
    tile_.hashes = hashes_.data() + begin;
    tile_.outcomes = results->outcomes.data() + begin;
    tile_.doc_ids = results->doc_ids.data() + begin;
    StartTile(&tile_);
    if (map != nullptr) {
      ProbeMapped(*map, options_.match_buckets, &tile_);
    } else {
      for (const auto& segment : snapshot.segments()) {
        if (tile_.live_count == 0) break;
        ProbeSegment(*segment, snapshot.segments().size() > 1 || filter_pays_, &tile_);
      }
    }
    if (has_values) ReadValues(&tile_, results->values.data() + begin);
    found += static_cast<size_t>(
        std::count(tile_.outcomes, tile_.outcomes + tile_.count, Outcome::kFound));
  }
  // What the last batch asked for, the next one is likely to.
  filter_pays_ = 10 * found < kFilterPaysBelowTenths * keys.size();
}

}  // namespace latchkey
