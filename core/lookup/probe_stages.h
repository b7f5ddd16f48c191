// The stages that a tile of keys passes through, segment by segment:
//
//   filter -> control -> [slot word, in term order] -> record        and after the last segment:
//   value
//
// Each stage touches one cache line a key that the stage before it asked for, and ends by asking
// for the next one; while one key's line travels, the others' are asked for. Keys leave a tile as
// they are resolved. Source: group prefetching, Chen, Ailamaki, Gibbons, Mowry, ICDE 2004.
//
// A stage takes no lock, allocates nothing, and can't fail: damage is an outcome.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/hash.h"
#include "core/lookup/lookup_results.h"
#include "core/segment/group.h"
#include "core/segment/segment.h"

namespace latchkey {

// Keys in a tile. Wider keeps more lines on their way, up to what the core can have in flight;
// narrower keeps the state in the first-level cache. With 10M uuid16 keys, 128 took 0.9 of the time
// of 64 over 15 segments and the same over one (medians of six runs of the warm suite's batches);
// 256 gained nothing more.
inline constexpr size_t kTileKeys = 128;

// Where one key stands in the segment being probed.
struct ProbeState {
  const Partition* partition = nullptr;
  const uint8_t* filter_word = nullptr;  // null without a filter
  uint32_t home = 0;
  uint32_t slot = 0;  // the first of the group that `match` is about
  GroupMatch match = {};
};

// Up to kTileKeys keys. T = count.
struct Tile {
  size_t count = 0;
  const std::string_view* keys = nullptr;  // T views
  const Hash128* hashes = nullptr;         // T
  uint8_t live[kTileKeys];                 // indices of the keys that no segment has resolved
  size_t live_count = 0;
  uint8_t probing[kTileKeys];  // of those, the keys that the current segment may hold
  size_t probing_count = 0;
  ProbeState state[kTileKeys];
  uint64_t filter_masks[kTileKeys];  // for segments with filter_hashes of them
  unsigned filter_hashes = 0;
  Outcome outcomes[kTileKeys];
  RowRef rows[kTileKeys];
  const Segment* sources[kTileKeys];  // the segment that a found key's row lies in
};

// Makes all T keys live.
void StartTile(Tile* tile);

// Probes one segment for the tile's live keys and takes those that it resolves out of `live`.
void ProbeSegment(const Segment& segment, Tile* tile);

// Reads the values of the found keys into values[0, T); a damaged one turns the key's outcome.
void ReadValues(Tile* tile, std::string_view* values);

// One key in one segment, without a tile: asks for everything the probe may touch, at once.
void PrefetchProbe(const Segment& segment, const Hash128& hash);
// kAbsent means: look in the next segment.
Outcome ProbeOne(const Segment& segment, std::string_view key, const Hash128& hash, RowRef* row);

}  // namespace latchkey
