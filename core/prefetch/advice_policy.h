// What the kernel is told about a section, by what of it is in memory.
#pragma once

#include <cstdint>

#include "core/prefetch/page_cache.h"
#include "core/segment/format.h"

namespace latchkey {

// Filters and pilots: small, asked at every lookup, kept in memory.
inline bool IsIndexSection(SectionKind kind) {
  return kind == SectionKind::kFilter || kind == SectionKind::kPilots;
}
// What lookups come to by chance: lines, records, values.
inline bool IsDataSection(SectionKind kind) {
  return kind == SectionKind::kLines || kind == SectionKind::kRecords ||
         kind == SectionKind::kValues;
}

// At or above the one all of a section counts as resident, below the other as cold; between them
// nothing changes.
inline constexpr double kWarmShare = 0.95;
inline constexpr double kColdShare = 0.80;
inline constexpr uint64_t kAdviceMsMin = 10'000;  // from one change to the next
inline constexpr uint64_t kHugeSectionBytesMin = uint64_t{2} << 20;

struct AdviceState {
  PageAdvice advice = PageAdvice::kNormal;
  bool given = false;       // to the kernel, yet
  uint64_t changed_ms = 0;  // when

  bool operator==(const AdviceState&) const = default;
};

// The state of a section after it was measured at `now_ms`. Index sections are read by large pages.
// Data sections are kNormal when they are in memory, so that what is lost comes back in bulk, and
// kRandom when they are not: a touch without a hint reads one page then, not megabytes around it.
// A pure function.
AdviceState NextAdvice(AdviceState state, SectionKind kind, uint64_t section_bytes,
                       double resident_share, uint64_t now_ms);

}  // namespace latchkey
