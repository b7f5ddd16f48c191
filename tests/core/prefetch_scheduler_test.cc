// Against files of the machine. Where its file system keeps every page in memory (tmpfs), these
// tests fail and say so.
#include "core/prefetch/prefetch_scheduler.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/io/fault_guard.h"
#include "tests/support/cold_file.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Waits for what another thread does.
bool Soon(const std::function<bool()>& happened) {
  for (int i = 0; i < 20'000; ++i) {
    if (happened()) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

std::string FileName(const Segment& segment) {
  return segment.path().substr(segment.path().rfind('/') + 1);
}

void Warm(const Segment& segment, SectionKind kind) {
  const Section& section = segment.header().section(kind);
  const volatile uint8_t* const data = segment.file().data();
  for (uint64_t at = section.offset; at < section.end(); at += 512) (void)data[at];
}

// Whether a touch there is said to read its page alone.
bool IsRandom(const Segment& segment, SectionKind kind) {
  const auto at =
      reinterpret_cast<uintptr_t>(segment.file().data()) + segment.header().section(kind).offset;
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool chosen = false;
  while (std::getline(maps, line)) {
    unsigned long begin, end;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      chosen = begin <= at && at < end;
    } else if (chosen && line.starts_with("VmFlags:")) {
      return line.find(" rr") != std::string::npos;
    }
  }
  ADD_FAILURE() << "not mapped";
  return false;
}

class PrefetchSchedulerTest : public SeededTest {
 protected:
  PrefetchSchedulerTest() {
    InstallFaultGuard();
    options_.period = milliseconds(1);
    options_.budget = milliseconds(5);
    options_.on_event = [this](const std::string& event) {
      const std::lock_guard<std::mutex> lock(mutex_);
      events_.push_back(event);
    };
  }

  std::unique_ptr<TestTable> Make(FileSystem& files, const std::string& data_dir,
                                  int segments = 1) {
    auto table = std::make_unique<TestTable>(files, data_dir, random_);
    table->options.layout = LayoutChoice::kPointer;
    table->options.schema.value_kind = ValueKind::kBytes;
    for (int i = 0; i < segments; ++i) Append(table.get(), i == 0);
    return table;
  }
  void Append(TestTable* table, bool first = false) {
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, 3000, 16)) {
      rows.push_back({std::move(key), random_.Bytes(random_.Below(200))});
    }
    ASSERT_OK(first ? table->Build(rows) : table->Append(rows));
  }

  std::shared_ptr<const Snapshot> Open(const TestTable& table,
                                       const SnapshotOptions& options = {}) {
    auto snapshot = Snapshot::OpenNewest(PosixFileSystem(), table.dir(), options);
    EXPECT_OK(snapshot);
    return snapshot.ok() ? *std::move(snapshot) : nullptr;
  }

  std::vector<std::string> Events() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return events_;
  }

  TempDir dir_;
  PrefetchSchedulerOptions options_;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> events_;
};

// The share of a section as reported; below zero if it is not known.
double ShareOf(const PrefetchScheduler& scheduler, std::string_view section) {
  for (const TableReport& table : scheduler.Report()) {
    for (const SectionReport& report : table.sections) {
      if (report.section == section) return report.resident_share.value_or(-1);
    }
  }
  return -2;
}

TEST_F(PrefetchSchedulerTest, ReportsNothingAtFirst) {
  const PrefetchScheduler scheduler(options_);
  EXPECT_TRUE(scheduler.Report().empty());
}

TEST_F(PrefetchSchedulerTest, WatchMeasuresAndAdvisesAtOnce) {
  const auto table = Make(PosixFileSystem(), dir_.Path("data"), 2);
  const auto snapshot = Open(*table);
  for (const auto& segment : snapshot->segments()) {
    ASSERT_NO_FATAL_FAILURE(MakeCold(segment->file()));
    // So that what is touched comes alone.
    AdvisePages(segment->file(), 0, segment->file().size_bytes(), PageAdvice::kRandom);
  }
  const Segment& newest = *snapshot->segments()[0];
  Warm(newest, SectionKind::kPilots);
  Warm(newest, SectionKind::kRecords);
  // It is all done before the first round.
  options_.period = std::chrono::hours(1);
  PrefetchScheduler scheduler(options_);
  scheduler.Watch("t", snapshot);
  const std::vector<TableReport> reports = scheduler.Report();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].table, "t");
  EXPECT_EQ(reports[0].generation, snapshot->generation());
  EXPECT_EQ(reports[0].probe, ChooseResidencyProbe(newest.file()));
  EXPECT_FALSE(reports[0].thrashing);
  EXPECT_TRUE(reports[0].quarantined.empty());
  // Of each segment: index and data, in the order of the file.
  constexpr SectionKind kKinds[] = {SectionKind::kFilter, SectionKind::kPilots, SectionKind::kLines,
                                    SectionKind::kRecords, SectionKind::kValues};
  ASSERT_EQ(reports[0].sections.size(), 10u);
  for (size_t i = 0; i < 10; ++i) {
    const Segment& segment = *snapshot->segments()[i / 5];
    const SectionKind kind = kKinds[i % 5];
    const SectionReport& report = reports[0].sections[i];
    SCOPED_TRACE(report.segment + " " + std::string(report.section));
    const bool warm = i == 1 || i == 3;
    EXPECT_EQ(report.segment, FileName(segment));
    EXPECT_EQ(report.section, SectionName(kind));
    EXPECT_EQ(report.size_bytes, segment.header().section(kind).size_bytes);
    ASSERT_TRUE(report.resident_share.has_value());
    EXPECT_EQ(*report.resident_share, warm ? 1.0 : 0.0);
    EXPECT_GE(report.evicted_share, 0.0);
    EXPECT_LE(report.evicted_share, 1.0);
    const bool random = IsDataSection(kind) && !warm;
    EXPECT_EQ(report.advice, random ? PageAdvice::kRandom : PageAdvice::kNormal);
    EXPECT_EQ(IsRandom(segment, kind), random);
  }
  // One line, which says how residency is asked.
  EXPECT_THAT(
      Events(),
      ElementsAre(AllOf(
          HasSubstr("table=t "), HasSubstr("generation=" + std::to_string(snapshot->generation())),
          HasSubstr("residency_probe=" + std::string(ResidencyProbeName(reports[0].probe))))));
}

TEST_F(PrefetchSchedulerTest, SharesFollowWhatIsInMemory) {
  const auto table = Make(PosixFileSystem(), dir_.Path("data"));
  const auto snapshot = Open(*table);
  const Segment& segment = *snapshot->segments()[0];
  PrefetchScheduler scheduler(options_);
  scheduler.Watch("t", snapshot);
  for (int round = 0; round < 2; ++round) {
    ASSERT_NO_FATAL_FAILURE(MakeCold(segment.file()));
    for (const std::string_view section : {"filter", "pilots", "lines", "records", "values"}) {
      EXPECT_TRUE(Soon([&] { return ShareOf(scheduler, section) == 0; })) << section;
    }
    AdvisePages(segment.file(), 0, segment.file().size_bytes(), PageAdvice::kRandom);
    Warm(segment, SectionKind::kLines);
    EXPECT_TRUE(Soon([&] { return ShareOf(scheduler, "lines") == 1; }));
    EXPECT_EQ(ShareOf(scheduler, "values"), 0);
    Warm(segment, SectionKind::kValues);
    EXPECT_TRUE(Soon([&] { return ShareOf(scheduler, "values") == 1; }));
  }
}

// Sections that are too large to be measured whole: by some of their pages.
TEST_F(PrefetchSchedulerTest, LargeSectionsAreMeasuredByWindows) {
  TestTable table(PosixFileSystem(), dir_.Path("data"), random_);
  table.options.schema.value_kind = ValueKind::kBytes;
  std::vector<Row> rows;
  for (std::string& key : DistinctKeys(random_, 86, 16)) {
    rows.push_back({std::move(key), std::string(400 << 10, 'v')});
  }
  ASSERT_OK(table.Build(rows));
  const auto snapshot = Open(table);
  const Segment& segment = *snapshot->segments()[0];
  ASSERT_GT(segment.header().section(SectionKind::kValues).size_bytes, uint64_t{32} << 20);
  ASSERT_NO_FATAL_FAILURE(MakeCold(segment.file()));
  PrefetchScheduler scheduler(options_);
  scheduler.Watch("t", snapshot);
  EXPECT_EQ(ShareOf(scheduler, "values"), 0);
  for (const SectionKind kind : {SectionKind::kValues, SectionKind::kHashes}) Warm(segment, kind);
  // But for what a window may reach beyond the section.
  EXPECT_TRUE(Soon([&] { return ShareOf(scheduler, "values") > 0.98; }));
  // Half of it, every other 64 KiB, without what the kernel would read ahead.
  const Section& values = segment.header().section(SectionKind::kValues);
  ASSERT_NO_FATAL_FAILURE(MakeCold(segment.file()));
  const int fd = ::open(segment.path().c_str(), O_RDONLY);
  ASSERT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM), 0);
  std::vector<char> block(64 << 10);
  for (uint64_t at = values.offset; at + block.size() <= values.end(); at += 2 * block.size()) {
    ASSERT_EQ(::pread(fd, block.data(), block.size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(block.size()));
  }
  ::close(fd);
  EXPECT_TRUE(Soon([&] { return std::abs(ShareOf(scheduler, "values") - 0.5) < 0.03; }))
      << ShareOf(scheduler, "values");
}

TEST_F(PrefetchSchedulerTest, ANewerGenerationTakesThePlace) {
  const auto table = Make(PosixFileSystem(), dir_.Path("data"));
  PrefetchScheduler scheduler(options_);
  auto first = Open(*table);
  scheduler.Watch("t", first);
  ASSERT_NO_FATAL_FAILURE(Append(table.get()));
  const auto second = Open(*table);
  ASSERT_GT(second->generation(), first->generation());
  scheduler.Watch("t", second);
  for (const bool held : {true, false}) {
    if (!held) first = nullptr;
    const auto reports = scheduler.Report();
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_EQ(reports[0].generation, second->generation());
    EXPECT_EQ(reports[0].sections.size(), 10u);
  }
}

TEST_F(PrefetchSchedulerTest, TablesAreSortedAndThoseThatAreGoneAreDropped) {
  PrefetchScheduler scheduler(options_);
  std::vector<std::shared_ptr<const Snapshot>> snapshots;
  std::vector<std::unique_ptr<TestTable>> tables;
  for (const std::string name : {"m", "z", "a"}) {
    tables.push_back(Make(PosixFileSystem(), dir_.Path(name)));
    snapshots.push_back(Open(*tables.back()));
    scheduler.Watch(name, snapshots.back());
  }
  const auto names = [&] {
    std::vector<std::string> result;
    for (const TableReport& report : scheduler.Report()) result.push_back(report.table);
    return result;
  };
  EXPECT_THAT(names(), ElementsAre("a", "m", "z"));
  // It does not keep what it watches, but for the time of a round.
  const std::weak_ptr<const Snapshot> gone = snapshots[0];
  snapshots[0] = nullptr;
  EXPECT_TRUE(Soon([&] { return gone.expired(); }));
  EXPECT_THAT(names(), ElementsAre("a", "z"));
  // The others are still measured, and the name can be had again.
  ASSERT_NO_FATAL_FAILURE(MakeCold(snapshots[2]->segments()[0]->file()));
  EXPECT_TRUE(Soon([&] { return ShareOf(scheduler, "lines") == 0; }));
  const auto again = Open(*tables[0]);
  scheduler.Watch("m", again);
  EXPECT_THAT(names(), ElementsAre("a", "m", "z"));
}

TEST_F(PrefetchSchedulerTest, QuarantinedFilesAreReported) {
  const auto table = Make(PosixFileSystem(), dir_.Path("data"), 3);
  const auto snapshot = Open(*table);
  PrefetchScheduler scheduler(options_);
  scheduler.Watch("t", snapshot);
  const Segment& victim = *snapshot->segments()[1];
  EXPECT_TRUE(scheduler.Report()[0].quarantined.empty());
  EXPECT_THAT(Events(), Not(Contains(HasSubstr("quarantined"))));
  ASSERT_EQ(::truncate(victim.path().c_str(), 4096), 0);
  Warm(victim, SectionKind::kValues);
  ASSERT_TRUE(victim.quarantined());
  EXPECT_THAT(scheduler.Report()[0].quarantined, ElementsAre(FileName(victim)));
  const auto said = [&] {
    size_t times = 0;
    for (const std::string& event : Events()) {
      if (!event.starts_with("quarantined")) continue;
      ++times;
      EXPECT_THAT(event, AllOf(HasSubstr("table=t "), HasSubstr("segment=" + FileName(victim))));
    }
    return times;
  };
  EXPECT_TRUE(Soon([&] { return said() == 1; }));
  // Once, in however many rounds: the other segments are measured on meanwhile.
  ASSERT_NO_FATAL_FAILURE(MakeCold(snapshot->segments()[0]->file()));
  EXPECT_TRUE(Soon([&] { return ShareOf(scheduler, "records") == 0; }));
  EXPECT_EQ(said(), 1u);
}

// What is in memory for good needs no watching.
TEST_F(PrefetchSchedulerTest, TablesInMemoryHaveNoSections) {
  const auto table = Make(PosixFileSystem(), dir_.Path("data"));
  PrefetchScheduler scheduler(options_);
  for (const MemoryMode mode : {MemoryMode::kHuge, MemoryMode::kLocked}) {
    SCOPED_TRACE(MemoryModeName(mode));
    const auto snapshot = Open(*table, {.memory_mode = mode, .segment_map_bytes_max = 0});
    ASSERT_NE(snapshot, nullptr);
    scheduler.Watch("t", snapshot);
    const auto reports = scheduler.Report();
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_EQ(reports[0].generation, snapshot->generation());
    EXPECT_TRUE(reports[0].sections.empty());
    EXPECT_FALSE(IsRandom(*snapshot->segments()[0], SectionKind::kValues));
  }
}

// Where residency can't be asked: by what lookups had to wait for.
TEST_F(PrefetchSchedulerTest, WithoutAProbeLookupsAreTheSign) {
  MemoryFileSystem files;
  const auto table = Make(files, "data");
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table->Open());
  std::mutex mutex;
  FetchCost cost;
  options_.cost_of = [&](const std::string& name) {
    EXPECT_EQ(name, "t");
    const std::lock_guard<std::mutex> lock(mutex);
    return cost;
  };
  PrefetchScheduler scheduler(options_);
  scheduler.Watch("t", snapshot);
  const auto reports = scheduler.Report();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].probe, ResidencyProbe::kFaults);
  ASSERT_EQ(reports[0].sections.size(), 5u);
  for (const SectionReport& report : reports[0].sections) {
    EXPECT_FALSE(report.resident_share.has_value()) << report.section;
  }
  EXPECT_THAT(Events(), Contains(HasSubstr("residency_probe=faults")));
  // Not known counts as cold.
  EXPECT_EQ(reports[0].sections[2].advice, PageAdvice::kRandom);
  const auto look_up = [&](const FetchCost& more) {
    const std::lock_guard<std::mutex> lock(mutex);
    cost += more;
  };
  look_up({.places = 100'000});
  EXPECT_TRUE(Soon([&] { return ShareOf(scheduler, "lines") == 1; }));
  look_up({.places = 100'000, .read = 10'000, .faults = 25'000});
  EXPECT_TRUE(Soon([&] { return ShareOf(scheduler, "lines") == 0.75; }));
  look_up({.places = 100'000, .read = 50'000, .faults = 25'000});
  EXPECT_TRUE(Soon([&] { return ShareOf(scheduler, "records") == 0.5; }));
  // A fault may read more pages than there were places.
  look_up({.places = 100'000, .read = 5'000'000});
  EXPECT_TRUE(Soon([&] { return ShareOf(scheduler, "values") == 0; }));
  // It says nothing about what all lookups read.
  EXPECT_EQ(ShareOf(scheduler, "filter"), -1);
  EXPECT_EQ(ShareOf(scheduler, "pilots"), -1);
}

// Watching, asking and ending from several threads.
TEST_F(PrefetchSchedulerTest, ManyThreads) {
  const auto table = Make(PosixFileSystem(), dir_.Path("data"));
  for (int round = 0; round < 5; ++round) {
    PrefetchScheduler scheduler(options_);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const std::string name = "t" + std::to_string(t);
        for (int i = 0; i < 20; ++i) {
          const auto snapshot = Open(*table);
          scheduler.Watch(name, snapshot);
          bool found = false;
          for (const TableReport& report : scheduler.Report()) found |= report.table == name;
          EXPECT_TRUE(found);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(Soon([&] { return scheduler.Report().empty(); }));
  }
}

}  // namespace
}  // namespace latchkey::test
