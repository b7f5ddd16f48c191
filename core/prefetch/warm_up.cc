#include "core/prefetch/warm_up.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "core/io/available_memory.h"
#include "core/prefetch/advice_policy.h"

namespace latchkey {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kChunkBytes = uint64_t{4} << 20;
constexpr std::chrono::milliseconds kNap(10);
// Left free, as CheckMemorySuffices has it.
constexpr uint64_t kMemoryLeftBytes = uint64_t{128} << 20;

struct Chunk {
  int fd;
  uint64_t offset;
  uint64_t size_bytes;
};

// Index sections first, then data sections as far as `bytes_left` goes.
std::vector<Chunk> ChunksOf(const Snapshot& snapshot, WarmUp what, uint64_t bytes_left) {
  std::vector<Chunk> chunks;
  for (const bool data : {false, true}) {
    if (what == WarmUp::kNone || (data && what == WarmUp::kIndex)) break;
    for (const auto& segment : snapshot.segments()) {
      if (segment->file().fd() < 0) continue;
      for (size_t i = 0; i < kSectionCount; ++i) {
        const auto kind = static_cast<SectionKind>(i);
        if (data ? !IsDataSection(kind) : !IsIndexSection(kind)) continue;
        const Section& section = segment->header().sections[i];
        for (uint64_t at = 0; at < section.size_bytes; at += kChunkBytes) {
          const uint64_t size_bytes = std::min(kChunkBytes, section.size_bytes - at);
          if (data && size_bytes > bytes_left) return chunks;
          bytes_left -= std::min(bytes_left, size_bytes);
          chunks.push_back({segment->file().fd(), section.offset + at, size_bytes});
        }
      }
    }
  }
  return chunks;
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

absl::Status WarmUpSnapshot(const Snapshot& snapshot, const WarmUpOptions& options) {
  // Other modes have everything in memory already.
  if (snapshot.memory_mode() != MemoryMode::kMmap) return absl::OkStatus();
  const auto memory = ReadAvailableMemory();
  const uint64_t left = memory.ok() ? memory->bytes : UINT64_MAX;
  const std::vector<Chunk> chunks =
      ChunksOf(snapshot, options.what, left - std::min(left, kMemoryLeftBytes));
  uint64_t total_bytes = 0;
  for (const Chunk& chunk : chunks) total_bytes += chunk.size_bytes;

  std::atomic<size_t> next{0};
  std::atomic<uint64_t> taken_bytes{0}, done_bytes{0};
  std::atomic<bool> stopped{false};
  std::mutex progress_mutex;
  const auto begin = Clock::now();
  const auto read_chunks = [&] {
    std::vector<char> scratch(kChunkBytes);
    for (size_t i = next++; i < chunks.size() && !stopped; i = next++) {
      const Chunk& chunk = chunks[i];
      taken_bytes += chunk.size_bytes;
      if (::pread(chunk.fd, scratch.data(), chunk.size_bytes, static_cast<off_t>(chunk.offset)) >
          0) {
        done_bytes += chunk.size_bytes;
      }
      const std::lock_guard<std::mutex> lock(progress_mutex);
      options.on_progress(done_bytes, total_bytes);
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
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 1; t < std::max(1u, options.threads); ++t) threads.emplace_back(read_chunks);
  read_chunks();
  for (std::thread& thread : threads) thread.join();
  return stopped ? absl::CancelledError("the warm-up was stopped") : absl::OkStatus();
}

}  // namespace latchkey
