// The key shapes of the benchmarks, as the Lucene experiments had them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace latchkey {

enum class KeyShape {
  kSeq6,    // 6 bytes: a counter in base 36
  kAsin10,  // 10 bytes: 'B0' and 8 random characters of A-Z0-9
  kUuid16,  // 16 random bytes
  kUuid36,  // the same as text
};

inline constexpr KeyShape kKeyShapes[] = {KeyShape::kSeq6, KeyShape::kAsin10, KeyShape::kUuid16,
                                          KeyShape::kUuid36};
std::string_view KeyShapeName(KeyShape shape);
size_t KeyShapeBytes(KeyShape shape);

// Writes key number `index` of a set to `to`; distinct for distinct
// indices below 10^9. `salt`, 0 or 1, chooses one of two disjoint sets.
void MakeKey(KeyShape shape, uint64_t index, uint64_t salt, char* to);

// A bijection on 64 bits: the finalizer of SplitMix64 (Steele, Lea, Flood, 2014).
inline uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9;
  x ^= x >> 27;
  x *= 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace latchkey
