#include "core/base/hash.h"

// Inlined, so that the branches on the length of short keys cost no call.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace latchkey {

Hash128 HashBytes(const void* data, size_t size_bytes, uint64_t seed) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(data, size_bytes, seed);
  return {hash.low64, hash.high64};
}

void HashMany(std::span<const std::string_view> keys, uint64_t seed, Hash128* hashes) {
  for (size_t i = 0; i < keys.size(); ++i) {
    const XXH128_hash_t hash = XXH3_128bits_withSeed(keys[i].data(), keys[i].size(), seed);
    hashes[i] = {hash.low64, hash.high64};
  }
}

uint64_t Checksum(const void* data, size_t size_bytes) { return XXH3_64bits(data, size_bytes); }

uint64_t SeededChecksum(const void* data, size_t size_bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, size_bytes, seed);
}

}  // namespace latchkey
