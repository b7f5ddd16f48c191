#include "core/base/low_priority.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>

#include <functional>
#include <thread>

namespace latchkey::test {
namespace {

// On a thread of its own, since priorities stay low.
void OnThread(const std::function<void()>& work) { std::thread(work).join(); }

// In how many of 20 calls after a millisecond of its own time GiveWay let the calling thread sleep.
int RestsOf20() {
  const auto thread_ns = [] {
    timespec time = {};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
  };
  const auto sleeps = [] {
    struct rusage usage = {};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  };
  int rests = 0;
  for (int i = 0; i < 20; ++i) {
    for (const int64_t end = thread_ns() + 1'000'000; thread_ns() < end;) continue;
    const auto before = sleeps();
    GiveWay();
    rests += sleeps() != before;
  }
  return rests;
}

TEST(LowPriorityTest, IsTheThreadsOwn) {
  OnThread([] {
    EXPECT_FALSE(IsLowPriority());
    LowerPriority();
    EXPECT_TRUE(IsLowPriority());
    // On Linux niceness is a thread's own, and 0 is the calling one.
    EXPECT_EQ(::getpriority(PRIO_PROCESS, 0), 19);
    OnThread([] {
      EXPECT_FALSE(IsLowPriority());
      EXPECT_EQ(::getpriority(PRIO_PROCESS, 0), 19);
    });
  });
  EXPECT_FALSE(IsLowPriority());
  EXPECT_NE(::getpriority(PRIO_PROCESS, 0), 19);
}

TEST(LowPriorityTest, RestsAfterEachMillisecond) {
  OnThread([] {
    LowerPriority();
    EXPECT_EQ(RestsOf20(), 20);
  });
}

TEST(LowPriorityTest, OthersDoNotRest) {
  OnThread([] { EXPECT_EQ(RestsOf20(), 0); });
}

}  // namespace
}  // namespace latchkey::test
