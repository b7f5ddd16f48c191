// Which segments of a generation may hold a key: one line to read, whatever their number.
//
//   bucket = low bytes of 31 fingerprints | number of entries | 31 high bytes | overflow
//   high byte = the fingerprint's high bits | the segment's number, from 1
//
// A key's bucket and its 12-bit fingerprint (fewer with more than 15 segments) follow from the top
// bits of its hash. What does not fit a bucket lies in the next one, and the overflow byte says so.
// A segment that a bucket names is likely to hold the key: one that does not hold it is named for
// one key in 170. One that holds it is always named. Segments are numbered by age, so a map is
// extended by a newer one without a change to what it has.
//
// Source: a hash table of fingerprints as in the quotient and cuckoo filters (Bender et al., 2012;
// Fan et al., 2014), with the segment as payload, like the maplets of Conway, Farach-Colton and
// Johnson, 2023.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/io/anonymous_memory.h"
#include "core/key/key_hash.h"
#include "core/segment/segment.h"

namespace latchkey {

inline constexpr size_t kBucketBytes = 64;
inline constexpr size_t kBucketEntries = 31;
inline constexpr size_t kBucketEntryCount = 31;  // offset of the number of entries
inline constexpr size_t kBucketHighBytes = 32;   // offset of the high bytes
inline constexpr size_t kBucketOverflow = 63;
inline constexpr uint32_t kMappedSegmentsMax = 255;

// What to look for in which bucket.
struct MapProbe {
  const uint8_t* bucket = nullptr;
  uint8_t low = 0;
  uint8_t high = 0;  // of the entry's high byte, the bits above the segment's number
};

// Immutable after Build or Extend; any thread may read it.
class SegmentMap {
 public:
  // What a map takes of memory.
  static uint64_t SizeBytes(uint64_t rows, size_t segments);
  // A map of `segments`, the oldest first, made from their hash lists. FailedPrecondition when one
  // has none, there are more than kMappedSegmentsMax, or too many of their keys fall together;
  // ResourceExhausted when it would take more
  // than `bytes_max`; DataLoss for a damaged hash list.
  static absl::StatusOr<std::unique_ptr<const SegmentMap>> Build(
      std::span<const Segment* const> segments, uint64_t bytes_max);
  // A map of the same segments and newer ones. As Build, but the older ones are not read again,
  // unless the map has become too small for all.
  absl::StatusOr<std::unique_ptr<const SegmentMap>> Extend(std::span<const Segment* const> segments,
                                                           uint64_t bytes_max) const;

  MapProbe ProbeFor(uint64_t hash) const {
    const auto product =
        static_cast<unsigned __int128>((hash << shard_bits_) & hash_mask_) * bucket_count_;
    const auto fraction = static_cast<uint64_t>(product);
    return {memory_->data() + static_cast<uint64_t>(product >> 64) * kBucketBytes,
            static_cast<uint8_t>(fraction >> 56),
            static_cast<uint8_t>((fraction >> 48) & ~uint64_t{segment_mask_})};
  }
  // The bits of a high byte that hold the segment's number.
  uint8_t segment_mask() const { return segment_mask_; }
  // The segment that an entry names; 0 for one that is empty.
  static uint32_t SegmentOf(const MapProbe& probe, unsigned entry, uint8_t segment_mask) {
    return probe.bucket[kBucketHighBytes + entry] & segment_mask;
  }
  // The newest of the segments that may hold the key and are older than `below`; 0 if there is
  // none. Looks through all buckets that its entries may lie in.
  uint32_t NextSegment(const MapProbe& probe, uint32_t below) const;

  // The shape of all segments' lines, if they hold whole rows and have but one; else null.
  const LineShape* row_shape() const { return row_shape_; }
  // By their numbers; the first is not used.
  const std::vector<const Segment*>& segments() const { return segments_; }
  uint64_t size_bytes() const { return memory_->size_bytes(); }

 private:
  SegmentMap() = default;
  absl::Status Insert(std::span<const Segment* const> segments);
  bool InsertEntry(const MapProbe& probe, uint8_t segment);

  std::unique_ptr<AnonymousMemory> memory_;
  std::vector<const Segment*> segments_;
  const LineShape* row_shape_ = nullptr;
  uint64_t bucket_count_ = 1;
  uint64_t row_count_ = 0;
  uint8_t shard_bits_ = 0;
  uint64_t hash_mask_ = 0;  // the bits of a hash that count: as many as the shortest list has
  uint8_t segment_mask_ = 15;
};

}  // namespace latchkey
