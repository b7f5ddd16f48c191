// Against files of the machine: some of the tests are about its page cache.
#include "core/prefetch/background_check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
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

// Changes one byte of a file where it lies, as a bad disk would.
void Damage(const std::string& path, uint64_t offset) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  char byte = 0;
  ASSERT_EQ(::pread(fd, &byte, 1, static_cast<off_t>(offset)), 1);
  byte = static_cast<char>(byte ^ 0x10);
  ASSERT_EQ(::pwrite(fd, &byte, 1, static_cast<off_t>(offset)), 1);
  ::close(fd);
}

class BackgroundCheckTest : public SeededTest {
 protected:
  void SetUp() override { Make(); }

  // A table of two segments with values of bytes. Keys of one length, or of several, so that they
  // lie in records.
  void Make(bool records = true) {
    std::filesystem::remove_all(dir_.Path("data"));
    table_ = std::make_unique<TestTable>(PosixFileSystem(), dir_.Path("data"), random_);
    table_->options.schema.value_kind = ValueKind::kBytes;
    for (int i = 0; i < 2; ++i) {
      std::vector<Row> rows;
      for (std::string& key : DistinctKeys(random_, 300, 16)) {
        if (records) key.resize(8 + key.size() % 3 + rows.size() % 8);
        keys_[i].push_back(key);
        rows.push_back({std::move(key), std::string(20'000, 'v')});
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

// Any byte of any section: it is found, named and quarantined, and no key is lost.
TEST_F(BackgroundCheckTest, DamageIsQuarantined) {
  for (const bool records : {true, false}) {
    for (const SectionKind kind : {SectionKind::kFilter, SectionKind::kPilots, SectionKind::kLines,
                                   SectionKind::kRecords, SectionKind::kValues}) {
      if (kind == SectionKind::kRecords && !records) continue;
      SCOPED_TRACE(SectionName(kind));
      for (auto& keys : keys_) keys.clear();
      Make(records);
      damages_.clear();
      const Section& section = SectionOf(older(), kind);
      const uint64_t at = section.offset + random_.Below(section.size_bytes);
      ASSERT_NO_FATAL_FAILURE(Damage(older().path(), at));
      BackgroundCheck check(Options());
      check.Add("t", *snapshot_);
      ASSERT_TRUE(Soon([&] { return !Damages().empty(); }));
      const auto [name, status] = Damages()[0];
      EXPECT_EQ(name, "t");
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      const uint64_t block =
          section.offset + (at - section.offset) / kChecksumBlockBytes * kChecksumBlockBytes;
      EXPECT_EQ(status.message(), fmt::format("{}: section '{}' is damaged at offset {}",
                                              older().path(), SectionName(kind), block));
      EXPECT_TRUE(older().quarantined());
      EXPECT_FALSE(snapshot_->segments()[0]->quarantined());
      ProbeEngine engine;
      LookupResults results;
      const std::vector<std::string_view> old_keys(keys_[0].begin(), keys_[0].end());
      engine.Lookup(*snapshot_, old_keys, &results);
      for (const Outcome outcome : results.outcomes) EXPECT_EQ(outcome, Outcome::kDamaged);
      const std::vector<std::string_view> new_keys(keys_[1].begin(), keys_[1].end());
      engine.Lookup(*snapshot_, new_keys, &results);
      for (const Outcome outcome : results.outcomes) EXPECT_EQ(outcome, Outcome::kFound);
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
