// Reads a generation before it serves: into the page cache, and against its checksums.
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

// What is read against its checksums before it serves; headers and directories always are. The
// rest may follow while it serves: see BackgroundCheck.
enum class VerifyLevel : uint8_t {
  kHeader,  // nothing more, but what the warm-up reads anyway
  kIndex,   // filters and pilots
  kAll,
};
std::string_view VerifyLevelName(VerifyLevel level);  // "header", "index", "all"

struct WarmUpOptions {
  WarmUp what = WarmUp::kIndex;
  VerifyLevel verify = VerifyLevel::kHeader;
  // The generation that serves, or null. What both have has been read already. A segment that is
  // quarantined in it must prove all of itself sound.
  const Snapshot* previous = nullptr;
  uint64_t bytes_per_s_max = 0;  // 0: as fast as it goes
  unsigned threads = 4;
  // Called now and then by one thread at a time.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> on_progress = [](uint64_t,
                                                                                  uint64_t) {};
  std::function<bool()> should_stop = [] { return false; };
  // Called, as the above is, for blocks that are damaged, and quarantined, but need not be sound.
  std::function<void(const absl::Status&)> on_damage = [](const absl::Status&) {};
};

// Reads in the order of the files, by read calls, so that the kernel reads ahead and keeps large
// pages: index sections first, then data sections, those that need no check as far as memory goes.
// Whatever is read is checked too, unless it was checked before. Then what is in memory is mapped,
// as far as it can be asked, so that the first lookups need not fault it in page by page; and where
// no more than one page in 64 is missing, that is read as well, unless `what` is kNone. Errors:
// DataLoss for a block that does not match, or can't be read, where it must be sound: by `verify`,
// or beside `previous`; elsewhere it is quarantined. ResourceExhausted, before anything is read,
// when beside `previous` memory does not suffice for the index. Cancelled when it was stopped.
absl::Status WarmUpSnapshot(const Snapshot& snapshot, const WarmUpOptions& options);

}  // namespace latchkey
