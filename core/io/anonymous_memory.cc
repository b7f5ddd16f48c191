#include "core/io/anonymous_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/base/checked_math.h"
#include "core/base/error.h"
#include "core/base/low_priority.h"

namespace latchkey {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
constexpr uint64_t kSpareBytesMin = 2 * kHugePageBytes;  // less comes fast enough
constexpr uint64_t kZeroedBytes = uint64_t{64} << 10;    // at once, in 4 us or so

}  // namespace

absl::StatusOr<std::unique_ptr<AnonymousMemory>> AnonymousMemory::Allocate(uint64_t size_bytes) {
  std::unique_ptr<AnonymousMemory> memory(new AnonymousMemory);
  const uint64_t mapped_bytes = RoundUp(size_bytes, kHugePageBytes) + kHugePageBytes;
  void* const mapped = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return absl::ResourceExhaustedError(fmt::format("cannot allocate {} MiB of memory: {}",
                                                    mapped_bytes >> 20, std::strerror(errno)));
  }
  memory->mapped_ = mapped;
  memory->mapped_bytes_ = mapped_bytes;
  const auto address = reinterpret_cast<uintptr_t>(mapped);
  memory->data_ = static_cast<uint8_t*>(mapped) + (RoundUp(address, kHugePageBytes) - address);
  memory->size_bytes_ = size_bytes;
  // A kernel without them says no; small pages do as well.
  (void)::madvise(memory->data_, RoundUp(size_bytes, kHugePageBytes), MADV_HUGEPAGE);
  return memory;
}

struct AnonymousMemory::Spare {
  std::mutex mutex;
  std::unique_ptr<AnonymousMemory> memory;  // guarded by mutex
  Clock::time_point kept_at;                // guarded by mutex

  // Not for much less than it has, which would be lost on it.
  bool Suits(uint64_t size_bytes) const {
    return memory != nullptr && size_bytes <= memory->capacity() &&
           size_bytes >= memory->capacity() / 4 * 3;
  }
};

AnonymousMemory::Spare& AnonymousMemory::TheSpare() {
  static Spare spare;
  return spare;
}

std::unique_ptr<AnonymousMemory> AnonymousMemory::TakeSpare(uint64_t size_bytes) {
  std::unique_ptr<AnonymousMemory> memory;
  {
    Spare& spare = TheSpare();
    const std::lock_guard<std::mutex> lock(spare.mutex);
    if (!spare.Suits(size_bytes)) return nullptr;
    memory = std::move(spare.memory);
  }
  memory->size_bytes_ = size_bytes;
  for (uint64_t at = 0; at < size_bytes; at += kZeroedBytes) {
    std::memset(memory->data_ + at, 0, std::min(kZeroedBytes, size_bytes - at));
    GiveWay();
  }
  return memory;
}

void AnonymousMemory::KeepSpare(std::unique_ptr<AnonymousMemory> memory) {
  if (memory == nullptr || memory->capacity() < kSpareBytesMin) return;
  Spare& spare = TheSpare();
  const std::lock_guard<std::mutex> lock(spare.mutex);
  spare.memory.swap(memory);
  spare.kept_at = Clock::now();
}

void AnonymousMemory::ReleaseSpare(std::chrono::seconds kept_for) {
  Spare& spare = TheSpare();
  const std::lock_guard<std::mutex> lock(spare.mutex);
  if (Clock::now() - spare.kept_at >= kept_for) spare.memory.reset();
}

bool AnonymousMemory::HasSpare(uint64_t size_bytes) {
  Spare& spare = TheSpare();
  const std::lock_guard<std::mutex> lock(spare.mutex);
  return spare.Suits(size_bytes);
}

uint64_t AnonymousMemory::capacity() const { return mapped_bytes_ - kHugePageBytes; }

AnonymousMemory::~AnonymousMemory() {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
}

}  // namespace latchkey
