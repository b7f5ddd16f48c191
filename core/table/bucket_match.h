// Fingerprints of a segment map's buckets compared 31 at a time.
#pragma once

#include <cstdint>
#include <span>

#include "core/table/segment_map.h"

namespace latchkey {

// Bit i of masks[p]: whether entry i of probes[p]'s bucket has the fingerprint. Empty entries may
// count as well; they name segment 0. `probes`: P, `masks`: P.
using MatchBucketsFunction = void (*)(std::span<const MapProbe> probes, uint8_t segment_mask,
                                      uint32_t* masks);

// The implementations that this processor can run, the fastest last; all give the same.
struct MatchBucketsLevel {
  const char* name;
  MatchBucketsFunction match;
};
std::span<const MatchBucketsLevel> MatchBucketsLevels();

// The fastest of them.
void MatchBuckets(std::span<const MapProbe> probes, uint8_t segment_mask, uint32_t* masks);

}  // namespace latchkey
