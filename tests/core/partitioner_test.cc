#include "core/build/partitioner.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "core/key/key_hash.h"
#include "core/segment/value_locator.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

using testing::HasSubstr;

struct Kept {
  uint64_t doc_id, ordinal;
  std::string key, value;
  bool operator==(const Kept&) const = default;
};

class PartitionerTest : public SeededTest {
 protected:
  // Adds random rows of which `row_bytes` say about how large they are, and remembers them.
  void AddRows(Partitioner& partitioner, size_t count, size_t row_bytes) {
    for (size_t i = 0; i < count; ++i) {
      Kept row{random_.Next() >> random_.Below(64), i, random_.Bytes(random_.Between(1, 40)),
               random_.Bytes(random_.Below(row_bytes))};
      const uint64_t hash = random_.Next();
      ASSERT_OK(partitioner.Add(hash, {row.doc_id, row.ordinal, row.key, row.value}));
      rows_[PartitionOf(hash, 0, kPartitionBitsMax)].push_back(std::move(row));
    }
  }

  // Takes `step` buckets at a time and compares them with what was added.
  void ExpectAllThere(Partitioner& partitioner, size_t step) {
    for (size_t begin = 0; begin < kBucketCount; begin += step) {
      std::string packed = "before";
      ASSERT_OK(partitioner.Take(begin, begin + step, &packed));
      ASSERT_EQ(packed.substr(0, 6), "before");
      const char* at = packed.data() + 6;
      for (size_t bucket = begin; bucket < begin + step; ++bucket) {
        const Partitioner::Bucket& sums = partitioner.buckets()[bucket];
        uint64_t key_bytes = 0, value_bytes = 0;
        const char* const bucket_begin = at;
        for (const Kept& expected : rows_[bucket]) {
          PackedRow row;
          at = Partitioner::Unpack(at, &row);
          ASSERT_EQ((Kept{row.doc_id, row.ordinal, std::string(row.key), std::string(row.value)}),
                    expected);
          key_bytes += row.key.size();
          value_bytes += StoredValueBytes(row.value.size());
        }
        EXPECT_EQ(sums.rows, rows_[bucket].size());
        EXPECT_EQ(sums.key_bytes, key_bytes);
        EXPECT_EQ(sums.value_bytes, value_bytes);
        EXPECT_EQ(sums.packed_bytes, static_cast<uint64_t>(at - bucket_begin));
      }
      ASSERT_EQ(at, packed.data() + packed.size());
    }
  }

  MemoryFileSystem files_;
  std::map<size_t, std::vector<Kept>> rows_;
};

TEST_F(PartitionerTest, KeepsWhatFitsInMemory) {
  Partitioner partitioner(files_, "spill", uint64_t{64} << 20);
  AddRows(partitioner, 20'000, 100);
  EXPECT_EQ(partitioner.spilled_bytes(), 0u);
  ExpectAllThere(partitioner, 1);
  EXPECT_TRUE(files_.Files().empty());
}

TEST_F(PartitionerTest, SpillsWhatDoesNot) {
  for (const size_t step : {size_t{1}, size_t{64}, kBucketCount}) {
    rows_.clear();
    {
      Partitioner partitioner(files_, "spill", 2 << 20);
      AddRows(partitioner, 60'000, 300);
      EXPECT_GT(partitioner.spilled_bytes(), uint64_t{4} << 20);
      EXPECT_TRUE(files_.Has("spill"));
      ExpectAllThere(partitioner, step);
    }
    EXPECT_FALSE(files_.Has("spill"));
  }
}

TEST_F(PartitionerTest, RowsLargerThanTheMemory) {
  Partitioner partitioner(files_, "spill", 1 << 20);
  AddRows(partitioner, 30, 3 << 20);
  ExpectAllThere(partitioner, 16);
}

TEST_F(PartitionerTest, NothingAtAll) {
  Partitioner partitioner(files_, "spill", 1 << 20);
  ExpectAllThere(partitioner, 256);
}

// The outermost hashes go to the outermost buckets, and each bucket takes an equal part of them.
TEST_F(PartitionerTest, BucketsAreRangesOfHashes) {
  Partitioner partitioner(files_, "spill", uint64_t{64} << 20);
  constexpr uint64_t kRange = uint64_t{1} << (64 - kPartitionBitsMax);
  for (uint64_t bucket = 0; bucket < kBucketCount; ++bucket) {
    for (const uint64_t hash : {bucket * kRange, bucket * kRange + kRange - 1}) {
      ASSERT_OK(partitioner.Add(hash, {hash, bucket, "key", ""}));
    }
  }
  for (size_t bucket = 0; bucket < kBucketCount; ++bucket) {
    ASSERT_EQ(partitioner.buckets()[bucket].rows, 2u);
    std::string packed;
    ASSERT_OK(partitioner.Take(bucket, bucket + 1, &packed));
    PackedRow first, last;
    const char* const end = Partitioner::Unpack(Partitioner::Unpack(packed.data(), &first), &last);
    EXPECT_EQ(end, packed.data() + packed.size());
    EXPECT_EQ(first.doc_id, bucket * kRange);
    EXPECT_EQ(last.doc_id, bucket * kRange + kRange - 1);
    EXPECT_EQ(first.ordinal, bucket);
  }
}

TEST_F(PartitionerTest, StaysWithinItsMemory) {
  const TempDir folder;
  for (const size_t row_bytes : {1, 100, 20'000}) {
    const AllocationMeter meter;
    Partitioner partitioner(PosixFileSystem(), folder.Path("spill"), 8 << 20);
    const std::string bytes(row_bytes, 'x');
    for (uint64_t i = 0; i < (100 << 20) / (row_bytes + 30); ++i) {
      ASSERT_OK(partitioner.Add(random_.Next(), {i, i, bytes, bytes}));
    }
    EXPECT_GT(partitioner.spilled_bytes(), uint64_t{10} << 20);
    // And a little for the lists of what is where.
    EXPECT_LT(meter.peak_bytes(), (8 << 20) + (2 << 20)) << row_bytes;
  }
}

TEST_F(PartitionerTest, ASpillFileThatIsThereAlreadyIsAnError) {
  files_.Put("spill", "somebody's");
  {
    Partitioner partitioner(files_, "spill", 1 << 20);
    absl::Status status;
    for (uint64_t i = 0; status.ok() && i < 100; ++i) {
      status = partitioner.Add(random_.Next(), {i, i, "key", std::string(100'000, 'x')});
    }
    EXPECT_FAILS(status, kAlreadyExists, HasSubstr("spill"));
  }
  EXPECT_EQ(files_.Bytes("spill"), "somebody's");
}

TEST_F(PartitionerTest, ASpillFileThatWasCutIsAnError) {
  Partitioner partitioner(files_, "spill", 1 << 20);
  AddRows(partitioner, 20'000, 300);
  files_.Bytes("spill").resize(files_.Bytes("spill").size() / 2);
  std::string packed;
  EXPECT_FAILS(partitioner.Take(0, kBucketCount, &packed), kDataLoss,
               testing::AllOf(HasSubstr("spill"), HasSubstr("cut off")));
}

}  // namespace
}  // namespace latchkey::test
