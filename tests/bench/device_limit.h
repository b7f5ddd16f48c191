// The device's limit: random pages of a file, read past the page cache with many in flight.
#pragma once

#include <linux/io_uring.h>

#include <cstdint>
#include <span>
#include <string>

namespace latchkey {

inline constexpr unsigned kDeviceDepth = 256;

// By io_uring, through the system calls themselves: no library is needed for so little.
class DeviceLimit {
 public:
  explicit DeviceLimit(const std::string& path);
  ~DeviceLimit();
  DeviceLimit(const DeviceLimit&) = delete;
  DeviceLimit& operator=(const DeviceLimit&) = delete;

  // Reads the pages of these numbers; returns how many ms it took.
  double ReadMs(std::span<const uint64_t> pages);

 private:
  void MapRings(const io_uring_params& params);
  void Push(uint64_t page, unsigned slot);
  // Waits for at least `count` reads and puts the slots that they leave free into *slots.
  unsigned Wait(unsigned to_submit, unsigned count, unsigned* slots);

  const std::string path_;
  int file_fd_ = -1;
  int ring_fd_ = -1;
  char* buffers_ = nullptr;
  char* sq_ = nullptr;
  char* cq_ = nullptr;
  size_t sq_bytes_ = 0, cq_bytes_ = 0, sqe_bytes_ = 0;
  io_uring_sqe* sqes_ = nullptr;
  io_uring_cqe* cqes_ = nullptr;
  unsigned *sq_tail_ = nullptr, *sq_array_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
  unsigned sq_mask_ = 0, cq_mask_ = 0;
};

}  // namespace latchkey
