// A line on a terminal that tells how far a build is; silent when standard error is no terminal.
#pragma once

#include <chrono>

#include "core/build/table_builder.h"

namespace latchkey {

// One thread.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();  // wipes the line
  void Show(const BuildProgress& progress);

 private:
  using Clock = std::chrono::steady_clock;

  const bool terminal_;
  bool shown_ = false;
  BuildProgress::Phase phase_ = BuildProgress::Phase::kRead;
  Clock::time_point phase_begin_ = Clock::now();
  Clock::time_point last_shown_;
};

}  // namespace latchkey
