#include "core/lookup/probe_stages.h"

#include <bit>

#include "core/base/bytes.h"
#include "core/base/prefetch.h"
#include "core/key/key_hash.h"
#include "core/segment/bloom_filter.h"
#include "core/segment/term_order_layout.h"

namespace latchkey {
namespace {

const uint8_t* FilterAddress(const Partition& partition, const Hash128& hash) {
  return partition.filter + 8 * FilterWordOf(hash.high, partition.filter_words);
}

void StartChain(const Segment& segment, const Hash128& hash, ProbeState* state) {
  state->home = segment.HomeSlot(*state->partition, hash);
  state->slot = state->home;
}

// Finds the next candidate of a key's chain, from state->match on. kFound: it is the lowest of
// match.candidates. Otherwise the chain has ended and this is the segment's answer.
// Bounded by the partition's slots, whatever they hold.
Outcome NextCandidate(uint8_t wanted, ProbeState* state) {
  const Partition& partition = *state->partition;
  while (state->match.candidates == 0) {
    if (state->match.stops != 0) {
      const uint32_t stop = state->slot + std::countr_zero(state->match.stops);
      return partition.control[stop] == kControlEmpty ? Outcome::kAbsent : Outcome::kDamaged;
    }
    state->slot += kGroupSlots;
    // A chain is followed by an empty slot: at the latest the first of the group behind the last
    // slot.
    if (state->slot > partition.slots) return Outcome::kDamaged;
    state->match = MatchGroup(partition.control + state->slot, wanted);
  }
  return Outcome::kFound;
}

uint32_t CandidateSlot(const ProbeState& state) {
  return state.slot + std::countr_zero(state.match.candidates);
}

template <Layout kLayout>
const uint8_t* CandidateAddress(const Segment& segment, const ProbeState& state) {
  const uint32_t slot = CandidateSlot(state);
  if constexpr (kLayout == Layout::kInline) {
    return state.partition->records + segment.inline_shape().RecordOffset(slot);
  } else {
    return state.partition->slot_words + uint64_t{slot} * 8;
  }
}

template <Layout kLayout>
Candidate Compare(const Segment& segment, const ProbeState& state, std::string_view key,
                  const Hash128& hash, RowRef* row) {
  const uint32_t slot = CandidateSlot(state);
  if constexpr (kLayout == Layout::kInline) {
    return segment.CompareInline(*state.partition, slot, key, row);
  } else {
    return segment.CompareTermOrder(*state.partition, slot,
                                    SlotWordMark(slot - state.home, TagOf(hash.low)), key, row);
  }
}

// The masks of a filter depend on the key alone, so all segments with as many hashes share them.
void MakeFilterMasks(unsigned filter_hashes, Tile* tile) {
  for (size_t i = 0; i < tile->count; ++i) {
    tile->filter_masks[i] = FilterMask(tile->hashes[i].high, filter_hashes);
  }
  tile->filter_hashes = filter_hashes;
}

// Chooses the keys that the segment may hold by their length, and asks for their filter words.
void AimStage(const Segment& segment, Tile* tile) {
  size_t count = 0;
  for (size_t n = 0; n < tile->live_count; ++n) {
    const uint8_t i = tile->live[n];
    ProbeState& state = tile->state[i];
    state.partition = &segment.PartitionFor(tile->hashes[i]);
    if (state.partition->filter != nullptr) {
      state.filter_word = FilterAddress(*state.partition, tile->hashes[i]);
      PrefetchLine(state.filter_word);
    }
    tile->probing[count] = i;
    count += segment.MayHoldLength(tile->keys[i].size());
  }
  tile->probing_count = count;
}

// Drops the keys that the filter excludes.
void FilterStage(const Segment& segment, Tile* tile) {
  if (segment.header().filter_kind == FilterKind::kNone) return;
  if (segment.header().filter_hashes != tile->filter_hashes) {
    MakeFilterMasks(segment.header().filter_hashes, tile);
  }
  size_t count = 0;
  for (size_t n = 0; n < tile->probing_count; ++n) {
    const uint8_t i = tile->probing[n];
    tile->probing[count] = i;
    count += FilterMayContain(Load<uint64_t>(tile->state[i].filter_word), tile->filter_masks[i]);
  }
  tile->probing_count = count;
}

// Asks for the control bytes at the keys' home slots.
void HomeStage(const Segment& segment, Tile* tile) {
  for (size_t n = 0; n < tile->probing_count; ++n) {
    const uint8_t i = tile->probing[n];
    ProbeState& state = tile->state[i];
    StartChain(segment, tile->hashes[i], &state);
    PrefetchEnds(state.partition->control + state.slot, kGroupSlots);
  }
}

// Finds each key's next candidate and asks for what it must be compared with; keys whose chains
// have ended leave.
template <Layout kLayout, bool kFirst>
void ControlStage(const Segment& segment, Tile* tile) {
  size_t count = 0;
  for (size_t n = 0; n < tile->probing_count; ++n) {
    const uint8_t i = tile->probing[n];
    ProbeState& state = tile->state[i];
    const uint8_t wanted = ControlOf(tile->hashes[i].low);
    if constexpr (kFirst) {
      state.match = MatchGroup(state.partition->control + state.slot, wanted);
    }
    const Outcome outcome = NextCandidate(wanted, &state);
    if (outcome == Outcome::kFound) {
      const uint8_t* const address = CandidateAddress<kLayout>(segment, state);
      if constexpr (kLayout == Layout::kInline) {
        PrefetchEnds(address, segment.inline_shape().record_bytes());
      } else {
        PrefetchLine(address);
      }
      tile->probing[count++] = i;
    } else {
      tile->outcomes[i] = outcome;
    }
  }
  tile->probing_count = count;
}

// Term order: asks for the records that the slot words point to.
void SlotWordStage(Tile* tile) {
  for (size_t n = 0; n < tile->probing_count; ++n) {
    const ProbeState& state = tile->state[tile->probing[n]];
    const Partition& partition = *state.partition;
    const auto word = Load<uint64_t>(partition.slot_words + uint64_t{CandidateSlot(state)} * 8);
    const uint64_t offset = PointerOf(word);
    if (offset < partition.record_bytes) PrefetchEnds(partition.records + offset, kCacheLineBytes);
  }
}

// Compares each key with its candidate; those that it was not go on to their next one.
template <Layout kLayout>
void RecordStage(const Segment& segment, Tile* tile) {
  size_t count = 0;
  for (size_t n = 0; n < tile->probing_count; ++n) {
    const uint8_t i = tile->probing[n];
    ProbeState& state = tile->state[i];
    switch (Compare<kLayout>(segment, state, tile->keys[i], tile->hashes[i], &tile->rows[i])) {
      case Candidate::kMatch:
        tile->sources[i] = &segment;
        tile->outcomes[i] = Outcome::kFound;
        break;
      case Candidate::kOther:
        state.match.candidates &= state.match.candidates - 1;
        tile->probing[count++] = i;
        break;
      case Candidate::kDamaged:
        tile->outcomes[i] = Outcome::kDamaged;
        break;
    }
  }
  tile->probing_count = count;
}

// Keeps the keys that are still absent.
void CompactLive(Tile* tile) {
  size_t count = 0;
  for (size_t n = 0; n < tile->live_count; ++n) {
    const uint8_t i = tile->live[n];
    tile->live[count] = i;
    count += tile->outcomes[i] == Outcome::kAbsent;
  }
  tile->live_count = count;
}

template <Layout kLayout>
void ProbeChains(const Segment& segment, Tile* tile) {
  ControlStage<kLayout, true>(segment, tile);
  while (tile->probing_count > 0) {
    if constexpr (kLayout == Layout::kTermOrder) SlotWordStage(tile);
    RecordStage<kLayout>(segment, tile);
    ControlStage<kLayout, false>(segment, tile);
  }
}

template <Layout kLayout>
Outcome ProbeChain(const Segment& segment, std::string_view key, const Hash128& hash,
                   ProbeState* state, RowRef* row) {
  const uint8_t wanted = ControlOf(hash.low);
  state->match = MatchGroup(state->partition->control + state->slot, wanted);
  for (;;) {
    const Outcome outcome = NextCandidate(wanted, state);
    if (outcome != Outcome::kFound) return outcome;
    switch (Compare<kLayout>(segment, *state, key, hash, row)) {
      case Candidate::kMatch:
        return Outcome::kFound;
      case Candidate::kDamaged:
        return Outcome::kDamaged;
      case Candidate::kOther:
        state->match.candidates &= state->match.candidates - 1;
    }
  }
}

}  // namespace

void StartTile(Tile* tile) {
  tile->live_count = tile->count;
  tile->filter_hashes = 0;
  for (size_t i = 0; i < tile->count; ++i) {
    tile->live[i] = static_cast<uint8_t>(i);
    tile->outcomes[i] = Outcome::kAbsent;
  }
}

void ProbeSegment(const Segment& segment, Tile* tile) {
  AimStage(segment, tile);
  FilterStage(segment, tile);
  HomeStage(segment, tile);
  if (segment.header().layout == Layout::kInline) {
    ProbeChains<Layout::kInline>(segment, tile);
  } else {
    ProbeChains<Layout::kTermOrder>(segment, tile);
  }
  CompactLive(tile);
}

void ReadValues(Tile* tile, std::string_view* values) {
  for (size_t i = 0; i < tile->count; ++i) {
    if (tile->outcomes[i] != Outcome::kFound) continue;
    if (tile->sources[i]->header().schema.value_kind != ValueKind::kBytes) break;
    const uint8_t* const address =
        tile->sources[i]->ValueAddress(Load<uint64_t>(tile->rows[i].value));
    if (address != nullptr) PrefetchLine(address);
  }
  for (size_t i = 0; i < tile->count; ++i) {
    values[i] = {};
    if (tile->outcomes[i] == Outcome::kFound &&
        !tile->sources[i]->ReadValue(tile->rows[i], tile->hashes[i], &values[i])) {
      tile->outcomes[i] = Outcome::kDamaged;
      values[i] = {};
    }
  }
}

void PrefetchProbe(const Segment& segment, const Hash128& hash) {
  const Partition& partition = segment.PartitionFor(hash);
  if (partition.filter != nullptr) PrefetchLine(FilterAddress(partition, hash));
}

Outcome ProbeOne(const Segment& segment, std::string_view key, const Hash128& hash, RowRef* row) {
  if (!segment.MayHoldLength(key.size())) return Outcome::kAbsent;
  ProbeState state;
  state.partition = &segment.PartitionFor(hash);
  StartChain(segment, hash, &state);
  if (state.partition->filter != nullptr &&
      !FilterMayContain(Load<uint64_t>(FilterAddress(*state.partition, hash)),
                        FilterMask(hash.high, segment.header().filter_hashes))) {
    return Outcome::kAbsent;
  }
  return segment.header().layout == Layout::kInline
             ? ProbeChain<Layout::kInline>(segment, key, hash, &state, row)
             : ProbeChain<Layout::kTermOrder>(segment, key, hash, &state, row);
}

}  // namespace latchkey
