// How much memory a piece of code allocates. Linking it replaces the global operator new.
#pragma once

#include <cstdint>

namespace latchkey::test {

// Measures from its construction on, in all threads; one at a time.
class AllocationMeter {
 public:
  AllocationMeter();
  // The most bytes that were allocated at once, beyond those that were when it was made.
  uint64_t peak_bytes() const;

 private:
  const int64_t at_start_;
};

}  // namespace latchkey::test
