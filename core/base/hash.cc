#include "core/base/hash.h"

// Inlined, so that the branches on the length of short keys cost no call.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace latchkey {
namespace {

// Most keys have `kBytes` bytes: for those the hash has no branch on the length.
template <size_t kBytes>
void HashSized(std::span<const std::string_view> keys, uint64_t seed, uint64_t* hashes) {
  for (size_t i = 0; i < keys.size(); ++i) {
    const char* const data = keys[i].data();
    hashes[i] = keys[i].size() == kBytes ? XXH3_64bits_withSeed(data, kBytes, seed)
                                         : XXH3_64bits_withSeed(data, keys[i].size(), seed);
  }
}

}  // namespace

uint64_t HashBytes(const void* data, size_t size_bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, size_bytes, seed);
}

void HashMany(std::span<const std::string_view> keys, uint64_t seed, uint64_t* hashes) {
  switch (keys.empty() ? 0 : keys[0].size()) {
    case 8:
      return HashSized<8>(keys, seed, hashes);
    case 16:
      return HashSized<16>(keys, seed, hashes);
    case 20:
      return HashSized<20>(keys, seed, hashes);
    case 36:
      return HashSized<36>(keys, seed, hashes);
    default:
      return HashSized<0>(keys, seed, hashes);
  }
}

uint64_t Checksum(const void* data, size_t size_bytes) { return XXH3_64bits(data, size_bytes); }

}  // namespace latchkey
