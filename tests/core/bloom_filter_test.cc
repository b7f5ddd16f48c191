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
  // A filter of the high halves of hashes, as a segment writes it.
  static std::vector<uint64_t> FilterOf(const std::vector<uint64_t>& highs, unsigned bits_per_key) {
    std::vector<uint64_t> words(FilterWordsFor(highs.size(), bits_per_key));
    for (const uint64_t high : highs) {
      words[FilterWordOf(high, words.size())] |= FilterMask(high, FilterHashesFor(bits_per_key));
    }
    for (uint64_t& word : words) word = word == 0 ? kEmptyFilterWord : word;
    return words;
  }
  static bool MayContain(const std::vector<uint64_t>& words, uint64_t high, unsigned bits_per_key) {
    return FilterMayContain(words[FilterWordOf(high, words.size())],
                            FilterMask(high, FilterHashesFor(bits_per_key)));
  }
};

// The exact rate: the keys of a word are Poisson distributed; of the bits that n keys set with k
// draws each, those set follow an occupancy distribution; a stranger draws k of 64 with replacement.
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
      std::vector<uint64_t> highs(rows);
      for (uint64_t& high : highs) high = random_.Next();
      const std::vector<uint64_t> words = FilterOf(highs, bits_per_key);
      for (const uint64_t high : highs) ASSERT_TRUE(MayContain(words, high, bits_per_key));
    }
  }
}

TEST_F(BloomFilterTest, FalsePositivesAreAsManyAsComputed) {
  constexpr size_t kRows = 200'000, kQuestions = 1'000'000;
  for (const unsigned bits_per_key : {4, 8, 10, 12, 16}) {
    std::vector<uint64_t> highs(kRows);
    for (uint64_t& high : highs) high = random_.Next();
    const std::vector<uint64_t> words = FilterOf(highs, bits_per_key);
    size_t positives = 0;
    for (size_t i = 0; i < kQuestions; ++i) {
      positives += MayContain(words, random_.Next(), bits_per_key);
    }
    const double expected = ExactFalsePositiveRate(bits_per_key, FilterHashesFor(bits_per_key));
    const double measured = static_cast<double>(positives) / kQuestions;
    // Six standard deviations of the questions, and 3% for the words' own luck.
    const double tolerance = 6 * std::sqrt(expected / kQuestions) + 0.03 * expected;
    EXPECT_NEAR(measured, expected, tolerance) << bits_per_key << " bits a key";
  }
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
    const uint64_t high = random_.Next();
    for (unsigned hashes = 1; hashes <= kFilterHashesMax; ++hashes) {
      const uint64_t mask = FilterMask(high, hashes);
      EXPECT_GE(std::popcount(mask), 1);
      EXPECT_LE(std::popcount(mask), static_cast<int>(hashes));
      EXPECT_EQ(mask & FilterMask(high, hashes - 1), FilterMask(high, hashes - 1));
    }
  }
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
