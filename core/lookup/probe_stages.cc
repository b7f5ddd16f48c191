#include "core/lookup/probe_stages.h"

#include <algorithm>
#include <bit>

#include "core/base/bytes.h"
#include "core/base/prefetch.h"
#include "core/segment/bloom_filter.h"
#include "core/segment/record_pointer.h"

namespace latchkey {
namespace {

// Sends a key to a partition and asks for its pilot.
void Aim(const Partition& partition, uint8_t i, Tile* tile) {
  tile->partitions[i] = &partition;
  tile->addresses[i] = partition.PilotAddress(tile->hashes[i]);
  PrefetchLine(tile->addresses[i]);
}

void Resolve(Held held, const RowRef& row, uint8_t i, Tile* tile) {
  tile->resolved[i] = held != Held::kNothing;
  if (held == Held::kDamaged) [[unlikely]]
    tile->outcomes[i] = Outcome::kDamaged;
  if (held != Held::kRow) return;
  tile->outcomes[i] = Outcome::kFound;
  tile->doc_ids[i] = row.doc_id;
  tile->values[i] = row.value;
}

// Looks at the line of one key; false when it holds pointers that must be followed.
bool LookAtLine(uint8_t i, uint32_t* pointers, Tile* tile) {
  const Partition& partition = *tile->partitions[i];
  const Segment& segment = *partition.segment;
  RowRef row;
  Held held;
  if (segment.header().layout == Layout::kLine) {
    held = segment.FindInLine(tile->addresses[i], tile->keys[i], &row);
  } else {
    *pointers = segment.PointersInLine(tile->addresses[i], tile->hashes[i], &held);
    if (*pointers != 0) return false;
  }
  Resolve(held, row, i, tile);
  return true;
}

// Looks at lines of whole rows, all of one shape: kEntries with keys of kKeyBytes; 0 means any.
// Found or not, a key takes the same way through this.
template <size_t kKeyBytes, uint32_t kEntries>
void RowLineStage(const LineShape& shape, Tile* tile) {
  const size_t key_bytes = kKeyBytes != 0 ? kKeyBytes : shape.key_bytes();
  const uint32_t entries = kEntries != 0 ? kEntries : shape.entries();
  const size_t mark_at = shape.line_bytes() - 1, entry_bytes = shape.entry_bytes(),
               key_offset = shape.key_offset(), value_offset = shape.value_offset();
  const bool wide_doc_ids = shape.doc_id_bytes() == 8;
  // Entries are told apart by the last bytes of their keys, in which neighbours differ most; only
  // the first that has the wanted ones is compared as a whole. Whole 16-byte keys compared by SSE2
  // instead took 0.98 of the instructions and the same time (12.1 ns a key in cache, 23 in memory).
  const size_t tail_bytes = std::min<size_t>(key_bytes, 8), tail_offset = key_bytes - tail_bytes;
  for (size_t n = 0; n < tile->probing_count; ++n) {
    const uint8_t i = tile->probing[n];
    const uint8_t* const line = tile->addresses[i];
    const char* const key = tile->keys[i].data();
    uint32_t unused;
    if (tile->keys[i].size() != key_bytes) [[unlikely]] {
      LookAtLine(i, &unused, tile);
      continue;
    }
    uint32_t same = 0;
    const char* stored = reinterpret_cast<const char*>(line + key_offset + tail_offset);
    for (uint32_t e = 0; e < entries; ++e, stored += entry_bytes) {
      same |= static_cast<uint32_t>(SameBytes(stored, key + tail_offset, tail_bytes)) << e;
    }
    const uint32_t count = LoadAfter(line + mark_at) - uint32_t{kMarkBit};
    if (count > entries) [[unlikely]] {
      LookAtLine(i, &unused, tile);
      continue;
    }
    same &= (1u << count) - 1;
    const bool found = same != 0;
    const uint8_t* const entry = line + (found ? std::countr_zero(same) : 0) * entry_bytes;
    const bool whole = SameBytes(reinterpret_cast<const char*>(entry + key_offset), key, key_bytes);
    const uint64_t field = LoadDocIdField(entry, wide_doc_ids ? 8 : 4);
    if (found && (!whole || field <= kDocIdTombstone)) [[unlikely]] {
      LookAtLine(i, &unused, tile);
      continue;
    }
    tile->resolved[i] = found;
    tile->outcomes[i] = found ? Outcome::kFound : Outcome::kAbsent;
    tile->doc_ids[i] = found ? DocIdOfField(field, wide_doc_ids ? 8 : 4) : 0;
    tile->values[i] = entry + value_offset;
  }
}

void RowLineStage(const LineShape& shape, Tile* tile) {
  switch (shape.key_bytes()) {
    case 8:
      return RowLineStage<8, 0>(shape, tile);
    case 16:
      return shape.entries() == 3 ? RowLineStage<16, 3>(shape, tile)
                                  : RowLineStage<16, 0>(shape, tile);
    case 20:
      return RowLineStage<20, 0>(shape, tile);
    case 36:
      return RowLineStage<36, 0>(shape, tile);
    default:
      return RowLineStage<0, 0>(shape, tile);
  }
}

// The masks of a filter depend on the key alone, so all segments with as many hashes share them.
void MakeFilterMasks(unsigned filter_hashes, Tile* tile) {
  for (size_t i = 0; i < tile->count; ++i) {
    tile->filter_masks[i] = FilterMask(FilterHashOf(tile->hashes[i]), filter_hashes);
  }
  tile->filter_hashes = filter_hashes;
}

// Chooses the live keys that the segment may hold by their length and first bytes, and asks for
// what comes first: their filter words, or their pilots. What the loop needs is read before it,
// since a store of bytes might change any of it, as far as the compiler knows.
template <bool kByPrefix, bool kFiltered>
void ChooseStage(const Segment& segment, Tile* tile) {
  const std::string_view* const keys = tile->keys;
  const uint64_t* const hashes = tile->hashes;
  const Partition* const partitions = segment.partitions().data();
  const SegmentHeader& header = segment.header();
  const uint8_t shard_bits = header.shard_bits, partition_bits = header.partition_bits;
  tile->probing_count = 0;
  if (header.key_bytes_max == 0) return;  // no rows
  const size_t bytes_min = header.key_bytes_min, bytes_span = header.key_bytes_max - bytes_min;
  const size_t live_count = tile->live_count;
  size_t count = 0;
  for (size_t n = 0; n < live_count; ++n) {
    const uint8_t i = tile->live[n];
    tile->probing[count] = i;
    if (keys[i].size() - bytes_min > bytes_span) continue;
    if (kByPrefix && !segment.MayHoldPrefix(KeyPrefix(keys[i]))) continue;
    ++count;
    const Partition& partition = partitions[PartitionOf(hashes[i], shard_bits, partition_bits)];
    const uint8_t* const address =
        kFiltered ? partition.FilterAddress(hashes[i]) : partition.PilotAddress(hashes[i]);
    tile->partitions[i] = &partition;
    tile->addresses[i] = address;
    PrefetchLine(address);
  }
  tile->probing_count = count;
}

// Drops the keys that the filter excludes, and aims the others.
void FilterStage(const Segment& segment, Tile* tile) {
  if (segment.header().filter_hashes != tile->filter_hashes) {
    MakeFilterMasks(segment.header().filter_hashes, tile);
  }
  size_t count = 0;
  for (size_t n = 0; n < tile->probing_count; ++n) {
    const uint8_t i = tile->probing[n];
    if (!FilterMayContain(Load<uint64_t>(tile->addresses[i]), tile->filter_masks[i])) continue;
    Aim(*tile->partitions[i], i, tile);
    tile->probing[count++] = i;
  }
  tile->probing_count = count;
}

}  // namespace

void StartTile(Tile* tile) {
  tile->live_count = tile->count;
  tile->filter_hashes = 0;
  tile->places = 0;
  tile->values_read = false;
  for (size_t i = 0; i < tile->count; ++i) tile->live[i] = static_cast<uint8_t>(i);
  std::fill_n(tile->resolved, tile->count, false);
  std::fill_n(tile->outcomes, tile->count, Outcome::kAbsent);
  std::fill_n(tile->doc_ids, tile->count, 0);
}

void AimAtSegment(const Segment& segment, bool use_filter, Tile* tile) {
  const bool filtered = use_filter && segment.has_filter();
  if (segment.keys_are_close()) {
    filtered ? ChooseStage<true, true>(segment, tile) : ChooseStage<true, false>(segment, tile);
  } else {
    filtered ? ChooseStage<false, true>(segment, tile) : ChooseStage<false, false>(segment, tile);
  }
  if (filtered) FilterStage(segment, tile);
}

namespace {

// Sorts the tile's keys into those that the map names a segment for, whose numbers it sets, and
// `live`. Returns how many are `named`.
size_t SortByBuckets(const SegmentMap& map, MatchBucketsFunction match_buckets, Tile* tile,
                     uint8_t* named) {
  for (size_t i = 0; i < tile->count; ++i) {
    tile->map_probes[i] = map.ProbeFor(tile->hashes[i]);
    PrefetchLine(tile->map_probes[i].bucket);
  }
  const uint8_t segment_mask = map.segment_mask();
  match_buckets({tile->map_probes, tile->count}, segment_mask, tile->map_masks);
  size_t live_count = 0, named_count = 0;
  for (size_t i = 0; i < tile->count; ++i) {
    const MapProbe& probe = tile->map_probes[i];
    const uint32_t mask = tile->map_masks[i];
    uint32_t segment;
    if ((mask & (mask - 1)) == 0 && probe.bucket[kBucketOverflow] == 0) [[likely]] {
      segment = mask == 0 ? 0 : map.SegmentOf(probe, std::countr_zero(mask), segment_mask);
    } else {
      segment = map.NextSegment(probe, UINT32_MAX);
    }
    tile->segments[i] = static_cast<uint8_t>(segment);
    tile->live[live_count] = named[named_count] = static_cast<uint8_t>(i);
    live_count += segment == 0;
    named_count += segment != 0;
  }
  tile->live_count = live_count;
  return named_count;
}

// The same with a base, for which most keys are.
size_t SortBySummary(const SegmentMap& map, Tile* tile, uint8_t* named) {
  const MapSummary summary = map.summary();
  const uint64_t* const hashes = tile->hashes;
  const size_t tile_count = tile->count;
  std::fill_n(tile->segments, tile_count, 0);
  size_t live_count = 0, maybe_count = 0, named_count = 0;
  for (size_t i = 0; i < tile_count; ++i) {
    const bool maybe = summary.MayName(hashes[i]);
    tile->live[live_count] = named[maybe_count] = static_cast<uint8_t>(i);
    live_count += !maybe;
    maybe_count += maybe;
  }
  for (size_t n = 0; n < maybe_count; ++n) {
    MapProbe& probe = tile->map_probes[named[n]];
    probe = map.ProbeFor(hashes[named[n]]);
    PrefetchLine(probe.bucket);
  }
  for (size_t n = 0; n < maybe_count; ++n) {
    const uint8_t i = named[n];
    const uint32_t segment = map.NextSegment(tile->map_probes[i], UINT32_MAX);
    tile->segments[i] = static_cast<uint8_t>(segment);
    tile->live[live_count] = named[named_count] = i;
    live_count += segment == 0;
    named_count += segment != 0;
  }
  tile->live_count = live_count;
  return named_count;
}

}  // namespace

void AimByMap(const SegmentMap& map, MatchBucketsFunction match_buckets, bool use_filter,
              Tile* tile) {
  uint8_t named[kTileKeysMax];
  const size_t named_count = map.base() == nullptr ? SortByBuckets(map, match_buckets, tile, named)
                                                   : SortBySummary(map, tile, named);
  tile->probing_count = 0;
  if (map.base() != nullptr) AimAtSegment(*map.base(), use_filter, tile);
  for (size_t n = 0; n < named_count; ++n) {
    const uint8_t i = named[n];
    Aim(map.segments()[tile->segments[i]]->PartitionFor(tile->hashes[i]), i, tile);
    tile->probing[tile->probing_count++] = i;
  }
}

void AimFurther(const SegmentMap& map, Tile* tile) {
  size_t count = 0;
  for (size_t n = 0; n < tile->probing_count; ++n) {
    const uint8_t i = tile->probing[n];
    // As one condition, which is hard to foresee for neither a base's keys nor those of others.
    if (static_cast<int>(tile->resolved[i]) | static_cast<int>(tile->segments[i] == 0)) continue;
    const uint32_t segment = map.NextSegment(tile->map_probes[i], tile->segments[i]);
    if (segment == 0 && map.base() == nullptr) continue;
    tile->segments[i] = static_cast<uint8_t>(segment);
    Aim(map.segments()[segment]->PartitionFor(tile->hashes[i]), i, tile);
    tile->probing[count++] = i;
  }
  tile->probing_count = count;
}

// A pilot of zero was never written.
void FindLines(Tile* tile) {
  const uint64_t* const hashes = tile->hashes;
  const size_t probing_count = tile->probing_count;
  size_t count = 0;
  for (size_t n = 0; n < probing_count; ++n) {
    const uint8_t i = tile->probing[n];
    const Partition& partition = *tile->partitions[i];
    const uint8_t pilot = *tile->addresses[i];
    const uint8_t* const line = partition.LineAddress(hashes[i], pilot);
    const size_t line_bytes = size_t{1} << partition.line_shift;
    tile->addresses[i] = line;
    PrefetchLine(line);
    for (size_t at = kCacheLineBytes; at < line_bytes; at += kCacheLineBytes) {
      PrefetchLine(line + at);
    }
    tile->probing[count++] = i;
    if (pilot == 0) [[unlikely]] {
      Resolve(Held::kDamaged, {}, i, tile);
      --count;
    }
  }
  tile->probing_count = count;
  tile->places += count;
}

void ReadLines(const LineShape* row_shape, Tile* tile) {
  tile->pointing_count = 0;
  if (row_shape != nullptr) return RowLineStage(*row_shape, tile);
  for (size_t n = 0; n < tile->probing_count; ++n) {
    const uint8_t i = tile->probing[n];
    if (LookAtLine(i, &tile->pointers[i], tile)) continue;
    tile->pointing[tile->pointing_count++] = i;
    const uint8_t* const record = RecordAddress(*tile, i);
    if (record != nullptr) PrefetchEnds(record, kCacheLineBytes);
  }
  tile->places += tile->pointing_count;
}

const uint8_t* RecordAddress(const Tile& tile, uint8_t i) {
  const Partition& partition = *tile.partitions[i];
  const LineShape& shape = partition.segment->shape();
  const uint64_t offset = OffsetOfPointer(
      Load<uint64_t>(shape.Entry(tile.addresses[i], std::countr_zero(tile.pointers[i]))));
  return offset < partition.record_bytes ? partition.records + offset : nullptr;
}

void ReadRecords(Tile* tile) {
  for (size_t n = 0; n < tile->pointing_count; ++n) {
    const uint8_t i = tile->pointing[n];
    const Partition& partition = *tile->partitions[i];
    RowRef row;
    const Held held = partition.segment->FindInRecords(
        partition, tile->addresses[i], tile->pointers[i], tile->keys[i], tile->hashes[i], &row);
    Resolve(held, row, i, tile);
  }
}

void DropResolved(Tile* tile) {
  size_t count = 0;
  for (size_t n = 0; n < tile->live_count; ++n) {
    const uint8_t i = tile->live[n];
    tile->live[count] = i;
    count += !tile->resolved[i];
  }
  tile->live_count = count;
}

const uint8_t* ValueAddress(const Tile& tile, size_t i) {
  const Segment& segment = *tile.partitions[i]->segment;
  if (segment.header().schema.value_kind != ValueKind::kBytes) return nullptr;
  return segment.ValueAddress(Load<uint64_t>(tile.values[i]));
}

void ReadValues(Tile* tile, std::string_view* values) {
  for (size_t i = 0; i < tile->count; ++i) {
    if (tile->outcomes[i] != Outcome::kFound) continue;
    const uint8_t* const address = ValueAddress(*tile, i);
    if (address == nullptr) continue;
    PrefetchLine(address);
    ++tile->places;
  }
  for (size_t i = 0; i < tile->count; ++i) {
    values[i] = {};
    if (tile->outcomes[i] != Outcome::kFound) continue;
    const RowRef row{tile->doc_ids[i], tile->values[i]};
    if (tile->partitions[i]->segment->ReadValue(row, tile->hashes[i], &values[i])) continue;
    tile->outcomes[i] = Outcome::kDamaged;
    tile->doc_ids[i] = 0;
    values[i] = {};
  }
}

Held ProbeOne(const Segment& segment, bool use_filter, std::string_view key, uint64_t hash,
              RowRef* row) {
  if (!segment.MayHoldLength(key.size()) || !segment.MayHoldPrefix(KeyPrefix(key))) {
    return Held::kNothing;
  }
  const Partition& partition = segment.PartitionFor(hash);
  const bool suspect = segment.quarantined();
  if (use_filter && segment.has_filter()) {
    const uint8_t* const filter = partition.FilterAddress(hash);
    const bool speaks = !suspect || !segment.InQuarantine(filter, 8);
    if (speaks &&
        !FilterMayContain(Load<uint64_t>(filter),
                          FilterMask(FilterHashOf(hash), segment.header().filter_hashes))) {
      return Held::kNothing;
    }
  }
  const uint8_t* const pilot_address = partition.PilotAddress(hash);
  const uint8_t pilot = *pilot_address;
  if (pilot == 0 || (suspect && segment.InQuarantine(pilot_address, 1))) [[unlikely]]
    return Held::kDamaged;
  const uint8_t* const line = partition.LineAddress(hash, pilot);
  if (suspect && segment.InQuarantine(line, uint64_t{1} << partition.line_shift)) [[unlikely]]
    return Held::kDamaged;
  if (segment.header().layout == Layout::kLine) return segment.FindInLine(line, key, row);
  Held held;
  const uint32_t pointers = segment.PointersInLine(line, hash, &held);
  if (pointers == 0) return held;
  return segment.FindInRecords(partition, line, pointers, key, hash, row);
}

}  // namespace latchkey
