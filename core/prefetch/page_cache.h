// What of a mapped file is in the page cache, how it can be asked, and what the kernel is told
// about how the file is used.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/io/file_system.h"

namespace latchkey {

uint64_t PageBytes();  // of a page of the page cache

// How residency is asked, the best first.
enum class ResidencyProbe : uint8_t {
  kCachestat,  // Linux 6.5, to those who own the file or may write it
  kMincore,    // to the same; tells others that all is resident
  kFaults,     // not at all: what lookups had to read from the disk is the only sign
};
std::string_view ResidencyProbeName(ResidencyProbe probe);  // "cachestat", "mincore", "faults"

// The best that is to be had for this file and this user.
ResidencyProbe ChooseResidencyProbe(const MappedFile& file);

struct Residency {
  uint64_t pages = 0;
  uint64_t resident = 0;
  uint64_t recently_evicted = 0;  // they would be wanted again; kCachestat only

  Residency& operator+=(const Residency& other);
};

// Of the pages that [offset, offset + size_bytes) of the file touches; nothing when the probe fails
// or is kFaults. Costs some 50 ns for each page that is resident.
std::optional<Residency> MeasureResidency(const MappedFile& file, ResidencyProbe probe,
                                          uint64_t offset, uint64_t size_bytes);

// How the kernel is told to read a part of a file.
enum class PageAdvice : uint8_t {
  kNormal,  // a touch of a cold page reads its neighbours too
  kRandom,  // only the page; and touches do not protect it from eviction
  kHuge,    // as kNormal, by pages of 2 MiB where the file system has them
};
std::string_view PageAdviceName(PageAdvice advice);  // "normal", "random", "huge"

// Takes the process's map lock for writing, so not more often than every few seconds.
void AdvisePages(const MappedFile& file, uint64_t offset, uint64_t size_bytes, PageAdvice advice);

}  // namespace latchkey
