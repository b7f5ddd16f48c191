#include "core/segment/group.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

class GroupTest : public SeededTest {
 protected:
  // What both must say, by definition.
  static GroupMatch Expected(const uint8_t* control, uint8_t wanted) {
    GroupMatch match{0, 0};
    for (unsigned i = 0; i < kGroupSlots; ++i) {
      if (control[i] < 0x80) match.stops |= 1u << i;
      if (control[i] == wanted && match.stops == 0) match.candidates |= 1u << i;
    }
    return match;
  }

  static void ExpectBothRight(const uint8_t* control, uint8_t wanted) {
    const GroupMatch expected = Expected(control, wanted);
    const GroupMatch fast = MatchGroup(control, wanted);
    const GroupMatch portable = MatchGroupPortable(control, wanted);
    ASSERT_EQ(fast.candidates, expected.candidates);
    ASSERT_EQ(fast.stops, expected.stops);
    ASSERT_EQ(portable.candidates, expected.candidates);
    ASSERT_EQ(portable.stops, expected.stops);
  }
};

TEST_F(GroupTest, EveryByteInEveryPlace) {
  for (unsigned place = 0; place < kGroupSlots; ++place) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      for (unsigned wanted = 0x80; wanted < 256; ++wanted) {
        std::array<uint8_t, kGroupSlots> control;
        control.fill(0xAA);
        control[place] = static_cast<uint8_t>(byte);
        ASSERT_NO_FATAL_FAILURE(ExpectBothRight(control.data(), static_cast<uint8_t>(wanted)));
      }
    }
  }
}

// All arrangements of a candidate, another full slot and an empty one in half a group.
TEST_F(GroupTest, EveryArrangement) {
  constexpr uint8_t kKinds[] = {0x93, 0xC1, kControlEmpty};
  for (unsigned number = 0; number < 6561; ++number) {
    std::array<uint8_t, kGroupSlots> control;
    unsigned rest = number;
    for (unsigned i = 0; i < 8; ++i, rest /= 3) control[i] = control[i + 8] = kKinds[rest % 3];
    ASSERT_NO_FATAL_FAILURE(ExpectBothRight(control.data(), 0x93));
    if (number % 2 == 0) std::fill(control.begin() + 8, control.end(), 0x93);
    ASSERT_NO_FATAL_FAILURE(ExpectBothRight(control.data(), 0x93));
  }
}

TEST_F(GroupTest, RandomBytesAtEveryAlignment) {
  std::vector<uint8_t> bytes(64);
  for (int round = 0; round < 100'000; ++round) {
    // Few different bytes, so that there are matches; now and then any.
    for (uint8_t& byte : bytes) {
      byte = static_cast<uint8_t>(round % 2 == 0 ? 0x80 + random_.Below(3) : random_.Next());
      if (random_.OneIn(12)) byte = random_.OneIn(2) ? kControlEmpty : 0;
    }
    const uint8_t wanted = static_cast<uint8_t>(0x80 | random_.Below(round % 2 == 0 ? 3 : 128));
    ASSERT_NO_FATAL_FAILURE(ExpectBothRight(bytes.data() + random_.Below(48), wanted));
  }
}

TEST_F(GroupTest, ReadsSixteenBytesAndNoMore) {
  const std::vector<uint8_t> exact(kGroupSlots, 0x81);
  EXPECT_EQ(MatchGroup(exact.data(), 0x81).candidates, 0xFFFFu);
  EXPECT_EQ(MatchGroup(exact.data(), 0x81).stops, 0u);
  EXPECT_EQ(MatchGroupPortable(exact.data(), 0x81).candidates, 0xFFFFu);
}

TEST_F(GroupTest, ZeroBytesStopAChain) {
  const std::vector<uint8_t> hole(kGroupSlots, 0);
  EXPECT_EQ(MatchGroup(hole.data(), 0x80).stops, 0xFFFFu);
  EXPECT_EQ(MatchGroup(hole.data(), 0x80).candidates, 0u);
}

}  // namespace
}  // namespace latchkey::test
