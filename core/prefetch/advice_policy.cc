#include "core/prefetch/advice_policy.h"

namespace latchkey {

AdviceState NextAdvice(AdviceState state, SectionKind kind, uint64_t section_bytes,
                       double resident_share, uint64_t now_ms) {
  if (state.given && now_ms - state.changed_ms < kAdviceMsMin) return state;
  PageAdvice wanted = state.advice;
  if (IsIndexSection(kind)) {
    wanted = section_bytes >= kHugeSectionBytesMin ? PageAdvice::kHuge : PageAdvice::kNormal;
  } else if (IsDataSection(kind)) {
    if (resident_share >= kWarmShare) wanted = PageAdvice::kNormal;
    // The first time there is nothing to stay with.
    if (resident_share < (state.given ? kColdShare : kWarmShare)) wanted = PageAdvice::kRandom;
  }
  if (state.given && wanted == state.advice) return state;
  return {wanted, true, now_ms};
}

}  // namespace latchkey
