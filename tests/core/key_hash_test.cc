#include "core/key/key_hash.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/segment/bloom_filter.h"
#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

class KeyHashTest : public SeededTest {
 protected:
  // The bits of a 64-bit hash half on which `slice` depends, found by flipping each in many hashes.
  uint64_t BitsOf(const std::function<uint64_t(uint64_t)>& slice) {
    uint64_t bits = 0;
    for (int i = 0; i < 500; ++i) {
      const uint64_t hash = random_.Next();
      for (int bit = 0; bit < 64; ++bit) {
        const uint64_t mask = uint64_t{1} << bit;
        if (slice(hash) != slice(hash ^ mask)) bits |= mask;
      }
    }
    return bits;
  }
};

// Bits [low, high) of a half.
constexpr uint64_t Range(unsigned low, unsigned high) {
  return TopBits(UINT64_MAX, high) & ~TopBits(UINT64_MAX, low);
}

TEST_F(KeyHashTest, EachSliceDependsOnItsBitsAlone) {
  for (unsigned shard_bits = 0; shard_bits <= kPartitionBitsMax; ++shard_bits) {
    for (unsigned partition_bits = 0; shard_bits + partition_bits <= kPartitionBitsMax;
         ++partition_bits) {
      const unsigned above = shard_bits + partition_bits;
      const uint64_t shard = Range(64 - shard_bits, 64);
      const uint64_t partition = BitsOf(
          [&](uint64_t low) { return PartitionOf(low, shard_bits, partition_bits); });
      const uint64_t home = BitsOf(
          [&](uint64_t low) { return HomeSlotOf(low, above, kPartitionSlotsMax); });
      EXPECT_EQ(partition, Range(64 - above, 64 - shard_bits));
      EXPECT_EQ(home, Range(64 - above - kHomeBits, 64 - above));
      EXPECT_EQ(shard & (partition | home), 0u);
      EXPECT_EQ((partition | home) & Range(0, 23), 0u);
    }
  }
  EXPECT_EQ(BitsOf([](uint64_t low) { return TagOf(low); }), Range(0, 16));
  EXPECT_EQ(BitsOf([](uint64_t low) { return ControlOf(low); }), Range(16, 23));
  const uint64_t word =
      BitsOf([](uint64_t high) { return FilterWordOf(high, kPartitionFilterWordsMax); });
  EXPECT_EQ(word, Range(30, 64));
  const uint64_t positions =
      BitsOf([](uint64_t high) { return FilterMask(high, kFilterHashesMax); });
  EXPECT_EQ(positions, Range(0, 30));
}

// With fewer slots than bits say, no slot is out of reach and the highest bits decide.
TEST_F(KeyHashTest, HomeSlotsCoverTheirRange) {
  for (const uint64_t slots : {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{1000}, uint64_t{65'537},
                               kPartitionSlotsMax - 1, kPartitionSlotsMax}) {
    for (const unsigned above : {0u, 3u, kPartitionBitsMax}) {
      const unsigned below = 64 - above - kHomeBits;
      EXPECT_EQ(HomeSlotOf(0, above, slots), 0u);
      EXPECT_EQ(HomeSlotOf(UINT64_MAX, above, slots), slots - 1);
      EXPECT_EQ(HomeSlotOf(Range(below, 64 - above), above, slots), slots - 1);
      for (int i = 0; i < 1000; ++i) {
        // Order is kept: that is what lets a partition be filled in one pass.
        uint64_t a = random_.Next(), b = random_.Next();
        if (a << above > b << above) std::swap(a, b);
        ASSERT_LE(HomeSlotOf(a, above, slots), HomeSlotOf(b, above, slots));
        ASSERT_LT(HomeSlotOf(b, above, slots), slots);
      }
    }
  }
}

TEST_F(KeyHashTest, SlotsAndFilterWordsBeyond32Bits) {
  // 2^31 slots: the last ones are reached, and neighbours differ by one in the 31 bits.
  const uint64_t top = Range(64 - kHomeBits, 64);
  EXPECT_EQ(HomeSlotOf(top, 0, kPartitionSlotsMax), kPartitionSlotsMax - 1);
  EXPECT_EQ(HomeSlotOf(top - (uint64_t{1} << 33), 0, kPartitionSlotsMax), kPartitionSlotsMax - 2);
  EXPECT_EQ(HomeSlotOf(top, 0, kPartitionSlotsMax - 5), kPartitionSlotsMax - 6);
  // 2^34 words of a filter are 2^40 bits.
  for (const uint64_t words : {kPartitionFilterWordsMax, (uint64_t{1} << 33) + 12'345,
                               (uint64_t{1} << 32) + 1, uint64_t{1} << 26}) {
    EXPECT_EQ(FilterWordOf(UINT64_MAX, words), words - 1);
    EXPECT_EQ(FilterWordOf(0, words), 0u);
    for (int i = 0; i < 1000; ++i) {
      const uint64_t high = random_.Next();
      const auto expected = static_cast<uint64_t>(
          static_cast<unsigned __int128>(high >> 30) * words / (uint64_t{1} << 34));
      ASSERT_EQ(FilterWordOf(high, words), expected);
    }
  }
  // Rows of the largest partition, at 32 bits a key: more than 2^32 bits in all.
  const uint64_t rows = kPartitionSlotsMax / 4 * 3;
  EXPECT_EQ(FilterWordsFor(rows, 32), rows / 2);
  EXPECT_GT(FilterWordsFor(rows, 32) * 64, uint64_t{1} << 35);
  EXPECT_EQ(FilterWordsFor(kSegmentRowsMax, 32), kSegmentRowsMax / 2);
}

TEST_F(KeyHashTest, ControlBytesOfFullSlotsHaveTheTopBit) {
  for (int i = 0; i < 1000; ++i) EXPECT_GE(ControlOf(random_.Next()), 0x80);
  EXPECT_EQ(ControlOf(0), 0x80);
  EXPECT_EQ(ControlOf(UINT64_MAX), 0xFF);
}

TEST_F(KeyHashTest, ManyHashesAreThoseOfEachKey) {
  std::vector<std::string> keys;
  for (size_t size = 0; size < 600; ++size) keys.push_back(random_.Bytes(size));
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  std::vector<Hash128> hashes(keys.size());
  const uint64_t seed = random_.Next();
  HashMany(views, seed, hashes.data());
  for (size_t i = 0; i < keys.size(); ++i) {
    const Hash128 one = HashBytes(keys[i].data(), keys[i].size(), seed);
    EXPECT_EQ(hashes[i].low, one.low);
    EXPECT_EQ(hashes[i].high, one.high);
  }
}

// Files depend on these for ever. Those of "" and "a" are XXH3's published ones.
TEST(KeyHashGoldenTest, HashesAndTheirSlices) {
  struct Golden {
    std::string key;
    uint64_t seed, low, high, partition, home, control, tag, filter_word, filter_mask;
  };
  constexpr uint64_t kSeed = 0x0123456789abcdef;
  std::string counting;
  for (int i = 0; i < 256; ++i) counting += static_cast<char>(i);
  // One of each length class of the hash: 0, 1-3, 4-8, 9-16, 17-128, 129-240 and more bytes.
  const std::vector<Golden> goldens = {
      {"", 0, 0x6001c324468d497f, 0x99aa06d3014798d8, 384, 375, 0x8d, 0x497f, 60,
       0x0200000801020002},
      {"a", 0, 0xe6c632b61e964e1f, 0xa96faf705af16834, 923, 901, 0x96, 0x4e1f, 66,
       0x1010000104400000},
      {"latchkey", kSeed, 0x978279be826b28a0, 0x24050b49fe4074b0, 606, 591, 0xeb, 0x28a0, 14,
       0x4001000000050080},
      {counting.substr(0, 16), kSeed, 0xfdb57b7f9152aa8d, 0xb14d0b33aedc79cb, 1014, 991, 0xd2,
       0xaa8d, 69, 0x0080408000000880},
      {"d41d8cd98f00b204e9800998ecf8427e", kSeed, 0x2006ff8ebeaba702, 0x0cb7f59de2dfaa80, 128, 125,
       0xab, 0xa702, 4, 0x0480040400000001},
      {counting.substr(0, 240), kSeed, 0xb8ff7d7b210bf7d8, 0xc7749934436fbf97, 739, 722, 0x8b,
       0xf7d8, 77, 0x4800000008800008},
      {counting, kSeed, 0x475a0bae01c2895c, 0xe2d506006e24b78e, 285, 278, 0xc2, 0x895c, 88,
       0x0000400040004a00},
  };
  for (const Golden& golden : goldens) {
    SCOPED_TRACE(testing::Message() << "a key of " << golden.key.size() << " bytes");
    const Hash128 hash = HashBytes(golden.key.data(), golden.key.size(), golden.seed);
    EXPECT_EQ(hash.low, golden.low);
    EXPECT_EQ(hash.high, golden.high);
    EXPECT_EQ(PartitionOf(hash.low, 0, 10), golden.partition);
    EXPECT_EQ(HomeSlotOf(hash.low, 0, 1000), golden.home);
    EXPECT_EQ(ControlOf(hash.low), golden.control);
    EXPECT_EQ(TagOf(hash.low), golden.tag);
    EXPECT_EQ(FilterWordOf(hash.high, 100), golden.filter_word);
    EXPECT_EQ(FilterMask(hash.high, 5), golden.filter_mask);
  }
  EXPECT_EQ(Checksum("", 0), 0x2d06800538d394c2u);
  EXPECT_EQ(Checksum("latchkey", 8), 0x73a68d4dece90012u);
  EXPECT_EQ(SeededChecksum("latchkey", 8, kSeed), 0x87e6864c23aac27fu);
}

}  // namespace
}  // namespace latchkey::test
