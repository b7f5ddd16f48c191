#include "core/base/bytes.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "core/base/checked_math.h"
#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

class VarintTest : public SeededTest {};

// Reads from a buffer of exactly `bytes`, so that a sanitizer sees a read beyond it.
const uint8_t* LoadFrom(const std::vector<uint8_t>& bytes, uint64_t* value) {
  return LoadVarint(bytes.data(), bytes.data() + bytes.size(), value);
}

TEST_F(VarintTest, RoundTripsAndEveryCutIsRefused) {
  std::vector<uint64_t> numbers = {0, UINT64_MAX};
  for (int bit = 0; bit < 64; ++bit) {
    for (const uint64_t near : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
      numbers.push_back((uint64_t{1} << bit) + near);
    }
    numbers.push_back(random_.Next() >> bit);
  }
  for (const uint64_t number : numbers) {
    uint8_t buffer[kVarintBytesMax];
    const auto size = static_cast<size_t>(StoreVarint(buffer, number) - buffer);
    ASSERT_EQ(size, VarintSize(number)) << number;
    ASSERT_LE(size, kVarintBytesMax);
    for (size_t cut = 0; cut <= size; ++cut) {
      const std::vector<uint8_t> bytes(buffer, buffer + cut);
      uint64_t read = ~number;
      const uint8_t* const end = LoadFrom(bytes, &read);
      if (cut < size) {
        EXPECT_EQ(end, nullptr) << number << " cut to " << cut;
      } else {
        EXPECT_EQ(end, bytes.data() + size) << number;
        EXPECT_EQ(read, number);
      }
    }
  }
}

TEST_F(VarintTest, BytesOfKnownNumbers) {
  const auto encoded = [](uint64_t number) {
    uint8_t buffer[kVarintBytesMax];
    return std::vector<uint8_t>(buffer, StoreVarint(buffer, number));
  };
  EXPECT_EQ(encoded(0), (std::vector<uint8_t>{0}));
  EXPECT_EQ(encoded(127), (std::vector<uint8_t>{0x7F}));
  EXPECT_EQ(encoded(128), (std::vector<uint8_t>{0x80, 0x01}));
  EXPECT_EQ(encoded(32'766), (std::vector<uint8_t>{0xFE, 0xFF, 0x01}));
  EXPECT_EQ(encoded(UINT64_MAX), (std::vector<uint8_t>{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
                                                       0xFF, 0xFF, 0x01}));
}

TEST_F(VarintTest, MoreThan64BitsAreRefused) {
  uint64_t value;
  // The tenth byte holds one bit.
  std::vector<uint8_t> bytes(9, 0xFF);
  for (int last = 0; last < 256; ++last) {
    bytes.resize(9);
    bytes.push_back(static_cast<uint8_t>(last));
    EXPECT_EQ(LoadFrom(bytes, &value) != nullptr, last <= 1) << last;
  }
  EXPECT_EQ(LoadFrom(std::vector<uint8_t>(11, 0x80), &value), nullptr);
  EXPECT_EQ(LoadFrom(std::vector<uint8_t>(1000, 0xFF), &value), nullptr);
  EXPECT_EQ(LoadFrom({}, &value), nullptr);
}

TEST_F(VarintTest, WhatFollowsIsNotRead) {
  uint64_t value;
  const std::vector<uint8_t> bytes = {0x05, 0xFF, 0xFF};
  EXPECT_EQ(LoadFrom(bytes, &value), bytes.data() + 1);
  EXPECT_EQ(value, 5u);
}

TEST(CheckedMathTest, ReportsWhatDoesNotFit) {
  uint64_t out;
  EXPECT_TRUE(CheckedAdd(UINT64_MAX - 1, 1, &out));
  EXPECT_EQ(out, UINT64_MAX);
  EXPECT_FALSE(CheckedAdd(UINT64_MAX, 1, &out));
  EXPECT_TRUE(CheckedMul(uint64_t{1} << 32, (uint64_t{1} << 32) - 1, &out));
  EXPECT_FALSE(CheckedMul(uint64_t{1} << 32, uint64_t{1} << 32, &out));
}

TEST(CheckedMathTest, Rounds) {
  EXPECT_EQ(CeilDiv(0, 3), 0u);
  EXPECT_EQ(CeilDiv(3, 3), 1u);
  EXPECT_EQ(CeilDiv(4, 3), 2u);
  EXPECT_EQ(CeilDiv(UINT64_MAX, 2), uint64_t{1} << 63);
  EXPECT_EQ(RoundUp(0, 4096), 0u);
  EXPECT_EQ(RoundUp(1, 4096), 4096u);
  EXPECT_EQ(RoundUp(4096, 4096), 4096u);
  EXPECT_EQ(RoundUp((uint64_t{1} << 40) + 1, 65'536), (uint64_t{1} << 40) + 65'536);
}

TEST(CheckedMathTest, MulShiftSpreadsEvenly) {
  for (const uint64_t n : {1, 2, 3, 7, 100}) {
    std::vector<int> hits(n);
    for (uint64_t bits = 0; bits < 1 << 12; ++bits) {
      const uint64_t at = MulShift(bits, n, 12);
      ASSERT_LT(at, n);
      ++hits[at];
    }
    for (const int count : hits) EXPECT_NEAR(count, (1 << 12) / static_cast<double>(n), 1.0);
  }
  // Products that need more than 64 bits.
  constexpr uint64_t kAll31 = (uint64_t{1} << 31) - 1, kAll34 = (uint64_t{1} << 34) - 1;
  EXPECT_EQ(MulShift(kAll31, uint64_t{1} << 31, 31), kAll31);
  EXPECT_EQ(MulShift(kAll34, uint64_t{1} << 34, 34), kAll34);
}

}  // namespace
}  // namespace latchkey::test
