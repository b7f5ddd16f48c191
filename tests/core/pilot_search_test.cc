// Pilots lead every key to a line with room for it, and lines are as full as they should be.
#include "core/segment/pilot_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "core/key/key_hash.h"
#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

class PilotSearchTest : public SeededTest {
 protected:
  // Ascending, and alike in their `common_bits` top bits.
  std::vector<uint64_t> RandomHashes(size_t count, unsigned common_bits) {
    std::vector<uint64_t> hashes(count);
    const uint64_t common = random_.Next();
    for (uint64_t& hash : hashes) {
      hash = random_.Next();
      if (common_bits > 0) hash = hash >> common_bits | common << (64 - common_bits);
    }
    std::sort(hashes.begin(), hashes.end());
    return hashes;
  }

  // What a search that succeeded has to give.
  static void ExpectPlaced(const PilotSearch& search, const std::vector<uint64_t>& hashes,
                           unsigned common_bits, uint32_t entries) {
    const uint32_t lines = search.lines();
    const auto groups = static_cast<uint32_t>(GroupsFor(hashes.size()));
    ASSERT_GE(lines, LinesFor(hashes.size(), entries));
    ASSERT_LE(lines, LinesBound(hashes.size(), entries));
    ASSERT_EQ(search.pilots().size(), groups);
    ASSERT_EQ(std::count(search.pilots().begin(), search.pilots().end(), 0), 0);
    ASSERT_EQ(search.row_lines().size(), hashes.size());
    std::vector<uint32_t> taken(lines);
    for (size_t i = 0; i < hashes.size(); ++i) {
      const uint32_t group = GroupOf(hashes[i], common_bits, groups);
      ASSERT_LT(group, groups);
      const uint32_t line = LineOf(hashes[i], search.pilots()[group], lines);
      ASSERT_LT(line, lines);
      ASSERT_EQ(search.row_lines()[i], line) << "row " << i;
      ASSERT_LE(++taken[line], entries) << "line " << line;
    }
  }

  void ExpectPlaces(size_t count, unsigned common_bits, uint32_t entries) {
    SCOPED_TRACE(testing::Message() << count << " keys, " << common_bits << " bits in common, "
                                    << entries << " to a line");
    const std::vector<uint64_t> hashes = RandomHashes(count, common_bits);
    ASSERT_TRUE(search_.Place(hashes, common_bits, entries));
    ASSERT_NO_FATAL_FAILURE(ExpectPlaced(search_, hashes, common_bits, entries));
  }

  PilotSearch search_;  // one for all, as a writer has it
};

TEST_F(PilotSearchTest, SizesFollowFromTheNumberOfRows) {
  EXPECT_EQ(GroupsFor(0), 1u);
  EXPECT_EQ(GroupsFor(1), 1u);
  EXPECT_EQ(GroupsFor(3), 2u);
  EXPECT_EQ(GroupsFor(1000), 400u);
  EXPECT_EQ(LinesFor(0, 1), 1u);
  EXPECT_EQ(LinesFor(0, 7), 1u);
  EXPECT_EQ(LinesFor(1700, 1), 2000u);
  EXPECT_EQ(LinesFor(2400, 5), 500u);
  for (const uint64_t rows : {uint64_t{1}, uint64_t{100}, uint64_t{49'152}, uint64_t{1} << 31}) {
    for (uint32_t entries = 1; entries <= 15; ++entries) {
      // Room for all, with 4% to spare, or 15% where a line takes one.
      const double load =
          static_cast<double>(rows) / static_cast<double>(LinesFor(rows, entries) * entries);
      EXPECT_LE(load, entries == 1 ? 0.85 : 0.96) << rows << ", " << entries;
      if (rows > 10'000) {
        EXPECT_GT(load, entries == 1 ? 0.849 : 0.959) << rows << ", " << entries;
      }
      EXPECT_GT(LinesBound(rows, entries), LinesFor(rows, entries));
      EXPECT_LE(LinesBound(rows, entries), UINT32_MAX);
      // A plan's bounds are for more rows than come, and must be enough for fewer.
      EXPECT_GE(LinesBound(rows + 1, entries), LinesBound(rows, entries));
    }
  }
}

// Nothing random fails, whatever the number of keys, of entries and of bits in common.
TEST_F(PilotSearchTest, PlacesRandomKeysOfEveryNumber) {
  for (size_t count = 0; count <= 600; ++count) {
    for (uint32_t entries = 1; entries <= 15; ++entries) {
      const auto common_bits = static_cast<unsigned>(random_.Below(21));
      ASSERT_NO_FATAL_FAILURE(ExpectPlaces(count, common_bits, entries));
    }
  }
  for (int round = 0; round < 40; ++round) {
    ASSERT_NO_FATAL_FAILURE(ExpectPlaces(random_.Between(600, 8000),
                                         static_cast<unsigned>(random_.Below(21)),
                                         static_cast<uint32_t>(random_.Between(1, 15))));
  }
}

// The fewer the keys, the more chance decides.
TEST_F(PilotSearchTest, PlacesAFewKeysEveryTime) {
  for (int round = 0; round < 60'000; ++round) {
    ASSERT_NO_FATAL_FAILURE(
        ExpectPlaces(random_.Below(40), 0, static_cast<uint32_t>(random_.Between(1, 12))));
  }
}

// A partition as a build makes it takes no more lines than it should, or hardly any.
TEST_F(PilotSearchTest, LinesAreNearlyFull) {
  for (uint32_t entries = 1; entries <= 15; ++entries) {
    for (const unsigned common_bits : {0u, 10u}) {
      const size_t count = 49'152;
      const std::vector<uint64_t> hashes = RandomHashes(count, common_bits);
      ASSERT_TRUE(search_.Place(hashes, common_bits, entries));
      ASSERT_NO_FATAL_FAILURE(ExpectPlaced(search_, hashes, common_bits, entries));
      const double load = static_cast<double>(count) / (search_.lines() * double{1} * entries);
      EXPECT_GT(load, entries == 1 ? 0.82 : 0.93) << entries << " to a line";
    }
  }
}

// The keys of one group need not follow each other in the lines: the hash's bits that they have in
// common do not decide the line.
TEST_F(PilotSearchTest, KeysOfOneGroupSpread) {
  const std::vector<uint64_t> hashes = RandomHashes(10'000, 0);
  ASSERT_TRUE(search_.Place(hashes, 0, 3));
  size_t apart = 0;
  for (size_t i = 1; i < hashes.size(); ++i) {
    const uint32_t a = search_.row_lines()[i - 1], b = search_.row_lines()[i];
    apart += std::max(a, b) - std::min(a, b) > search_.lines() / 10;
  }
  // Of two random lines, 81% are so far apart.
  EXPECT_GT(apart, hashes.size() * 3 / 4);
}

TEST_F(PilotSearchTest, EqualHashesFitALineAndNoMore) {
  for (uint32_t entries = 1; entries <= 15; ++entries) {
    for (const uint64_t hash : {uint64_t{0}, UINT64_MAX, random_.Next()}) {
      for (size_t count = 1; count <= entries; ++count) {
        const std::vector<uint64_t> hashes(count, hash);
        ASSERT_TRUE(search_.Place(hashes, 0, entries)) << count << " of " << entries;
        ASSERT_NO_FATAL_FAILURE(ExpectPlaced(search_, hashes, 0, entries));
        EXPECT_EQ(std::set<uint32_t>(search_.row_lines().begin(), search_.row_lines().end()).size(),
                  1u);
      }
      EXPECT_FALSE(search_.Place(std::vector<uint64_t>(entries + 1, hash), 0, entries));
      EXPECT_FALSE(search_.Place(std::vector<uint64_t>(100, hash), 0, entries));
    }
  }
}

TEST_F(PilotSearchTest, EqualHashesAmongOthers) {
  for (uint32_t entries = 1; entries <= 12; ++entries) {
    const std::vector<uint64_t> others = RandomHashes(500, 0);
    const uint64_t equal = random_.Pick(others);
    std::vector<uint64_t> hashes = others;
    while (hashes.size() < others.size() + entries - 1) {
      hashes.insert(std::lower_bound(hashes.begin(), hashes.end(), equal), equal);
    }
    ASSERT_TRUE(search_.Place(hashes, 0, entries)) << entries;
    ASSERT_NO_FATAL_FAILURE(ExpectPlaced(search_, hashes, 0, entries));
    hashes.insert(std::lower_bound(hashes.begin(), hashes.end(), equal), equal);
    EXPECT_FALSE(search_.Place(hashes, 0, entries)) << entries;
    // A failure leaves nothing behind.
    ASSERT_TRUE(search_.Place(others, 0, entries)) << entries;
    ASSERT_NO_FATAL_FAILURE(ExpectPlaced(search_, others, 0, entries));
  }
}

// Hashes that are unlike random ones are placed rightly or refused, never placed wrongly.
TEST_F(PilotSearchTest, CraftedHashesAreRightOrRefused) {
  int placed = 0, refused = 0;
  for (int round = 0; round < 600; ++round) {
    const auto entries = static_cast<uint32_t>(random_.Between(1, 12));
    std::vector<uint64_t> hashes = RandomHashes(random_.Between(1, 300), 0);
    const unsigned bits = static_cast<unsigned>(random_.Between(1, 40));
    for (size_t i = 0; i < hashes.size(); ++i) {
      switch (round % 4) {
        case 0:  // all in a few groups
          hashes[i] >>= bits;
          break;
        case 1:  // few different ones
          hashes[i] = TopBits(hashes[i], bits % 10) << 50;
          break;
        case 2:  // numbers that follow each other
          hashes[i] = hashes[0] + (i << bits % 8);
          break;
        default:  // a part of them crowded
          if (random_.OneIn(3)) hashes[i] = hashes[0] ^ (i & 3);
      }
    }
    std::sort(hashes.begin(), hashes.end());
    if (!search_.Place(hashes, 0, entries)) {
      ++refused;
      continue;
    }
    ++placed;
    ASSERT_NO_FATAL_FAILURE(ExpectPlaced(search_, hashes, 0, entries));
  }
  EXPECT_GT(placed, 20);
  EXPECT_GT(refused, 20);
}

// A file's bytes follow from its rows alone, whatever was searched for before.
TEST_F(PilotSearchTest, TheSameKeysGiveTheSamePilots) {
  const std::vector<uint64_t> hashes = RandomHashes(3000, 0);
  PilotSearch fresh;
  ASSERT_TRUE(fresh.Place(hashes, 0, 5));
  ASSERT_NO_FATAL_FAILURE(ExpectPlaces(20'000, 3, 7));
  ASSERT_NO_FATAL_FAILURE(ExpectPlaces(0, 0, 1));
  ASSERT_TRUE(search_.Place(hashes, 0, 5));
  EXPECT_EQ(search_.lines(), fresh.lines());
  EXPECT_EQ(search_.pilots(), fresh.pilots());
  EXPECT_EQ(search_.row_lines(), fresh.row_lines());
}

}  // namespace
}  // namespace latchkey::test
