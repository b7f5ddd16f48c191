#include "core/prefetch/fetch_policy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

constexpr FetchMode kAsking = FetchMode::kAsking;
constexpr FetchMode kSilent = FetchMode::kSilent;
constexpr uint64_t kJudged = kFetchJudgedPlaces;

struct Step {
  const char* what;
  FetchState before;
  FetchCost cost;
  FetchMode mode;  // afterwards
};

void ExpectSteps(const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    SCOPED_TRACE(step.what);
    const FetchState after = NextFetchState(step.before, step.cost);
    EXPECT_EQ(after.mode, step.mode);
    // What was counted in one mode says nothing about the other.
    if (after.mode == step.before.mode) continue;
    EXPECT_EQ(after, FetchState{after.mode});
  }
}

TEST(FetchPolicyTest, FirstKeysAreAskedFor) { EXPECT_EQ(FetchState{}.mode, kAsking); }

TEST(FetchPolicyTest, AskingIsJudgedByPlaces) {
  ExpectSteps({
      {"nothing happened", {}, {}, kAsking},
      {"too few to judge", {}, {.places = kJudged - 1}, kAsking},
      {"just enough", {}, {.places = kJudged}, kSilent},
      {"with those before", {kAsking, kJudged - 1, 0}, {.places = 1}, kSilent},
      {"still too few", {kAsking, kJudged - 2, 0}, {.places = 1}, kAsking},
      {"one cold", {}, {.places = kJudged, .read = 1}, kSilent},
      {"two: one in 512", {}, {.places = kJudged, .read = 2}, kAsking},
      {"a bit fewer than that", {}, {.places = kJudged + 1, .read = 2}, kSilent},
      {"cold before, warm now", {kAsking, kJudged - 1, 2}, {.places = 1}, kAsking},
      {"all cold", {}, {.places = kJudged, .read = kJudged}, kAsking},
      {"more cold than places", {}, {.places = kJudged, .read = 9 * kJudged}, kAsking},
      {"one in 512 of many", {}, {.places = 512'000, .read = 1000}, kAsking},
      {"fewer of many", {}, {.places = 512'000, .read = 999}, kSilent},
      {"a disk that is not accounted for", {}, {.places = kJudged, .faults = 2}, kAsking},
      // A fault reads the page, so that it shows in both.
      {"one seen twice", {}, {.places = kJudged, .read = 1, .faults = 1}, kSilent},
      {"keys do not count", {}, {.keys = 100'000, .places = 10}, kAsking},
      {"hints do not count", {}, {.places = kJudged, .asked = kJudged}, kSilent},
  });
}

TEST(FetchPolicyTest, SilenceIsJudgedByFaults) {
  ExpectSteps({
      {"nothing happened", {kSilent}, {}, kSilent},
      {"warm", {kSilent}, {.places = 1'000'000}, kSilent},
      {"a lone fault at once", {kSilent}, {.places = 1, .faults = 1}, kSilent},
      {"a lone fault without a place", {kSilent}, {.faults = 1}, kSilent},
      {"two at once", {kSilent}, {.places = 2, .faults = 2}, kAsking},
      {"two, more than one in 256", {kSilent}, {.places = 511, .faults = 2}, kAsking},
      {"two, one in 256", {kSilent}, {.places = 512, .faults = 2}, kSilent},
      {"the second comes later", {kSilent, 509, 1}, {.places = 2, .faults = 1}, kAsking},
      {"the second comes too late", {kSilent, 510, 1}, {.places = 2, .faults = 1}, kSilent},
      {"one in 256 of many", {kSilent}, {.places = 256'000, .faults = 1000}, kSilent},
      {"more of many", {kSilent}, {.places = 256'000, .faults = 1001}, kAsking},
      {"a long warm time, then cold", {kSilent, 4095, 0}, {.places = 17, .faults = 17}, kAsking},
      // One fault may read many pages around it.
      {"what was read does not count", {kSilent}, {.places = 10, .read = 1000}, kSilent},
  });
}

// Judged anew in windows, each by itself.
TEST(FetchPolicyTest, ColdPagesOfLongAgoAreForgotten) {
  FetchState state;
  for (int i = 0; i < 100; ++i) {
    state = NextFetchState(state, {.places = kJudged, .read = kJudged});
    ASSERT_EQ(state, FetchState{});
  }
  EXPECT_EQ(NextFetchState(state, {.places = kJudged}).mode, kSilent);
  // In silence old faults fade: six of 4000 places are none after 16,000 more.
  state = {kSilent, 4000, 6};
  for (int i = 0; i < 160; ++i) state = NextFetchState(state, {.places = 100});
  EXPECT_EQ(state.mode, kSilent);
  EXPECT_EQ(state.cold, 0u);
}

TEST(FetchPolicyTest, ALoneFaultNeverStartsAsking) {
  for (uint64_t before = 0; before <= 5000; ++before) {
    for (const uint64_t places : {0, 1, 2, 100, 4096}) {
      FetchState state = NextFetchState({kSilent, before, 0}, {.places = places, .faults = 1});
      ASSERT_EQ(state.mode, kSilent) << before << " places before";
      state = NextFetchState(state, {.places = 100'000});
      ASSERT_EQ(state.mode, kSilent);
    }
  }
  // Nor do many, each by itself.
  for (const uint64_t first : {1, 100, 512}) {
    for (const uint64_t apart : {512, 1000, 5000}) {
      FetchState state{kSilent};
      for (uint64_t place = 1; place <= 200'000; ++place) {
        const bool faults = place >= first && (place - first) % apart == 0;
        state = NextFetchState(state, {.places = 1, .faults = faults});
        ASSERT_EQ(state.mode, kSilent) << "one of " << apart << ", at place " << place;
      }
    }
  }
}

TEST(FetchPolicyTest, CountsStaySmall) {
  for (const FetchMode mode : {kAsking, kSilent}) {
    for (const uint64_t places : {uint64_t{1}, uint64_t{4096}, uint64_t{1} << 18}) {
      FetchState state{mode};
      for (int i = 0; i < 100'000; ++i) {
        const uint64_t cold = mode == kAsking ? places : places / 512;
        state = NextFetchState(state, {.places = places, .read = cold, .faults = cold});
        ASSERT_EQ(state.mode, mode);
        ASSERT_LE(state.places, 4 * kJudged + places);
        ASSERT_LE(state.cold, state.places);
      }
    }
  }
  // A cost as no thread ever has it.
  const uint64_t huge = uint64_t{1} << 50;
  EXPECT_EQ(NextFetchState({}, {.places = huge}).mode, kSilent);
  EXPECT_EQ(NextFetchState({}, {.places = huge, .read = huge}).mode, kAsking);
  EXPECT_EQ(NextFetchState({kSilent}, {.places = huge, .faults = huge}).mode, kAsking);
  FetchState state = NextFetchState({kSilent}, {.places = huge});
  for (int i = 0; i < 50; ++i) state = NextFetchState(state, {.places = 1});
  EXPECT_LE(state.places, 4 * kJudged);
}

// --- A thread that sends batches, of whose places a share is cold ---

class SimulatedThread {
 public:
  explicit SimulatedThread(uint64_t batch) : batch_(batch) {}

  void SendBatch(double cold_share) {
    uint64_t cold = 0;
    for (uint64_t i = 0; i < batch_; ++i) {
      cold += static_cast<double>(random_.Below(1'000'000)) < cold_share * 1e6;
    }
    FetchCost cost{.keys = batch_, .places = batch_};
    if (state_.mode == kAsking) {
      // All cold pages are asked for, of which some come too late.
      cost.asked = batch_;
      cost.read = cold;
      cost.faults = cold / 8;
    } else {
      cost.read = 30 * cold;
      cost.faults = cold;
    }
    const FetchMode before = state_.mode;
    state_ = NextFetchState(state_, cost);
    changes_ += state_.mode != before;
    places_ += batch_;
    asked_ += cost.asked;
  }
  void Send(uint64_t places, double cold_share) {
    for (uint64_t sent = 0; sent < places; sent += batch_) SendBatch(cold_share);
  }
  // Places until the mode is as wanted.
  uint64_t PlacesUntil(FetchMode wanted, double cold_share, uint64_t places_max) {
    uint64_t sent = 0;
    for (; state_.mode != wanted && sent <= places_max; sent += batch_) SendBatch(cold_share);
    return sent;
  }
  void Forget() { places_ = asked_ = changes_ = 0; }

  FetchMode mode() const { return state_.mode; }
  double asked_share() const { return static_cast<double>(asked_) / static_cast<double>(places_); }
  uint64_t changes() const { return changes_; }

 private:
  const uint64_t batch_;
  Random random_{20'240'701};
  FetchState state_;
  uint64_t places_ = 0, asked_ = 0, changes_ = 0;
};

// 256: single lookups in silence are counted so many at a time.
const std::vector<uint64_t> kBatches = {1, 10, 100, 256, 4096};

// Shares of cold places from none to all: hints pay from about one in 200 on. A rule that is
// sure only of the ends, as a back-off that doubles, starves all between.
TEST(FetchPolicyTest, WhatAThreadSettlesTo) {
  constexpr uint64_t kPlaces = 1'000'000;
  for (const uint64_t batch : kBatches) {
    for (const double share : {0.0, 0.001, 0.005, 0.01, 0.03, 0.1, 0.3, 0.5, 0.9, 1.0}) {
      SCOPED_TRACE(testing::Message() << "batches of " << batch << ", cold " << share);
      SimulatedThread thread(batch);
      thread.Send(20 * kJudged, share);
      thread.Forget();
      thread.Send(kPlaces, share);
      if (share <= 0.001) {
        EXPECT_EQ(thread.mode(), kSilent);
        EXPECT_LE(thread.asked_share(), 0.01);
        EXPECT_LE(thread.changes(), 4u);
      } else if (share >= 0.01) {
        EXPECT_EQ(thread.mode(), kAsking);
        EXPECT_GE(thread.asked_share(), 0.99);
        EXPECT_LE(thread.changes(), 4u);
      } else {
        // At the border either will do, but not to and fro with every batch.
        EXPECT_LE(thread.changes(), kPlaces / (4 * kJudged));
      }
    }
  }
}

TEST(FetchPolicyTest, HowSoonAThreadNotices) {
  for (const uint64_t batch : kBatches) {
    const auto in_batches = [&](uint64_t places) { return (places + batch - 1) / batch * batch; };
    for (const auto& [share, cold_places_max] : std::vector<std::pair<double, uint64_t>>{
             {0.01, 8 * kJudged}, {0.03, 2 * kJudged}, {0.1, 500}, {0.5, 80}, {1.0, 17}}) {
      SCOPED_TRACE(testing::Message() << "batches of " << batch << ", cold " << share);
      SimulatedThread thread(batch);
      for (uint64_t round = 0; round < 50; ++round) {
        // However long it was in a mode before.
        thread.Send(1 + round * 397, 0);
        thread.PlacesUntil(kSilent, 0, 2 * kJudged);
        ASSERT_EQ(thread.mode(), kSilent);
        EXPECT_LE(thread.PlacesUntil(kAsking, share, 100 * kJudged), in_batches(cold_places_max));
        ASSERT_EQ(thread.mode(), kAsking);
        thread.Send(1 + round * 137, share);
        thread.PlacesUntil(kAsking, share, 100 * kJudged);
        // What is left of the cold time is judged, and then as much again.
        EXPECT_LE(thread.PlacesUntil(kSilent, 0, 100 * kJudged), 2 * in_batches(kJudged));
        ASSERT_EQ(thread.mode(), kSilent);
      }
    }
  }
}

}  // namespace
}  // namespace latchkey::test
