#include "core/lookup/probe_engine.h"

#include <algorithm>
#include <chrono>

#include "core/base/prefetch.h"
#include "core/io/fault_guard.h"

namespace latchkey {
namespace {

using Clock = std::chrono::steady_clock;

// Tiles asked for ahead of the one that is read: 512 pages keep any device busy.
constexpr size_t kLagTiles = 4;
// Warm tiles take a few microseconds.
constexpr std::chrono::microseconds kSlowTile(100);
// Of a record before its key: doc id, locator, length. A fixed value may be longer, but such a
// record crosses a page only if its key is long too.
constexpr size_t kRecordFieldsBytesMax = 8 + 8 + 3;
// Single lookups between two looks at the thread's faults, which cost as much as two or three.
constexpr uint32_t kLookupsASettle = 256;

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
    if (map->base() == nullptr || map->summary().MayName(hash)) {
      const MapProbe probe = map->ProbeFor(hash);
      PrefetchLine(probe.bucket);
      // While the bucket is on its way: one of these is needed next, and they are likely to be
      // near.
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
    }
    if (map->base() == nullptr) return {};
    const Held held = ProbeOne(*map->base(), /*use_filter=*/false, key, hash, &row);
    return held == Held::kNothing ? LookupResult{} : ResultOf(held, *map->base(), row, hash);
  }
  const auto& segments = snapshot.segments();
  const bool use_filters = segments.size() > 1;
  if (use_filters) {
    // All of them at once: most are needed.
    for (const auto& segment : segments) {
      if (segment->has_filter()) PrefetchLine(segment->PartitionFor(hash).FilterAddress(hash));
    }
  }
  LookupResult result;
  for (const auto& segment : segments) {
    const Held held = ProbeOne(*segment, use_filters, key, hash, &row);
    if (held == Held::kNothing) continue;
    result = ResultOf(held, *segment, row, hash);
    break;
  }
  // Half a filter word excludes keys that the whole does not.
  if (use_filters) snapshot.TouchEnds();
  return result;
}

// Lines, records and values that a lookup comes to, if it finds its key in the first segment.
uint64_t PlacesOf(const Snapshot& snapshot) {
  if (snapshot.segments().empty()) return 0;
  const SegmentHeader& header = snapshot.segments()[0]->header();
  return 1 + (header.layout == Layout::kPointer) + (header.schema.value_kind == ValueKind::kBytes);
}

// Of a stopped lookup: what is found stays, if its value was read or there is none.
void StopTile(const Tile& tile, bool keys_done, LookupResults* results) {
  const size_t first = static_cast<size_t>(tile.outcomes - results->outcomes.data());
  for (size_t i = 0; i < tile.count; ++i) {
    Outcome& outcome = tile.outcomes[i];
    const bool done = outcome == Outcome::kFound    ? results->values.empty() || tile.values_read
                      : outcome == Outcome::kAbsent ? keys_done
                                                    : true;
    if (!done) {
      outcome = Outcome::kStopped;
      tile.doc_ids[i] = 0;
    }
    if (!results->values.empty() && !tile.values_read) results->values[first + i] = {};
  }
}

}  // namespace

LookupResult LookupOne(const Snapshot& snapshot, std::string_view key) {
  LookupResult result;
  ReadStably([&] { result = LookupOneOnce(snapshot, key); });
  return result;
}

bool ProbeEngine::Lookup(const Snapshot& snapshot, std::span<const std::string_view> keys,
                         LookupResults* results, const LookupLimits& limits) {
  bool finished = true;
  ReadStably([&] { finished = LookupOnce(snapshot, keys, results, limits); });
  return finished;
}

bool ProbeEngine::LookupOne(const Snapshot& snapshot, std::string_view key, LookupResult* result,
                            const LookupLimits& limits) {
  if (silent_.Is(snapshot) && lookups_left_ != 0) [[likely]] {
    --lookups_left_;
    *result = latchkey::LookupOne(snapshot, key);
    return true;
  }
  SettleSilent();
  if (mode(snapshot) == FetchMode::kSilent) {
    silent_ = {snapshot.seed(), snapshot.generation(), PlacesOf(snapshot)};
    lookups_left_ = kLookupsASettle - 1;
    *result = latchkey::LookupOne(snapshot, key);
    return true;
  }
  LookupResults results;
  const bool finished = Lookup(snapshot, {&key, 1}, &results, limits);
  *result = results.at(0);
  return finished;
}

FetchMode ProbeEngine::mode(const Snapshot& snapshot) {
  switch (options_.prefetch) {
    case PrefetchChoice::kAuto:
      break;
    case PrefetchChoice::kAlways:
      return FetchMode::kAsking;
    case PrefetchChoice::kNever:
      return FetchMode::kSilent;
  }
  return StateOf(snapshot.seed(), snapshot.generation(), snapshot.warm()).mode;
}

// `warm`: of a generation that is new.
FetchState& ProbeEngine::StateOf(uint64_t seed, uint64_t generation, bool warm) {
  TableState& state = states_[seed];
  if (state.generation != generation) {
    state = {generation, {warm ? FetchMode::kSilent : FetchMode::kAsking}};
  }
  return state.fetch;
}

void ProbeEngine::Settle(const Snapshot& snapshot) {
  SettleSilent();
  SettleTable(snapshot.seed(), snapshot.generation());
}

// Single lookups are counted by how far the countdown went.
void ProbeEngine::SettleSilent() {
  if (silent_.places != 0) {
    const uint64_t lookups = kLookupsASettle - lookups_left_;
    counted_.keys += lookups;
    counted_.places += lookups * silent_.places;
    SettleTable(silent_.seed, silent_.generation);
  } else if (!begun_) {
    begun_ = true;
    thread_begin_ = ThreadFetchCost();
  }
  silent_ = {};
}

void ProbeEngine::SettleTable(uint64_t seed, uint64_t generation) {
  FetchCost now = ThreadFetchCost() - thread_begin_;
  now.keys = counted_.keys;
  now.places = counted_.places;
  now.asked = prefetcher_.pages_asked();
  const FetchCost cost = now - settled_;
  settled_ = now;
  FetchState& state = StateOf(seed, generation, /*warm=*/false);
  state = NextFetchState(state, cost);
}

bool ProbeEngine::LookupOnce(const Snapshot& snapshot, std::span<const std::string_view> keys,
                             LookupResults* results, const LookupLimits& limits) {
  SettleSilent();
  const bool has_values = snapshot.schema().value_kind != ValueKind::kNone;
  results->outcomes.resize(keys.size());
  results->doc_ids.resize(keys.size());
  results->values.resize(has_values ? keys.size() : 0);
  counted_.keys += keys.size();
  bool finished = true;
  if (snapshot.quarantined()) [[unlikely]] {
    LookupSlowly(snapshot, keys, results);
  } else {
    hashes_.resize(keys.size());
    HashMany(keys, snapshot.seed(), hashes_.data());
    size_t done = 0;
    if (mode(snapshot) == FetchMode::kSilent) {
      done = LookupSilently(snapshot, keys, results);
    }
    if (done < keys.size()) finished = LookupAsking(snapshot, keys, done, results, limits);
    if (finished && UsesFilters(snapshot)) snapshot.TouchEnds();
    // What the last batch asked for, the next one is likely to.
    const auto found = static_cast<size_t>(
        std::count(results->outcomes.begin(), results->outcomes.end(), Outcome::kFound));
    filter_pays_ = 10 * found < kFilterPaysBelowTenths * keys.size();
  }
  if (options_.prefetch != PrefetchChoice::kNever) Settle(snapshot);
  return finished;
}

// Where a segment is quarantined, speed is no concern.
void ProbeEngine::LookupSlowly(const Snapshot& snapshot, std::span<const std::string_view> keys,
                               LookupResults* results) {
  for (size_t i = 0; i < keys.size(); ++i) {
    const LookupResult result = LookupOneOnce(snapshot, keys[i]);
    results->outcomes[i] = result.outcome;
    results->doc_ids[i] = result.doc_id;
    if (!results->values.empty()) results->values[i] = result.value;
  }
}

void ProbeEngine::SetTile(std::span<const std::string_view> keys, size_t begin,
                          LookupResults* results, Tile* tile) const {
  tile->count = std::min(options_.tile_keys, keys.size() - begin);
  tile->keys = keys.data() + begin;
  tile->hashes = hashes_.data() + begin;
  tile->outcomes = results->outcomes.data() + begin;
  tile->doc_ids = results->doc_ids.data() + begin;
  StartTile(tile);
}

// Returns how many of the keys it did: all, unless pages turn out to be cold.
size_t ProbeEngine::LookupSilently(const Snapshot& snapshot, std::span<const std::string_view> keys,
                                   LookupResults* results) {
  const SegmentMap* const map = snapshot.segment_map();
  const bool use_filters = UsesFilters(snapshot);
  auto before = Clock::now();
  bool odd = false;
  for (size_t begin = 0; begin < keys.size(); begin += options_.tile_keys) {
    SetTile(keys, begin, results, &tile_);
    if (map != nullptr) {
      AimByMap(*map, options_.match_buckets, use_filters, &tile_);
      while (tile_.probing_count > 0) {
        FindLines(&tile_);
        ReadLines(map->row_shape(), &tile_);
        ReadRecords(&tile_);
        AimFurther(*map, &tile_);
      }
    } else {
      for (const auto& segment : snapshot.segments()) {
        if (tile_.live_count == 0) break;
        AimAtSegment(*segment, use_filters, &tile_);
        FindLines(&tile_);
        ReadLines(segment->row_shape(), &tile_);
        ReadRecords(&tile_);
        DropResolved(&tile_);
      }
    }
    if (!results->values.empty()) ReadValues(&tile_, results->values.data() + begin);
    counted_.places += tile_.places;
    // The clock is read at every second tile only: it costs as much as one or two keys.
    odd = !odd;
    if (odd || options_.prefetch == PrefetchChoice::kNever) continue;
    // Tiles that took so long have waited for the disk, or for their processor.
    const auto now = Clock::now();
    if (now - before > kSlowTile) [[unlikely]] {
      Settle(snapshot);
      if (mode(snapshot) == FetchMode::kAsking) return begin + tile_.count;
    }
    before = now;
  }
  return keys.size();
}

// Runs the stages over all tiles, each stage kLagTiles tiles behind the one before it. False when a
// stage says so, or the lookup is to stop.
template <typename... Stages>
bool ProbeEngine::Pipeline(const LookupLimits& limits, Stages... stages) {
  const size_t steps = tiles_.size() + (sizeof...(stages) - 1) * kLagTiles;
  for (size_t step = 0; step < steps; ++step) {
    stopped_ = limits.should_stop && limits.should_stop();
    bool going = !stopped_;
    size_t lag = 0;
    const auto run = [&](auto& stage) {
      if (going && step >= lag && step - lag < tiles_.size()) going = stage(&tiles_[step - lag]);
      lag += kLagTiles;
    };
    (run(stages), ...);
    if (!going) return false;
  }
  return true;
}

bool ProbeEngine::FetchLines(bool may_wait, Tile* tile) {
  FindLines(tile);
  for (size_t n = 0; n < tile->probing_count; ++n) {
    const uint8_t i = tile->probing[n];
    const Segment& segment = *tile->partitions[i]->segment;
    prefetcher_.Want(segment.file(), tile->addresses[i], segment.shape().line_bytes());
  }
  return prefetcher_.Ask(may_wait);
}

bool ProbeEngine::FetchRecords(bool may_wait, Tile* tile) {
  for (size_t n = 0; n < tile->pointing_count; ++n) {
    const uint8_t i = tile->pointing[n];
    const uint8_t* const record = RecordAddress(*tile, i);
    // Where it ends is not known yet, but for the wanted key's own record.
    if (record != nullptr) {
      prefetcher_.Want(tile->partitions[i]->segment->file(), record,
                       kRecordFieldsBytesMax + tile->keys[i].size());
    }
  }
  return prefetcher_.Ask(may_wait);
}

// Asks for as much of the values as they have on average, or, of those that are longer, for the
// whole.
bool ProbeEngine::FetchValues(bool may_wait, bool whole, Tile* tile) {
  for (size_t i = 0; i < tile->count; ++i) {
    if (tile->outcomes[i] != Outcome::kFound) continue;
    const uint8_t* const value = ValueAddress(*tile, i);
    if (value == nullptr) continue;
    const Segment& segment = *tile->partitions[i]->segment;
    const uint64_t expected = segment.ValueBytesExpected();
    const uint64_t wanted = whole ? segment.ValueBytesAt(value) : expected;
    if (!whole || wanted > expected) prefetcher_.Want(segment.file(), value, wanted);
  }
  return prefetcher_.Ask(may_wait);
}

bool ProbeEngine::LookupAsking(const Snapshot& snapshot, std::span<const std::string_view> keys,
                               size_t begin, LookupResults* results, const LookupLimits& limits) {
  const SegmentMap* const map = snapshot.segment_map();
  const bool may_wait = limits.may_wait;
  prefetcher_.Start(keys.size() - begin);
  tiles_.resize((keys.size() - begin + options_.tile_keys - 1) / options_.tile_keys);
  for (size_t t = 0; t < tiles_.size(); ++t) {
    SetTile(keys, begin + t * options_.tile_keys, results, &tiles_[t]);
  }
  const LineShape* row_shape = map != nullptr ? map->row_shape() : nullptr;
  const auto read_lines = [&](Tile* tile) {
    ReadLines(row_shape, tile);
    return tile->pointing_count == 0 || FetchRecords(may_wait, tile);
  };
  const auto any = [&](auto count) { return std::any_of(tiles_.begin(), tiles_.end(), count); };
  bool going = true;
  if (map != nullptr) {
    bool aimed = false;
    do {
      going = Pipeline(
          limits,
          [&](Tile* tile) {
            aimed ? AimFurther(*map, tile)
                  : AimByMap(*map, options_.match_buckets, UsesFilters(snapshot), tile);
            return FetchLines(may_wait, tile);
          },
          read_lines,
          [](Tile* tile) {
            ReadRecords(tile);
            return true;
          });
      aimed = true;
    } while (going && any([](const Tile& tile) { return tile.probing_count > 0; }));
  } else {
    for (const auto& segment : snapshot.segments()) {
      if (!going || !any([](const Tile& tile) { return tile.live_count > 0; })) break;
      row_shape = segment->row_shape();
      going = Pipeline(
          limits,
          [&](Tile* tile) {
            AimAtSegment(*segment, UsesFilters(snapshot), tile);
            return FetchLines(may_wait, tile);
          },
          read_lines,
          [&](Tile* tile) {
            ReadRecords(tile);
            DropResolved(tile);
            return true;
          });
    }
  }
  const bool keys_done = going;
  if (going && snapshot.schema().value_kind == ValueKind::kBytes) {
    going = Pipeline(
        limits, [&](Tile* tile) { return FetchValues(may_wait, /*whole=*/false, tile); },
        [&](Tile* tile) { return FetchValues(may_wait, /*whole=*/true, tile); },
        [&](Tile* tile) {
          ReadValues(tile, results->values.data() + (tile->outcomes - results->outcomes.data()));
          tile->values_read = true;
          return true;
        });
  } else if (going && !results->values.empty()) {
    for (Tile& tile : tiles_) {
      ReadValues(&tile, results->values.data() + (tile.outcomes - results->outcomes.data()));
      tile.values_read = true;
    }
  }
  for (const Tile& tile : tiles_) counted_.places += tile.places;
  if (!going && stopped_) {
    for (const Tile& tile : tiles_) StopTile(tile, keys_done, results);
    return true;
  }
  return going;
}

}  // namespace latchkey
