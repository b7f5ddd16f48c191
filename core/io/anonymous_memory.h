// Large pieces of memory of the process's own, in huge pages where the kernel gives them.
#pragma once

#include <chrono>
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
  // The spare memory if there is some that suits, zeroed; else null. The spare is the last that was
  // given to KeepSpare: where a generation follows another, their maps take turns in two pieces of
  // memory. A first touch of fresh memory took 20 ms for 2 MiB on a virtual machine, and without a
  // spare the 99th percentile of batches beside such reloads was 1.1 to 1.6 times as long.
  static std::unique_ptr<AnonymousMemory> TakeSpare(uint64_t size_bytes);
  // Keeps `memory` for TakeSpare, if it is worth it, in place of what was kept.
  static void KeepSpare(std::unique_ptr<AnonymousMemory> memory);
  // Gives the spare back to the kernel when it was kept so long.
  static void ReleaseSpare(std::chrono::seconds kept_for);
  static bool HasSpare(uint64_t size_bytes);  // whether TakeSpare would give it
  ~AnonymousMemory();
  AnonymousMemory(const AnonymousMemory&) = delete;
  AnonymousMemory& operator=(const AnonymousMemory&) = delete;

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  struct Spare;
  static Spare& TheSpare();
  AnonymousMemory() = default;
  uint64_t capacity() const;  // bytes from `data_` that are surely its own
  void* mapped_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  uint8_t* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

}  // namespace latchkey
