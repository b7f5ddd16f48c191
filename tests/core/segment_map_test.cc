// A segment map names every segment that holds a key, newest first, and hardly any other.
#include "core/table/segment_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/segment/hash_list.h"
#include "core/segment/segment_writer.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/segment_bytes.h"
#include "tests/support/status_asserts.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr uint64_t kNoLimit = UINT64_MAX;

// A map is made of hashes alone, so segments get any that a test wants, with keys of no matter.
struct Made {
  std::unique_ptr<const Segment> segment;
  std::vector<uint64_t> hashes;
};

struct SegmentOptions {
  HashListShape list = {34, 3};
  uint8_t shard_bits = 0;
  size_t key_bytes = 8;
  Layout layout = Layout::kLine;
};

std::vector<const Segment*> Pointers(const std::vector<Made>& generation) {
  std::vector<const Segment*> pointers;
  for (const Made& made : generation) pointers.push_back(made.segment.get());
  return pointers;
}

// The segments that the map names for a key, in its order; each once, the newest first.
std::vector<uint32_t> Named(const SegmentMap& map, uint64_t hash) {
  const MapProbe probe = map.ProbeFor(hash);
  std::vector<uint32_t> named;
  uint32_t below = UINT32_MAX;
  while (const uint32_t next = map.NextSegment(probe, below)) {
    EXPECT_LT(next, below) << "named twice, or an older one before";
    EXPECT_LT(next, map.segments().size()) << "no such segment";
    if (next >= below || next >= map.segments().size()) break;
    named.push_back(next);
    below = next;
  }
  return named;
}

// With all of the map's segments kept.
absl::StatusOr<std::unique_ptr<const SegmentMap>> Extended(const SegmentMap& map,
                                                           std::span<const Segment* const> segments,
                                                           uint64_t bytes_max) {
  return map.Extend(segments, map.segments().size() - (map.base() == nullptr), bytes_max);
}

uint64_t BucketOf(const SegmentMap& map, const MapProbe& probe) {
  return static_cast<uint64_t>(probe.bucket - map.ProbeFor(0).bucket) / kBucketBytes;
}

class SegmentMapTest : public SeededTest {
 protected:
  std::vector<uint64_t> RandomHashes(size_t count) {
    std::vector<uint64_t> hashes(count);
    for (uint64_t& hash : hashes) hash = random_.Next();
    return hashes;
  }

  // Some of a pool's hashes: one in `one_in`.
  std::vector<uint64_t> SomeOf(const std::vector<uint64_t>& pool, uint64_t one_in) {
    std::vector<uint64_t> hashes;
    for (const uint64_t hash : pool) {
      if (random_.OneIn(one_in)) hashes.push_back(hash);
    }
    return hashes;
  }

  // Writes a segment whose rows have those hashes, and opens it.
  Made Make(std::vector<uint64_t> hashes, const SegmentOptions& options = {}) {
    std::sort(hashes.begin(), hashes.end());
    const auto key_bytes = static_cast<uint16_t>(hashes.empty() ? 0 : options.key_bytes);
    SegmentPlan plan;
    plan.layout = options.layout;
    plan.filter_bits_per_key = 0;
    plan.hash_list = options.list;
    plan.shard_bits = options.shard_bits;
    if (options.shard_bits > 0) {
      plan.shard = static_cast<uint16_t>(hashes[0] >> (64 - options.shard_bits));
    }
    plan.key_bytes_min = plan.key_bytes_max = key_bytes;
    plan.partitions = {{hashes.size(), hashes.size() * key_bytes}};
    std::vector<std::string> keys(hashes.size(), std::string(key_bytes, '.'));
    std::vector<SegmentRow> rows;
    for (size_t i = 0; i < hashes.size(); ++i) {
      Store(keys[i].data(), i);
      rows.push_back({hashes[i], i, keys[i], ""});
    }
    last_path_ = "data/" + std::to_string(++segments_made_);
    EXPECT_OK(files_.CreateDirectories("data"));
    auto writer = SegmentWriter::Create(files_, last_path_, plan);
    EXPECT_OK(writer);
    EXPECT_OK((*writer)->AddPartition(rows));
    EXPECT_OK((*writer)->Finish());
    return Reopen(last_path_, std::move(hashes));
  }
  // A file that is there still, perhaps changed.
  Made Reopen(const std::string& path, std::vector<uint64_t> hashes) {
    auto segment = Segment::Open(files_, path);
    EXPECT_OK(segment);
    return {std::move(*segment), std::move(hashes)};
  }
  // As Make, without keeping the file's bytes.
  Made MakeSlim(std::vector<uint64_t> hashes, const SegmentOptions& options = {}) {
    Made made = Make(std::move(hashes), options);
    EXPECT_OK(files_.Remove(last_path_));
    return made;
  }

  // Every segment of every hash is named, but for the base; what else is named has the same
  // fingerprint in a bucket that entries may have been mixed with.
  void ExpectNames(const SegmentMap& map, const std::vector<Made>& generation) {
    const size_t first = map.base() == nullptr ? 0 : 1;  // of those that are named
    ASSERT_EQ(map.segments().size(), generation.size() + 1 - first);
    if (first == 1) {
      ASSERT_EQ(map.base(), generation[0].segment.get());
    }
    std::unordered_map<uint64_t, std::vector<uint32_t>> holders;  // newest first
    std::map<std::pair<uint8_t, uint8_t>, std::set<std::pair<uint64_t, uint32_t>>> nearby;
    for (size_t number = generation.size() - first; number > 0; --number) {
      const Made& made = generation[number - 1 + first];
      ASSERT_EQ(map.segments()[number], made.segment.get());
      for (const uint64_t hash : made.hashes) {
        ASSERT_TRUE(first == 0 || map.summary().MayName(hash));
        auto& of_hash = holders[hash];
        const auto segment = static_cast<uint32_t>(number);
        if (of_hash.empty() || of_hash.back() != segment) of_hash.push_back(segment);
        const MapProbe probe = map.ProbeFor(hash);
        ASSERT_EQ(probe.high & map.segment_mask(), 0);
        nearby[{probe.low, probe.high}].emplace(BucketOf(map, probe), segment);
      }
    }
    const auto check = [&](uint64_t hash, const std::vector<uint32_t>& must) {
      const std::vector<uint32_t> named = Named(map, hash);
      ASSERT_TRUE(
          std::includes(named.begin(), named.end(), must.begin(), must.end(), std::greater<>()))
          << "hash " << hash << ": not all of " << testing::PrintToString(must) << " are among "
          << testing::PrintToString(named);
      if (named == must) return;
      // What is read may have overflowed from the buckets before, or be theirs that follow.
      const MapProbe probe = map.ProbeFor(hash);
      const auto found = nearby.find({probe.low, probe.high});
      ASSERT_NE(found, nearby.end()) << "nothing has this fingerprint";
      const uint8_t* const all = map.ProbeFor(0).bucket;
      const auto overflows = [&](uint64_t bucket) {
        return all[bucket * kBucketBytes + kBucketOverflow] != 0;
      };
      uint64_t low = BucketOf(map, probe), high = low;
      while (low > 0 && overflows(low - 1)) --low;
      while (overflows(high)) ++high;
      const auto begin = found->second.lower_bound({low, 0});
      const auto end = found->second.upper_bound({high, UINT32_MAX});
      for (const uint32_t segment : named) {
        ASSERT_TRUE(std::any_of(begin, end, [&](const auto& at) { return at.second == segment; }))
            << "segment " << segment << " has no such fingerprint nearby";
      }
    };
    for (const auto& [hash, must] : holders) ASSERT_NO_FATAL_FAILURE(check(hash, must));
    for (int i = 0; i < 2000; ++i) {
      // Strangers, at random and next to keys.
      uint64_t hash = random_.Next();
      if (!holders.empty() && random_.OneIn(3)) {
        const auto& hashes = random_.Pick(generation).hashes;
        if (!hashes.empty()) hash = random_.Pick(hashes) ^ (uint64_t{1} << random_.Below(64));
      }
      const auto found = holders.find(hash);
      ASSERT_NO_FATAL_FAILURE(
          check(hash, found == holders.end() ? std::vector<uint32_t>() : found->second));
    }
  }

  void ExpectBuilds(const std::vector<Made>& generation) {
    SCOPED_TRACE(testing::Message() << generation.size() << " segments");
    ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
    ASSERT_NO_FATAL_FAILURE(ExpectNames(*map, generation));
  }

  // The same segments named for all hashes that are there and for many others.
  void ExpectSame(const SegmentMap& a, const SegmentMap& b, const std::vector<Made>& generation) {
    EXPECT_EQ(a.size_bytes(), b.size_bytes());
    EXPECT_EQ(a.segment_mask(), b.segment_mask());
    EXPECT_EQ(a.segments(), b.segments());
    EXPECT_EQ(a.row_shape() == nullptr, b.row_shape() == nullptr);
    for (const Made& made : generation) {
      for (const uint64_t hash : made.hashes) ASSERT_EQ(Named(a, hash), Named(b, hash));
    }
    size_t named = 0;
    for (int i = 0; i < 20'000; ++i) {
      const uint64_t hash = random_.Next();
      const auto of_a = Named(a, hash);
      ASSERT_EQ(of_a, Named(b, hash));
      named += of_a.size();
    }
    EXPECT_GT(named, 0u) << "nothing named falsely, so little was compared";
  }

  MemoryFileSystem files_;
  std::string last_path_;
  int segments_made_ = 0;
};

TEST_F(SegmentMapTest, EveryKeysSegmentsAreNamedForEveryNumberOfSegments) {
  for (const size_t segments : {1, 2, 3, 7, 14, 15, 16, 17, 31, 32, 33, 63, 64, 127, 128, 255}) {
    const std::vector<uint64_t> pool = RandomHashes(3000);
    std::vector<Made> generation;
    for (size_t i = 0; i < segments; ++i) {
      // About three segments have a key, one or two keys are in many.
      std::vector<uint64_t> hashes = SomeOf(pool, 1 + segments / 3);
      if (!random_.OneIn(3)) hashes.push_back(pool[0]);
      generation.push_back(MakeSlim(std::move(hashes)));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectBuilds(generation));
  }
}

// Several keys of one segment may share a bucket and a fingerprint, or even the hash.
TEST_F(SegmentMapTest, EqualHashesInOneSegment) {
  std::vector<uint64_t> pool = RandomHashes(400);
  // Up to three times: a line takes five.
  for (int i = 0; i < 200; ++i) pool.push_back(pool[i % 100]);
  std::vector<Made> generation;
  for (int i = 0; i < 5; ++i) generation.push_back(MakeSlim(SomeOf(pool, 2)));
  ASSERT_NO_FATAL_FAILURE(ExpectBuilds(generation));
}

TEST_F(SegmentMapTest, NextSegmentBeginsBelowAnyNumber) {
  const uint64_t shared = random_.Next();
  std::vector<Made> generation;
  for (int i = 0; i < 20; ++i) {
    std::vector<uint64_t> hashes = RandomHashes(10);
    if (i % 3 != 1) hashes.push_back(shared);
    generation.push_back(MakeSlim(std::move(hashes)));
  }
  ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
  const std::vector<uint32_t> all = Named(*map, shared);
  const MapProbe probe = map->ProbeFor(shared);
  for (uint32_t below = 0; below < 30; ++below) {
    const auto next =
        std::find_if(all.begin(), all.end(), [&](uint32_t segment) { return segment < below; });
    EXPECT_EQ(map->NextSegment(probe, below), next == all.end() ? 0 : *next) << below;
  }
}

TEST_F(SegmentMapTest, TablesOfNoneAndOneRow) {
  ASSERT_OK_AND_ASSIGN(const auto none, SegmentMap::Build({}, kNoLimit));
  EXPECT_EQ(none->segments().size(), 1u);
  EXPECT_EQ(none->row_shape(), nullptr);
  EXPECT_TRUE(Named(*none, 0).empty());
  EXPECT_TRUE(Named(*none, UINT64_MAX).empty());
  for (const std::vector<size_t>& sizes :
       {std::vector<size_t>{0}, {0, 0}, {1}, {0, 1}, {1, 0}, {1, 1}, {0, 0, 1, 0}}) {
    std::vector<Made> generation;
    for (const size_t size : sizes) {
      generation.push_back(MakeSlim(RandomHashes(size), {HashListShape::For(size, 1)}));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectBuilds(generation));
  }
  // Empty entries are zero bytes, as is the fingerprint of the hash 0.
  for (const uint64_t hash : {uint64_t{0}, UINT64_MAX}) {
    std::vector<Made> one;
    one.push_back(MakeSlim({hash}));
    ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(Pointers(one), kNoLimit));
    EXPECT_EQ(Named(*map, hash), std::vector<uint32_t>{1});
    EXPECT_TRUE(Named(*map, ~hash).empty());
  }
}

TEST_F(SegmentMapTest, SkewedSizes) {
  for (const std::vector<size_t>& sizes : {std::vector<size_t>{40'000, 1, 1, 1},
                                           {1, 40'000, 0, 3},
                                           {1, 10, 100, 1000, 10'000},
                                           {10'000, 1000, 100, 10, 1}}) {
    std::vector<Made> generation;
    std::vector<uint64_t> pool = RandomHashes(5);
    for (const size_t size : sizes) {
      std::vector<uint64_t> hashes = SomeOf(pool, size < 10 ? 2 : 50);
      for (const uint64_t hash : RandomHashes(size)) hashes.push_back(hash);
      pool.insert(pool.end(), hashes.begin(), hashes.end());
      // As a build shapes them, so they differ.
      const SegmentOptions options = {HashListShape::For(hashes.size(), 60'000)};
      generation.push_back(MakeSlim(std::move(hashes), options));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectBuilds(generation));
  }
}

// A list of few bits makes for more false names, and for nothing worse.
TEST_F(SegmentMapTest, FewHashBits) {
  for (uint8_t bits = 1; bits <= 20; ++bits) {
    for (const bool all : {true, false}) {
      std::vector<Made> generation;
      const std::vector<uint64_t> pool = RandomHashes(1000);
      for (int i = 0; i < 4; ++i) {
        const HashListShape few = {bits, static_cast<uint8_t>(random_.Between(2, 4))};
        const HashListShape list = all || i == 2 ? few : HashListShape{40, 4};
        generation.push_back(MakeSlim(SomeOf(pool, 2), {list}));
      }
      ASSERT_NO_FATAL_FAILURE(ExpectBuilds(generation));
    }
  }
}

// A shard's hashes have their top bits in common, which must not crowd them.
TEST_F(SegmentMapTest, Shards) {
  for (const uint8_t shard_bits : {1, 4, 10}) {
    const uint64_t shard = random_.Next() << (64 - shard_bits);
    std::vector<uint64_t> pool = RandomHashes(20'000);
    for (uint64_t& hash : pool) hash = hash >> shard_bits | shard;
    std::vector<Made> generation;
    for (int i = 0; i < 3; ++i) {
      const std::vector<uint64_t> hashes = SomeOf(pool, 2);
      generation.push_back(MakeSlim(hashes, {.shard_bits = shard_bits}));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectBuilds(generation));
    ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
    std::set<uint64_t> buckets;
    for (const uint64_t hash : pool) buckets.insert(BucketOf(*map, map->ProbeFor(hash)));
    EXPECT_GT(buckets.size(), map->size_bytes() / kBucketBytes * 8 / 10);
    generation.push_back(MakeSlim(SomeOf(pool, 100), {.shard_bits = shard_bits}));
    ASSERT_OK_AND_ASSIGN(const auto extended, Extended(*map, Pointers(generation), kNoLimit));
    ASSERT_NO_FATAL_FAILURE(ExpectNames(*extended, generation));
  }
}

// Keys that crowd a few buckets overflow into those behind, which others overflow into as well.
TEST_F(SegmentMapTest, OverlappingBuckets) {
  for (int round = 0; round < 16; ++round) {
    constexpr size_t kRows = 12'000;
    const uint64_t buckets = kRows / 24;
    const uint64_t bucket_width = UINT64_MAX / buckets;
    std::vector<std::vector<uint64_t>> hashes(round % 2 == 0 ? 3 : 40);
    // Into the first, the last, and some between.
    std::vector<uint64_t> crowded = {0, buckets - 1};
    for (int i = 0; i < 6; ++i) {
      crowded.push_back(random_.Below(buckets));
      crowded.push_back(std::min(crowded.back() + random_.Below(3), buckets - 1));
    }
    for (const uint64_t bucket : crowded) {
      const size_t count = random_.Between(20, 250);
      for (size_t i = 0; i < count; ++i) {
        random_.Pick(hashes).push_back(bucket * bucket_width + random_.Below(bucket_width));
      }
    }
    size_t rows = 0;
    for (const auto& of_segment : hashes) rows += of_segment.size();
    for (; rows < kRows; ++rows) random_.Pick(hashes).push_back(random_.Next());
    std::vector<Made> generation;
    for (auto& of_segment : hashes) generation.push_back(MakeSlim(std::move(of_segment)));
    ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
    ASSERT_NO_FATAL_FAILURE(ExpectNames(*map, generation));
    size_t overflowing = 0;
    for (uint64_t bucket = 0; bucket < buckets; ++bucket) {
      overflowing += map->ProbeFor(0).bucket[bucket * kBucketBytes + kBucketOverflow];
    }
    EXPECT_GT(overflowing, crowded.size() / 2);
  }
}

// All segments have all keys: a bucket's entries are far more than it takes.
TEST_F(SegmentMapTest, TheSameKeysInManySegments) {
  for (const size_t segments : {10, 40}) {
    const std::vector<uint64_t> pool = RandomHashes(500);
    std::vector<Made> generation;
    for (size_t i = 0; i < segments; ++i) generation.push_back(MakeSlim(pool));
    ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
    ASSERT_NO_FATAL_FAILURE(ExpectNames(*map, generation));
    for (const uint64_t hash : pool) {
      const std::vector<uint32_t> named = Named(*map, hash);
      ASSERT_EQ(named.size(), segments);
      ASSERT_EQ(named.front(), segments);
      ASSERT_EQ(named.back(), 1u);
    }
  }
}

// More than the buckets behind the last can take: an error, not an entry that is lost.
TEST_F(SegmentMapTest, HashesThatCrowdTheEndAreRefused) {
  std::vector<Made> generation;
  for (int i = 0; i < 4; ++i) {
    std::vector<uint64_t> hashes = RandomHashes(10'000);
    for (int j = 0; j < 2000; ++j) hashes.push_back(UINT64_MAX - random_.Below(uint64_t{1} << 53));
    generation.push_back(MakeSlim(std::move(hashes)));
  }
  ASSERT_OK_AND_ASSIGN(const auto map,
                       SegmentMap::Build(std::vector{generation[0].segment.get()}, kNoLimit));
  for (const auto& result : {SegmentMap::Build(Pointers(generation), kNoLimit),
                             Extended(*map, Pointers(generation), kNoLimit)}) {
    EXPECT_FAILS(result.status(), kFailedPrecondition,
                 AllOf(StartsWith("data/"), HasSubstr("unlike random")));
  }
}

TEST_F(SegmentMapTest, TooManySegmentsAreRefused) {
  const Made made = MakeSlim(RandomHashes(3));
  const std::vector<const Segment*> most(kMappedSegmentsMax, made.segment.get());
  ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(most, kNoLimit));
  for (const uint64_t hash : made.hashes) {
    const std::vector<uint32_t> named = Named(*map, hash);
    ASSERT_EQ(named.size(), 255u);
    EXPECT_EQ(named[0], 255u);
  }
  std::vector<const Segment*> too_many = most;
  too_many.push_back(made.segment.get());
  EXPECT_FAILS(SegmentMap::Build(too_many, kNoLimit), kFailedPrecondition,
               AllOf(HasSubstr("255"), HasSubstr("256")));
  EXPECT_FAILS(Extended(*map, too_many, kNoLimit), kFailedPrecondition,
               AllOf(HasSubstr("255"), HasSubstr("256")));
}

TEST_F(SegmentMapTest, SegmentsWithoutAHashListAreRefused) {
  std::vector<Made> generation;
  generation.push_back(MakeSlim(RandomHashes(10)));
  ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
  generation.push_back(MakeSlim(RandomHashes(10), {HashListShape{}}));
  EXPECT_FAILS(SegmentMap::Build(Pointers(generation), kNoLimit), kFailedPrecondition,
               AllOf(StartsWith(last_path_), HasSubstr("without a hash list")));
  EXPECT_FAILS(Extended(*map, Pointers(generation), kNoLimit), kFailedPrecondition,
               AllOf(StartsWith(last_path_), HasSubstr("without a hash list")));
}

TEST_F(SegmentMapTest, TakesNoMoreMemoryThanAllowed) {
  std::vector<Made> generation;
  for (int i = 0; i < 3; ++i) generation.push_back(MakeSlim(RandomHashes(20'000)));
  const auto segments = Pointers(generation);
  ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(segments, kNoLimit));
  // 24 rows a bucket, and a few buckets more.
  EXPECT_GE(map->size_bytes(), 60'000u / 24 * kBucketBytes);
  EXPECT_LE(map->size_bytes(), (60'000u / 24 + 200) * kBucketBytes);
  ASSERT_OK_AND_ASSIGN(const auto just, SegmentMap::Build(segments, map->size_bytes()));
  EXPECT_EQ(just->size_bytes(), map->size_bytes());
  for (const uint64_t bytes_max : {map->size_bytes() - 1, map->size_bytes() / 2, uint64_t{0}}) {
    EXPECT_FAILS(SegmentMap::Build(segments, bytes_max), kResourceExhausted,
                 HasSubstr("segment map"));
    EXPECT_FAILS(Extended(*map, segments, bytes_max), kResourceExhausted, HasSubstr("segment map"));
  }
  EXPECT_OK(Extended(*map, segments, map->size_bytes()));
}

// The list is read whole against its checksums, in every block, before anything is made of it.
TEST_F(SegmentMapTest, ADamagedListIsRefusedByFileAndOffset) {
  std::vector<uint64_t> hashes = RandomHashes(70'000);
  const HashListShape list = {28, 2};
  std::vector<Made> whole;
  whole.push_back(MakeSlim(RandomHashes(70'000), {list}));
  ASSERT_OK_AND_ASSIGN(const auto older, SegmentMap::Build(Pointers(whole), kNoLimit));
  const Made made = Make(hashes, {list});
  const Section section = made.segment->header().section(SectionKind::kHashes);
  ASSERT_GT(section.size_bytes, 2 * kChecksumBlockBytes);
  const std::string bytes = files_.Bytes(last_path_);
  for (const uint64_t at : {uint64_t{0}, uint64_t{kChecksumBlockBytes - 1},
                            uint64_t{kChecksumBlockBytes}, section.size_bytes - 1}) {
    files_.Bytes(last_path_) = bytes;
    files_.Bytes(last_path_)[section.offset + at] ^= 1;
    const Made damaged = Reopen(last_path_, hashes);
    const std::vector<const Segment*> segments = {whole[0].segment.get(), damaged.segment.get()};
    const uint64_t block = section.offset + at / kChecksumBlockBytes * kChecksumBlockBytes;
    const auto message = AllOf(StartsWith(last_path_ + ":"), HasSubstr("'hashes'"),
                               HasSubstr("offset " + std::to_string(block)));
    EXPECT_FAILS(SegmentMap::Build(segments, kNoLimit), kDataLoss, message);
    EXPECT_FAILS(Extended(*older, segments, kNoLimit), kDataLoss, message);
  }
}

// Every checksum is right, and the list has a hash too few or too many.
TEST_F(SegmentMapTest, AListOfAnotherNumberOfHashesIsRefused) {
  const std::vector<uint64_t> hashes = RandomHashes(1000);
  const HashListShape list = {20, 2};
  const Made made = Make(hashes, {list});
  const SegmentHeader header = made.segment->header();
  const std::string bytes = files_.Bytes(last_path_);
  const auto expect_refused = [&](const std::function<void(std::string*)>& change,
                                  const SegmentHeader& forged_header) {
    std::string& forged = files_.Bytes(last_path_);
    forged = bytes;
    change(&forged);
    SealSegment(forged_header, &forged);
    const Made damaged = Reopen(last_path_, hashes);
    EXPECT_FAILS(SegmentMap::Build(std::vector{damaged.segment.get()}, kNoLimit), kDataLoss,
                 AllOf(StartsWith(last_path_), HasSubstr("'hashes'"), HasSubstr("1000")));
  };
  const uint64_t at = header.section(SectionKind::kHashes).offset;
  // A difference becomes one that is no hash of its own; one goes beyond the bits that there are.
  expect_refused([&](std::string* file) { file->replace(at + 200, 2, "\xFF\xFF"); }, header);
  expect_refused([&](std::string* file) { file->replace(at, 1000, std::string(1000, '\xFE')); },
                 header);
  // The list ends before or behind its end.
  SegmentHeader shorter = header, longer = header;
  shorter.section(SectionKind::kHashes).size_bytes -= 2;
  longer.section(SectionKind::kHashes).size_bytes += 2;
  expect_refused([](std::string*) {}, shorter);
  expect_refused([](std::string*) {}, longer);
}

// The oldest segment, if it has three times as many rows as the others together: it is not named,
// and its hash list is not read.
TEST_F(SegmentMapTest, TheBase) {
  struct Case {
    std::vector<size_t> sizes;  // the oldest first
    bool base;
  };
  for (const Case& c :
       {Case{{3000, 1000}, true}, Case{{3000, 1001}, false}, Case{{3000}, false},
        Case{{3000, 500, 0, 400, 100}, true}, Case{{3000, 500, 0, 400, 101}, false},
        Case{{1000, 3000}, false}, Case{{0, 0}, false}, Case{{3, 1}, true}, Case{{300, 0}, true}}) {
    SCOPED_TRACE(testing::PrintToString(c.sizes));
    std::vector<Made> generation;
    std::vector<uint64_t> rows(c.sizes.begin(), c.sizes.end());
    for (const size_t size : c.sizes) {
      std::vector<uint64_t> hashes = RandomHashes(size);
      // Some of what is newer updates the oldest.
      for (size_t i = 0; !generation.empty() && i < std::min(size, c.sizes[0]) / 2; ++i) {
        hashes[i] = generation[0].hashes[2 * i];
      }
      generation.push_back(MakeSlim(std::move(hashes)));
    }
    ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
    EXPECT_EQ(map->base() != nullptr, c.base);
    EXPECT_EQ(map->size_bytes(), SegmentMap::SizeBytes(rows));
    ASSERT_NO_FATAL_FAILURE(ExpectNames(*map, generation));
  }
}

TEST_F(SegmentMapTest, ABaseNeedsNoHashListAndStaysAsTheTableGrows) {
  std::vector<Made> generation;
  generation.push_back(MakeSlim(RandomHashes(30'000), {HashListShape{}}));
  generation.push_back(MakeSlim(RandomHashes(8000)));
  ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
  ASSERT_NE(map->base(), nullptr);
  ASSERT_NO_FATAL_FAILURE(ExpectNames(*map, generation));
  // As many as the map was made for.
  generation.push_back(MakeSlim(RandomHashes(900)));
  ASSERT_OK_AND_ASSIGN(const auto extended, Extended(*map, Pointers(generation), kNoLimit));
  EXPECT_EQ(extended->base(), map->base());
  ASSERT_NO_FATAL_FAILURE(ExpectNames(*extended, generation));
  // Made anew, it still is the base; and then it is none, so its list is missed.
  generation.push_back(MakeSlim(RandomHashes(1000)));
  ASSERT_OK_AND_ASSIGN(const auto anew, Extended(*extended, Pointers(generation), kNoLimit));
  EXPECT_EQ(anew->base(), map->base());
  EXPECT_GT(anew->size_bytes(), map->size_bytes());
  ASSERT_NO_FATAL_FAILURE(ExpectNames(*anew, generation));
  generation.push_back(MakeSlim(RandomHashes(3000)));
  EXPECT_FAILS(Extended(*anew, Pointers(generation), kNoLimit), kFailedPrecondition,
               HasSubstr("without a hash list"));
}

// Of keys that only the base has, or none, few are looked for in the buckets.
TEST_F(SegmentMapTest, TheSummarySaysOfMostKeysThatOnlyTheBaseCounts) {
  for (const size_t rows : {10, 1000, 30'000}) {
    std::vector<Made> generation;
    generation.push_back(MakeSlim(RandomHashes(4 * rows)));
    generation.push_back(MakeSlim(RandomHashes(rows)));
    ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
    ASSERT_NE(map->base(), nullptr);
    int maybe = 0;
    constexpr int kStrangers = 100'000;
    for (int i = 0; i < kStrangers; ++i) maybe += map->summary().MayName(random_.Next());
    EXPECT_LT(maybe, kStrangers * 25 / 1000) << rows;
    EXPECT_GT(maybe, 0) << rows;
  }
}

// One segment after the other, as a table grows. The map is extended while it has room, and made
// anew when it has none; either way it names what it must.
TEST_F(SegmentMapTest, ExtendingOneByOne) {
  const std::vector<uint64_t> pool = RandomHashes(8000);
  std::vector<Made> generation;
  generation.push_back(MakeSlim(SomeOf(pool, 2)));
  ASSERT_OK_AND_ASSIGN(auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
  int extended = 0, rebuilt = 0;
  for (int i = 1; i < 36; ++i) {
    generation.push_back(MakeSlim(SomeOf(pool, random_.OneIn(4) ? 5 : 400)));
    const auto segments = Pointers(generation);
    ASSERT_OK_AND_ASSIGN(auto next, Extended(*map, segments, kNoLimit));
    ASSERT_NO_FATAL_FAILURE(ExpectNames(*next, generation));
    const bool same_size = next->size_bytes() == map->size_bytes();
    ++(same_size ? extended : rebuilt);
    ASSERT_OK_AND_ASSIGN(const auto anew, SegmentMap::Build(segments, kNoLimit));
    if (!same_size || anew->size_bytes() == next->size_bytes()) {
      ASSERT_NO_FATAL_FAILURE(ExpectSame(*next, *anew, generation));
    }
    map = std::move(next);
  }
  EXPECT_GT(extended, 10);
  EXPECT_GT(rebuilt, 3);
}

// Where a new map would have as many buckets, an extended one is the same.
TEST_F(SegmentMapTest, ExtendGivesWhatBuildGives) {
  std::vector<Made> generation;
  generation.push_back(MakeSlim(RandomHashes(12'000)));
  generation.push_back(MakeSlim({}));
  generation.push_back(MakeSlim(RandomHashes(12'000 - 15)));
  ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
  for (const size_t more : {0, 3, 12}) {
    std::vector<uint64_t> hashes = RandomHashes(more / 2);
    while (hashes.size() < more) hashes.push_back(random_.Pick(generation[0].hashes));
    generation.push_back(MakeSlim(std::move(hashes), {HashListShape{40, 4}}));
    const auto segments = Pointers(generation);
    ASSERT_OK_AND_ASSIGN(const auto extended, Extended(*map, segments, kNoLimit));
    ASSERT_OK_AND_ASSIGN(const auto built, SegmentMap::Build(segments, kNoLimit));
    ASSERT_NO_FATAL_FAILURE(ExpectSame(*extended, *built, generation));
    ASSERT_NO_FATAL_FAILURE(ExpectNames(*extended, generation));
  }
}

TEST_F(SegmentMapTest, ExtendMakesAnewWhatHasBecomeTooSmall) {
  struct Case {
    const char* why;
    size_t segments_before, rows_before, segments_after, rows_after;
    HashListShape list_after;
    bool anew;
  };
  for (const Case& c : {
           Case{"room for a segment and rows", 2, 1200, 3, 250, {34, 3}, false},
           Case{"all the rows there is room for", 2, 1200, 3, 300, {34, 3}, false},
           Case{"a row too many", 2, 1200, 3, 301, {34, 3}, true},
           Case{"the last segment of 4 bits", 14, 100, 15, 10, {34, 3}, false},
           Case{"a segment of 5 bits", 15, 100, 16, 10, {34, 3}, true},
           Case{"the last segment of 5 bits", 30, 100, 31, 10, {34, 3}, false},
           Case{"a segment of 6 bits", 31, 100, 32, 10, {34, 3}, true},
           Case{"a segment of 8 bits", 127, 20, 128, 3, {34, 3}, true},
           Case{"a list of more bits", 2, 1200, 3, 100, {40, 4}, false},
           // 2,400 rows are numbered by 12 bits, and a map keeps 9 more.
           Case{"a list of as many bits as count", 2, 1200, 3, 100, {21, 2}, false},
           Case{"a list of fewer bits", 2, 1200, 3, 100, {20, 2}, true},
       }) {
    SCOPED_TRACE(c.why);
    std::vector<Made> generation;
    while (generation.size() < c.segments_before) {
      generation.push_back(MakeSlim(RandomHashes(c.rows_before)));
    }
    ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
    while (generation.size() < c.segments_after) {
      generation.push_back(MakeSlim(RandomHashes(c.rows_after), {c.list_after}));
    }
    // The oldest is damaged by now. Who reads it again finds out, who does not goes on.
    Made& oldest = generation[0];
    const Made copy = Make(oldest.hashes);
    std::string& bytes = files_.Bytes(last_path_);
    bytes[copy.segment->header().section(SectionKind::kHashes).offset] ^= 1;
    const Made damaged = Reopen(last_path_, oldest.hashes);
    auto segments = Pointers(generation);
    segments[0] = damaged.segment.get();
    EXPECT_EQ(Extended(*map, segments, kNoLimit).ok(), !c.anew);

    segments[0] = oldest.segment.get();
    ASSERT_OK_AND_ASSIGN(const auto extended, Extended(*map, segments, kNoLimit));
    ASSERT_NO_FATAL_FAILURE(ExpectNames(*extended, generation));
    if (!c.anew) {
      EXPECT_EQ(extended->size_bytes(), map->size_bytes());
      continue;
    }
    ASSERT_OK_AND_ASSIGN(const auto built, SegmentMap::Build(segments, kNoLimit));
    ASSERT_NO_FATAL_FAILURE(ExpectSame(*extended, *built, generation));
  }
}

// The newest segments give way to others, some or all of them, over and over. Whatever overflowed
// is still found, and of what is gone nothing is named.
TEST_F(SegmentMapTest, TheNewestAreReplaced) {
  for (const bool base : {false, true}) {
    const std::vector<uint64_t> pool = RandomHashes(8000);
    std::vector<Made> generation;
    generation.push_back(MakeSlim(base ? RandomHashes(30'000) : SomeOf(pool, 2)));
    generation.push_back(MakeSlim(SomeOf(pool, base ? 4 : 2)));
    ASSERT_OK_AND_ASSIGN(auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
    ASSERT_EQ(map->base() != nullptr, base);
    int extended = 0, cut = 0, rebuilt = 0;
    for (int step = 0; step < 60; ++step) {
      const size_t before = generation.size();
      const size_t dropped = random_.Below(std::min<size_t>(before, random_.OneIn(4) ? 6 : 3));
      generation.resize(before - dropped);
      const size_t kept = generation.size();
      for (size_t more = random_.Between(kept == 1, 4); more > 0; --more) {
        generation.push_back(MakeSlim(SomeOf(pool, random_.OneIn(4) ? 10 : 100)));
      }
      ASSERT_OK_AND_ASSIGN(auto next, map->Extend(Pointers(generation), kept, kNoLimit));
      ASSERT_NO_FATAL_FAILURE(ExpectNames(*next, generation));
      const bool same_size = next->size_bytes() == map->size_bytes();
      extended += same_size;
      cut += same_size && dropped > 0;
      rebuilt += !same_size;
      map = std::move(next);
    }
    EXPECT_GT(cut, 0);
    EXPECT_GT(extended, cut);
    EXPECT_GT(rebuilt, 0);
  }
}

TEST_F(SegmentMapTest, ReplacingMakesAnewWhatKeepsTooLittle) {
  struct Case {
    const char* why;
    std::vector<size_t> before;  // rows of segments, the oldest first
    size_t kept;
    std::vector<size_t> after;  // of those in place of the rest
    bool anew;
  };
  for (const Case& c : {
           Case{"nothing is new", {600, 600, 600}, 2, {}, false},
           Case{"the newest for another", {600, 600, 600}, 2, {700}, false},
           Case{"a third gives way to fewer", {600, 600, 600}, 2, {500}, false},
           Case{"more than half of what is there now", {600, 600, 601}, 2, {}, true},
           Case{"nothing is kept", {600, 600, 600}, 0, {600, 600}, true},
           Case{"the oldest alone, which is the base now", {600, 150, 150}, 1, {200}, true},
           Case{"the oldest alone, which is none", {600, 150, 150}, 1, {250}, false},
           Case{"of those on a base", {6000, 600, 600}, 2, {100}, true},
           Case{"of those on a base, few", {6000, 600, 300}, 2, {200}, false},
           Case{"the base alone", {6000, 600, 600}, 1, {800}, true},
       }) {
    SCOPED_TRACE(c.why);
    std::vector<Made> generation;
    for (const size_t rows : c.before) generation.push_back(Make(RandomHashes(rows)));
    ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
    generation.resize(c.kept);
    for (const size_t rows : c.after) generation.push_back(Make(RandomHashes(rows)));
    ASSERT_OK_AND_ASSIGN(const auto next, map->Extend(Pointers(generation), c.kept, kNoLimit));
    ASSERT_NO_FATAL_FAILURE(ExpectNames(*next, generation));
    ASSERT_OK_AND_ASSIGN(const auto built, SegmentMap::Build(Pointers(generation), kNoLimit));
    ASSERT_NE(built->size_bytes(), map->size_bytes()) << "a case that shows nothing";
    EXPECT_EQ(next->size_bytes(), c.anew ? built->size_bytes() : map->size_bytes());
  }
}

// What was cut off counts until the map is made anew.
TEST_F(SegmentMapTest, ReplacingOverAndOverMakesItAnewInTime) {
  std::vector<Made> generation;
  for (int i = 0; i < 5; ++i) generation.push_back(MakeSlim(RandomHashes(1000)));
  ASSERT_OK_AND_ASSIGN(auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
  // Fewer than before, so that one that is made anew is smaller.
  const uint64_t size_bytes = map->size_bytes();
  for (const int dropped : {1000, 1900, 2800}) {
    generation.pop_back();
    generation.push_back(MakeSlim(RandomHashes(900)));
    ASSERT_OK_AND_ASSIGN(map, map->Extend(Pointers(generation), 4, kNoLimit));
    ASSERT_NO_FATAL_FAILURE(ExpectNames(*map, generation));
    EXPECT_EQ(map->size_bytes() == size_bytes, dropped <= 4900 / 2) << dropped;
  }
}

// The older map, and the older generation's open files, may go; and it stays as it was meanwhile.
TEST_F(SegmentMapTest, AnExtendedMapStandsAlone) {
  const std::vector<uint64_t> pool = RandomHashes(3000), added = RandomHashes(100);
  std::vector<Made> before;
  before.push_back(Make(SomeOf(pool, 2)));
  const std::string first_path = last_path_;
  before.push_back(Make(SomeOf(pool, 2)));
  ASSERT_OK_AND_ASSIGN(auto map, SegmentMap::Build(Pointers(before), kNoLimit));

  std::vector<Made> after;
  after.push_back(Reopen(first_path, before[0].hashes));
  after.push_back(Reopen(last_path_, before[1].hashes));
  after.push_back(Make(added));
  ASSERT_OK_AND_ASSIGN(const auto extended, Extended(*map, Pointers(after), kNoLimit));
  ASSERT_NO_FATAL_FAILURE(ExpectNames(*map, before));
  for (const uint64_t hash : added) {
    const std::vector<uint32_t> named = Named(*map, hash);
    EXPECT_EQ(std::count(named.begin(), named.end(), 3u), 0);
  }
  map.reset();
  before.clear();
  ASSERT_NO_FATAL_FAILURE(ExpectNames(*extended, after));
  ASSERT_NE(extended->row_shape(), nullptr);
  EXPECT_EQ(*extended->row_shape(), LineShape::OfRows({}, 8));
}

// Only where all segments have lines of one shape may they be read alike.
TEST_F(SegmentMapTest, RowShapeIsThatOfAllOrNone) {
  const auto make = [&](Layout layout, size_t key_bytes) {
    return MakeSlim(RandomHashes(10), {.key_bytes = key_bytes, .layout = layout});
  };
  const Made a = make(Layout::kLine, 8), b = make(Layout::kLine, 8),
             longer = make(Layout::kLine, 9), pointers = make(Layout::kPointer, 8);
  const std::vector<std::pair<std::vector<const Segment*>, bool>> cases = {
      {{a.segment.get()}, true},
      {{a.segment.get(), b.segment.get()}, true},
      {{a.segment.get(), longer.segment.get()}, false},
      {{longer.segment.get(), a.segment.get(), b.segment.get()}, false},
      {{a.segment.get(), pointers.segment.get()}, false},
      {{pointers.segment.get(), a.segment.get()}, false},
      {{pointers.segment.get(), pointers.segment.get()}, false},
  };
  for (const auto& [segments, one_shape] : cases) {
    ASSERT_OK_AND_ASSIGN(const auto built, SegmentMap::Build(segments, kNoLimit));
    for (size_t first = 0; first <= segments.size(); ++first) {
      ASSERT_OK_AND_ASSIGN(const auto part,
                           SegmentMap::Build(std::span(segments).first(first), kNoLimit));
      ASSERT_OK_AND_ASSIGN(const auto extended, Extended(*part, segments, kNoLimit));
      for (const SegmentMap* map : {built.get(), extended.get()}) {
        ASSERT_EQ(map->row_shape() != nullptr, one_shape);
        if (one_shape) {
          EXPECT_EQ(*map->row_shape(), LineShape::OfRows({}, 8));
        }
      }
    }
  }
}

// Of a stranger's fingerprints, one entry in 2^12 is the same by chance, or in 2^8 with the most
// segments; so the share of strangers that have a segment named follows from the entries that a
// bucket and those that it overflows into have.
TEST_F(SegmentMapTest, FalselyNamedSegmentsAreAsRareAsComputed) {
  struct Case {
    size_t segments;
    unsigned fingerprint_bits;
    HashListShape list;
  };
  // Lists have the bits that a map wants, or some fewer: then fingerprints lack as many.
  for (const Case& c :
       {Case{2, 12, {34, 3}}, Case{15, 12, {34, 3}}, Case{16, 11, {34, 3}}, Case{40, 10, {34, 3}},
        Case{100, 9, {34, 3}}, Case{200, 8, {34, 3}}, Case{2, 12, {26, 2}}, Case{2, 8, {20, 2}}}) {
    SCOPED_TRACE(testing::Message()
                 << c.segments << " segments, " << int{c.list.hash_bits} << " hash bits");
    constexpr size_t kRows = 24 << 12;
    std::vector<Made> generation;
    for (size_t i = 0; i < c.segments; ++i) {
      generation.push_back(MakeSlim(RandomHashes(kRows / c.segments), {c.list}));
    }
    ASSERT_OK_AND_ASSIGN(const auto map, SegmentMap::Build(Pointers(generation), kNoLimit));
    // What a look into each bucket reads: entries, and among them different fingerprints.
    const uint64_t buckets = BucketOf(*map, map->ProbeFor(UINT64_MAX)) + 1;
    const uint8_t* const first = map->ProbeFor(0).bucket;
    const double one_in = std::exp2(c.fingerprint_bits);
    size_t entries_read = 0, different = 0;
    for (uint64_t at = 0; at < buckets; ++at) {
      std::set<std::pair<uint8_t, uint8_t>> fingerprints;
      for (const uint8_t* bucket = first + at * kBucketBytes;; bucket += kBucketBytes) {
        for (unsigned i = 0; i < bucket[kBucketEntryCount]; ++i, ++entries_read) {
          fingerprints.emplace(bucket[i], bucket[kBucketHighBytes + i] & ~map->segment_mask());
        }
        if (bucket[kBucketOverflow] == 0) break;
      }
      different += fingerprints.size();
    }
    const double computed = static_cast<double>(different) / static_cast<double>(buckets) / one_in;
    // 24 a bucket, and a little more for those that overflow.
    EXPECT_NEAR(static_cast<double>(entries_read) / static_cast<double>(buckets), 26, 3);
    constexpr int kStrangers = 300'000;
    int named = 0;
    for (int i = 0; i < kStrangers; ++i) {
      named += map->NextSegment(map->ProbeFor(random_.Next()), UINT32_MAX) != 0;
    }
    const double deviation = std::sqrt(computed * (1 - computed) / kStrangers);
    EXPECT_NEAR(static_cast<double>(named) / kStrangers, computed, 6 * deviation);
    EXPECT_NEAR(computed, 26 / one_in, 26 / one_in / 8);
  }
}

}  // namespace
}  // namespace latchkey::test
