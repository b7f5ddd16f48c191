#include "core/prefetch/warm_up.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/low_priority.h"
#include "core/base/status_macros.h"
#include "core/io/available_memory.h"
#include "core/prefetch/advice_policy.h"
#include "core/prefetch/page_cache.h"

namespace latchkey {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kChunkBytes = uint64_t{4} << 20;
constexpr std::chrono::milliseconds kNap(10);
// A table of which no more is missing is read as a whole.
constexpr uint64_t kMissingOneIn = 64;
// Left free, as CheckMemorySuffices has it.
constexpr uint64_t kMemoryLeftBytes = uint64_t{128} << 20;

// A part of a section, to be read.
struct Chunk {
  const Segment* segment;
  SectionKind kind;
  uint64_t begin, end;
  bool must_be_sound;
};

struct Plan {
  std::vector<Chunk> chunks;
  std::vector<std::pair<const Segment*, SectionKind>> whole_sections;
  uint64_t total_bytes = 0;
};

// Whether `previous` has the very segment open, and whether it has the same one, quarantined.
bool IsShared(const Segment& segment, const Snapshot* previous) {
  return previous != nullptr &&
         std::any_of(previous->segments().begin(), previous->segments().end(),
                     [&](const auto& other) { return other.get() == &segment; });
}
bool WasQuarantined(const Segment& segment, const Snapshot* previous) {
  return previous != nullptr &&
         std::any_of(previous->segments().begin(), previous->segments().end(),
                     [&](const auto& other) {
                       return other->quarantined() &&
                              other->header().segment_id == segment.header().segment_id;
                     });
}

// Index sections, or data sections as far as `bytes_left` goes.
void Add(const Snapshot& snapshot, const WarmUpOptions& options, bool data, uint64_t bytes_left,
         Plan* plan) {
  // Other modes have everything in memory already.
  const bool warm = snapshot.memory_mode() == MemoryMode::kMmap &&
                    options.what >= (data ? WarmUp::kAll : WarmUp::kIndex);
  const bool verify = options.verify >= (data ? VerifyLevel::kAll : VerifyLevel::kIndex);
  for (const auto& segment : snapshot.segments()) {
    if (IsShared(*segment, options.previous)) continue;
    const bool prove = verify || WasQuarantined(*segment, options.previous);
    for (size_t i = 0; i < kSectionCount; ++i) {
      const auto kind = static_cast<SectionKind>(i);
      if (data ? !IsDataSection(kind) : !IsIndexSection(kind)) continue;
      uint64_t left = segment->header().sections[i].size_bytes;
      if (!prove) left = !warm ? 0 : data ? std::min(left, bytes_left) : left;
      bytes_left -= std::min(bytes_left, left);
      if (left == segment->header().sections[i].size_bytes) {
        plan->whole_sections.emplace_back(segment.get(), kind);
      }
      plan->total_bytes += left;
      for (uint64_t at = 0; left > 0; at += kChunkBytes) {
        const uint64_t size_bytes = std::min(left, kChunkBytes);
        // While another generation serves, one that is damaged need not.
        plan->chunks.push_back(
            {segment.get(), kind, at, at + size_bytes, prove || options.previous != nullptr});
        left -= size_bytes;
      }
    }
  }
}

// Maps what of the new segments is in memory, and notes if all is. What little is missing is read
// too, since a table is not cold for the few pages that the kernel took for something else
// meanwhile; `keep_pace(bytes)` is told. False when that, or `should_stop`, said to stop.
template <typename KeepPace>
bool MapResident(const Snapshot& snapshot, const WarmUpOptions& options,
                 const KeepPace& keep_pace) {
  if (snapshot.memory_mode() != MemoryMode::kMmap) return true;
  struct Part {
    const Segment* segment;
    uint64_t offset, size_bytes;
    bool index;
    std::optional<Residency> residency;
  };
  std::vector<Part> parts;
  Residency sum;
  bool may_be_warm = true;
  for (const auto& segment : snapshot.segments()) {
    if (IsShared(*segment, options.previous)) {
      may_be_warm &= options.previous->warm();
      continue;
    }
    const ResidencyProbe probe = ChooseResidencyProbe(segment->file());
    for (size_t i = 0; i < kSectionCount; ++i) {
      const auto kind = static_cast<SectionKind>(i);
      if (!IsIndexSection(kind) && !IsDataSection(kind)) continue;
      const Section& section = segment->header().sections[i];
      for (uint64_t at = section.offset; at < section.end(); at += kChunkBytes) {
        if (options.should_stop()) return false;
        const uint64_t size_bytes = std::min(kChunkBytes, section.end() - at);
        const auto residency = MeasureResidency(segment->file(), probe, at, size_bytes);
        may_be_warm &= residency.has_value();
        if (residency) sum += *residency;
        parts.push_back({segment.get(), at, size_bytes, IsIndexSection(kind), residency});
        GiveWay();
      }
    }
  }
  const uint64_t few = options.what == WarmUp::kNone ? 0 : sum.pages / kMissingOneIn;
  const bool warm = may_be_warm && sum.pages - sum.resident <= few;
  for (const Part& part : parts) {
    const uint64_t absent = part.residency ? part.residency->pages - part.residency->resident : 0;
    // What can't be asked about may have been read just now.
    const bool wanted =
        part.residency ? absent == 0 || warm : part.index && options.what != WarmUp::kNone;
    if (!wanted) continue;
    part.segment->file().Populate(part.offset, part.size_bytes);
    if (!keep_pace(absent * PageBytes())) return false;
  }
  if (warm) snapshot.SetWarm();
  return true;
}

}  // namespace

std::string_view WarmUpName(WarmUp warm_up) {
  switch (warm_up) {
    case WarmUp::kIndex:
      return "index";
    case WarmUp::kAll:
      return "all";
    case WarmUp::kNone:
      break;
  }
  return "none";
}

std::string_view VerifyLevelName(VerifyLevel level) {
  switch (level) {
    case VerifyLevel::kIndex:
      return "index";
    case VerifyLevel::kAll:
      return "all";
    case VerifyLevel::kHeader:
      break;
  }
  return "header";
}

absl::Status WarmUpSnapshot(const Snapshot& snapshot, const WarmUpOptions& options) {
  const auto memory = ReadAvailableMemory();
  const uint64_t available = memory.ok() ? memory->bytes : UINT64_MAX;
  const uint64_t bytes_left = available - std::min(available, kMemoryLeftBytes);
  Plan plan;
  Add(snapshot, options, /*data=*/false, 0, &plan);
  const uint64_t index_bytes = plan.total_bytes;
  if (options.previous != nullptr && options.what != WarmUp::kNone && index_bytes > bytes_left) {
    return absl::ResourceExhaustedError(fmt::format(
        "generation {}: its filters and pilots take {} MiB of memory beside generation {}, and {} "
        "has {} MiB left, of which {} are to stay free",
        snapshot.generation(), index_bytes >> 20, options.previous->generation(),
        memory->limited_by, available >> 20, kMemoryLeftBytes >> 20));
  }
  Add(snapshot, options, /*data=*/true, bytes_left - std::min(bytes_left, index_bytes), &plan);

  std::atomic<size_t> next{0};
  std::atomic<uint64_t> taken_bytes{0}, done_bytes{0};
  std::atomic<bool> stopped{false};
  std::mutex mutex;
  absl::Status damage;  // guarded by mutex
  const auto begin = Clock::now();
  // False when it was stopped.
  const auto keep_pace = [&](uint64_t size_bytes) {
    taken_bytes += size_bytes;
    if (options.should_stop()) stopped = true;
    while (options.bytes_per_s_max != 0 && !stopped) {
      const std::chrono::duration<double> elapsed = Clock::now() - begin;
      if (static_cast<double>(taken_bytes) <=
          elapsed.count() * static_cast<double>(options.bytes_per_s_max)) {
        break;
      }
      std::this_thread::sleep_for(kNap);
      if (options.should_stop()) stopped = true;
    }
    return !stopped;
  };
  const auto read_chunks = [&] {
    for (size_t i = next++; i < plan.chunks.size() && !stopped; i = next++) {
      const Chunk& chunk = plan.chunks[i];
      const uint64_t size_bytes = chunk.end - chunk.begin;
      taken_bytes += size_bytes;
      const absl::Status status = chunk.segment->CheckBlocks(chunk.kind, chunk.begin, chunk.end);
      if (status.ok()) done_bytes += size_bytes;
      const std::lock_guard<std::mutex> lock(mutex);
      if (!status.ok() && chunk.must_be_sound) {
        damage.Update(status);
        stopped = true;
        return;
      }
      if (!status.ok()) options.on_damage(status);
      options.on_progress(done_bytes, plan.total_bytes);
      keep_pace(0);  // it was counted when it was taken
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 1; t < std::max(1u, options.threads); ++t) threads.emplace_back(read_chunks);
  read_chunks();
  for (std::thread& thread : threads) thread.join();
  LATCHKEY_RETURN_IF_ERROR(damage);
  const auto cancelled = absl::CancelledError("the warm-up was stopped");
  if (stopped) return cancelled;
  for (const auto& [segment, kind] : plan.whole_sections) segment->SetChecked(kind);
  return MapResident(snapshot, options, keep_pace) ? absl::OkStatus() : cancelled;
}

}  // namespace latchkey
