// Register-blocked Bloom filter: a key's bits all lie in one 64-bit word, so a lookup reads one
// word. Source: Lang, Neumann, Kemper, Boncz, "Performance-Optimal Filtering", PVLDB 12(5), 2019.
//
// The exact false-positive rate at 10 bits a key and 5 hashes is 1.8% (Poisson load of a word, bits
// drawn with replacement). A word of zeros reads as "maybe": the writer marks a word that no key
// fell into, so only a hole in the file has one.
#pragma once

#include <cstdint>

#include "core/key/key_hash.h"

namespace latchkey {

inline constexpr unsigned kFilterHashesMax = 5;  // of 6 bits each: the 30 bits below the word's 34

// One bit for each of the first `hashes` 6-bit positions.
inline constexpr uint64_t FilterMask(uint64_t filter_hash, unsigned hashes) {
  uint64_t mask = 0;
  for (unsigned i = 0; i < hashes; ++i) mask |= uint64_t{1} << ((filter_hash >> (6 * i)) & 63);
  return mask;
}

// A word that no key fell into. Its one bit lets a key through only if all its positions coincide
// there.
inline constexpr uint64_t kEmptyFilterWord = 1;

inline constexpr bool FilterMayContain(uint64_t word, uint64_t mask) {
  return (word & mask) == mask || word == 0;
}

// The number of hashes with the fewest false positives for a size in bits a key (computed exactly,
// see above).
inline constexpr unsigned FilterHashesFor(unsigned bits_per_key) {
  if (bits_per_key == 0) return 0;
  if (bits_per_key <= 3) return 2;
  if (bits_per_key <= 5) return 3;
  if (bits_per_key <= 8) return 4;
  return kFilterHashesMax;
}

// Words of a filter for `rows` keys; at least one.
inline constexpr uint64_t FilterWordsFor(uint64_t rows, unsigned bits_per_key) {
  if (bits_per_key == 0) return 0;
  const uint64_t words = CeilDiv(rows * bits_per_key, 64);
  return words == 0 ? 1 : words;
}

}  // namespace latchkey
