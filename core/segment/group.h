// Sixteen control bytes compared at once. The portable twin is what other processors run; a test
// holds both equal.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace latchkey {

inline constexpr unsigned kGroupSlots = 16;

// A control byte is one of these, or 0x80 | 7 hash bits for a full slot. Everything else is damage;
// so is 0x00, which is what a hole in a file reads as.
inline constexpr uint8_t kControlEmpty = 0x01;

// Bit i stands for the i-th control byte of the group.
struct GroupMatch {
  uint32_t candidates;  // full slots with the wanted hash bits that come before the first stop
  uint32_t stops;       // slots that are not full: the chain ends at the first
};

inline GroupMatch MakeGroupMatch(uint32_t equal, uint32_t stops) {
  return {equal & ((stops & (0u - stops)) - 1), stops};
}

// Reads control[0, 16); `control` needs no alignment.
inline GroupMatch MatchGroupPortable(const uint8_t* control, uint8_t wanted) {
  uint32_t equal = 0, stops = 0;
  for (unsigned i = 0; i < kGroupSlots; ++i) {
    equal |= static_cast<uint32_t>(control[i] == wanted) << i;
    stops |= static_cast<uint32_t>(control[i] < 0x80) << i;
  }
  return MakeGroupMatch(equal, stops);
}

#if defined(__SSE2__)
inline GroupMatch MatchGroup(const uint8_t* control, uint8_t wanted) {
  const __m128i group = _mm_loadu_si128(reinterpret_cast<const __m128i*>(control));
  const __m128i same = _mm_cmpeq_epi8(group, _mm_set1_epi8(static_cast<char>(wanted)));
  return MakeGroupMatch(static_cast<uint32_t>(_mm_movemask_epi8(same)),
                        ~static_cast<uint32_t>(_mm_movemask_epi8(group)) & 0xFFFF);
}
#else
inline GroupMatch MatchGroup(const uint8_t* control, uint8_t wanted) {
  return MatchGroupPortable(control, wanted);
}
#endif

}  // namespace latchkey
