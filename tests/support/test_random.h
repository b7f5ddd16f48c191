// Random numbers that can be had again: the environment's LATCHKEY_TEST_SEED decides them, and a
// test that fails prints the seed that it ran with.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace latchkey::test {

// LATCHKEY_TEST_SEED if it is set, else random; the same for the whole process.
uint64_t TestSeed();

class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}

  uint64_t Next() { return bits_(); }
  uint64_t Below(uint64_t n) { return bits_() % n; }
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  std::string Bytes(size_t size_bytes);
  template <typename Container>
  auto& Pick(Container& from) {
    return from[Below(from.size())];
  }

 private:
  std::mt19937_64 bits_;
};

// Each test has its own numbers, whichever others run in the process.
class SeededTest : public testing::Test {
 protected:
  SeededTest();
  Random random_;

 private:
  testing::ScopedTrace trace_;
};

}  // namespace latchkey::test
