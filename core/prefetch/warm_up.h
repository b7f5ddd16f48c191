// Reads a generation into the page cache before it serves.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "core/table/snapshot.h"

namespace latchkey {

enum class WarmUp : uint8_t {
  kNone,
  kIndex,  // filters and pilots, some 2 bytes a row: what every lookup reads
  kAll,    // and lines, records and values
};
std::string_view WarmUpName(WarmUp warm_up);  // "none", "index", "all"

struct WarmUpOptions {
  WarmUp what = WarmUp::kIndex;
  uint64_t bytes_per_s_max = 0;  // 0: as fast as it goes
  unsigned threads = 4;
  // Called now and then by one thread at a time.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> on_progress = [](uint64_t,
                                                                                  uint64_t) {};
  std::function<bool()> should_stop = [] { return false; };
};

// Reads in the order of the files, by read calls, so that the kernel reads ahead and keeps large
// pages: index sections first, then data sections as far as memory goes. Cancelled when it was
// stopped; what the disk refuses is left cold, for lookups to find out.
absl::Status WarmUpSnapshot(const Snapshot& snapshot, const WarmUpOptions& options);

}  // namespace latchkey
