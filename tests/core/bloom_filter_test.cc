#include "core/segment/bloom_filter.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <vector>

#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

class BloomFilterTest : public SeededTest {
 protected:
  // Hashes of keys that have their top bits in common, as those of a partition do.
  std::vector<uint64_t> RandomHashes(size_t count, unsigned common_bits = 0) {
    const uint64_t common = common_bits == 0 ? 0 : random_.Next() >> (64 - common_bits);
    std::vector<uint64_t> hashes(count);
    for (uint64_t& hash : hashes) {
      hash = random_.Next();
      if (common_bits != 0) hash = hash >> common_bits | common << (64 - common_bits);
    }
    return hashes;
  }
  // A filter of the hashes of keys, as a segment writes it.
  static std::vector<uint64_t> FilterOf(const std::vector<uint64_t>& hashes,
                                        unsigned bits_per_key) {
    std::vector<uint64_t> words(FilterWordsFor(hashes.size(), bits_per_key));
    for (const uint64_t hash : hashes) {
      const uint64_t mixed = FilterHashOf(hash);
      words[FilterWordOf(mixed, words.size())] |= FilterMask(mixed, FilterHashesFor(bits_per_key));
    }
    for (uint64_t& word : words) word = word == 0 ? kEmptyFilterWord : word;
    return words;
  }
  static bool MayContain(const std::vector<uint64_t>& words, uint64_t hash, unsigned bits_per_key) {
    const uint64_t mixed = FilterHashOf(hash);
    return FilterMayContain(words[FilterWordOf(mixed, words.size())],
                            FilterMask(mixed, FilterHashesFor(bits_per_key)));
  }
};

// The exact rate: the keys of a word are Poisson distributed; of the bits that n keys set with k
// draws each, those set follow an occupancy distribution; a stranger draws k of 64 with
// replacement.
double ExactFalsePositiveRate(unsigned bits_per_key, unsigned hashes) {
  const double load = 64.0 / bits_per_key;
  std::vector<double> set_bits(65, 0.0);  // probability that so many bits are set
  set_bits[0] = 1;
  double keys_probability = std::exp(-load), rate = 0;
  for (int keys = 0; keys < 400; ++keys) {
    // A word without keys keeps the one bit that marks it.
    for (int bits = 0; bits <= 64; ++bits) {
      const double share = keys == 0 ? 1.0 / 64 : bits / 64.0;
      rate += keys_probability * set_bits[bits] * std::pow(share, hashes);
    }
    keys_probability *= load / (keys + 1);
    for (unsigned draw = 0; draw < hashes; ++draw) {
      for (int bits = 64; bits >= 0; --bits) {
        const double stays = set_bits[bits] * (bits / 64.0);
        const double grows = bits == 0 ? 0 : set_bits[bits - 1] * ((65 - bits) / 64.0);
        set_bits[bits] = stays + grows;
      }
    }
  }
  return rate;
}

TEST_F(BloomFilterTest, NoFalseNegatives) {
  for (unsigned bits_per_key = 1; bits_per_key <= kFilterBitsPerKeyMax; ++bits_per_key) {
    for (const size_t rows : {1, 2, 63, 64, 65, 5000}) {
      const std::vector<uint64_t> hashes = RandomHashes(rows);
      const std::vector<uint64_t> words = FilterOf(hashes, bits_per_key);
      for (const uint64_t hash : hashes) ASSERT_TRUE(MayContain(words, hash, bits_per_key));
    }
  }
}

// Of strangers that come to the same filter, be it that of a whole table or that of a partition.
TEST_F(BloomFilterTest, FalsePositivesAreAsManyAsComputed) {
  constexpr size_t kRows = 200'000, kQuestions = 1'000'000;
  for (const unsigned common_bits : {0, 10}) {
    for (const unsigned bits_per_key : {4, 8, 10, 12, 16}) {
      std::vector<uint64_t> hashes = RandomHashes(kRows + kQuestions, common_bits);
      const std::vector<uint64_t> strangers(hashes.begin() + kRows, hashes.end());
      hashes.resize(kRows);
      const std::vector<uint64_t> words = FilterOf(hashes, bits_per_key);
      size_t positives = 0;
      for (const uint64_t hash : strangers) positives += MayContain(words, hash, bits_per_key);
      const double expected = ExactFalsePositiveRate(bits_per_key, FilterHashesFor(bits_per_key));
      const double measured = static_cast<double>(positives) / kQuestions;
      // Six standard deviations of the questions, and 3% for the words' own luck.
      const double tolerance = 6 * std::sqrt(expected / kQuestions) + 0.03 * expected;
      EXPECT_NEAR(measured, expected, tolerance)
          << bits_per_key << " bits a key, " << common_bits << " bits in common";
    }
  }
}

// A filter is asked about the keys that a group's or a line's neighbours might be taken for: its
// errors have nothing to do with where a key lies.
TEST_F(BloomFilterTest, FalsePositivesOfKeysInTheSameGroupsAndLines) {
  constexpr size_t kRows = 200'000;
  constexpr uint32_t kGroups = 80'000;
  const std::vector<uint64_t> hashes = RandomHashes(kRows);
  const std::vector<uint64_t> words = FilterOf(hashes, 10);
  const double expected = ExactFalsePositiveRate(10, 5);
  size_t questions = 0, positives = 0;
  for (const uint64_t hash : hashes) {
    // A stranger with the key's top bits and so its group, and one with its tag.
    const uint64_t same_group = hash ^ (random_.Between(1, UINT32_MAX));
    const uint64_t same_tag = hash ^ (random_.Between(1, (uint64_t{1} << 40) - 1) << kTagBits);
    ASSERT_EQ(GroupOf(same_group, 0, kGroups), GroupOf(hash, 0, kGroups));
    ASSERT_EQ(TagOf(same_tag), TagOf(hash));
    for (const uint64_t stranger : {same_group, same_tag}) {
      ++questions;
      positives += MayContain(words, stranger, 10);
    }
  }
  const double measured = static_cast<double>(positives) / static_cast<double>(questions);
  EXPECT_NEAR(measured, expected,
              6 * std::sqrt(expected / static_cast<double>(questions)) + 0.03 * expected);
}

// Zero is what a hole in the file reads as: it excludes nothing. A word without keys is told from
// it.
TEST_F(BloomFilterTest, AHoleExcludesNothingAndAnEmptyWordNearlyAll) {
  size_t let_through = 0;
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t mask = FilterMask(random_.Next(), kFilterHashesMax);
    ASSERT_TRUE(FilterMayContain(0, mask));
    ASSERT_TRUE(FilterMayContain(UINT64_MAX, mask));
    ASSERT_TRUE(FilterMayContain(mask, mask));
    ASSERT_EQ(FilterMayContain(kEmptyFilterWord, mask), mask == kEmptyFilterWord);
    let_through += FilterMayContain(kEmptyFilterWord, mask);
    // Each bit counts.
    const uint64_t lacking = UINT64_MAX ^ (mask & (~mask + 1));
    ASSERT_FALSE(FilterMayContain(lacking, mask));
  }
  EXPECT_LE(let_through, 3u);  // one in 64^5
}

TEST_F(BloomFilterTest, TheRateThatIsPromised) {
  EXPECT_NEAR(ExactFalsePositiveRate(10, 5), 0.018, 0.0005);
}

// No other number of hashes would have fewer false positives.
TEST_F(BloomFilterTest, NumbersOfHashesAreTheBest) {
  EXPECT_EQ(FilterHashesFor(0), 0u);
  for (unsigned bits_per_key = 1; bits_per_key <= kFilterBitsPerKeyMax; ++bits_per_key) {
    const unsigned chosen = FilterHashesFor(bits_per_key);
    ASSERT_GE(chosen, 1u);
    ASSERT_LE(chosen, kFilterHashesMax);
    const double rate = ExactFalsePositiveRate(bits_per_key, chosen);
    for (unsigned other = 2; other <= kFilterHashesMax; ++other) {
      EXPECT_LE(rate, ExactFalsePositiveRate(bits_per_key, other) * 1.0001)
          << bits_per_key << " bits a key: " << chosen << " or " << other << " hashes";
    }
  }
}

TEST_F(BloomFilterTest, AMaskHasAtMostOneBitAHash) {
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t mixed = random_.Next();
    for (unsigned hashes = 1; hashes <= kFilterHashesMax; ++hashes) {
      const uint64_t mask = FilterMask(mixed, hashes);
      EXPECT_GE(std::popcount(mask), 1);
      EXPECT_LE(std::popcount(mask), static_cast<int>(hashes));
      EXPECT_EQ(mask & FilterMask(mixed, hashes - 1), FilterMask(mixed, hashes - 1));
    }
  }
}

// The positions are six bits each, the lowest first.
TEST_F(BloomFilterTest, PositionsAreSixBitsEach) {
  for (int i = 0; i < 1000; ++i) {
    uint64_t mixed = random_.Next() << 30, expected = 0;
    for (unsigned hash = 0; hash < kFilterHashesMax; ++hash) {
      const uint64_t position = random_.Below(64);
      mixed |= position << (6 * hash);
      expected |= uint64_t{1} << position;
      ASSERT_EQ(FilterMask(mixed, hash + 1) & ~FilterMask(mixed, hash),
                expected & ~FilterMask(mixed, hash));
    }
    ASSERT_EQ(FilterMask(mixed, kFilterHashesMax), expected);
  }
  EXPECT_EQ(FilterMask(random_.Next(), 0), 0u);
}

TEST_F(BloomFilterTest, Sizes) {
  EXPECT_EQ(FilterWordsFor(0, 10), 1u);
  EXPECT_EQ(FilterWordsFor(1, 10), 1u);
  EXPECT_EQ(FilterWordsFor(64, 10), 10u);
  EXPECT_EQ(FilterWordsFor(65, 10), 11u);
  EXPECT_EQ(FilterWordsFor(1'000'000, 0), 0u);
}

}  // namespace
}  // namespace latchkey::test
