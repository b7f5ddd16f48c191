#include "core/prefetch/background_check.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/low_priority.h"
#include "core/prefetch/page_cache.h"
#include "core/prefetch/prefetcher.h"

namespace latchkey {
namespace {

// Read at a time: between two pieces a segment can go.
constexpr uint64_t kPieceBytes = 16 * kChecksumBlockBytes;

}  // namespace

BackgroundCheck::BackgroundCheck(BackgroundCheckOptions options)
    : options_(std::move(options)), thread_([this] { Run(); }) {}

BackgroundCheck::~BackgroundCheck() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void BackgroundCheck::Add(const std::string& table, const Snapshot& snapshot) {
  if (options_.bytes_per_s_max == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  // Generation after generation may share a segment that waits.
  std::erase_if(waiting_, [](const Waiting& waiting) { return waiting.segment.expired(); });
  for (const auto& segment : snapshot.segments()) {
    const bool waits = std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
      return waiting.segment.lock() == segment;
    });
    if (!waits && segment->UncheckedBytes() != 0) waiting_.push_back({table, segment});
  }
  wake_.notify_all();
}

void BackgroundCheck::Run() {
  LowerPriority();
  for (;;) {
    Waiting next;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      next = std::move(waiting_.front());
      waiting_.erase(waiting_.begin());
    }
    uint64_t read_bytes = 0;
    for (size_t i = 0; i < kSectionCount; ++i) {
      if (!CheckSection(next, static_cast<SectionKind>(i), &read_bytes)) return;
    }
  }
}

bool BackgroundCheck::CheckSection(const Waiting& waiting, SectionKind kind, uint64_t* read_bytes) {
  uint64_t cold_begin = 0;  // of the piece before this one, if it was cold
  for (uint64_t at = 0;;) {
    uint64_t size_bytes;
    {
      const auto segment = waiting.segment.lock();
      if (segment == nullptr || segment->checked(kind)) return true;
      const Section& section = segment->header().section(kind);
      size_bytes = std::min(section.size_bytes - at, kPieceBytes);
      const uint64_t read_before = ThreadFetchCost().read;
      const absl::Status status = segment->CheckBlocks(kind, at, at + size_bytes);
      *read_bytes += (ThreadFetchCost().read - read_before) * PageBytes();
      if (!status.ok()) options_.on_damage(waiting.table, status);
      const bool cold = *read_bytes > size_bytes / 2;
      *read_bytes -= std::min(*read_bytes, size_bytes);
      at += size_bytes;
      if (cold) {
        // From where the piece before it began, since a folio that lies in both stayed; pages that
        // are mapped stay in any case.
        ::posix_fadvise(segment->file().fd(), static_cast<off_t>(section.offset + cold_begin),
                        static_cast<off_t>(at - cold_begin), POSIX_FADV_DONTNEED);
        cold_begin = at - size_bytes;
      } else {
        cold_begin = at;
      }
      if (at == section.size_bytes) segment->SetChecked(kind);
    }
    const std::chrono::duration<double> pause(static_cast<double>(size_bytes) /
                                              static_cast<double>(options_.bytes_per_s_max));
    std::unique_lock<std::mutex> lock(mutex_);
    if (wake_.wait_for(lock, pause, [this] { return stopping_; })) return false;
  }
}

}  // namespace latchkey
