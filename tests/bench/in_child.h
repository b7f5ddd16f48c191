// What something costs in a process of its own, so that its peak memory is its own.
#pragma once

#include <functional>

namespace latchkey {

struct ChildCost {
  double seconds = 0;
  double peak_mib = 0;
};

// Ends the benchmark when the child fails.
ChildCost InChild(const std::function<void()>& run);

}  // namespace latchkey
