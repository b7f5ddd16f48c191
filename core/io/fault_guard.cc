#include "core/io/fault_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

namespace latchkey {
namespace internal {

std::atomic<uint64_t> fault_epoch{0};

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

GuardSlot* SlotOf(uintptr_t address) {
  for (SlotBlock* block = &first_block; block != nullptr; block = block->next.load()) {
    for (GuardSlot& slot : block->slots) {
      const uintptr_t begin = slot.begin.load();
      if (begin != 0 && address >= begin && address < slot.end.load()) return &slot;
    }
  }
  return nullptr;
}

// Async-signal-safe, as all of the handler must be.
void SayUnguarded(uintptr_t address) {
  char text[] = "fatal: bus error at 0x0000000000000000, which is no part of a table's files\n";
  char* digit = std::strchr(text, 'x') + 16;
  for (; address != 0; address >>= 4) *digit-- = "0123456789abcdef"[address & 15];
  (void)!::write(STDERR_FILENO, text, sizeof(text) - 1);
}

void HandleBusError(int signal_number, siginfo_t* info, void* context) {
  const int error_number = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (info->si_code > 0) {  // from the kernel, not sent by a process
    if (GuardSlot* const slot = SlotOf(address)) {
      const uintptr_t page_mask = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)) - 1;
      const uintptr_t begin = std::max(slot->begin.load(), address & ~(kLostBytes - 1));
      const uintptr_t end =
          std::min((slot->end.load() + page_mask) & ~page_mask, (address | (kLostBytes - 1)) + 1);
      // First, so that whoever reads the zeros will see that they are some.
      slot->lost.store(true);
      internal::fault_epoch.fetch_add(1);
      if (::mmap(reinterpret_cast<void*>(begin), end - begin, PROT_READ,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED) {
        errno = error_number;
        return;
      }
    }
  }
  SayUnguarded(address);
  // Whatever was there before gets the fault, which comes again on return.
  ::sigaction(SIGBUS, &previous_action, nullptr);
  if (info->si_code <= 0) ::raise(signal_number);
  (void)context;
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

GuardedRange::GuardedRange(const uint8_t* data, uint64_t size_bytes)
    : slot_(TakeSlot(data, size_bytes)) {}
GuardedRange::~GuardedRange() { slot_->begin.store(0); }
bool GuardedRange::lost() const { return slot_->lost.load(std::memory_order_relaxed); }

}  // namespace latchkey
