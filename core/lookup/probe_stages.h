// The stages that a tile of keys passes through:
//
//   aim -> pilot -> line -> [record, for pointers]        and in the end:        value
//
// Each stage touches one cache line a key that the stage before it asked for, and ends by asking
// for the next one; while one key's line travels, the others' are asked for. Where a generation
// has a segment map, aiming reads a key's bucket and so finds its segment; without one, the tile
// goes through the segments one after the other, each with its filter first.
// Source: group prefetching, Chen, Ailamaki, Gibbons, Mowry, ICDE 2004.
//
// A stage takes no lock, allocates nothing, and can't fail: damage is an outcome.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/hash.h"
#include "core/lookup/lookup_results.h"
#include "core/segment/segment.h"
#include "core/table/bucket_match.h"
#include "core/table/segment_map.h"

namespace latchkey {

// Keys in a tile. Wider keeps more lines on their way, up to what the core can have in flight;
// narrower keeps the state in the first-level cache. 10M uuid16 keys took 26, 25, 24 ns a key in
// tiles of 32, 64, 128 with one segment and 36, 33, 33 with fifteen; to ask for the next tile's
// buckets before a tile is looked up gained nothing (medians of three runs, one machine).
inline constexpr size_t kTileKeysMax = 128;

// Up to kTileKeysMax keys. T = count.
struct Tile {
  size_t count = 0;
  const std::string_view* keys = nullptr;  // T views
  const uint64_t* hashes = nullptr;        // T
  Outcome* outcomes = nullptr;             // T, kAbsent at first
  uint64_t* doc_ids = nullptr;             // T, 0 at first

  // Indices of the keys that are not resolved; with a segment map, of those that it does not name.
  uint8_t live[kTileKeysMax];
  size_t live_count = 0;
  uint8_t probing[kTileKeysMax];  // of the keys that are being looked for in a segment
  size_t probing_count = 0;
  bool resolved[kTileKeysMax];                // no older segment counts
  const Partition* partitions[kTileKeysMax];  // where it is looked for, or was found
  const uint8_t* addresses[kTileKeysMax];     // what the next stage reads
  const uint8_t* values[kTileKeysMax];        // of a found key: its value or locator

  uint8_t pointing[kTileKeysMax];  // of the keys whose line points to records
  size_t pointing_count = 0;
  uint32_t pointers[kTileKeysMax];  // the entries of that line to follow
  uint64_t places = 0;              // lines, records and values come to
  bool values_read = false;

  // With a segment map.
  MapProbe map_probes[kTileKeysMax];
  uint32_t map_masks[kTileKeysMax];
  uint8_t segments[kTileKeysMax];  // the number of the one that is being probed; 0: the base
  // Without.
  uint64_t filter_masks[kTileKeysMax];  // for segments with filter_hashes of them
  unsigned filter_hashes = 0;
};

// Starts anew with the tile's keys, hashes, outcomes and doc ids, which it resets.
void StartTile(Tile* tile);

// Aiming chooses the keys to probe and the segment of each, and asks for their pilots: the live
// keys that one segment may hold …
void AimAtSegment(const Segment& segment, bool use_filter, Tile* tile);
// … or all keys at the newest segment that the map names for each, if there is none at its base, by
// its filter if wanted; and then those that were not resolved by it at the next older one.
void AimByMap(const SegmentMap& map, MatchBucketsFunction match_buckets, bool use_filter,
              Tile* tile);
void AimFurther(const SegmentMap& map, Tile* tile);

// Reads the pilots of the keys being probed and asks for the lines that they lead to: addresses.
void FindLines(Tile* tile);
// Reads the lines. `row_shape`: that of all lines that may be read, if they hold whole rows and
// have but one; else null. Keys whose lines point to records are `pointing` then.
void ReadLines(const LineShape* row_shape, Tile* tile);
void ReadRecords(Tile* tile);
// Where the first record that key `i` points to begins; null for a pointer that was never written.
const uint8_t* RecordAddress(const Tile& tile, uint8_t i);

// Without a segment map: takes what was resolved out of `live`.
void DropResolved(Tile* tile);

// Where the value of found key `i` begins; null if it lies beside the key, or nowhere.
const uint8_t* ValueAddress(const Tile& tile, size_t i);
// Reads the values of the found keys into values[0, T); a damaged one turns the key's outcome.
void ReadValues(Tile* tile, std::string_view* values);

// One key in one segment, without a tile. kNothing means: look in the next segment.
Held ProbeOne(const Segment& segment, bool use_filter, std::string_view key, uint64_t hash,
              RowRef* row);

}  // namespace latchkey
