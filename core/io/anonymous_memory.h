// Large pieces of memory of the process's own, in huge pages where the kernel gives them.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace latchkey {

// Zero bytes at first. Begins at a multiple of 2 MiB.
class AnonymousMemory {
 public:
  // ResourceExhausted when the kernel refuses. Pages come on first touch; 2 MiB at a time where
  // transparent huge pages are to be had.
  static absl::StatusOr<std::unique_ptr<AnonymousMemory>> Allocate(uint64_t size_bytes);
  ~AnonymousMemory();
  AnonymousMemory(const AnonymousMemory&) = delete;
  AnonymousMemory& operator=(const AnonymousMemory&) = delete;

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  AnonymousMemory() = default;
  void* mapped_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  uint8_t* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

}  // namespace latchkey
