// Integer arithmetic on numbers that come from a file: a result that does not fit is reported, not
// wrapped.
#pragma once

#include <cstdint>

namespace latchkey {

// Each returns false, and leaves *out undefined, when the result does not fit.
[[nodiscard]] inline bool CheckedAdd(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_add_overflow(a, b, out);
}
[[nodiscard]] inline bool CheckedMul(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}

inline constexpr uint64_t CeilDiv(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
inline constexpr uint64_t RoundUp(uint64_t a, uint64_t multiple) {
  return CeilDiv(a, multiple) * multiple;
}

// Maps the top bits of a hash to [0, n): floor(bits * n / 2^width), with no division.
// Source: Lemire, "Fast random integer generation in an interval", 2019.
inline constexpr uint64_t MulShift(uint64_t bits, uint64_t n, unsigned width) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * n) >> width);
}

}  // namespace latchkey
