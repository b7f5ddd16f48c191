// Asking the memory for a line before it is needed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace latchkey {

inline constexpr size_t kCacheLineBytes = 64;

inline void PrefetchLine(const void* address) { __builtin_prefetch(address, 0, 3); }

// Prefetches the lines that hold the first and the last byte of [address, address + size_bytes);
// what lies between is left to the hardware.
inline void PrefetchEnds(const void* address, size_t size_bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const auto last = begin + size_bytes - 1;
  PrefetchLine(address);
  if ((begin ^ last) >= kCacheLineBytes) PrefetchLine(reinterpret_cast<const void*>(last));
}

}  // namespace latchkey
