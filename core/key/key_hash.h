// One 64-bit hash a key, XXH3 with the table's seed, and what is derived from it:
//
//   hash              from the top bit: shard (s bits) | partition (p bits) | pilot group (32) …
//   its top bits      the hash list of a segment, from which a generation's segment map is made
//   its low 24 bits   the tag of a record pointer
//   mixed with the group's pilot       the line within the partition
//   mixed with a constant              filter word (34 bits) | five bit positions in it (5 x 6)
//
// The shard's bits are shifted out first, so that a table split by hash range keeps its even spread
// within each shard. Mixing multiplies by an odd number: the high half of the product depends on
// every bit of the hash, so that neither the lines of a group nor the filter words of a partition
// are bound to the bits that its keys have in common.
#pragma once

#include <cstdint>

#include "core/base/checked_math.h"
#include "core/base/hash.h"
#include "core/key/limits.h"

namespace latchkey {

inline constexpr unsigned kFilterWordBits = 34;
static_assert(kPartitionFilterWordsMax == uint64_t{1} << kFilterWordBits);
static_assert(kPartitionBitsMax + 32 <= 64);

// The top `bits` bits of `value`, 0 to 63 of them. One shift would be undefined for none.
inline constexpr uint64_t TopBits(uint64_t value, unsigned bits) {
  return value >> 1 >> (63 - bits);
}

// Maps 32 random bits to [0, n), as MulShift does, within 64 bits.
inline constexpr uint32_t Scale32(uint64_t bits, uint32_t n) {
  return static_cast<uint32_t>((bits * n) >> 32);
}

inline constexpr uint32_t PartitionOf(uint64_t hash, unsigned shard_bits, unsigned partition_bits) {
  return static_cast<uint32_t>(TopBits(hash << shard_bits, partition_bits));
}

// The pilot group among `groups` (at least 1) of the key's partition. Keys in the order of their
// hashes are in the order of their groups.
inline constexpr uint32_t GroupOf(uint64_t hash, unsigned shard_and_partition_bits,
                                  uint32_t groups) {
  return Scale32((hash << shard_and_partition_bits) >> 32, groups);
}

// The line among `lines` (at least 1) of the key's partition, under its group's pilot.
inline constexpr uint32_t LineOf(uint64_t hash, uint8_t pilot, uint32_t lines) {
  const uint64_t mixed = (hash ^ (pilot * 0x9E3779B97F4A7C15)) * 0xD6E8FEB86659FD93;
  return Scale32(mixed >> 32, lines);
}

inline constexpr uint32_t kTagBits = 24;
inline constexpr uint32_t TagOf(uint64_t hash) {
  return static_cast<uint32_t>(hash) & ((uint32_t{1} << kTagBits) - 1);
}

inline constexpr uint64_t FilterHashOf(uint64_t hash) { return hash * 0x9FB21C651E98DF25; }

// The filter word among `words` (1 to 2^34) of the key's partition.
inline constexpr uint64_t FilterWordOf(uint64_t filter_hash, uint64_t words) {
  return MulShift(filter_hash >> (64 - kFilterWordBits), words, kFilterWordBits);
}

}  // namespace latchkey
