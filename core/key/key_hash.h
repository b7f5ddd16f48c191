// One 128-bit hash a key, cut into disjoint bit ranges; every later layer only slices.
//
//   low  half, from the top bit:  shard (s bits) | partition (p bits) | home slot (31) | unused |
//                                 control (7) | tag (16)
//   high half, from the top bit:  filter word (34) | five bit positions within it (5 x 6)
//
// The shard's bits are shifted out first, so that a table split by hash range keeps its even spread
// within each shard. s + p <= 10 keeps the home slot's bits clear of the control byte's. Filter and
// table use different halves, so that a filter's false positives and a table's false candidates are
// independent.
#pragma once

#include <cstdint>

#include "core/base/checked_math.h"
#include "core/base/hash.h"
#include "core/key/limits.h"

namespace latchkey {

inline constexpr unsigned kHomeBits = 31;
inline constexpr unsigned kFilterWordBits = 34;
static_assert(kPartitionBitsMax + kHomeBits + 7 + 16 <= 64);
static_assert(kPartitionSlotsMax == uint64_t{1} << kHomeBits);
static_assert(kPartitionFilterWordsMax == uint64_t{1} << kFilterWordBits);

// The top `bits` bits of `value`; 0 for no bits. One shift would be undefined at 64.
inline constexpr uint64_t TopBits(uint64_t value, unsigned bits) {
  return bits == 0 ? 0 : value >> (64 - bits);
}

inline constexpr uint64_t PartitionOf(uint64_t low, unsigned shard_bits, unsigned partition_bits) {
  return TopBits(low << shard_bits, partition_bits);
}

// The home slot among `home_slots` (1 to 2^31) of the key's partition.
inline constexpr uint64_t HomeSlotOf(uint64_t low, unsigned shard_and_partition_bits,
                                     uint64_t home_slots) {
  return MulShift((low << shard_and_partition_bits) >> (64 - kHomeBits), home_slots, kHomeBits);
}

inline constexpr uint16_t TagOf(uint64_t low) { return static_cast<uint16_t>(low); }

// A full slot's control byte: the top bit, and 7 bits of the hash.
inline constexpr uint8_t ControlOf(uint64_t low) {
  return static_cast<uint8_t>(0x80 | ((low >> 16) & 0x7F));
}

// The filter word among `words` (1 to 2^34) of the key's partition.
inline constexpr uint64_t FilterWordOf(uint64_t high, uint64_t words) {
  return MulShift(high >> (64 - kFilterWordBits), words, kFilterWordBits);
}

}  // namespace latchkey
