#include "core/prefetch/advice_policy.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

constexpr PageAdvice kNormal = PageAdvice::kNormal;
constexpr PageAdvice kRandom = PageAdvice::kRandom;
constexpr PageAdvice kHuge = PageAdvice::kHuge;
constexpr uint64_t kLongAgo = 5000, kNow = kLongAgo + kAdviceMsMin;
constexpr std::array<SectionKind, 2> kIndexKinds = {SectionKind::kFilter, SectionKind::kPilots};
constexpr std::array<SectionKind, 3> kDataKinds = {SectionKind::kLines, SectionKind::kRecords,
                                                   SectionKind::kValues};
constexpr std::array<SectionKind, 3> kOtherKinds = {SectionKind::kDirectory, SectionKind::kHashes,
                                                    SectionKind::kChecksums};

TEST(AdvicePolicyTest, EverySectionIsOfOneKind) {
  static_assert(kIndexKinds.size() + kDataKinds.size() + kOtherKinds.size() == kSectionCount);
  for (const SectionKind kind : kIndexKinds) {
    EXPECT_TRUE(IsIndexSection(kind) && !IsDataSection(kind)) << SectionName(kind);
  }
  for (const SectionKind kind : kDataKinds) {
    EXPECT_TRUE(!IsIndexSection(kind) && IsDataSection(kind)) << SectionName(kind);
  }
  for (const SectionKind kind : kOtherKinds) {
    EXPECT_TRUE(!IsIndexSection(kind) && !IsDataSection(kind)) << SectionName(kind);
  }
}

struct Case {
  bool given;
  PageAdvice before;
  double share;
  PageAdvice after;
};

TEST(AdvicePolicyTest, DataSections) {
  const std::vector<Case> cases = {
      // The first time: warm or not.
      {false, kNormal, 0.0, kRandom},
      {false, kNormal, 0.8, kRandom},
      {false, kNormal, 0.9499, kRandom},
      {false, kNormal, 0.95, kNormal},
      {false, kNormal, 1.0, kNormal},
      // From warm to cold …
      {true, kNormal, 1.0, kNormal},
      {true, kNormal, 0.95, kNormal},
      {true, kNormal, 0.94, kNormal},
      {true, kNormal, 0.80, kNormal},
      {true, kNormal, 0.7999, kRandom},
      {true, kNormal, 0.0, kRandom},
      // … and back.
      {true, kRandom, 0.0, kRandom},
      {true, kRandom, 0.80, kRandom},
      {true, kRandom, 0.9499, kRandom},
      {true, kRandom, 0.95, kNormal},
      {true, kRandom, 1.0, kNormal},
  };
  for (const SectionKind kind : kDataKinds) {
    for (const uint64_t size_bytes : {uint64_t{1}, kHugeSectionBytesMin, uint64_t{1} << 40}) {
      for (const Case& c : cases) {
        SCOPED_TRACE(testing::Message() << SectionName(kind) << ", given " << c.given << ' '
                                        << PageAdviceName(c.before) << ", share " << c.share);
        const AdviceState before = {c.before, c.given, c.given ? kLongAgo : 0};
        const AdviceState after = NextAdvice(before, kind, size_bytes, c.share, kNow);
        EXPECT_EQ(after.advice, c.after);
        EXPECT_TRUE(after.given);
        // What does not change is not given anew.
        EXPECT_EQ(after.changed_ms, c.given && c.before == c.after ? kLongAgo : kNow);
      }
    }
  }
}

TEST(AdvicePolicyTest, IndexSectionsGoByTheirSize) {
  for (const SectionKind kind : kIndexKinds) {
    for (const double share : {0.0, 0.5, 0.9, 1.0}) {
      for (const auto& [size_bytes, advice] :
           std::vector<std::pair<uint64_t, PageAdvice>>{{1, kNormal},
                                                        {kHugeSectionBytesMin - 1, kNormal},
                                                        {kHugeSectionBytesMin, kHuge},
                                                        {uint64_t{1} << 40, kHuge}}) {
        const AdviceState first = NextAdvice({}, kind, size_bytes, share, kNow);
        EXPECT_EQ(first, (AdviceState{advice, true, kNow}));
        // However it goes on.
        for (const double later : {0.0, 0.9, 1.0}) {
          EXPECT_EQ(NextAdvice(first, kind, size_bytes, later, kNow + 10 * kAdviceMsMin), first);
        }
      }
    }
  }
}

TEST(AdvicePolicyTest, OtherSectionsAreLeftAsTheyAre) {
  for (const SectionKind kind : kOtherKinds) {
    for (const double share : {0.0, 0.9, 1.0}) {
      EXPECT_EQ(NextAdvice({}, kind, uint64_t{1} << 30, share, kNow).advice, kNormal);
      const AdviceState given = {kNormal, true, kLongAgo};
      EXPECT_EQ(NextAdvice(given, kind, uint64_t{1} << 30, share, kNow), given);
    }
  }
}

TEST(AdvicePolicyTest, AChangeWaitsForTheOneBefore) {
  for (const uint64_t changed_ms : {uint64_t{0}, uint64_t{1}, kLongAgo}) {
    const AdviceState normal = {kNormal, true, changed_ms}, random = {kRandom, true, changed_ms};
    const uint64_t next_ms = changed_ms + kAdviceMsMin;
    for (const SectionKind kind : kDataKinds) {
      for (const uint64_t early_ms : {changed_ms, changed_ms + 1, next_ms - 1}) {
        EXPECT_EQ(NextAdvice(normal, kind, 1, 0, early_ms), normal);
        EXPECT_EQ(NextAdvice(random, kind, 1, 1, early_ms), random);
      }
      EXPECT_EQ(NextAdvice(normal, kind, 1, 0, next_ms), (AdviceState{kRandom, true, next_ms}));
      EXPECT_EQ(NextAdvice(random, kind, 1, 1, next_ms), (AdviceState{kNormal, true, next_ms}));
    }
  }
}

class AdvicePolicySeededTest : public SeededTest {};

// Shares that jump about as they like, measured as often as it may be.
TEST_F(AdvicePolicySeededTest, NeverTwoChangesInTenSeconds) {
  for (const SectionKind kind : kDataKinds) {
    AdviceState state;
    uint64_t now_ms = random_.Below(1000), changes = 0;
    for (int i = 0; i < 20'000; ++i) {
      now_ms += random_.Below(1000);
      const double share = static_cast<double>(random_.Below(1001)) / 1000;
      const AdviceState before = state;
      state = NextAdvice(state, kind, 1 << 20, share, now_ms);
      ASSERT_TRUE(state.given);
      if (!before.given) {
        ASSERT_EQ(state.changed_ms, now_ms);
        continue;
      }
      if (state == before) continue;
      ++changes;
      ASSERT_NE(state.advice, before.advice);
      ASSERT_EQ(state.changed_ms, now_ms);
      ASSERT_GE(now_ms - before.changed_ms, kAdviceMsMin);
      ASSERT_EQ(state.advice, share >= kWarmShare ? kNormal : kRandom);
      ASSERT_TRUE(share >= kWarmShare || share < kColdShare) << share;
    }
    EXPECT_GT(changes, 100u);
  }
}

// A share that stays between the two borders, or crosses one of them only, changes nothing.
TEST_F(AdvicePolicySeededTest, SharesNearOneBorderChangeNothing) {
  for (const auto& [before, low, high] : std::vector<std::tuple<PageAdvice, uint64_t, uint64_t>>{
           {kNormal, 800, 1000}, {kRandom, 0, 949}, {kNormal, 800, 949}, {kRandom, 800, 949}}) {
    const AdviceState state = {before, true, 0};
    for (int i = 0; i < 1000; ++i) {
      const double share = static_cast<double>(random_.Between(low, high)) / 1000;
      ASSERT_EQ(NextAdvice(state, SectionKind::kLines, 1, share, kNow), state) << share;
    }
  }
}

}  // namespace
}  // namespace latchkey::test
