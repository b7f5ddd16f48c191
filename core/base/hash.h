// The hash and the checksum. This is the only place that uses xxHash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace latchkey {

// XXH3, 64 bits, with a seed. Stable for ever: it decides where a key lies in a file.
uint64_t HashBytes(const void* data, size_t size_bytes, uint64_t seed);

// HashBytes of each of `keys: K views` into `hashes: K`.
void HashMany(std::span<const std::string_view> keys, uint64_t seed, uint64_t* hashes);

// XXH3, 64 bits, unseeded: detects damage, not malice.
uint64_t Checksum(const void* data, size_t size_bytes);

}  // namespace latchkey
