#include "core/prefetch/prefetcher.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <thread>
#include <tuple>

namespace latchkey {
namespace {

constexpr size_t kRangesBetweenChecks = 8;
constexpr uint64_t kRunPagesMax = 32;  // a hint for more is cut to what the device reads ahead
constexpr uint64_t kBlockBytes = 512;  // of ru_inblock

const unsigned kPageShift = static_cast<unsigned>(__builtin_ctzl(::sysconf(_SC_PAGESIZE)));

}  // namespace

FetchCost ThreadFetchCost() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_THREAD, &usage);
  FetchCost cost;
  cost.faults = static_cast<uint64_t>(usage.ru_majflt);
  cost.read = static_cast<uint64_t>(usage.ru_inblock) * kBlockBytes >> kPageShift;
  return cost;
}

void Prefetcher::Start(size_t keys) {
  wave_.clear();
  asked_.assign(std::bit_ceil(4 * keys + 1), 0);
}

void Prefetcher::Want(const MappedFile& file, const uint8_t* begin, uint64_t size_bytes) {
  if (file.fd() < 0 || begin < file.data() || size_bytes == 0) return;
  const auto offset = static_cast<uint64_t>(begin - file.data());
  if (offset >= file.size_bytes()) return;
  const uint64_t last = std::min(size_bytes, file.size_bytes() - offset) - 1 + offset;
  wave_.push_back({&file, offset >> kPageShift, (last >> kPageShift) + 1});
}

bool Prefetcher::AskedBefore(const MappedFile& file, uint64_t page) {
  const uint64_t name =
      (page + 1) * 0x9E3779B97F4A7C15 ^ static_cast<uint64_t>(file.fd()) * 0xD6E8FEB86659FD93;
  uint64_t& slot = asked_[name >> 32 & (asked_.size() - 1)];
  const bool before = slot == name;
  slot = name;
  return before;
}

bool Prefetcher::Ask(bool may_wait) {
  if (wave_.empty()) return true;
  std::sort(wave_.begin(), wave_.end(), [](const Pages& a, const Pages& b) {
    return std::tuple(a.file, a.first, a.end) < std::tuple(b.file, b.first, b.end);
  });
  const uint64_t read_before = may_wait ? 0 : ThreadFetchCost().read;
  size_t ranges = 0;
  bool waits = false;
  const auto ask = [&](const Pages& pages) {
    if (pages.first >= pages.end) return;
    pages.file->ReadAhead(pages.first << kPageShift, (pages.end - pages.first) << kPageShift);
    pages_asked_ += pages.end - pages.first;
    if (++ranges % kRangesBetweenChecks != 0) return;
    if (may_wait) {
      // A wave keeps a processor for milliseconds.
      std::this_thread::yield();
    } else {
      waits = ThreadFetchCost().read != read_before;
    }
  };
  Pages run{nullptr, 0, 0};
  for (const Pages& pages : wave_) {
    for (uint64_t page = pages.first; page < pages.end && !waits; ++page) {
      if (pages.file == run.file && page < run.end) continue;
      if (AskedBefore(*pages.file, page)) continue;
      if (pages.file == run.file && page == run.end && run.end - run.first < kRunPagesMax) {
        ++run.end;
        continue;
      }
      ask(run);
      run = {pages.file, page, page + 1};
    }
    if (waits) break;
  }
  if (!waits) ask(run);
  wave_.clear();
  return may_wait || (!waits && ThreadFetchCost().read == read_before);
}

}  // namespace latchkey
