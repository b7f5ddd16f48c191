#include "core/io/fault_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

namespace latchkey {
namespace internal {

std::atomic<uint64_t> losses_begun{0};
std::atomic<uint64_t> losses_done{0};

// Read by the signal handler at any time. A free slot has begin 0.
struct GuardSlot {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> lost{false};
};

}  // namespace internal

namespace {

using internal::GuardSlot;

// So much around a lost page is given up with it: damage of a part means little for the rest, and a
// mapping in too many pieces can't be changed any more.
constexpr uintptr_t kLostBytes = uintptr_t{2} << 20;

// Blocks are added and never freed, so that the handler can walk them without a lock.
struct SlotBlock {
  GuardSlot slots[256];
  std::atomic<SlotBlock*> next{nullptr};
};

SlotBlock first_block;
std::mutex slots_mutex;
struct sigaction previous_action;

GuardSlot* TakeSlot(const uint8_t* data, uint64_t size_bytes) {
  const std::lock_guard<std::mutex> lock(slots_mutex);
  for (SlotBlock* block = &first_block;; block = block->next.load()) {
    for (GuardSlot& slot : block->slots) {
      if (slot.begin.load() != 0) continue;
      const auto begin = reinterpret_cast<uintptr_t>(data);
      slot.lost.store(false);
      slot.end.store(begin + size_bytes);
      slot.begin.store(begin);
      return &slot;
    }
    if (block->next.load() == nullptr) block->next.store(new SlotBlock);
  }
}

struct Range {
  GuardSlot* slot = nullptr;
  uintptr_t begin = 0, end = 0;
};

Range RangeOf(uintptr_t address) {
  for (SlotBlock* block = &first_block; block != nullptr; block = block->next.load()) {
    for (GuardSlot& slot : block->slots) {
      const uintptr_t begin = slot.begin.load(), end = slot.end.load();
      // Again, since others may give the slot away or take it meanwhile; nobody does so with the
      // one that is looked for.
      if (begin != 0 && address >= begin && address < end && slot.begin.load() == begin) {
        return {&slot, begin, end};
      }
    }
  }
  return {};
}

// Async-signal-safe, as all of the handler must be.
void SayUnguarded(uintptr_t address) {
  char text[] = "fatal: bus error at 0x0000000000000000, which is no part of a table's files\n";
  char* digit = std::strchr(text, 'x') + 16;
  for (; address != 0; address >>= 4) *digit-- = "0123456789abcdef"[address & 15];
  (void)!::write(STDERR_FILENO, text, sizeof(text) - 1);
}

void HandleBusError(int signal_number, siginfo_t* info, void* /*context*/) {
  const int error_number = errno;
  const bool from_kernel = info->si_code > 0;  // not sent by a process
  if (from_kernel) {
    const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    const Range range = RangeOf(address);
    if (range.slot != nullptr) {
      const uintptr_t page_mask = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)) - 1;
      const uintptr_t begin = std::max(range.begin, address & ~(kLostBytes - 1));
      const uintptr_t end =
          std::min((range.end + page_mask) & ~page_mask, (address | (kLostBytes - 1)) + 1);
      // First, so that whoever reads the zeros will see that they are some.
      range.slot->lost.store(true);
      internal::losses_begun.fetch_add(1);
      // Not by the library's mmap, which sanitizers take for a write to all of it.
      if (::syscall(SYS_mmap, begin, end - begin, PROT_READ,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != -1) {
        internal::losses_done.fetch_add(1);
        errno = error_number;
        return;
      }
    }
    SayUnguarded(address);
  } else {
    constexpr char kSent[] = "fatal: bus error, sent by a process\n";
    (void)!::write(STDERR_FILENO, kSent, sizeof(kSent) - 1);
  }
  // Whatever was there before gets the fault, which comes again on return.
  ::sigaction(SIGBUS, &previous_action, nullptr);
  if (!from_kernel) ::raise(signal_number);
}

}  // namespace

void InstallFaultGuard() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = HandleBusError;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &previous_action);
  });
}

void CountLoss() {
  internal::losses_begun.fetch_add(1);
  internal::losses_done.fetch_add(1);
}

GuardedRange::GuardedRange(const uint8_t* data, uint64_t size_bytes)
    : slot_(TakeSlot(data, size_bytes)) {}
GuardedRange::~GuardedRange() { slot_->begin.store(0); }
bool GuardedRange::lost() const { return slot_->lost.load(std::memory_order_relaxed); }

}  // namespace latchkey
