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

// How often the calling thread went to sleep while it worked for so many ms of its own time.
int64_t SleepsIn(int64_t work_ms) {
  struct rusage before = {}, after = {};
  ::getrusage(RUSAGE_THREAD, &before);
  const auto thread_ns = [] {
    timespec time = {};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
  };
  for (const int64_t end = thread_ns() + 1'000'000 * work_ms; thread_ns() < end;) GiveWay();
  ::getrusage(RUSAGE_THREAD, &after);
  return after.ru_nvcsw - before.ru_nvcsw;
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
    EXPECT_GE(SleepsIn(20), 19);
  });
}

TEST(LowPriorityTest, OthersDoNotRest) {
  OnThread([] { EXPECT_LT(SleepsIn(20), 19); });
}

}  // namespace
}  // namespace latchkey::test
