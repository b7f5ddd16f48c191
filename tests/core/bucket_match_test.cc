// Every implementation of the bucket comparison gives what a plain loop gives.
#include "core/table/bucket_match.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

// As wide loads need them.
struct alignas(64) Bucket {
  std::array<uint8_t, kBucketBytes> bytes = {};
};

// The segment's number takes up to 8 bits of the high byte.
constexpr std::array<uint8_t, 9> kSegmentMasks = {0, 1, 3, 7, 15, 31, 63, 127, 255};

class BucketMatchTest : public SeededTest {
 protected:
  // By definition.
  static uint32_t Expected(const MapProbe& probe, uint8_t segment_mask) {
    uint32_t mask = 0;
    for (unsigned i = 0; i < 31; ++i) {
      const uint8_t low = probe.bucket[i], high = probe.bucket[32 + i];
      if (low == probe.low && (high | segment_mask) == (probe.high | segment_mask)) mask |= 1u << i;
    }
    return mask;
  }

  // All implementations, and the one that is chosen. They write one mask a probe, and no more.
  static void ExpectAllRight(const std::vector<MapProbe>& probes, uint8_t segment_mask) {
    constexpr uint32_t kUntouched = 0xDEADBEEF;
    const auto check = [&](const char* name, MatchBucketsFunction match) {
      std::vector<uint32_t> masks(probes.size() + 8, kUntouched);
      match(probes, segment_mask, masks.data());
      for (size_t p = 0; p < probes.size(); ++p) {
        ASSERT_EQ(masks[p], Expected(probes[p], segment_mask))
            << name << ", probe " << p << " of " << probes.size() << ", mask " << int{segment_mask};
      }
      for (size_t p = probes.size(); p < masks.size(); ++p) ASSERT_EQ(masks[p], kUntouched) << name;
    };
    for (const MatchBucketsLevel& level : MatchBucketsLevels()) {
      ASSERT_NO_FATAL_FAILURE(check(level.name, level.match));
    }
    ASSERT_NO_FATAL_FAILURE(check("chosen", &MatchBuckets));
  }

  // A probe whose high byte has no bits of the segment's number, as a map makes them.
  static MapProbe ProbeOf(const Bucket& bucket, unsigned low, unsigned high, uint8_t segment_mask) {
    return {bucket.bytes.data(), static_cast<uint8_t>(low),
            static_cast<uint8_t>(high & ~unsigned{segment_mask})};
  }
};

TEST_F(BucketMatchTest, HasThePortableLevelFirstAndNamesTheRest) {
  const auto levels = MatchBucketsLevels();
  ASSERT_GE(levels.size(), 1u);
  EXPECT_STREQ(levels[0].name, "portable");
  for (size_t i = 0; i < levels.size(); ++i) {
    ASSERT_NE(levels[i].match, nullptr);
    for (size_t j = 0; j < i; ++j) {
      EXPECT_STRNE(levels[i].name, levels[j].name);
      EXPECT_NE(levels[i].match, levels[j].match);
    }
  }
#if defined(__x86_64__)
  ASSERT_GE(levels.size(), 2u);
  EXPECT_STREQ(levels[1].name, "sse2");
  // Whatever this processor can run is tested.
  EXPECT_EQ(levels.size(),
            2u + (__builtin_cpu_supports("avx2") ? 1 : 0) +
                (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") ? 1 : 0));
#endif
}

TEST_F(BucketMatchTest, OneEntryInEveryPlace) {
  for (const uint8_t segment_mask : kSegmentMasks) {
    for (unsigned place = 0; place < kBucketEntries; ++place) {
      std::vector<Bucket> buckets(5);
      std::vector<MapProbe> probes;
      const auto segment = static_cast<uint8_t>(random_.Next() & segment_mask);
      for (Bucket& bucket : buckets) {
        bucket.bytes.fill(0x11);
        bucket.bytes[place] = 0xA5;
        bucket.bytes[kBucketHighBytes + place] =
            static_cast<uint8_t>((0xC0 & ~segment_mask) | segment);
      }
      // The same; each byte wrong alone; and both.
      buckets[1].bytes[place] = 0xA4;
      buckets[2].bytes[kBucketHighBytes + place] ^= 0x80;
      buckets[3].bytes[place] ^= 0x80;
      buckets[3].bytes[kBucketHighBytes + place] ^= 0x80;
      for (const Bucket& bucket : buckets) {
        probes.push_back(ProbeOf(bucket, 0xA5, 0xC0, segment_mask));
      }
      ASSERT_EQ(Expected(probes[0], segment_mask), 1u << place);
      ASSERT_NO_FATAL_FAILURE(ExpectAllRight(probes, segment_mask));
    }
  }
}

// Every value of the bytes compared, against every bit by which another may differ.
TEST_F(BucketMatchTest, EveryByteAndEveryBit) {
  for (const uint8_t segment_mask : kSegmentMasks) {
    std::vector<Bucket> buckets(256);
    std::vector<MapProbe> probes;
    for (unsigned byte = 0; byte < 256; ++byte) {
      Bucket& bucket = buckets[byte];
      const auto other = static_cast<uint8_t>(random_.Next());
      for (unsigned i = 0; i < kBucketEntries; ++i) {
        const auto flipped = static_cast<uint8_t>(i % 8 == 7 && i > 8 ? 0 : 1u << i % 8);
        bucket.bytes[i] = static_cast<uint8_t>(i < 16 ? byte ^ flipped : other);
        bucket.bytes[kBucketHighBytes + i] = static_cast<uint8_t>(i < 16 ? other : byte ^ flipped);
      }
      probes.push_back(ProbeOf(bucket, byte, other, segment_mask));
      probes.push_back(ProbeOf(bucket, other, byte, segment_mask));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectAllRight(probes, segment_mask));
  }
}

// The number of entries and the overflow byte lie between and behind the fingerprints; they are
// none, even when they look like one.
TEST_F(BucketMatchTest, CountAndOverflowAreNoEntries) {
  for (const uint8_t segment_mask : kSegmentMasks) {
    Bucket bucket;
    bucket.bytes[kBucketEntryCount] = 7;
    bucket.bytes[kBucketOverflow] = 1;
    const std::vector<MapProbe> probes = {ProbeOf(bucket, 7, 1, segment_mask),
                                          ProbeOf(bucket, 7, 0, segment_mask),
                                          ProbeOf(bucket, 0, 0, segment_mask)};
    EXPECT_EQ(Expected(probes[0], segment_mask), 0u);
    // Of a bucket of zero bytes all 31 entries, and no more.
    EXPECT_EQ(Expected(probes[2], segment_mask), 0x7FFF'FFFFu);
    ASSERT_NO_FATAL_FAILURE(ExpectAllRight(probes, segment_mask));
    bucket.bytes.fill(0xFF);
    ASSERT_NO_FATAL_FAILURE(
        ExpectAllRight({ProbeOf(bucket, 0xFF, 0xFF, segment_mask)}, segment_mask));
  }
}

TEST_F(BucketMatchTest, RandomBucketsAndEveryNumberOfProbes) {
  for (size_t count = 0; count <= 300; count += 1 + count / 40) {
    for (const uint8_t segment_mask : kSegmentMasks) {
      std::vector<Bucket> buckets(count);
      std::vector<MapProbe> probes;
      // Few different bytes, so that there are matches, even several; now and then any.
      const uint64_t kinds = random_.OneIn(3) ? 256 : random_.Between(1, 4);
      for (Bucket& bucket : buckets) {
        for (uint8_t& byte : bucket.bytes) {
          byte =
              static_cast<uint8_t>(random_.Below(kinds) * 0x4F ^ (random_.Next() & segment_mask));
        }
        // One bucket may be probed many times.
        const Bucket& probed = random_.OneIn(4) ? buckets[random_.Below(count)] : bucket;
        const size_t like = random_.Below(kBucketEntries);
        probes.push_back(ProbeOf(probed, probed.bytes[like], probed.bytes[kBucketHighBytes + like],
                                 segment_mask));
        if (random_.OneIn(4)) probes.back().low = static_cast<uint8_t>(random_.Next());
        if (random_.OneIn(4)) {
          probes.back().high = static_cast<uint8_t>(random_.Next() & ~segment_mask);
        }
      }
      ASSERT_NO_FATAL_FAILURE(ExpectAllRight(probes, segment_mask));
    }
  }
}

}  // namespace
}  // namespace latchkey::test
