#include "core/prefetch/fetch_policy.h"

#include <algorithm>

namespace latchkey {

FetchCost& FetchCost::operator+=(const FetchCost& other) {
  keys += other.keys;
  places += other.places;
  asked += other.asked;
  read += other.read;
  faults += other.faults;
  return *this;
}

FetchCost FetchCost::operator-(const FetchCost& other) const {
  return {keys - other.keys, places - other.places, asked - other.asked, read - other.read,
          faults - other.faults};
}

FetchState NextFetchState(FetchState state, const FetchCost& cost) {
  state.places += cost.places;
  if (state.mode == FetchMode::kSilent) {
    // One fault may read many pages around it, of which it needed one.
    state.cold += cost.faults;
    if (state.cold >= 2 && state.cold * kFetchColdEnters > state.places) {
      return {FetchMode::kAsking};
    }
    if (state.places >= 4 * kFetchJudgedPlaces) {
      state.places /= 2;
      state.cold /= 2;
    }
    return state;
  }
  // File systems that read without the block layer have no account of it, but faults.
  state.cold += std::max(cost.read, cost.faults);
  if (state.places < kFetchJudgedPlaces) return state;
  if (state.cold * kFetchColdLeaves < state.places) return {FetchMode::kSilent};
  return {FetchMode::kAsking};  // judged anew
}

}  // namespace latchkey
