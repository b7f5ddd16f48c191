#include "tests/support/allocation_meter.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> live_bytes = 0;
std::atomic<int64_t> peak_bytes_seen = 0;

}  // namespace

// Temporary buffers of the standard library come this way.
void* operator new(size_t size_bytes, const std::nothrow_t&) noexcept {
  void* const memory = std::malloc(size_bytes);
  if (memory == nullptr) return nullptr;
  const auto got = static_cast<int64_t>(::malloc_usable_size(memory));
  const int64_t live = live_bytes.fetch_add(got, std::memory_order_relaxed) + got;
  int64_t peak = peak_bytes_seen.load(std::memory_order_relaxed);
  while (live > peak &&
         !peak_bytes_seen.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
  return memory;
}

void* operator new(size_t size_bytes) {
  void* const memory = operator new(size_bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void operator delete(void* memory) noexcept {
  live_bytes.fetch_sub(static_cast<int64_t>(::malloc_usable_size(memory)),
                       std::memory_order_relaxed);
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace latchkey::test {

AllocationMeter::AllocationMeter() : at_start_(live_bytes) { peak_bytes_seen = at_start_; }

uint64_t AllocationMeter::peak_bytes() const {
  return static_cast<uint64_t>(std::max<int64_t>(peak_bytes_seen - at_start_, 0));
}

}  // namespace latchkey::test
