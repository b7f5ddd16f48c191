// Against files of the machine: some of the tests are about its page cache.
#include "core/prefetch/background_check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/io/fault_guard.h"
#include "core/lookup/probe_engine.h"
#include "core/prefetch/page_cache.h"
#include "core/prefetch/warm_up.h"
#include "tests/support/cold_file.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Until `condition` holds, or for a time that is far more than it takes.
template <typename Condition>
bool Soon(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Changes bytes of a file where it lies, as a bad disk would.
void Damage(const std::string& path, uint64_t offset, uint64_t size_bytes = 1) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  std::string bytes(size_bytes, '\0');
  const auto size = static_cast<ssize_t>(size_bytes);
  ASSERT_EQ(::pread(fd, bytes.data(), size_bytes, static_cast<off_t>(offset)), size);
  for (char& byte : bytes) byte = static_cast<char>(byte ^ 0x15);
  ASSERT_EQ(::pwrite(fd, bytes.data(), size_bytes, static_cast<off_t>(offset)), size);
  ::close(fd);
}

class BackgroundCheckTest : public SeededTest {
 protected:
  void SetUp() override { Make(); }

  // A table of two segments with values of bytes. Keys of one length, or of several, so that they
  // lie in records.
  void Make(bool records = true, size_t rows_each = 300, size_t value_bytes = 20'000) {
    std::filesystem::remove_all(dir_.Path("data"));
    table_ = std::make_unique<TestTable>(PosixFileSystem(), dir_.Path("data"), random_);
    table_->options.schema.value_kind = ValueKind::kBytes;
    for (int i = 0; i < 2; ++i) {
      std::vector<Row> rows;
      keys_[i].clear();
      for (std::string& key : DistinctKeys(random_, rows_each, 16)) {
        if (records) key.resize(9 + rows.size() % 8);
        keys_[i].push_back(key);
        std::string value = key;
        value.resize(value_bytes, 'v');
        rows.push_back({std::move(key), std::move(value)});
      }
      ASSERT_OK(i == 0 ? table_->Build(rows) : table_->Append(rows));
    }
    ASSERT_OK_AND_ASSIGN(snapshot_, table_->Open());
  }
  const Segment& older() const { return *snapshot_->segments()[1]; }
  static const Section& SectionOf(const Segment& segment, SectionKind kind) {
    return segment.header().section(kind);
  }

  BackgroundCheckOptions Options() {
    BackgroundCheckOptions options;
    options.bytes_per_s_max = uint64_t{1} << 40;
    options.on_damage = [this](const std::string& table, const absl::Status& damage) {
      const std::lock_guard<std::mutex> lock(mutex_);
      damages_.emplace_back(table, damage);
    };
    return options;
  }
  std::vector<std::pair<std::string, absl::Status>> Damages() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return damages_;
  }
  double ResidentShare(SectionKind kind) const {
    const MappedFile& file = older().file();
    const auto residency =
        MeasureResidency(file, ChooseResidencyProbe(file), SectionOf(older(), kind).offset,
                         SectionOf(older(), kind).size_bytes);
    EXPECT_TRUE(residency.has_value());
    return static_cast<double>(residency->resident) / static_cast<double>(residency->pages);
  }

  TempDir dir_;
  std::unique_ptr<TestTable> table_;
  std::vector<std::string> keys_[2];
  std::shared_ptr<const Snapshot> snapshot_;
  std::mutex mutex_;
  std::vector<std::pair<std::string, absl::Status>> damages_;
};

TEST_F(BackgroundCheckTest, ChecksAllOfEachSegmentOnce) {
  uint64_t bytes = 0;
  for (const auto& segment : snapshot_->segments()) {
    for (const SectionKind kind : {SectionKind::kFilter, SectionKind::kPilots, SectionKind::kLines,
                                   SectionKind::kRecords, SectionKind::kValues}) {
      EXPECT_FALSE(segment->checked(kind)) << SectionName(kind);
      bytes += SectionOf(*segment, kind).size_bytes;
    }
  }
  EXPECT_EQ(snapshot_->unchecked_bytes(), bytes);
  BackgroundCheck check(Options());
  check.Add("t", *snapshot_);
  EXPECT_TRUE(Soon([&] { return snapshot_->unchecked_bytes() == 0; }));
  // Damage that comes later is not looked for: the same segments are not read again.
  ASSERT_NO_FATAL_FAILURE(Damage(older().path(), SectionOf(older(), SectionKind::kValues).offset));
  ASSERT_OK_AND_ASSIGN(const auto next, Snapshot::Open(PosixFileSystem(), table_->dir(),
                                                       snapshot_->manifest(), {}, snapshot_.get()));
  EXPECT_EQ(next->unchecked_bytes(), 0u);
  check.Add("t", *next);
  // One that is new comes after them.
  Make();
  check.Add("t", *snapshot_);
  EXPECT_TRUE(Soon([&] { return snapshot_->unchecked_bytes() == 0; }));
  EXPECT_FALSE(next->quarantined());
  EXPECT_TRUE(Damages().empty());
}

// A block of any section that is not what was written: it is found, named, and quarantined. The
// keys that depend on it are answered as damaged, all others as before; none is lost.
TEST_F(BackgroundCheckTest, DamagedBlocksAreQuarantined) {
  for (const bool map : {true, false}) {
    for (const bool records : {true, false}) {
      for (const SectionKind kind :
           {SectionKind::kFilter, SectionKind::kPilots, SectionKind::kLines, SectionKind::kRecords,
            SectionKind::kValues}) {
        if (kind == SectionKind::kRecords && !records) continue;
        SCOPED_TRACE(fmt::format("{} map {} records {}", SectionName(kind), map, records));
        ASSERT_NO_FATAL_FAILURE(Make(records, 12'000, 50));
        if (!map) {
          ASSERT_OK_AND_ASSIGN(snapshot_, Snapshot::OpenNewest(PosixFileSystem(), table_->dir(),
                                                               {.segment_map_bytes_max = 0}));
        }
        damages_.clear();
        const Section& section = SectionOf(older(), kind);
        const uint64_t blocks = ChecksumBlocks(section.size_bytes);
        const uint64_t block = random_.Below(blocks) * kChecksumBlockBytes;
        const uint64_t block_bytes = std::min(kChecksumBlockBytes, section.size_bytes - block);
        // One byte of it, or all.
        ASSERT_NO_FATAL_FAILURE(
            random_.OneIn(2)
                ? Damage(older().path(), section.offset + block + random_.Below(block_bytes))
                : Damage(older().path(), section.offset + block, block_bytes));
        BackgroundCheck check(Options());
        check.Add("t", *snapshot_);
        ASSERT_TRUE(Soon([&] { return snapshot_->unchecked_bytes() == 0; }));
        ASSERT_EQ(Damages().size(), 1u);
        const auto [name, status] = Damages()[0];
        EXPECT_EQ(name, "t");
        EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
        EXPECT_EQ(status.message(),
                  fmt::format("{}: section '{}' is damaged at offset {}", older().path(),
                              SectionName(kind), section.offset + block));
        EXPECT_TRUE(older().quarantined());
        EXPECT_FALSE(snapshot_->segments()[0]->quarantined());

        size_t damaged = 0;
        for (int i = 0; i < 2; ++i) {
          for (const std::string& key : keys_[i]) {
            const LookupResult result = LookupOne(*snapshot_, key);
            if (i == 0 && result.outcome == Outcome::kDamaged) {
              ++damaged;
              continue;
            }
            ASSERT_EQ(result.outcome, Outcome::kFound);
            EXPECT_EQ(result.value.substr(0, key.size()), key);
          }
        }
        // As many as the block serves. A filter that says nothing only makes lookups longer.
        const double share =
            kind == SectionKind::kFilter
                ? 0
                : static_cast<double>(block_bytes) / static_cast<double>(section.size_bytes);
        EXPECT_NEAR(static_cast<double>(damaged) / 12'000, share, 0.05);
        // By batches the same.
        ProbeEngine engine;
        LookupResults results;
        const std::vector<std::string_view> keys(keys_[0].begin(), keys_[0].end());
        engine.Lookup(*snapshot_, keys, &results);
        EXPECT_EQ(static_cast<size_t>(std::count(results.outcomes.begin(), results.outcomes.end(),
                                                 Outcome::kDamaged)),
                  damaged);
        EXPECT_EQ(static_cast<size_t>(std::count(results.outcomes.begin(), results.outcomes.end(),
                                                 Outcome::kFound)),
                  keys.size() - damaged);
      }
    }
  }
}

// The checksums come last in a file, so they are lost too.
TEST_F(BackgroundCheckTest, WhatIsCutOffIsQuarantined) {
  InstallFaultGuard();
  const std::string path = older().path();
  const uint64_t cut = SectionOf(older(), SectionKind::kValues).offset + 100'000;
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(cut)), 0);
  BackgroundCheck check(Options());
  check.Add("t", *snapshot_);
  ASSERT_TRUE(Soon([&] { return !Damages().empty(); }));
  EXPECT_EQ(Damages()[0].second.message(), path + ": pages of its file are lost");
  EXPECT_TRUE(older().quarantined());
}

// What it brought to memory it lets go, what was there stays.
TEST_F(BackgroundCheckTest, LeavesThePageCacheAsItWas) {
  for (const bool cold : {true, false}) {
    Make();
    for (const auto& segment : snapshot_->segments()) {
      ASSERT_NO_FATAL_FAILURE(MakeCold(segment->file()));
    }
    if (!cold) {
      WarmUpOptions options;
      options.what = WarmUp::kAll;
      ASSERT_OK(WarmUpSnapshot(*snapshot_, options));
      // What the warm-up read is checked already; open it anew, so that it is not.
      ASSERT_EQ(snapshot_->unchecked_bytes(), 0u);
      ASSERT_OK_AND_ASSIGN(snapshot_, table_->Open());
    }
    BackgroundCheck check(Options());
    check.Add("t", *snapshot_);
    ASSERT_TRUE(Soon([&] { return snapshot_->unchecked_bytes() == 0; }));
    const auto settled = [&] {
      const double share = ResidentShare(SectionKind::kValues);
      return cold ? share < 0.2 : share == 1;
    };
    EXPECT_TRUE(Soon(settled)) << cold << ' ' << ResidentShare(SectionKind::kValues);
  }
}

// However often generations share a segment that waits, it is checked once.
TEST_F(BackgroundCheckTest, WhatWaitsIsCheckedOnce) {
  const Section& section = SectionOf(older(), SectionKind::kValues);
  ASSERT_NO_FATAL_FAILURE(Damage(older().path(), section.offset));
  BackgroundCheckOptions options = Options();
  options.bytes_per_s_max = uint64_t{64} << 20;
  BackgroundCheck check(options);
  for (int i = 0; i < 1000; ++i) check.Add("t", *snapshot_);
  EXPECT_TRUE(Soon([&] { return snapshot_->unchecked_bytes() == 0; }));
  EXPECT_EQ(Damages().size(), 1u);
}

TEST_F(BackgroundCheckTest, IsSwitchedOff) {
  BackgroundCheckOptions options = Options();
  options.bytes_per_s_max = 0;
  const uint64_t unchecked = snapshot_->unchecked_bytes();
  {
    BackgroundCheck check(options);
    check.Add("t", *snapshot_);
  }
  EXPECT_EQ(snapshot_->unchecked_bytes(), unchecked);
}

// In the middle of a pause that would take a day, and it holds no segment meanwhile.
TEST_F(BackgroundCheckTest, StopsAtOnceAndHoldsNothing) {
  BackgroundCheckOptions options = Options();
  options.bytes_per_s_max = 1;
  const std::weak_ptr<const Segment> segment = snapshot_->segments()[0];
  BackgroundCheck check(options);
  check.Add("t", *snapshot_);
  ASSERT_TRUE(Soon([&] { return snapshot_->segments()[0]->checked(SectionKind::kFilter); }));
  snapshot_ = nullptr;
  EXPECT_TRUE(Soon([&] { return segment.expired(); }));
}

}  // namespace
}  // namespace latchkey::test
