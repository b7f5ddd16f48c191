#include "core/base/low_priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace latchkey {
namespace {

constexpr int kNiceness = 19;
constexpr uint64_t kTurnNs = 100'000;  // the least that the kernel takes

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

}  // namespace

void LowerPriority() {
  SchedulerAttributes attributes;
  if (::syscall(SYS_sched_setattr, 0, &attributes, 0) == 0) return;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);
}

}  // namespace latchkey
