// Asks the kernel for pages of mapped files, a wave at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/io/file_system.h"
#include "core/prefetch/fetch_policy.h"

namespace latchkey {

// Major faults and pages read from the disk, of the calling thread so far; the other fields are 0.
// One system call: 0.5 us.
FetchCost ThreadFetchCost();

// Thread-compatible; one a thread.
class Prefetcher {
 public:
  // Forgets which pages were asked for; for each batch anew, since any may be evicted meanwhile.
  // `keys`: about how many ranges there will be.
  void Start(size_t keys);
  // Puts [begin, begin + size_bytes) of `file` into the next wave. What lies outside the file is
  // left out.
  void Want(const MappedFile& file, const uint8_t* begin, uint64_t size_bytes);
  // Asks for the wave's pages: each page once a batch, neighbours together, in the order of the
  // file. With `may_wait` false it stops as soon as one had to be read from the disk, and returns
  // false.
  bool Ask(bool may_wait);

  // Since the start of the thread.
  uint64_t pages_asked() const { return pages_asked_; }

 private:
  struct Pages {
    const MappedFile* file;
    uint64_t first, end;
  };
  // Remembers by a table that forgets: to ask twice is a waste, no error.
  bool AskedBefore(const MappedFile& file, uint64_t page);

  std::vector<Pages> wave_;
  std::vector<uint64_t> asked_;  // page and file, mixed; 0 for none
  uint64_t pages_asked_ = 0;
};

}  // namespace latchkey
