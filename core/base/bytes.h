// Little-endian loads and stores at any alignment, and variable-length integers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace latchkey {

static_assert(std::endian::native == std::endian::little,
              "files are little-endian and read in place");

template <typename T>
inline T Load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
inline void Store(void* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

template <typename T>
inline void Append(std::string* to, T value) {
  to->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// LEB128: 7 bits a byte, lowest first, top bit set on all bytes but the last.
inline constexpr size_t kVarintBytesMax = 10;

inline constexpr size_t VarintSize(uint64_t value) {
  return 1 + static_cast<size_t>(63 - std::countl_zero(value | 1)) / 7;
}

inline uint8_t* StoreVarint(uint8_t* to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *to++ = static_cast<uint8_t>(value) | 0x80;
  *to++ = static_cast<uint8_t>(value);
  return to;
}

// Reads one from [from, end) into *value and returns the byte after it; nullptr when it is cut off
// or does not fit 64 bits.
inline const uint8_t* LoadVarint(const uint8_t* from, const uint8_t* end, uint64_t* value) {
  uint64_t result = 0;
  for (int shift = 0; shift < 64 && from < end; shift += 7) {
    const uint8_t byte = *from++;
    if (shift == 63 && byte > 1) return nullptr;
    result |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) {
      *value = result;
      return from;
    }
  }
  return nullptr;
}

}  // namespace latchkey
