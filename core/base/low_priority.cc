#include "core/base/low_priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <thread>

namespace latchkey {
namespace {

constexpr int kNiceness = 19;
constexpr uint64_t kTurnNs = 100'000;  // the least that the kernel takes
constexpr std::chrono::nanoseconds kWorkTime = std::chrono::milliseconds(1);
constexpr std::chrono::nanoseconds kRestTime = 2 * kWorkTime;

// As the kernel has it; the library has no wrapper.
struct SchedulerAttributes {
  uint32_t size = sizeof(SchedulerAttributes);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = kNiceness;
  uint32_t priority = 0;
  uint64_t runtime_ns = kTurnNs;
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};

thread_local bool is_low = false;
thread_local std::chrono::nanoseconds rested_at{0};  // in the thread's own time

// Of a processor, that the calling thread had so far.
std::chrono::nanoseconds ThreadTime() {
  timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

void LowerPriority() {
  is_low = true;
  SchedulerAttributes attributes;
  if (::syscall(SYS_sched_setattr, 0, &attributes, 0) == 0) return;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);
}

bool IsLowPriority() { return is_low; }

void GiveWay() {
  if (!is_low) return;
  if (const auto now = ThreadTime(); now - rested_at >= kWorkTime) {
    std::this_thread::sleep_for(kRestTime);
    rested_at = now;
  } else {
    ::sched_yield();
  }
}

}  // namespace latchkey
