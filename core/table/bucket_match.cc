#include "core/table/bucket_match.h"

#include <array>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace latchkey {
namespace {

constexpr uint32_t kEntriesMask = (uint32_t{1} << kBucketEntries) - 1;

void MatchPortable(std::span<const MapProbe> probes, uint8_t segment_mask, uint32_t* masks) {
  for (size_t p = 0; p < probes.size(); ++p) {
    const MapProbe& probe = probes[p];
    const uint8_t* const high = probe.bucket + kBucketHighBytes;
    uint32_t mask = 0;
    for (unsigned i = 0; i < kBucketEntries; ++i) {
      const bool same =
          probe.bucket[i] == probe.low && (high[i] & ~segment_mask & 0xFF) == probe.high;
      mask |= static_cast<uint32_t>(same) << i;
    }
    masks[p] = mask;
  }
}

#if defined(__x86_64__)
void MatchSse2(std::span<const MapProbe> probes, uint8_t segment_mask, uint32_t* masks) {
  const __m128i fingerprint_bits = _mm_set1_epi8(static_cast<char>(~segment_mask));
  for (size_t p = 0; p < probes.size(); ++p) {
    const auto* bucket = reinterpret_cast<const __m128i*>(probes[p].bucket);
    const __m128i low = _mm_set1_epi8(static_cast<char>(probes[p].low));
    const __m128i high = _mm_set1_epi8(static_cast<char>(probes[p].high));
    const auto half = [&](int i) {
      const __m128i same_low = _mm_cmpeq_epi8(_mm_load_si128(bucket + i), low);
      const __m128i bits = _mm_and_si128(_mm_load_si128(bucket + 2 + i), fingerprint_bits);
      const __m128i same = _mm_and_si128(same_low, _mm_cmpeq_epi8(bits, high));
      return static_cast<uint32_t>(_mm_movemask_epi8(same));
    };
    masks[p] = (half(0) | half(1) << 16) & kEntriesMask;
  }
}

[[gnu::target("avx2")]] void MatchAvx2(std::span<const MapProbe> probes, uint8_t segment_mask,
                                       uint32_t* masks) {
  const __m256i fingerprint_bits = _mm256_set1_epi8(static_cast<char>(~segment_mask));
  for (size_t p = 0; p < probes.size(); ++p) {
    const auto* bucket = reinterpret_cast<const __m256i*>(probes[p].bucket);
    const __m256i same_low = _mm256_cmpeq_epi8(_mm256_load_si256(bucket),
                                               _mm256_set1_epi8(static_cast<char>(probes[p].low)));
    const __m256i same_high =
        _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_load_si256(bucket + 1), fingerprint_bits),
                          _mm256_set1_epi8(static_cast<char>(probes[p].high)));
    masks[p] = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_and_si256(same_low, same_high))) &
               kEntriesMask;
  }
}

[[gnu::target("avx512bw,avx512vl")]] void MatchAvx512(std::span<const MapProbe> probes,
                                                      uint8_t segment_mask, uint32_t* masks) {
  const __m256i fingerprint_bits = _mm256_set1_epi8(static_cast<char>(~segment_mask));
  for (size_t p = 0; p < probes.size(); ++p) {
    const auto* bucket = reinterpret_cast<const __m256i*>(probes[p].bucket);
    const __mmask32 same_low =
        _mm256_mask_cmpeq_epi8_mask(kEntriesMask, _mm256_load_si256(bucket),
                                    _mm256_set1_epi8(static_cast<char>(probes[p].low)));
    masks[p] = _mm256_mask_cmpeq_epi8_mask(
        same_low, _mm256_and_si256(_mm256_load_si256(bucket + 1), fingerprint_bits),
        _mm256_set1_epi8(static_cast<char>(probes[p].high)));
  }
}
#endif

struct Levels {
  std::array<MatchBucketsLevel, 4> all = {};
  size_t count = 0;
};

const Levels& TheLevels() {
  static const Levels levels = [] {
    Levels found;
    const auto add = [&](const char* name, MatchBucketsFunction match) {
      found.all[found.count++] = {name, match};
    };
    add("portable", MatchPortable);
#if defined(__x86_64__)
    add("sse2", MatchSse2);
    if (__builtin_cpu_supports("avx2")) add("avx2", MatchAvx2);
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
      add("avx512", MatchAvx512);
    }
#endif
    return found;
  }();
  return levels;
}

}  // namespace

std::span<const MatchBucketsLevel> MatchBucketsLevels() {
  return {TheLevels().all.data(), TheLevels().count};
}

void MatchBuckets(std::span<const MapProbe> probes, uint8_t segment_mask, uint32_t* masks) {
  static const MatchBucketsFunction match = MatchBucketsLevels().back().match;
  match(probes, segment_mask, masks);
}

}  // namespace latchkey
