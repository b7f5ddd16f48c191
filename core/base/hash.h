// The hash and the checksum. This is the only place that uses xxHash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace latchkey {

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
};

// XXH3, 128 bits. Stable for ever: it decides where a key lies in a file.
Hash128 HashBytes(const void* data, size_t size_bytes, uint64_t seed);

// HashBytes of each of `keys: K views` into `hashes: K`.
void HashMany(std::span<const std::string_view> keys, uint64_t seed, Hash128* hashes);

// XXH3, 64 bits, unseeded: detects damage, not malice.
uint64_t Checksum(const void* data, size_t size_bytes);

// XXH3, 64 bits, with a seed: ties a value to its key.
uint64_t SeededChecksum(const void* data, size_t size_bytes, uint64_t seed);

}  // namespace latchkey
