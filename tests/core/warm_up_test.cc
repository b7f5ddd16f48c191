// Against files of the machine. Where its file system keeps every page in memory (tmpfs), these
// tests fail and say so.
#include "core/prefetch/warm_up.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/io/fault_guard.h"
#include "core/lookup/probe_engine.h"
#include "core/prefetch/advice_policy.h"
#include "core/prefetch/page_cache.h"
#include "tests/support/cold_file.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{4} << 20;  // read at a time

std::set<std::string> ThreadsOfThisProcess() {
  std::set<std::string> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    threads.insert(entry.path().filename());
  }
  return threads;
}

// The kernel lists a thread for a moment after it was joined.
bool ThreadsBecome(const std::set<std::string>& expected) {
  for (int ms = 0; ms < 60'000; ++ms) {
    if (ThreadsOfThisProcess() == expected) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// Not seen by the address sanitizer, which would touch memory of its own.
__attribute__((no_sanitize_address)) void Touch(const uint8_t* at) {
  (void)*static_cast<const volatile uint8_t*>(at);
}

struct Progress {
  uint64_t done_bytes, total_bytes;
};

// A table of two segments, cold. The values, which come last in a file, are large, so that what the
// kernel reads ahead of the index does not reach far into them.
class WarmUpTest : public SeededTest {
 protected:
  void SetUp() override {
    table_ = std::make_unique<TestTable>(PosixFileSystem(), dir_.Path("data"), random_);
    table_->options.schema.value_kind = ValueKind::kBytes;
    for (int i = 0; i < 2; ++i) {
      std::vector<Row> rows;
      for (std::string& key : DistinctKeys(random_, 120, 16)) {
        rows.push_back({std::move(key), std::string(100 << 10, 'v')});
      }
      ASSERT_OK(i == 0 ? table_->Build(rows) : table_->Append(rows));
    }
    ASSERT_OK_AND_ASSIGN(snapshot_, table_->Open());
    ASSERT_NO_FATAL_FAILURE(MakeCold());
    options_.on_progress = [this](uint64_t done_bytes, uint64_t total_bytes) {
      // One thread at a time.
      EXPECT_FALSE(reporting_.exchange(true));
      progress_.push_back({done_bytes, total_bytes});
      reporting_ = false;
    };
  }

  Residency ResidencyOf(const Segment& segment, uint64_t offset, uint64_t size_bytes) const {
    const MappedFile& file = segment.file();
    const auto residency = MeasureResidency(file, ChooseResidencyProbe(file), offset, size_bytes);
    EXPECT_TRUE(residency.has_value());
    return residency.value_or(Residency{});
  }
  double ShareOf(SectionKind kind) const {
    Residency sum;
    for (const auto& segment : snapshot_->segments()) {
      const Section& section = segment->header().section(kind);
      sum += ResidencyOf(*segment, section.offset, section.size_bytes);
    }
    return sum.pages == 0 ? -1 : static_cast<double>(sum.resident) / static_cast<double>(sum.pages);
  }
  uint64_t BytesOf(bool index, bool data) const {
    uint64_t bytes = 0;
    for (const auto& segment : snapshot_->segments()) {
      for (size_t i = 0; i < kSectionCount; ++i) {
        const auto kind = static_cast<SectionKind>(i);
        if ((index && IsIndexSection(kind)) || (data && IsDataSection(kind))) {
          bytes += segment->header().section(kind).size_bytes;
        }
      }
    }
    return bytes;
  }

  void MakeCold() const {
    for (const auto& segment : snapshot_->segments()) {
      ASSERT_NO_FATAL_FAILURE(test::MakeCold(segment->file()));
    }
  }

  // From nothing up to `done_bytes` of `total_bytes`, never back.
  void ExpectProgress(uint64_t done_bytes, uint64_t total_bytes) const {
    ASSERT_FALSE(progress_.empty());
    uint64_t before = 0;
    for (const Progress& progress : progress_) {
      EXPECT_EQ(progress.total_bytes, total_bytes);
      EXPECT_GE(progress.done_bytes, before);
      before = progress.done_bytes;
    }
    EXPECT_EQ(before, done_bytes);
  }

  TempDir dir_;
  std::unique_ptr<TestTable> table_;
  std::shared_ptr<const Snapshot> snapshot_;
  WarmUpOptions options_;
  std::vector<Progress> progress_;
  std::atomic<bool> reporting_{false};
};

TEST(WarmUpNameTest, Names) {
  EXPECT_EQ(WarmUpName(WarmUp::kNone), "none");
  EXPECT_EQ(WarmUpName(WarmUp::kIndex), "index");
  EXPECT_EQ(WarmUpName(WarmUp::kAll), "all");
}

TEST_F(WarmUpTest, NoneReadsNothing) {
  options_.what = WarmUp::kNone;
  EXPECT_OK(WarmUpSnapshot(*snapshot_, options_));
  EXPECT_TRUE(progress_.empty());
  for (const auto& segment : snapshot_->segments()) {
    EXPECT_EQ(ResidencyOf(*segment, 0, segment->file().size_bytes()).resident, 0u);
  }
}

TEST_F(WarmUpTest, IndexReadsFiltersAndPilots) {
  for (const unsigned threads : {0, 1, 4}) {
    progress_.clear();
    ASSERT_NO_FATAL_FAILURE(MakeCold());
    options_.what = WarmUp::kIndex;
    options_.threads = threads;
    ASSERT_OK(WarmUpSnapshot(*snapshot_, options_));
    EXPECT_EQ(ShareOf(SectionKind::kFilter), 1);
    EXPECT_EQ(ShareOf(SectionKind::kPilots), 1);
    // But for what the kernel reads ahead.
    EXPECT_LT(ShareOf(SectionKind::kValues), 0.5);
    ExpectProgress(BytesOf(true, false), BytesOf(true, false));
  }
}

TEST_F(WarmUpTest, AllReadsDataToo) {
  for (const unsigned threads : {1, 4, 16}) {
    progress_.clear();
    ASSERT_NO_FATAL_FAILURE(MakeCold());
    options_.what = WarmUp::kAll;
    options_.threads = threads;
    ASSERT_OK(WarmUpSnapshot(*snapshot_, options_));
    for (const SectionKind kind :
         {SectionKind::kFilter, SectionKind::kPilots, SectionKind::kLines, SectionKind::kValues}) {
      EXPECT_EQ(ShareOf(kind), 1) << SectionName(kind);
    }
    ExpectProgress(BytesOf(true, true), BytesOf(true, true));
    EXPECT_GE(progress_.size(), BytesOf(false, true) / kChunkBytes);
  }
}

// What is in memory is mapped then: who touches it first waits for no fault.
TEST_F(WarmUpTest, WhatIsInMemoryIsMapped) {
  const auto minor_faults = [] {
    struct rusage usage = {};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  };
  for (const WarmUp what : {WarmUp::kAll, WarmUp::kNone}) {
    ASSERT_OK_AND_ASSIGN(snapshot_, table_->Open());
    ASSERT_NO_FATAL_FAILURE(MakeCold());
    options_.what = what;
    EXPECT_FALSE(snapshot_->warm());
    ASSERT_OK(WarmUpSnapshot(*snapshot_, options_));
    const auto before = minor_faults();
    const bool warm = what == WarmUp::kAll;
    // Lookups need not ask first, then.
    EXPECT_EQ(snapshot_->warm(), warm);
    EXPECT_EQ(ProbeEngine().mode(*snapshot_), warm ? FetchMode::kSilent : FetchMode::kAsking);
    for (const auto& segment : snapshot_->segments()) {
      for (const SectionKind kind :
           {SectionKind::kFilter, SectionKind::kLines, SectionKind::kValues}) {
        const Section& section = segment->header().section(kind);
        // What is cold is left so.
        EXPECT_EQ(ShareOf(kind), warm ? 1 : 0);
        for (uint64_t at = section.offset; warm && at < section.end(); at += 4096) {
          Touch(segment->file().data() + at);
        }
      }
    }
    EXPECT_LT(minor_faults() - before, 20) << WarmUpName(what);
  }
}

// A table of which few pages are missing is none that lookups would have to ask for.
TEST_F(WarmUpTest, FewMissingPagesAreRead) {
  uint64_t pages = 0;
  for (const auto& segment : snapshot_->segments()) {
    for (size_t i = 0; i < kSectionCount; ++i) {
      const auto kind = static_cast<SectionKind>(i);
      const Section& section = segment->header().section(kind);
      if (!IsIndexSection(kind) && !IsDataSection(kind)) continue;
      pages += ResidencyOf(*segment, section.offset, section.size_bytes).pages;
    }
  }
  struct Case {
    WarmUp what;
    uint64_t missing;
    bool warm;
  };
  for (const Case& expected :
       {Case{WarmUp::kIndex, pages / 64, true}, Case{WarmUp::kIndex, pages / 64 + 1, false},
        Case{WarmUp::kIndex, 1, true}, Case{WarmUp::kNone, 1, false}}) {
    SCOPED_TRACE(testing::Message() << WarmUpName(expected.what) << " " << expected.missing);
    ASSERT_OK_AND_ASSIGN(snapshot_, table_->Open());
    ASSERT_NO_FATAL_FAILURE(MakeCold());
    for (const auto& segment : snapshot_->segments()) {
      // Each page for itself, so that it can go alone.
      const int fd = ::open(segment->path().c_str(), O_RDONLY | O_CLOEXEC);
      ASSERT_GE(fd, 0);
      ASSERT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM), 0);
      char page[4096];
      for (off_t at = 0; ::pread(fd, page, sizeof(page), at) > 0; at += sizeof(page)) continue;
      ::close(fd);
    }
    const Segment& segment = *snapshot_->segments()[1];
    const Section& values = segment.header().section(SectionKind::kValues);
    ASSERT_EQ(::posix_fadvise(segment.file().fd(), static_cast<off_t>(values.offset),
                              static_cast<off_t>(4096 * expected.missing), POSIX_FADV_DONTNEED),
              0);
    const auto missing = [&] {
      const Residency residency = ResidencyOf(segment, values.offset, values.size_bytes);
      return residency.pages - residency.resident;
    };
    ASSERT_EQ(missing(), expected.missing);
    options_.what = expected.what;
    ASSERT_OK(WarmUpSnapshot(*snapshot_, options_));
    EXPECT_EQ(snapshot_->warm(), expected.warm);
    EXPECT_EQ(missing(), expected.warm ? 0 : expected.missing);
  }
}

// The index comes before the data of any segment.
TEST_F(WarmUpTest, IndexComesFirst) {
  options_.what = WarmUp::kAll;
  options_.threads = 1;
  const uint64_t index_bytes = BytesOf(true, false);
  bool seen = false;
  const auto note = options_.on_progress;
  options_.on_progress = [&](uint64_t done_bytes, uint64_t total_bytes) {
    note(done_bytes, total_bytes);
    if (done_bytes < index_bytes || seen) return;
    seen = true;
    EXPECT_EQ(done_bytes, index_bytes);
    EXPECT_EQ(ShareOf(SectionKind::kFilter), 1);
    EXPECT_EQ(ShareOf(SectionKind::kPilots), 1);
    EXPECT_LT(ShareOf(SectionKind::kValues), 0.5);
  };
  ASSERT_OK(WarmUpSnapshot(*snapshot_, options_));
  EXPECT_TRUE(seen);
}

TEST_F(WarmUpTest, IsStopped) {
  options_.what = WarmUp::kAll;
  const std::set<std::string> threads_before = ThreadsOfThisProcess();
  size_t chunks = 0;
  for (const unsigned threads : {1, 4}) {
    options_.threads = threads;
    for (int stop_at = 0;; ++stop_at) {
      progress_.clear();
      std::atomic<int> calls{0};
      options_.should_stop = [&] { return calls++ >= stop_at; };
      const absl::Status status = WarmUpSnapshot(*snapshot_, options_);
      EXPECT_TRUE(ThreadsBecome(threads_before)) << "a thread was left behind";
      if (status.ok()) {
        EXPECT_LE(calls, stop_at);
        break;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
      // Each thread may have been at a chunk.
      EXPECT_LE(progress_.size(), stop_at + threads);
      EXPECT_GE(progress_.size(), size_t{1});
      chunks = std::max(chunks, progress_.size());
    }
  }
  EXPECT_GE(chunks, BytesOf(false, true) / kChunkBytes);
}

// Also while it waits for its rate.
TEST_F(WarmUpTest, IsStoppedWhileItWaits) {
  options_.what = WarmUp::kAll;
  options_.bytes_per_s_max = 1;
  for (const unsigned threads : {1, 4}) {
    options_.threads = threads;
    int calls = 0;
    options_.should_stop = [&] { return ++calls == 5; };
    EXPECT_EQ(WarmUpSnapshot(*snapshot_, options_).code(), absl::StatusCode::kCancelled);
  }
}

TEST_F(WarmUpTest, KeepsToItsRate) {
  using Clock = std::chrono::steady_clock;
  constexpr uint64_t kRate = uint64_t{60} << 20;
  options_.what = WarmUp::kAll;
  options_.bytes_per_s_max = kRate;
  for (const unsigned threads : {1, 4}) {
    ASSERT_NO_FATAL_FAILURE(MakeCold());
    progress_.clear();
    options_.threads = threads;
    const auto begin = Clock::now();
    const auto note = [&](uint64_t done_bytes, uint64_t total_bytes) {
      progress_.push_back({done_bytes, total_bytes});
      const std::chrono::duration<double> elapsed = Clock::now() - begin;
      EXPECT_LE(static_cast<double>(done_bytes),
                elapsed.count() * kRate + static_cast<double>(threads * kChunkBytes));
    };
    options_.on_progress = note;
    ASSERT_OK(WarmUpSnapshot(*snapshot_, options_));
    ExpectProgress(BytesOf(true, true), BytesOf(true, true));
  }
}

TEST_F(WarmUpTest, TablesInMemoryNeedNone) {
  for (const MemoryMode mode : {MemoryMode::kHuge, MemoryMode::kLocked}) {
    ASSERT_OK_AND_ASSIGN(const auto snapshot,
                         Snapshot::OpenNewest(PosixFileSystem(), table_->dir(),
                                              {.memory_mode = mode, .segment_map_bytes_max = 0}));
    options_.what = WarmUp::kAll;
    EXPECT_OK(WarmUpSnapshot(*snapshot, options_));
    EXPECT_TRUE(progress_.empty());
  }
}

// What the disk refuses is left to lookups; the rest is read all the same.
TEST_F(WarmUpTest, WhatCannotBeReadIsLeft) {
  InstallFaultGuard();
  const Segment& cut = *snapshot_->segments()[0];
  const Segment& whole = *snapshot_->segments()[1];
  ASSERT_EQ(::truncate(cut.path().c_str(), 4096), 0);
  options_.what = WarmUp::kAll;
  ASSERT_OK(WarmUpSnapshot(*snapshot_, options_));
  for (const SectionKind kind : {SectionKind::kFilter, SectionKind::kValues}) {
    const Section& section = whole.header().section(kind);
    const Residency residency = ResidencyOf(whole, section.offset, section.size_bytes);
    EXPECT_EQ(residency.resident, residency.pages);
  }
  ASSERT_FALSE(progress_.empty());
  EXPECT_LT(progress_.back().done_bytes, progress_.back().total_bytes);
}

TEST(VerifyLevelNameTest, Names) {
  EXPECT_EQ(VerifyLevelName(VerifyLevel::kHeader), "header");
  EXPECT_EQ(VerifyLevelName(VerifyLevel::kIndex), "index");
  EXPECT_EQ(VerifyLevelName(VerifyLevel::kAll), "all");
}

// Each level reads what it says, and leaves the rest to be checked later; in every memory mode, as
// what is in memory can be wrong too.
TEST_F(WarmUpTest, LevelsOfVerification) {
  for (const MemoryMode mode : {MemoryMode::kMmap, MemoryMode::kHuge, MemoryMode::kLocked}) {
    for (const VerifyLevel level : {VerifyLevel::kHeader, VerifyLevel::kIndex, VerifyLevel::kAll}) {
      SCOPED_TRACE(std::string(MemoryModeName(mode)) + " " + std::string(VerifyLevelName(level)));
      ASSERT_OK_AND_ASSIGN(snapshot_,
                           Snapshot::OpenNewest(PosixFileSystem(), table_->dir(),
                                                {.memory_mode = mode, .segment_map_bytes_max = 0}));
      const uint64_t unchecked = snapshot_->unchecked_bytes();
      EXPECT_EQ(unchecked, BytesOf(true, true));
      progress_.clear();
      options_.what = WarmUp::kNone;
      options_.verify = level;
      ASSERT_OK(WarmUpSnapshot(*snapshot_, options_));
      const uint64_t read = BytesOf(level >= VerifyLevel::kIndex, level == VerifyLevel::kAll);
      EXPECT_EQ(snapshot_->unchecked_bytes(), unchecked - read);
      EXPECT_EQ(progress_.empty(), read == 0);
      if (read != 0) ExpectProgress(read, read);
    }
  }
}

// Damage fails what was to be verified; what is only warmed up is quarantined and serves.
TEST_F(WarmUpTest, DamageIsFound) {
  const Segment& segment = *snapshot_->segments()[0];
  for (const SectionKind kind : {SectionKind::kFilter, SectionKind::kValues}) {
    const uint64_t at = segment.header().section(kind).offset + 10;
    const int fd = ::open(segment.path().c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    char byte = 0;
    ASSERT_EQ(::pread(fd, &byte, 1, static_cast<off_t>(at)), 1);
    const char wrong = static_cast<char>(byte ^ 1);
    ASSERT_EQ(::pwrite(fd, &wrong, 1, static_cast<off_t>(at)), 1);
    for (const VerifyLevel level : {VerifyLevel::kHeader, VerifyLevel::kIndex, VerifyLevel::kAll}) {
      SCOPED_TRACE(std::string(SectionName(kind)) + " " + std::string(VerifyLevelName(level)));
      ASSERT_OK_AND_ASSIGN(const auto snapshot, table_->Open());
      options_.what = WarmUp::kAll;
      options_.verify = level;
      std::vector<std::string> said;
      options_.on_damage = [&](const absl::Status& damage) { said.emplace_back(damage.message()); };
      const absl::Status status = WarmUpSnapshot(*snapshot, options_);
      EXPECT_TRUE(snapshot->segments()[0]->quarantined());
      const bool verified = level == VerifyLevel::kAll ||
                            (level == VerifyLevel::kIndex && kind == SectionKind::kFilter);
      EXPECT_EQ(snapshot->unchecked_bytes() == 0, !verified);
      const std::string message = segment.path() + ": section '" + std::string(SectionName(kind)) +
                                  "' is damaged at offset " +
                                  std::to_string(segment.header().section(kind).offset);
      if (!verified) {
        EXPECT_OK(status);
        EXPECT_EQ(said, std::vector<std::string>{message});
        continue;
      }
      EXPECT_TRUE(said.empty());
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_EQ(status.message(), message);
    }
    ASSERT_EQ(::pwrite(fd, &byte, 1, static_cast<off_t>(at)), 1);
    ::close(fd);
  }
}

// Beside one that serves: what both have is not read again; what is damaged does not come to serve,
// at whatever level; and a segment that was quarantined must be sound as a whole.
TEST_F(WarmUpTest, BesideTheOneThatServes) {
  options_.what = WarmUp::kAll;
  ASSERT_OK(WarmUpSnapshot(*snapshot_, options_));
  ASSERT_OK(table_->Append({{"0123456789abcdef", std::string(100 << 10, 'w')}}));
  const auto open_next = [&] {
    return Snapshot::Open(PosixFileSystem(), table_->dir(),
                          *ReadNewestManifest(PosixFileSystem(), table_->dir()), {},
                          snapshot_.get());
  };
  ASSERT_OK_AND_ASSIGN(const auto next, open_next());
  progress_.clear();
  options_.previous = snapshot_.get();
  ASSERT_OK(WarmUpSnapshot(*next, options_));
  uint64_t new_bytes = 0;
  const Segment& added = *next->segments()[0];
  for (const SectionKind kind : {SectionKind::kFilter, SectionKind::kPilots, SectionKind::kLines,
                                 SectionKind::kRecords, SectionKind::kValues}) {
    new_bytes += added.header().section(kind).size_bytes;
  }
  ExpectProgress(new_bytes, new_bytes);
  EXPECT_EQ(next->unchecked_bytes(), 0u);

  const auto flip = [](const Segment& segment, SectionKind kind) {
    const auto at = static_cast<off_t>(segment.header().section(kind).offset);
    const int fd = ::open(segment.path().c_str(), O_RDWR | O_CLOEXEC);
    char byte = 0;
    EXPECT_EQ(::pread(fd, &byte, 1, at), 1);
    byte = static_cast<char>(byte ^ 4);
    EXPECT_EQ(::pwrite(fd, &byte, 1, at), 1);
    ::close(fd);
  };
  flip(added, SectionKind::kPilots);
  options_.what = WarmUp::kIndex;
  ASSERT_OK_AND_ASSIGN(const auto damaged, open_next());
  EXPECT_EQ(WarmUpSnapshot(*damaged, options_).code(), absl::StatusCode::kDataLoss);
  flip(added, SectionKind::kPilots);
  ASSERT_OK_AND_ASSIGN(const auto mended, open_next());
  EXPECT_OK(WarmUpSnapshot(*mended, options_));

  // In the generation that serves, a data section goes bad and is found to be.
  options_.what = WarmUp::kNone;
  const Segment& bad = *snapshot_->segments()[0];
  flip(bad, SectionKind::kValues);
  EXPECT_EQ(bad.CheckBlocks(SectionKind::kValues, 0, kChecksumBlockBytes).code(),
            absl::StatusCode::kDataLoss);
  ASSERT_TRUE(bad.quarantined());
  ASSERT_OK_AND_ASSIGN(const auto still_bad, open_next());
  EXPECT_EQ(WarmUpSnapshot(*still_bad, options_).code(), absl::StatusCode::kDataLoss);
  flip(bad, SectionKind::kValues);
  ASSERT_OK_AND_ASSIGN(const auto sound_again, open_next());
  EXPECT_OK(WarmUpSnapshot(*sound_again, options_));
  EXPECT_FALSE(sound_again->quarantined());
}

}  // namespace
}  // namespace latchkey::test
