#include "tests/bench/in_child.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

namespace latchkey {

ChildCost InChild(const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) std::exit(3);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto begin = Clock::now();
    run();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    ::_exit(::write(pipe_ends[1], &seconds, sizeof(seconds)) == sizeof(seconds) ? 0 : 3);
  }
  ::close(pipe_ends[1]);
  ChildCost cost;
  const ssize_t got = ::read(pipe_ends[0], &cost.seconds, sizeof(cost.seconds));
  ::close(pipe_ends[0]);
  int status = 0;
  struct rusage usage = {};
  ::wait4(child, &status, 0, &usage);
  if (got != sizeof(cost.seconds) || status != 0) std::exit(3);
  cost.peak_mib = static_cast<double>(usage.ru_maxrss) / 1024;
  return cost;
}

}  // namespace latchkey
