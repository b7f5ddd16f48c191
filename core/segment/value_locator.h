// How a record points to a value of any length.
//
//   locator = offset in the values section + 1 (48 bits) | check (16 bits)
//   value   = length + 1 (varint) | bytes
//
// The check is 16 bits of a checksum of the value's bytes seeded by the key's hash:
// a locator or a value that is not this key's shows. A locator of zero is a hole in the file, and
// so is a length of zero.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/bytes.h"
#include "core/base/hash.h"

namespace latchkey {

// Bytes that a value takes in the values section.
inline size_t StoredValueBytes(size_t value_bytes) {
  return VarintSize(uint64_t{value_bytes} + 1) + value_bytes;
}
inline uint16_t ValueCheck(std::string_view value, uint64_t key_hash) {
  return static_cast<uint16_t>(HashBytes(value.data(), value.size(), key_hash));
}
inline uint64_t MakeLocator(uint64_t offset, uint16_t check) {
  return ((offset + 1) << 16) | check;
}
// The offset; UINT64_MAX for a hole.
inline uint64_t LocatorOffset(uint64_t locator) { return (locator >> 16) - 1; }
inline uint16_t LocatorCheck(uint64_t locator) { return static_cast<uint16_t>(locator); }

}  // namespace latchkey
