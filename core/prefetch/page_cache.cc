#include "core/prefetch/page_cache.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#ifndef SYS_cachestat
#define SYS_cachestat 451  // Linux 6.5, the same on all architectures
#endif

namespace latchkey {
namespace {

// As in linux/mman.h, which Debian 12's headers do not have yet.
struct CachestatRange {
  uint64_t offset;
  uint64_t size_bytes;
};
struct Cachestat {
  uint64_t cached;
  uint64_t dirty;
  uint64_t writeback;
  uint64_t evicted;
  uint64_t recently_evicted;
};

bool AskCachestat(int fd, uint64_t offset, uint64_t size_bytes, Cachestat* stat) {
  CachestatRange range{offset, size_bytes};
  return ::syscall(SYS_cachestat, fd, &range, stat, 0) == 0;
}

// mincore tells the truth to the owner and to those who may write the file, as root may unless it
// was stripped of that right.
bool MincoreIsTrue(int fd) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return false;
  if (info.st_uid == ::geteuid()) return true;
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return ::access(path.c_str(), W_OK) == 0;
}

}  // namespace

uint64_t PageBytes() {
  static const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return page_bytes;
}

std::string_view ResidencyProbeName(ResidencyProbe probe) {
  switch (probe) {
    case ResidencyProbe::kCachestat:
      return "cachestat";
    case ResidencyProbe::kMincore:
      return "mincore";
    case ResidencyProbe::kFaults:
      break;
  }
  return "faults";
}

ResidencyProbe ChooseResidencyProbe(const MappedFile& file) {
  if (file.fd() < 0 || file.size_bytes() == 0) return ResidencyProbe::kFaults;
  Cachestat stat;
  if (AskCachestat(file.fd(), 0, PageBytes(), &stat)) return ResidencyProbe::kCachestat;
  return MincoreIsTrue(file.fd()) ? ResidencyProbe::kMincore : ResidencyProbe::kFaults;
}

Residency& Residency::operator+=(const Residency& other) {
  pages += other.pages;
  resident += other.resident;
  recently_evicted += other.recently_evicted;
  return *this;
}

std::optional<Residency> MeasureResidency(const MappedFile& file, ResidencyProbe probe,
                                          uint64_t offset, uint64_t size_bytes) {
  if (offset >= file.size_bytes() || size_bytes == 0) return Residency{};
  const uint64_t end = offset + std::min(size_bytes, file.size_bytes() - offset);
  const uint64_t first_page = offset / PageBytes(), end_page = (end - 1) / PageBytes() + 1;
  const uint64_t first = first_page * PageBytes();
  Residency residency;
  residency.pages = end_page - first_page;
  const uint64_t bytes = residency.pages * PageBytes();
  switch (probe) {
    case ResidencyProbe::kCachestat: {
      Cachestat stat;
      if (!AskCachestat(file.fd(), first, bytes, &stat)) return {};
      residency.resident = stat.cached;
      residency.recently_evicted = stat.recently_evicted;
      return residency;
    }
    case ResidencyProbe::kMincore: {
      std::vector<unsigned char> pages(residency.pages);
      if (::mincore(const_cast<uint8_t*>(file.data()) + first, bytes, pages.data()) != 0) return {};
      for (const unsigned char page : pages) residency.resident += page & 1;
      return residency;
    }
    case ResidencyProbe::kFaults:
      break;
  }
  return {};
}

std::string_view PageAdviceName(PageAdvice advice) {
  switch (advice) {
    case PageAdvice::kRandom:
      return "random";
    case PageAdvice::kHuge:
      return "huge";
    case PageAdvice::kNormal:
      break;
  }
  return "normal";
}

void AdvisePages(const MappedFile& file, uint64_t offset, uint64_t size_bytes, PageAdvice advice) {
  if (file.fd() < 0 || offset >= file.size_bytes() || size_bytes == 0) return;
  // Sections begin on page boundaries; what is behind one's end, up to the page's, is padding.
  const uint64_t first = offset / PageBytes() * PageBytes();
  void* const data = const_cast<uint8_t*>(file.data()) + first;
  const uint64_t bytes = offset - first + std::min(size_bytes, file.size_bytes() - offset);
  (void)::madvise(data, bytes, advice == PageAdvice::kRandom ? MADV_RANDOM : MADV_NORMAL);
  // Refused where there are no such pages, which changes nothing.
  if (advice == PageAdvice::kHuge) (void)::madvise(data, bytes, MADV_HUGEPAGE);
}

}  // namespace latchkey
