#include "core/table/segment_map.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/checked_math.h"
#include "core/base/error.h"
#include "core/base/low_priority.h"
#include "core/base/status_macros.h"
#include "core/io/available_memory.h"
#include "core/segment/hash_list.h"
#include "core/table/bucket_match.h"

namespace latchkey {
namespace {

// Entries a bucket when a map is made, and until it is made anew. At 24 one bucket in 14
// overflows, at 27 one in 5.
constexpr uint64_t kEntriesWanted = 24, kEntriesMost = 27;
// What was cut off leaves bits in the summary and overflow bytes: of as many as half of the rows
// one bucket in 8 overflows instead of one in 14, less than when a map is full.
constexpr uint64_t kDroppedDivisor = 2;
// Bits of a hash beyond those that number the rows: 5 fewer for the buckets, 12 for the
// fingerprint, and 2 for growth.
constexpr unsigned kBitsBeyondRows = 9;
// With a base, 2 more: a word of the summary for each four rows, and 12 for its bits. All lists
// have them, as they are made for four times as many rows at least.
constexpr unsigned kSummaryBits = 2;
constexpr uint64_t kSummaryRowsAWord = 4;
// The oldest segment is the base if it has so many times the rows of the others together.
constexpr uint64_t kBaseFactor = 3;
// Inserted, and copied, before a thread of low priority looks whether another wants to run: some
// 20 us.
constexpr uint32_t kRowsATurn = 1024;
constexpr uint64_t kCopyBytes = uint64_t{128} << 10;
// A map so small needs no look at what memory is left.
constexpr uint64_t kSmallBytes = uint64_t{1} << 20;

uint64_t RowsOf(std::span<const Segment* const> segments) {
  uint64_t rows = 0;
  for (const Segment* segment : segments) rows += segment->header().row_count;
  return rows;
}

std::vector<uint64_t> RowCounts(std::span<const Segment* const> segments) {
  std::vector<uint64_t> counts;
  for (const Segment* segment : segments) counts.push_back(segment->header().row_count);
  return counts;
}

bool HasBase(std::span<const uint64_t> rows) {
  if (rows.empty() || rows[0] == 0) return false;
  uint64_t others = 0;
  for (const uint64_t count : rows.subspan(1)) others += count;
  return rows.size() > 1 && rows[0] / kBaseFactor >= others;
}

// As many bits of each hash as the shortest of the lists has. A list without hashes does not count.
unsigned ListBits(std::span<const Segment* const> segments) {
  unsigned bits = kHashBitsMax;
  for (const Segment* segment : segments) {
    const SegmentHeader& header = segment->header();
    if (header.row_count != 0) bits = std::min<unsigned>(bits, header.hash_bits);
  }
  return bits;
}

// As many bits as number the segments, and four at least, so that a map has room for more.
uint8_t SegmentMaskFor(size_t segments) {
  return static_cast<uint8_t>((1u << std::max<unsigned>(4, std::bit_width(segments))) - 1);
}

absl::Status CheckMappable(std::span<const Segment* const> segments) {
  if (segments.size() > kMappedSegmentsMax) {
    return FailedPrecondition("a segment map takes at most {} segments, the generation has {}",
                              kMappedSegmentsMax, segments.size());
  }
  for (const Segment* segment : segments) {
    if (segment->header().hash_bits == 0) {
      return FailedPrecondition("{}: it was built without a hash list", segment->path());
    }
  }
  return absl::OkStatus();
}

uint64_t BucketsFor(uint64_t rows) { return std::max<uint64_t>(1, CeilDiv(rows, kEntriesWanted)); }

uint64_t SummaryWordsFor(uint64_t rows) {
  return std::max<uint64_t>(1, CeilDiv(rows, kSummaryRowsAWord));
}

// With buckets behind the last, for what overflows from it. A key that all segments have may take
// several buckets alone.
uint64_t BytesFor(uint64_t bucket_count, size_t segments) {
  return (bucket_count + 64 + 8 * segments) * kBucketBytes;
}

absl::StatusOr<std::unique_ptr<AnonymousMemory>> AllocateMap(uint64_t size_bytes,
                                                             uint64_t bytes_max) {
  if (size_bytes > bytes_max) {
    return absl::ResourceExhaustedError(fmt::format("a segment map takes {} KiB, {} are allowed",
                                                    size_bytes >> 10, bytes_max >> 10));
  }
  if (auto spare = AnonymousMemory::TakeSpare(size_bytes); spare != nullptr) return spare;
  if (size_bytes >= kSmallBytes) {
    LATCHKEY_RETURN_IF_ERROR(CheckMemorySuffices("segment map", size_bytes));
  }
  return AnonymousMemory::Allocate(size_bytes);
}

}  // namespace

uint64_t SegmentMap::SizeBytes(std::span<const uint64_t> rows) {
  const bool has_base = HasBase(rows);
  uint64_t mapped_rows = 0;
  for (const uint64_t count : rows.subspan(has_base ? 1 : 0)) mapped_rows += count;
  return BytesFor(BucketsFor(mapped_rows), SegmentMaskFor(rows.size())) +
         (has_base ? 8 * SummaryWordsFor(mapped_rows) : 0);
}

void SegmentMap::SetMemory(std::unique_ptr<AnonymousMemory> memory, uint64_t summary_words) {
  memory_ = std::move(memory);
  summary_words_ = summary_words;
  summary_ = memory_->data() + memory_->size_bytes() - 8 * summary_words;
}

absl::StatusOr<std::unique_ptr<const SegmentMap>> SegmentMap::Build(
    std::span<const Segment* const> segments, uint64_t bytes_max) {
  const std::vector<uint64_t> rows = RowCounts(segments);
  const bool has_base = HasBase(rows);
  const auto mapped = segments.subspan(has_base ? 1 : 0);
  LATCHKEY_RETURN_IF_ERROR(CheckMappable(mapped));
  std::unique_ptr<SegmentMap> map(new SegmentMap);
  map->bucket_count_ = BucketsFor(RowsOf(mapped));
  map->segment_mask_ = SegmentMaskFor(segments.size());
  LATCHKEY_ASSIGN_OR_RETURN(auto memory, AllocateMap(SizeBytes(rows), bytes_max));
  map->SetMemory(std::move(memory), has_base ? SummaryWordsFor(RowsOf(mapped)) : 0);
  map->segments_.push_back(has_base ? segments[0] : nullptr);
  // No more bits than it takes, so that later segments' shorter lists can be added.
  const unsigned wanted =
      std::bit_width(RowsOf(mapped)) + kBitsBeyondRows + (has_base ? kSummaryBits : 0);
  map->hash_mask_ = ~uint64_t{0} << (64 - std::min(wanted, ListBits(mapped)));
  if (!segments.empty()) map->shard_bits_ = segments[0]->header().shard_bits;
  LATCHKEY_RETURN_IF_ERROR(map->Insert(mapped));
  return map;
}

absl::StatusOr<std::unique_ptr<const SegmentMap>> SegmentMap::Extend(
    std::span<const Segment* const> segments, size_t kept, uint64_t bytes_max) const {
  const size_t base_count = base() != nullptr ? 1 : 0;
  if (kept <= base_count || (base_count == 0 && HasBase(RowCounts(segments)))) {
    return Build(segments, bytes_max);
  }
  const auto mapped = segments.subspan(base_count);
  LATCHKEY_RETURN_IF_ERROR(CheckMappable(mapped));
  const size_t kept_count = kept - base_count;
  const auto newer = mapped.subspan(kept_count);
  const uint64_t kept_rows = RowsOf(mapped.first(kept_count));
  const uint64_t rows = kept_rows + RowsOf(newer);
  const uint64_t dropped_rows = dropped_rows_ + row_count_ - kept_rows;
  if (rows > bucket_count_ * kEntriesMost || dropped_rows > rows / kDroppedDivisor ||
      mapped.size() > segment_mask_ ||
      ListBits(newer) < static_cast<unsigned>(std::popcount(hash_mask_))) {
    return Build(segments, bytes_max);
  }
  std::unique_ptr<SegmentMap> map(new SegmentMap);
  LATCHKEY_ASSIGN_OR_RETURN(auto memory, AllocateMap(size_bytes(), bytes_max));
  for (uint64_t at = 0; at < size_bytes(); at += kCopyBytes) {
    std::memcpy(memory->data() + at, memory_->data() + at, std::min(kCopyBytes, size_bytes() - at));
    GiveWay();
  }
  map->SetMemory(std::move(memory), summary_words_);
  // The same segments, as the new generation has them open.
  map->segments_.push_back(base() != nullptr ? segments[0] : nullptr);
  map->segments_.insert(map->segments_.end(), mapped.begin(), mapped.end() - newer.size());
  map->bucket_count_ = bucket_count_;
  map->row_count_ = kept_rows;
  map->dropped_rows_ = dropped_rows;
  map->shard_bits_ = shard_bits_;
  map->hash_mask_ = hash_mask_;
  map->segment_mask_ = segment_mask_;
  if (kept_count < mapped_count()) map->DropAbove(kept_count);
  // One that its chains of overflow run out of may still fit when it is made anew.
  if (absl::Status status = map->Insert(newer); absl::IsFailedPrecondition(status)) {
    return Build(segments, bytes_max);
  } else if (!status.ok()) {
    return status;
  }
  return map;
}

void SegmentMap::DropAbove(size_t newest) {
  uint32_t left = kRowsATurn;
  // What overflowed stays where it is, and the overflow bytes with it.
  for (auto* bucket = memory_->data(); bucket != summary_; bucket += kBucketBytes) {
    uint8_t* const high_bytes = bucket + kBucketHighBytes;
    unsigned count = bucket[kBucketEntryCount];
    for (; count > 0 && (high_bytes[count - 1] & segment_mask_) > newest; --count) {
      bucket[count - 1] = high_bytes[count - 1] = 0;
    }
    bucket[kBucketEntryCount] = static_cast<uint8_t>(count);
    if (--left == 0) {
      left = kRowsATurn;
      GiveWay();
    }
  }
}

absl::Status SegmentMap::Insert(std::span<const Segment* const> segments) {
  for (const Segment* segment : segments) {
    const SegmentHeader& header = segment->header();
    LATCHKEY_ASSIGN_OR_RETURN(const std::string_view list, segment->ReadHashList());
    const auto number = static_cast<uint8_t>(segments_.size());
    bool fits = true;
    uint32_t left = kRowsATurn;
    const uint64_t rows =
        ForEachHash({header.hash_bits, header.hash_delta_bytes}, list, [&](uint64_t prefix) {
          const uint64_t hash = prefix << (64 - header.hash_bits) >> shard_bits_;
          if (--left == 0) {
            left = kRowsATurn;
            GiveWay();
          }
          fits &= InsertEntry(ProbeFor(hash), number);
          if (summary_words_ == 0) return;
          const MapSummary::Bits bits = summary().BitsOf(hash);
          auto* const word = const_cast<uint8_t*>(bits.word);
          Store(reinterpret_cast<char*>(word),
                Load<uint64_t>(word) | uint64_t{1} << bits.first | uint64_t{1} << bits.second);
        });
    // Once more, for what became a hole after it was checked and before it was read.
    LATCHKEY_RETURN_IF_ERROR(segment->ReadHashList().status());
    if (rows != header.row_count) {
      return DataLoss("{}: section 'hashes': expected {} hashes, found {}", segment->path(),
                      header.row_count, rows);
    }
    if (!fits) {
      return FailedPrecondition("{}: its hashes are too unlike random ones for a segment map",
                                segment->path());
    }
    segments_.push_back(segment);
    row_count_ += rows;
  }
  row_shape_ = segments_.size() == 1 ? nullptr : segments_[1]->row_shape();
  for (const Segment* segment : segments_) {
    if (segment == nullptr || row_shape_ == nullptr) continue;
    const LineShape* const other = segment->row_shape();
    if (other == nullptr || *other != *row_shape_) row_shape_ = nullptr;
  }
  return absl::OkStatus();
}

bool SegmentMap::InsertEntry(const MapProbe& probe, uint8_t segment) {
  const uint8_t* const end = summary_;
  const uint8_t high = probe.high | segment;
  for (auto* bucket = const_cast<uint8_t*>(probe.bucket); bucket != end; bucket += kBucketBytes) {
    const unsigned count = bucket[kBucketEntryCount];
    // The segment's other entries were the last to come. One for several keys is enough.
    for (unsigned i = count; i > 0 && (bucket[kBucketHighBytes + i - 1] & segment_mask_) == segment;
         --i) {
      if (bucket[i - 1] == probe.low && bucket[kBucketHighBytes + i - 1] == high) return true;
    }
    if (count < kBucketEntries) {
      bucket[count] = probe.low;
      bucket[kBucketHighBytes + count] = high;
      bucket[kBucketEntryCount] = static_cast<uint8_t>(count + 1);
      return true;
    }
    bucket[kBucketOverflow] = 1;
  }
  return false;
}

uint32_t SegmentMap::NextSegment(const MapProbe& probe, uint32_t below) const {
  uint32_t newest = 0;
  for (MapProbe at = probe;; at.bucket += kBucketBytes) {
    uint32_t mask;
    MatchBuckets({&at, 1}, segment_mask_, &mask);
    for (; mask != 0; mask &= mask - 1) {
      const uint32_t segment = SegmentOf(at, std::countr_zero(mask), segment_mask_);
      if (segment < below) newest = std::max(newest, segment);
    }
    if (at.bucket[kBucketOverflow] == 0) return newest;
  }
}

}  // namespace latchkey
