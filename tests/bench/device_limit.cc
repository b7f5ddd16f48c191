#include "tests/bench/device_limit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "tests/bench/cold_pages.h"

namespace latchkey {
namespace {

// Reads that are waited for together, so that a wake-up is shared.
constexpr unsigned kWaitedTogether = 16;

[[noreturn]] void Fail(const char* what) {
  FailCold(fmt::format("device limit: {}: {}", what, std::strerror(errno)));
}

char* MapOrFail(int fd, size_t bytes, uint64_t offset) {
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                              static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) Fail("cannot map a ring");
  return static_cast<char*>(mapped);
}

unsigned* At(char* ring, unsigned offset) { return reinterpret_cast<unsigned*>(ring + offset); }

}  // namespace

DeviceLimit::DeviceLimit(const std::string& path) : path_(path) {
  file_fd_ = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (file_fd_ < 0) Fail("cannot open the file with O_DIRECT");
  io_uring_params params = {};
  ring_fd_ = static_cast<int>(::syscall(SYS_io_uring_setup, kDeviceDepth, &params));
  if (ring_fd_ < 0) Fail("no io_uring");
  MapRings(params);
  void* const buffers = ::mmap(nullptr, kDeviceDepth * kFilePageBytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (buffers == MAP_FAILED) Fail("no memory");
  buffers_ = static_cast<char*>(buffers);
}

DeviceLimit::~DeviceLimit() {
  ::munmap(buffers_, kDeviceDepth * kFilePageBytes);
  ::munmap(sqes_, sqe_bytes_);
  ::munmap(sq_, sq_bytes_);
  ::munmap(cq_, cq_bytes_);
  ::close(ring_fd_);
  ::close(file_fd_);
}

void DeviceLimit::MapRings(const io_uring_params& params) {
  sq_bytes_ = params.sq_off.array + params.sq_entries * sizeof(unsigned);
  cq_bytes_ = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  sqe_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
  sq_ = MapOrFail(ring_fd_, sq_bytes_, IORING_OFF_SQ_RING);
  cq_ = MapOrFail(ring_fd_, cq_bytes_, IORING_OFF_CQ_RING);
  sqes_ = reinterpret_cast<io_uring_sqe*>(MapOrFail(ring_fd_, sqe_bytes_, IORING_OFF_SQES));
  cqes_ = reinterpret_cast<io_uring_cqe*>(cq_ + params.cq_off.cqes);
  sq_tail_ = At(sq_, params.sq_off.tail);
  sq_array_ = At(sq_, params.sq_off.array);
  cq_head_ = At(cq_, params.cq_off.head);
  cq_tail_ = At(cq_, params.cq_off.tail);
  sq_mask_ = *At(sq_, params.sq_off.ring_mask);
  cq_mask_ = *At(cq_, params.cq_off.ring_mask);
}

void DeviceLimit::Push(uint64_t page, unsigned slot) {
  const unsigned tail = *sq_tail_;
  io_uring_sqe& sqe = sqes_[tail & sq_mask_];
  std::memset(&sqe, 0, sizeof(sqe));
  sqe.opcode = IORING_OP_READ;
  sqe.fd = file_fd_;
  sqe.addr = reinterpret_cast<uint64_t>(buffers_ + slot * kFilePageBytes);
  sqe.len = kFilePageBytes;
  sqe.off = page * kFilePageBytes;
  sqe.user_data = slot;
  sq_array_[tail & sq_mask_] = tail & sq_mask_;
  std::atomic_ref(*sq_tail_).store(tail + 1, std::memory_order_release);
}

unsigned DeviceLimit::Wait(unsigned to_submit, unsigned count, unsigned* slots) {
  while (::syscall(SYS_io_uring_enter, ring_fd_, to_submit, count, IORING_ENTER_GETEVENTS, nullptr,
                   0) < 0) {
    if (errno != EINTR) Fail("io_uring_enter");
  }
  unsigned head = *cq_head_, done = 0;
  const unsigned tail = std::atomic_ref(*cq_tail_).load(std::memory_order_acquire);
  for (; head != tail; ++head, ++done) {
    const io_uring_cqe& cqe = cqes_[head & cq_mask_];
    if (cqe.res != static_cast<int>(kFilePageBytes)) {
      errno = cqe.res < 0 ? -cqe.res : EIO;
      Fail("cannot read a page");
    }
    slots[done] = static_cast<unsigned>(cqe.user_data);
  }
  std::atomic_ref(*cq_head_).store(head, std::memory_order_release);
  return done;
}

double DeviceLimit::ReadMs(std::span<const uint64_t> pages) {
  unsigned free_slots[kDeviceDepth];
  unsigned free_count = kDeviceDepth;
  for (unsigned i = 0; i < kDeviceDepth; ++i) free_slots[i] = i;
  const auto begin = std::chrono::steady_clock::now();
  size_t next = 0;
  for (size_t done = 0; done < pages.size();) {
    unsigned pushed = 0;
    while (free_count > 0 && next < pages.size()) {
      Push(pages[next++], free_slots[--free_count]);
      ++pushed;
    }
    const unsigned in_flight = static_cast<unsigned>(next - done);
    const unsigned got =
        Wait(pushed, std::min(kWaitedTogether, in_flight), free_slots + free_count);
    free_count += got;
    done += got;
  }
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace latchkey
