// When a thread asks the kernel for pages before it touches them.
//
// A hint for a page that is cached already costs 0.4 us, ten times the touch; a touch of one that
// is not costs 80 to 500 us, and hints make the device work on many at once. So hints pay from one
// cold page in a few hundred on, and are a waste below. Which it is, the kernel tells at the price
// of one system call a batch: how many pages were read from the disk on this thread's account.
#pragma once

#include <cstdint>

namespace latchkey {

enum class FetchMode : uint8_t {
  kAsking,  // pages are asked for before they are touched
  kSilent,  // no hints
};

// What lookups cost a thread.
struct FetchCost {
  uint64_t keys = 0;
  uint64_t places = 0;  // lines, records and values that lookups came to: pages, mostly
  uint64_t asked = 0;   // pages asked for beforehand
  uint64_t read = 0;    // pages' worth of data that the disk gave on this thread's account
  uint64_t faults = 0;  // major: touches that had to wait for the disk

  FetchCost& operator+=(const FetchCost& other);
  FetchCost operator-(const FetchCost& other) const;
};

// Of one thread and one table. The first keys of a generation are asked for, unless it is known to
// be in memory.
struct FetchState {
  FetchMode mode = FetchMode::kAsking;
  // Since the mode began, halved now and then so that old times count less.
  uint64_t places = 0;
  uint64_t cold = 0;  // of them, pages that had to be read

  bool operator==(const FetchState&) const = default;
};

// Asking ends when fewer than one place in 512 was cold, silence when more than one in 256 was, of
// at least so many places; two cold ones in silence are needed at least, so that a lone fault (a
// page evicted by chance) is none of a trend.
inline constexpr uint64_t kFetchJudgedPlaces = 1024;
inline constexpr uint64_t kFetchColdEnters = 256;
inline constexpr uint64_t kFetchColdLeaves = 512;

// The state after lookups that cost `cost`. A pure function.
FetchState NextFetchState(FetchState state, const FetchCost& cost);

}  // namespace latchkey
