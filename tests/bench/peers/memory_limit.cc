#include "tests/bench/peers/memory_limit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/base/checked_math.h"
#include "core/base/prefetch.h"
#include "core/io/memory_mode.h"
#include "tests/bench/report.h"

namespace latchkey {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

uint64_t FirstWord(const uint8_t* line) {
  uint64_t word;
  std::memcpy(&word, line, sizeof(word));
  return word;
}

// Prefetches a group of lines, then reads it. To prefetch a fixed distance ahead of the reading
// was measured to take as long.
uint64_t ReadLines(const uint8_t* region, std::span<const uint64_t> lines, size_t group_lines) {
  uint64_t sum = 0;
  for (size_t begin = 0; begin < lines.size(); begin += group_lines) {
    const size_t end = std::min(begin + group_lines, lines.size());
    for (size_t i = begin; i < end; ++i) PrefetchLine(region + lines[i] * kCacheLineBytes);
    for (size_t i = begin; i < end; ++i) sum += FirstWord(region + lines[i] * kCacheLineBytes);
  }
  return sum;
}

class RegionLimit final : public MemoryLimit {
 public:
  // Takes the mapping [mapped, mapped + mapped_bytes), of which `size_bytes` at `region` are read.
  RegionLimit(void* mapped, size_t mapped_bytes, const uint8_t* region, uint64_t size_bytes,
              std::string what)
      : mapped_(mapped),
        mapped_bytes_(mapped_bytes),
        region_(region),
        lines_(size_bytes / kCacheLineBytes),
        what_(std::move(what)) {
    // So that no page is met for the first time while the widths are compared.
    for (uint64_t line = 0; line < lines_; line += 4096 / kCacheLineBytes) {
      checksum_ += FirstWord(region_ + line * kCacheLineBytes);
    }
    Tune();
  }
  ~RegionLimit() override { ::munmap(mapped_, mapped_bytes_); }

  std::string name() const override { return "random lines of " + what_; }
  std::string settings() const override {
    return fmt::format(
        "{:.0f} MiB, {:.0f} MiB of them in huge pages, prefetched in groups of {}, checksum {:x}",
        static_cast<double>(lines_ * kCacheLineBytes) / (1 << 20), huge_mib(), group_lines_,
        checksum_);
  }
  uint64_t size_bytes() const override { return lines_ * kCacheLineBytes; }
  double huge_mib() const override {
    return static_cast<double>(HugePageBytes(static_cast<const uint8_t*>(mapped_), mapped_bytes_)) /
           (1 << 20);
  }

  double RunRound(const Round& round) override {
    uint64_t state = round.seed;
    std::vector<uint64_t> lines(kPeerBatchKeys);
    std::chrono::nanoseconds elapsed{};
    for (int b = 0; b < round.batches; ++b) {
      for (uint64_t& line : lines) line = MulShift(Mix(++state), lines_, 64);
      const auto begin = ThreadCpuTime();
      checksum_ += ReadLines(region_, lines, group_lines_);
      elapsed += ThreadCpuTime() - begin;
    }
    return static_cast<double>(elapsed.count()) / round.batches / kPeerBatchKeys;
  }

 private:
  void Tune() {
    size_t best = 0;
    double best_ns = 0;
    for (const size_t width : {size_t{16}, size_t{32}, size_t{64}, size_t{128}}) {
      group_lines_ = width;
      std::vector<double> samples;
      for (uint64_t seed = 0; seed < 5; ++seed) {
        samples.push_back(RunRound({90, seed * 1'000'000, 40}));
      }
      const double ns = Median(samples);
      if (best != 0 && ns >= best_ns) continue;
      best = width;
      best_ns = ns;
    }
    group_lines_ = best;
  }

  void* const mapped_;
  const size_t mapped_bytes_;
  const uint8_t* const region_;
  const uint64_t lines_;
  const std::string what_;
  size_t group_lines_ = 0;
  uint64_t checksum_ = 0;  // keeps the reading from being optimized away
};

[[noreturn]] void FailMapping(const std::string& what) {
  FailBench(fmt::format("cannot map {}: {}", what, std::strerror(errno)));
}

}  // namespace

std::unique_ptr<MemoryLimit> MemoryLimit::OverFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) FailMapping(path);
  const uint64_t size_bytes = std::filesystem::file_size(path);
  void* const mapped = ::mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  if (mapped == MAP_FAILED) FailMapping(path);
  return std::make_unique<RegionLimit>(mapped, size_bytes, static_cast<const uint8_t*>(mapped),
                                       size_bytes, "the table's file, mapped");
}

std::unique_ptr<MemoryLimit> MemoryLimit::OverHugePages(uint64_t size_bytes) {
  const size_t mapped_bytes = RoundUp(size_bytes, kHugePageBytes) + kHugePageBytes;
  void* const mapped =
      ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) FailMapping("anonymous memory");
  ::madvise(mapped, mapped_bytes, MADV_HUGEPAGE);
  const uint64_t aligned = RoundUp(reinterpret_cast<uint64_t>(mapped), kHugePageBytes);
  auto* const region = reinterpret_cast<uint8_t*>(aligned);
  // Pages that were never written are all the one page of zeros.
  for (uint64_t at = 0; at + sizeof(at) <= size_bytes; at += sizeof(at)) {
    std::memcpy(region + at, &at, sizeof(at));
  }
  return std::make_unique<RegionLimit>(mapped, mapped_bytes, region, size_bytes,
                                       "anonymous memory in huge pages");
}

}  // namespace latchkey
