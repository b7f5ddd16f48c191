// Reads of mapped files whose pages are gone: cut off by a truncated file, or lost to a disk error.
//
// Such a read raises SIGBUS. The guard's handler puts zero bytes in the pages' place, so the read
// goes on, on whatever thread and as often as need be. In the table's format zero bytes read as
// damage, never as an absent key; that the mapping lost pages is remembered, and whoever drew
// conclusions from it while that happened draws them anew (ReadStably). There is no way out of the
// middle of a function, so nothing is left half done.
#pragma once

#include <atomic>
#include <cstdint>

namespace latchkey {

// Handles SIGBUS from now on, for the whole process. A fault outside all guarded ranges is said on
// standard error and left to what handled it before, which by default ends the process.
void InstallFaultGuard();

namespace internal {
struct GuardSlot;
// Losses of pages: those that have begun, and those whose zero bytes are in place.
extern std::atomic<uint64_t> losses_begun;
extern std::atomic<uint64_t> losses_done;
}  // namespace internal

// A mapping that may lose pages. Must be destroyed before it is unmapped. Thread-safe.
class GuardedRange {
 public:
  GuardedRange(const uint8_t* data, uint64_t size_bytes);
  ~GuardedRange();
  GuardedRange(const GuardedRange&) = delete;
  GuardedRange& operator=(const GuardedRange&) = delete;

  // Whether pages of it were lost: those read as zero bytes.
  bool lost() const;

 private:
  internal::GuardSlot* const slot_;
};

// How often any guarded range lost pages, or CountLoss was called.
inline uint64_t FaultEpoch() { return internal::losses_begun.load(std::memory_order_acquire); }

// Makes those who read stably read anew: what they read has meanwhile been found to be damaged.
void CountLoss();

// Calls read(), and again if pages were going, or went, meanwhile: what it read at last is of the
// files, or of zero bytes that were there before. Each loss is of pages that were there, so it
// ends.
template <typename Read>
void ReadStably(Read read) {
  for (;;) {
    const uint64_t done = internal::losses_done.load(std::memory_order_acquire);
    read();
    std::atomic_thread_fence(std::memory_order_acquire);  // the reads come before the next line
    if (FaultEpoch() == done) return;
  }
}

}  // namespace latchkey
