#include "core/io/anonymous_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "core/base/checked_math.h"
#include "core/base/error.h"

namespace latchkey {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

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

AnonymousMemory::~AnonymousMemory() {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
}

}  // namespace latchkey
