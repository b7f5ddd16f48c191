#include "core/key/key_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/segment/bloom_filter.h"
#include "core/segment/pilot_search.h"
#include "core/segment/record_pointer.h"
#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

// Bits [low, high) of a hash.
constexpr uint64_t Range(unsigned low, unsigned high) {
  const auto below = [](unsigned bits) {
    return bits == 64 ? UINT64_MAX : (uint64_t{1} << bits) - 1;
  };
  return below(high) & ~below(low);
}

// How much counts that should be equal differ, in standard deviations from what chance gives:
// their chi-square, made normal by the Wilson-Hilferty transformation.
double Unevenness(const std::vector<uint64_t>& counts) {
  double sum = 0, chi_square = 0;
  for (const uint64_t count : counts) sum += static_cast<double>(count);
  const double expected = sum / static_cast<double>(counts.size());
  for (const uint64_t count : counts) {
    chi_square += std::pow(static_cast<double>(count) - expected, 2) / expected;
  }
  const auto freedom = static_cast<double>(counts.size() - 1);
  const double ninths = 2 / (9 * freedom);
  return (std::cbrt(chi_square / freedom) - (1 - ninths)) / std::sqrt(ninths);
}
constexpr double kDeviationsMax = 6.5;

class KeyHashTest : public SeededTest {
 protected:
  // The bits of a hash on which `slice` depends, found by flipping each in many hashes.
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
  // Random but for its top bits, which are those of `hash`.
  uint64_t Near(uint64_t hash, unsigned common_bits) {
    const uint64_t common = Range(64 - common_bits, 64);
    return (hash & common) | (random_.Next() & ~common);
  }
  std::vector<uint64_t> SortedHashes(size_t count) {
    std::vector<uint64_t> hashes(count);
    for (uint64_t& hash : hashes) hash = random_.Next();
    std::sort(hashes.begin(), hashes.end());
    return hashes;
  }
};

TEST_F(KeyHashTest, TopBitsOfAnyNumber) {
  static_assert(TopBits(UINT64_MAX, 0) == 0);
  static_assert(TopBits(UINT64_MAX, 1) == 1);
  static_assert(TopBits(UINT64_MAX >> 1, 1) == 0);
  static_assert(TopBits(UINT64_MAX, 63) == UINT64_MAX >> 1);
  static_assert(TopBits(1, 63) == 0 && TopBits(2, 63) == 1);
  for (unsigned bits = 1; bits <= 63; ++bits) {
    EXPECT_EQ(TopBits(0, bits), 0u);
    EXPECT_EQ(TopBits(UINT64_MAX, bits), (uint64_t{1} << bits) - 1);
    // The lowest bit that counts, and the one below it.
    EXPECT_EQ(TopBits(uint64_t{1} << (64 - bits), bits), 1u);
    EXPECT_EQ(TopBits((uint64_t{1} << (64 - bits)) - 1, bits), 0u);
    for (int i = 0; i < 100; ++i) {
      const uint64_t value = random_.Next();
      ASSERT_EQ(TopBits(value, bits), value >> (64 - bits));
      ASSERT_EQ(TopBits(value, 0), 0u);
    }
  }
}

TEST_F(KeyHashTest, EachSliceDependsOnItsBitsAlone) {
  for (unsigned shard_bits = 0; shard_bits <= kPartitionBitsMax; ++shard_bits) {
    for (unsigned partition_bits = 0; shard_bits + partition_bits <= kPartitionBitsMax;
         ++partition_bits) {
      const unsigned above = shard_bits + partition_bits;
      const uint64_t partition =
          BitsOf([&](uint64_t hash) { return PartitionOf(hash, shard_bits, partition_bits); });
      const uint64_t group =
          BitsOf([&](uint64_t hash) { return GroupOf(hash, above, UINT32_MAX); });
      // Neither depends on the shard, whose keys have those bits in common.
      EXPECT_EQ(partition, Range(64 - above, 64 - shard_bits));
      EXPECT_EQ(group, Range(64 - above - 32, 64 - above));
    }
  }
  EXPECT_EQ(BitsOf([](uint64_t hash) { return TagOf(hash); }), Range(0, 24));
  EXPECT_EQ(BitsOf([](uint64_t hash) { return TagOfPointer(MakePointer(5, TagOf(hash))); }),
            Range(0, 24));
}

// What is mixed depends on every bit, so that keys with any bits in common are told apart.
TEST_F(KeyHashTest, LinesAndFilterWordsDependOnEveryBit) {
  for (const uint8_t pilot : {1, 2, 77, 255}) {
    EXPECT_EQ(BitsOf([&](uint64_t hash) { return LineOf(hash, pilot, UINT32_MAX); }), UINT64_MAX);
  }
  EXPECT_EQ(BitsOf([](uint64_t hash) {
              return FilterWordOf(FilterHashOf(hash), kPartitionFilterWordsMax);
            }),
            UINT64_MAX);
  // Word and bit positions have different bits of the mixed hash.
  EXPECT_EQ(BitsOf([](uint64_t mixed) { return FilterWordOf(mixed, kPartitionFilterWordsMax); }),
            Range(30, 64));
  EXPECT_EQ(BitsOf([](uint64_t mixed) { return FilterMask(mixed, kFilterHashesMax); }),
            Range(0, 30));
}

// Mixing loses nothing: two hashes never become one.
TEST_F(KeyHashTest, MixingIsOneToOne) {
  static_assert(FilterHashOf(0) == 0);
  uint64_t inverse = 1;  // of the odd factor, by Newton's iteration
  for (int i = 0; i < 6; ++i) inverse *= 2 - FilterHashOf(1) * inverse;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t hash = random_.Next();
    ASSERT_EQ(FilterHashOf(hash) * inverse, hash);
  }
}

TEST_F(KeyHashTest, ScalesWithinTheRange) {
  for (const uint32_t n : {1u, 2u, 3u, 1000u, 65'537u, 1u << 31, UINT32_MAX}) {
    EXPECT_EQ(Scale32(0, n), 0u);
    EXPECT_EQ(Scale32(UINT32_MAX, n), n - 1);
    for (int i = 0; i < 1000; ++i) {
      const uint64_t bits = random_.Next() >> 32;
      ASSERT_EQ(Scale32(bits, n), MulShift(bits, n, 32));
    }
  }
}

// With fewer groups than bits say, no group is out of reach and the highest bits decide.
TEST_F(KeyHashTest, GroupsCoverTheirRangeInOrder) {
  for (const uint32_t groups : {1u, 2u, 3u, 1000u, 65'537u, UINT32_MAX - 1, UINT32_MAX}) {
    for (const unsigned above : {0u, 3u, kPartitionBitsMax}) {
      EXPECT_EQ(GroupOf(0, above, groups), 0u);
      EXPECT_EQ(GroupOf(Range(64 - above, 64), above, groups), 0u);
      EXPECT_EQ(GroupOf(UINT64_MAX, above, groups), groups - 1);
      EXPECT_EQ(GroupOf(Range(32 - above, 64 - above), above, groups), groups - 1);
      for (int i = 0; i < 1000; ++i) {
        // Order is kept: so a partition's rows, in the order of hashes, come group by group.
        uint64_t a = random_.Next(), b = random_.Next();
        if (a << above > b << above) std::swap(a, b);
        ASSERT_LE(GroupOf(a, above, groups), GroupOf(b, above, groups));
        ASSERT_LT(GroupOf(b, above, groups), groups);
      }
    }
  }
}

TEST_F(KeyHashTest, LinesCoverTheirRange) {
  for (const uint32_t lines : {1u, 2u, 3u, 7u, 100u}) {
    std::vector<uint64_t> counts(lines);
    for (uint32_t i = 0; i < 2000 * lines; ++i) {
      const uint32_t line =
          LineOf(random_.Next(), static_cast<uint8_t>(random_.Between(1, kPilotMax)), lines);
      ASSERT_LT(line, lines);
      ++counts[line];
    }
    EXPECT_TRUE(lines == 1 || Unevenness(counts) < kDeviationsMax) << lines;
  }
  for (const uint32_t lines : {1u << 31, UINT32_MAX}) {
    uint32_t least = UINT32_MAX, greatest = 0;
    for (int i = 0; i < 10'000; ++i) {
      const uint32_t line = LineOf(random_.Next(), 1, lines);
      ASSERT_LT(line, lines);
      least = std::min(least, line);
      greatest = std::max(greatest, line);
    }
    EXPECT_LT(least, lines / 500);
    EXPECT_GT(greatest, lines - lines / 500);
  }
}

// Keys of one partition, or even of one group, have their top bits in common. Their lines and
// filter words are spread all the same.
TEST_F(KeyHashTest, KeysWithBitsInCommonAreSpread) {
  for (const unsigned common_bits : {0u, 4u, 10u, 26u, 40u}) {
    const uint64_t like = random_.Next();
    std::vector<uint64_t> lines(500), words(500);
    for (int i = 0; i < 100'000; ++i) {
      const uint64_t hash = Near(like, common_bits);
      ++lines[LineOf(hash, 1, 500)];
      ++words[FilterWordOf(FilterHashOf(hash), 500)];
    }
    EXPECT_LT(Unevenness(lines), kDeviationsMax) << common_bits;
    EXPECT_LT(Unevenness(words), kDeviationsMax) << common_bits;
  }
}

// A group's pilots are all different attempts: keys that fall on one line under one of them do not
// under the next, but by chance.
TEST_F(KeyHashTest, PilotsAreIndependentAttempts) {
  constexpr uint32_t kLines = 10;
  constexpr int kPairs = 200'000;
  int same_once = 0, same_twice = 0;
  for (int i = 0; i < kPairs; ++i) {
    const uint64_t a = random_.Next(), b = Near(a, 26);
    const auto pilot = static_cast<uint8_t>(random_.Between(1, kPilotMax - 1));
    const auto next = static_cast<uint8_t>(random_.Between(pilot + 1, kPilotMax));
    const bool same = LineOf(a, pilot, kLines) == LineOf(b, pilot, kLines);
    same_once += same;
    same_twice += same && LineOf(a, next, kLines) == LineOf(b, next, kLines);
  }
  EXPECT_NEAR(same_once, kPairs / kLines, 7 * std::sqrt(kPairs / kLines));
  EXPECT_NEAR(same_twice, kPairs / kLines / kLines, 7 * std::sqrt(kPairs / kLines / kLines));
  // And a key alone goes to all lines in turn.
  std::vector<uint64_t> lines(kLines);
  for (int i = 0; i < 200; ++i) {
    const uint64_t hash = random_.Next();
    for (uint32_t pilot = 1; pilot <= kPilotMax; ++pilot) {
      ++lines[LineOf(hash, static_cast<uint8_t>(pilot), kLines)];
    }
  }
  EXPECT_LT(Unevenness(lines), kDeviationsMax);
}

TEST_F(KeyHashTest, FilterWordsBeyond32Bits) {
  // 2^34 words of a filter are 2^40 bits.
  for (const uint64_t words : {kPartitionFilterWordsMax, (uint64_t{1} << 33) + 12'345,
                               (uint64_t{1} << 32) + 1, uint64_t{1} << 26, uint64_t{1}}) {
    EXPECT_EQ(FilterWordOf(UINT64_MAX, words), words - 1);
    EXPECT_EQ(FilterWordOf(0, words), 0u);
    for (int i = 0; i < 1000; ++i) {
      const uint64_t mixed = random_.Next();
      const auto expected = static_cast<uint64_t>(static_cast<unsigned __int128>(mixed >> 30) *
                                                  words / (uint64_t{1} << 34));
      ASSERT_EQ(FilterWordOf(mixed, words), expected);
    }
  }
  // Rows of the largest partition, at 32 bits a key: more than 2^32 bits in all.
  EXPECT_EQ(FilterWordsFor(kPartitionRowsMax, 32), kPartitionRowsMax / 2);
  EXPECT_GT(FilterWordsFor(kPartitionRowsMax, 32) * 64, uint64_t{1} << 35);
  EXPECT_EQ(FilterWordsFor(kSegmentRowsMax, 32), kSegmentRowsMax / 2);
}

TEST_F(KeyHashTest, ManyHashesAreThoseOfEachKey) {
  const uint64_t seed = random_.Next();
  std::vector<std::string> keys;
  for (size_t size = 0; size < 600; ++size) keys.push_back(random_.Bytes(size));
  // The first key's length says which way the others are hashed, and must not matter.
  for (const size_t first : {0, 1, 7, 8, 9, 16, 20, 36, 240, 599}) {
    std::vector<std::string_view> views = {keys[first]};
    views.insert(views.end(), keys.begin(), keys.end());
    std::vector<uint64_t> hashes(views.size());
    HashMany(views, seed, hashes.data());
    for (size_t i = 0; i < views.size(); ++i) {
      ASSERT_EQ(hashes[i], HashBytes(views[i].data(), views[i].size(), seed)) << first << ", " << i;
    }
  }
  uint64_t untouched = 7;
  HashMany({}, seed, &untouched);
  EXPECT_EQ(untouched, 7u);
}

// Keys that are far from random, as tables have them, hash to random bits in every place.
TEST_F(KeyHashTest, KeysThatCountUpAreSpread) {
  const uint64_t seed = random_.Next(), start = random_.Next();
  std::vector<uint64_t> partitions(1024), groups(1000), lines(1000), tags(1024), words(1000);
  for (uint64_t i = 0; i < 100'000; ++i) {
    const uint64_t key = __builtin_bswap64(start + i);
    const uint64_t hash = HashBytes(&key, sizeof(key), seed);
    ++partitions[PartitionOf(hash, 0, 10)];
    ++groups[GroupOf(hash, 10, 1000)];
    ++lines[LineOf(hash, 3, 1000)];
    ++tags[TagOf(hash) >> 14];
    ++words[FilterWordOf(FilterHashOf(hash), 1000)];
  }
  for (const auto* counts : {&partitions, &groups, &lines, &tags, &words}) {
    EXPECT_LT(Unevenness(*counts), kDeviationsMax);
  }
}

// What the search for pilots makes of one partition's hashes.
struct Placement {
  double close_pairs = 0;  // pairs of keys of one group, as a share of what chance gives
  double tried = 0;        // pilots a group
  double fill = 0;         // of all places in lines
  double full_lines = 0;   // share of the lines
};

Placement Place(const std::vector<uint64_t>& hashes, unsigned common_bits, uint32_t entries) {
  PilotSearch search;
  EXPECT_TRUE(search.Place(hashes, common_bits, entries));
  const auto groups = static_cast<uint32_t>(search.pilots().size());
  const auto rows = static_cast<double>(hashes.size());
  std::vector<uint32_t> sizes(groups), taken(search.lines());
  double pairs = 0;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const uint32_t group = GroupOf(hashes[i], common_bits, groups);
    pairs += sizes[group]++;
    const uint32_t line = LineOf(hashes[i], search.pilots()[group], search.lines());
    EXPECT_EQ(line, search.row_lines()[i]);
    ++taken[line];
  }
  Placement placement;
  placement.close_pairs = pairs / (rows * (rows - 1) / 2 / groups);
  for (const uint8_t pilot : search.pilots()) placement.tried += pilot;
  placement.tried /= groups;
  placement.fill = rows / entries / search.lines();
  placement.full_lines =
      static_cast<double>(std::count(taken.begin(), taken.end(), entries)) / search.lines();
  EXPECT_LE(*std::max_element(taken.begin(), taken.end()), entries);
  return placement;
}

// Holds `what` of each of `these` to its mean and spread over `those`.
void ExpectAlike(const char* name, double Placement::*what, const std::vector<Placement>& these,
                 const std::vector<Placement>& those) {
  const auto mean_of = [&](const std::vector<Placement>& all) {
    double sum = 0;
    for (const Placement& one : all) sum += one.*what;
    return sum / static_cast<double>(all.size());
  };
  const double mean = mean_of(those);
  double variance = 0;
  for (const Placement& one : those) variance += std::pow(one.*what - mean, 2);
  const double deviation = std::sqrt(variance / static_cast<double>(those.size() - 1));
  // The spread is itself an estimate from a few dozen tables, so it may be too small by a third.
  for (const Placement& one : these) EXPECT_NEAR(one.*what, mean, 9 * deviation) << name;
  const double of_means = deviation * std::sqrt(1.0 / static_cast<double>(these.size()) +
                                                1.0 / static_cast<double>(those.size()));
  EXPECT_NEAR(mean_of(these), mean, 9 * of_means) << name;
}

// A table split by the top bits of its hashes: every shard is as good a table as one that was never
// split, though its keys have those bits in common.
TEST_F(KeyHashTest, ShardsAreLikeTablesThatWereNeverSplit) {
  constexpr unsigned kShardBits = 4;
  constexpr size_t kShards = size_t{1} << kShardBits, kRows = 6000;
  // All shards have as many rows as the tables that they are compared with.
  std::vector<std::vector<uint64_t>> shards(kShards);
  for (const uint64_t hash : SortedHashes(kShards * kRows * 11 / 10)) {
    auto& shard = shards[TopBits(hash, kShardBits)];
    shard.push_back(hash);
  }
  for (auto& shard : shards) {
    ASSERT_GT(shard.size(), kRows);
    while (shard.size() > kRows) shard.erase(shard.begin() + random_.Below(shard.size()));
  }
  for (const uint32_t entries : {3u, 7u}) {
    SCOPED_TRACE(entries);
    std::vector<Placement> unsplit, split;
    for (int i = 0; i < 32; ++i) unsplit.push_back(Place(SortedHashes(kRows), 0, entries));
    for (const auto& shard : shards) split.push_back(Place(shard, kShardBits, entries));
    ExpectAlike("pairs in groups", &Placement::close_pairs, split, unsplit);
    ExpectAlike("pilots tried", &Placement::tried, split, unsplit);
    ExpectAlike("full lines", &Placement::full_lines, split, unsplit);
    for (const auto* all : {&split, &unsplit}) {
      for (const Placement& one : *all) {
        EXPECT_NEAR(one.close_pairs, 1, 0.1);
        EXPECT_GT(one.fill, 0.92);
      }
    }
  }
  // It takes the shard's bits to be shifted out: else its keys crowd a sixteenth of the groups.
  const auto groups = static_cast<uint32_t>(GroupsFor(kRows));
  for (size_t i = 0; i < kShards; ++i) {
    for (const uint64_t hash : shards[i]) {
      ASSERT_EQ(GroupOf(hash, 0, groups) * kShards / groups, i);
    }
  }
}

// The partitions of a shard are those of a table that has no other bits than the shard's keys.
TEST_F(KeyHashTest, ShardsHavePartitionsOfTheirOwn) {
  for (const unsigned shard_bits : {1u, 4u, 9u}) {
    std::vector<uint64_t> counts(2 << (9 - shard_bits));
    const unsigned partition_bits = 10 - shard_bits;
    const uint64_t shard = random_.Next();
    for (int i = 0; i < 50'000; ++i) {
      const uint64_t hash = Near(shard, shard_bits);
      const uint32_t partition = PartitionOf(hash, shard_bits, partition_bits);
      ASSERT_EQ(partition, PartitionOf(hash << shard_bits, 0, partition_bits));
      // A shard's partitions are the next finer split of the whole table.
      ASSERT_EQ(TopBits(hash, shard_bits) << partition_bits | partition, TopBits(hash, 10));
      ++counts.at(partition);
    }
    EXPECT_LT(Unevenness(counts), kDeviationsMax) << shard_bits;
  }
  EXPECT_EQ(PartitionOf(UINT64_MAX, 0, 0), 0u);
  EXPECT_EQ(PartitionOf(UINT64_MAX, 10, 0), 0u);
}

// Files depend on these for ever. The hashes of "" and "a" are XXH3's published ones; all numbers
// come from another implementation.
TEST(KeyHashGoldenTest, HashesAndTheirSlices) {
  struct Golden {
    std::string key;
    uint64_t seed, hash;
    uint32_t partition, shard_partition, group, first_line, last_line, tag;
    uint64_t filter_word, filter_mask;
  };
  constexpr uint64_t kSeed = 0x0123456789abcdef;
  std::string counting;
  for (int i = 0; i < 256; ++i) counting += static_cast<char>(i);
  // One of each length class of the hash: 0, 1-3, 4-8, 9-16, 17-128, 129-240 and more bytes.
  const std::vector<Golden> goldens = {
      {"", 0, 0x2d06800538d394c2, 180, 52, 101, 35, 909025, 0xd394c2, 28, 0x0100000000d00400},
      {"a", 0, 0xe6c632b61e964e1f, 923, 27, 96, 656, 440543, 0x964e1f, 53, 0x0800201040000800},
      {"latchkey", kSeed, 0x87e6864c23aac27f, 543, 31, 601, 28, 1020856, 0xaac27f, 97,
       0x0020080108000010},
      {counting.substr(0, 16), kSeed, 0x1dca78f4947ed52c, 119, 55, 163, 639, 242748, 0x7ed52c, 16,
       0x0000100410002200},
      {counting.substr(0, 20), kSeed, 0xdd934c124247937b, 886, 54, 301, 658, 463976, 0x47937b, 55,
       0x0040010000800080},
      {"d41d8cd98f00b204e9800998ecf8427e", kSeed, 0x70ddb3b77d0595da, 451, 3, 464, 934, 924883,
       0x0595da, 17, 0x0512000000000004},
      {counting.substr(0, 240), kSeed, 0x4b1593ee9603224a, 300, 44, 337, 799, 627683, 0x03224a, 77,
       0x0006044000010000},
      {counting, kSeed, 0x475a0bae01c2895c, 285, 29, 406, 188, 729781, 0xc2895c, 69,
       0x020000000200b000},
  };
  for (const Golden& golden : goldens) {
    SCOPED_TRACE(testing::Message() << "a key of " << golden.key.size() << " bytes");
    const uint64_t hash = HashBytes(golden.key.data(), golden.key.size(), golden.seed);
    EXPECT_EQ(hash, golden.hash);
    EXPECT_EQ(PartitionOf(hash, 0, 10), golden.partition);
    EXPECT_EQ(PartitionOf(hash, 4, 6), golden.shard_partition);
    EXPECT_EQ(GroupOf(hash, 10, 1000), golden.group);
    EXPECT_EQ(LineOf(hash, 1, 1000), golden.first_line);
    EXPECT_EQ(LineOf(hash, 255, 1 << 20), golden.last_line);
    EXPECT_EQ(TagOf(hash), golden.tag);
    EXPECT_EQ(FilterWordOf(FilterHashOf(hash), 100), golden.filter_word);
    EXPECT_EQ(FilterMask(FilterHashOf(hash), 5), golden.filter_mask);
  }
  EXPECT_EQ(Checksum("", 0), 0x2d06800538d394c2u);
  EXPECT_EQ(Checksum("latchkey", 8), 0x73a68d4dece90012u);
}

}  // namespace
}  // namespace latchkey::test
