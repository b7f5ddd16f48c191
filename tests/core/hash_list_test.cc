// A hash list gives back the top bits of the hashes that it was made of.
#include "core/segment/hash_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

// What a map wants: bits that number the table's rows, and 9.
unsigned WantedBits(uint64_t table_rows) {
  return std::min<unsigned>(kHashBitsMax, static_cast<unsigned>(std::bit_width(table_rows)) + 9);
}
// A small segment's list, which may be the first of what becomes a large table, has 40 at least.
unsigned WantedBits(uint64_t rows, uint64_t table_rows) {
  return std::max(rows <= 65'536 ? 40u : 0u, WantedBits(table_rows));
}

class HashListTest : public SeededTest {
 protected:
  std::vector<uint64_t> RandomHashes(size_t count) {
    std::vector<uint64_t> hashes(count);
    for (uint64_t& hash : hashes) hash = random_.Next();
    std::sort(hashes.begin(), hashes.end());
    return hashes;
  }

  static std::string ListOf(const HashListShape& shape, unsigned shard_bits,
                            const std::vector<uint64_t>& hashes) {
    HashListWriter writer(shape, shard_bits);
    std::string bytes;
    for (const uint64_t hash : hashes) writer.Append(hash, &bytes);
    return bytes;
  }

  static std::vector<uint64_t> Read(const HashListShape& shape, std::string_view bytes) {
    std::vector<uint64_t> prefixes;
    const uint64_t count =
        ForEachHash(shape, bytes, [&](uint64_t prefix) { prefixes.push_back(prefix); });
    EXPECT_EQ(count, prefixes.size());
    return prefixes;
  }

  // The numbers as they lie in the file, and the differences that they stand for.
  static std::vector<uint64_t> Numbers(const HashListShape& shape, const std::string& bytes) {
    std::vector<uint64_t> numbers;
    for (size_t at = 0; at < bytes.size(); at += shape.delta_bytes) {
      uint64_t number = 0;
      for (unsigned i = 0; i < shape.delta_bytes; ++i) {
        number |= uint64_t{static_cast<uint8_t>(bytes[at + i])} << 8 * i;
      }
      numbers.push_back(number);
    }
    return numbers;
  }

  // Holds a list to the plainest encoding of the same hashes, and reads it back.
  static void ExpectRight(const HashListShape& shape, unsigned shard_bits,
                          const std::vector<uint64_t>& hashes) {
    SCOPED_TRACE(testing::Message()
                 << int{shape.hash_bits} << " bits, " << int{shape.delta_bytes} << " bytes, "
                 << shard_bits << " shard bits, " << hashes.size() << " hashes");
    const std::string bytes = ListOf(shape, shard_bits, hashes);
    std::vector<uint64_t> prefixes, numbers;
    uint64_t before = 0;
    for (const uint64_t hash : hashes) {
      prefixes.push_back((hash << shard_bits) >> (64 - shape.hash_bits));
      uint64_t rest = prefixes.back() - before;
      for (; rest >= shape.escape(); rest -= shape.escape()) numbers.push_back(shape.escape());
      numbers.push_back(rest);
      before = prefixes.back();
    }
    ASSERT_EQ(Numbers(shape, bytes), numbers);
    ASSERT_EQ(Read(shape, bytes), prefixes);
    ASSERT_LE(bytes.size(), shape.BytesBound(hashes.size()));
  }
};

TEST_F(HashListTest, EveryShapeGivesTheTopBitsBack) {
  for (unsigned delta_bytes = kHashDeltaBytesMin; delta_bytes <= kHashDeltaBytesMax;
       ++delta_bytes) {
    // Very many bits take very many numbers when there are few rows.
    const unsigned bits_max = std::min(kHashBitsMax, 8 * delta_bytes + 12);
    for (unsigned hash_bits = 1; hash_bits <= bits_max; ++hash_bits) {
      const HashListShape shape = {static_cast<uint8_t>(hash_bits),
                                   static_cast<uint8_t>(delta_bytes)};
      EXPECT_EQ(shape.escape(), (uint64_t{1} << 8 * delta_bytes) - 1);
      for (const size_t count : {0, 1, 2, 1000}) {
        for (const unsigned shard_bits : {0u, 1u, 10u}) {
          std::vector<uint64_t> hashes = RandomHashes(count);
          // A shard's hashes are alike in their top bits.
          const uint64_t shard = random_.Next();
          for (uint64_t& hash : hashes) {
            if (shard_bits > 0) hash = hash >> shard_bits | shard << (64 - shard_bits);
          }
          ASSERT_NO_FATAL_FAILURE(ExpectRight(shape, shard_bits, hashes));
        }
      }
    }
  }
}

// Differences around the number that means "go on".
TEST_F(HashListTest, DifferencesAroundTheGreatestNumber) {
  for (unsigned delta_bytes = kHashDeltaBytesMin; delta_bytes <= kHashDeltaBytesMax;
       ++delta_bytes) {
    const HashListShape shape = {static_cast<uint8_t>(8 * delta_bytes + 8),
                                 static_cast<uint8_t>(delta_bytes)};
    const uint64_t escape = shape.escape();
    std::vector<uint64_t> hashes;
    uint64_t prefix = 0;
    for (const uint64_t delta :
         {escape, uint64_t{0}, escape - 1, escape + 1, 2 * escape - 1, 2 * escape, 2 * escape + 1,
          uint64_t{1}, 7 * escape, uint64_t{0}, uint64_t{0}}) {
      prefix += delta;
      hashes.push_back(prefix << (64 - shape.hash_bits) |
                       random_.Below(uint64_t{1} << (64 - shape.hash_bits)));
      // What lies below the bits that are kept does not count, but hashes ascend.
      std::sort(hashes.begin(), hashes.end());
    }
    ASSERT_NO_FATAL_FAILURE(ExpectRight(shape, 0, hashes));
    // The greatest hash there can be, alone.
    ASSERT_NO_FATAL_FAILURE(ExpectRight(shape, 0, {UINT64_MAX}));
    ASSERT_NO_FATAL_FAILURE(ExpectRight(shape, 0, {0, 0, UINT64_MAX, UINT64_MAX}));
  }
}

// A segment's list is one, however its rows came.
TEST_F(HashListTest, PartitionsAreAppendedToOneList) {
  const HashListShape shape = HashListShape::For(5000, 5000);
  const std::vector<uint64_t> hashes = RandomHashes(5000);
  HashListWriter writer(shape, 0);
  std::string whole, part;
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (random_.OneIn(300)) {
      whole += part;
      part.clear();
    }
    writer.Append(hashes[i], &part);
  }
  whole += part;
  EXPECT_EQ(whole, ListOf(shape, 0, hashes));
}

// The bound holds where every difference takes a second number, and where few hashes go far.
TEST_F(HashListTest, BytesBoundHoldsHoweverHashesSpread) {
  for (const HashListShape shape :
       {HashListShape{24, 2}, HashListShape{26, 2}, HashListShape{32, 3}, HashListShape{40, 4}}) {
    const uint64_t limit = uint64_t{1} << shape.hash_bits;
    const unsigned below = 64u - shape.hash_bits;
    for (const uint64_t step : {uint64_t{1}, shape.escape() - 1, shape.escape(), shape.escape() + 1,
                                2 * shape.escape(), limit / 3, limit - 1}) {
      std::vector<uint64_t> hashes;
      for (uint64_t prefix = step; prefix < limit && hashes.size() < 4000; prefix += step) {
        hashes.push_back(prefix << below);
      }
      ASSERT_NO_FATAL_FAILURE(ExpectRight(shape, 0, hashes));
    }
  }
}

TEST_F(HashListTest, ShapesAreWithinTheFormatsBounds) {
  for (unsigned row_bits = 0; row_bits <= 40; ++row_bits) {
    for (unsigned table_bits = row_bits; table_bits <= 48; ++table_bits) {
      for (const uint64_t more : {uint64_t{0}, random_.Below(uint64_t{1} << row_bits)}) {
        const uint64_t rows = (uint64_t{1} << row_bits) + more;
        const uint64_t table_rows = std::max(rows, uint64_t{1} << table_bits);
        const HashListShape shape = HashListShape::For(rows, table_rows);
        ASSERT_GE(shape.delta_bytes, kHashDeltaBytesMin);
        ASSERT_LE(shape.delta_bytes, kHashDeltaBytesMax);
        ASSERT_GE(shape.hash_bits, 1u);
        ASSERT_LE(shape.hash_bits, kHashBitsMax);
        // No wider than it takes: with a byte less, hashes would have too few bits.
        if (shape.delta_bytes > kHashDeltaBytesMin) {
          ASSERT_LT(row_bits + 8 * (shape.delta_bytes - 1) - 3, WantedBits(rows, table_rows))
              << rows;
        }
      }
    }
  }
  EXPECT_LE(HashListShape::For(0, 0).delta_bytes, kHashDeltaBytesMax);
  EXPECT_GE(HashListShape::For(0, 0).hash_bits, WantedBits(0, 0));
}

// A map keeps as many bits of all hashes as the shortest of its lists has. So no segment's list may
// have fewer than a map of the whole table wants, however few rows the segment has.
TEST_F(HashListTest, EveryListHasTheBitsThatAMapWants) {
  for (unsigned table_bits = 0; table_bits <= 38; ++table_bits) {
    for (unsigned row_bits = 0; row_bits <= table_bits; ++row_bits) {
      const uint64_t rows = uint64_t{1} << row_bits, table_rows = uint64_t{1} << table_bits;
      const unsigned bits = HashListShape::For(rows, table_rows).hash_bits;
      ASSERT_GE(bits, WantedBits(rows, table_rows)) << rows << " rows of " << table_rows;
    }
  }
}

// As many bytes a row as a list is said to take, and one difference in 3,000 takes a second number.
TEST_F(HashListTest, RandomHashesSeldomTakeASecondNumber) {
  for (const size_t count : {100'000, 131'071, 131'072}) {
    const HashListShape shape = HashListShape::For(count, count);
    EXPECT_EQ(shape.delta_bytes, 2);
    const std::vector<uint64_t> numbers = Numbers(shape, ListOf(shape, 0, RandomHashes(count)));
    const auto escapes =
        static_cast<size_t>(std::count(numbers.begin(), numbers.end(), shape.escape()));
    EXPECT_EQ(numbers.size(), count + escapes);
    EXPECT_LT(escapes, count / 2000);
  }
}

// Whatever the bytes, nothing is visited that has more bits than it should, and hashes ascend.
TEST_F(HashListTest, DamagedListsAreReadWithinTheirBits) {
  for (int round = 0; round < 3000; ++round) {
    const HashListShape shape = {static_cast<uint8_t>(random_.Between(1, kHashBitsMax)),
                                 static_cast<uint8_t>(random_.Between(2, 4))};
    std::string bytes = random_.Bytes(random_.Below(300));
    if (random_.OneIn(3)) std::fill(bytes.begin(), bytes.end(), random_.OneIn(2) ? '\0' : '\xFF');
    const std::vector<uint64_t> prefixes = Read(shape, bytes);
    ASSERT_LE(prefixes.size(), bytes.size() / shape.delta_bytes);
    ASSERT_TRUE(std::is_sorted(prefixes.begin(), prefixes.end()));
    for (const uint64_t prefix : prefixes) ASSERT_LT(prefix, uint64_t{1} << shape.hash_bits);
  }
}

// A reader counts, and so sees what is missing.
TEST_F(HashListTest, CutListsHaveFewerHashes) {
  const HashListShape shape = HashListShape::For(200, 200);
  const std::vector<uint64_t> hashes = RandomHashes(200);
  const std::string bytes = ListOf(shape, 0, hashes);
  const std::vector<uint64_t> all = Read(shape, bytes);
  ASSERT_EQ(all.size(), hashes.size());
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    const std::vector<uint64_t> some = Read(shape, std::string_view(bytes).substr(0, cut));
    ASSERT_LT(some.size(), all.size()) << cut;
    ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << cut;
  }
}

}  // namespace
}  // namespace latchkey::test
