// Against files of the machine. Where its file system keeps every page in memory (tmpfs), these
// tests fail and say so.
#include "core/prefetch/prefetcher.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/prefetch/page_cache.h"
#include "tests/support/cold_file.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

const auto kPageBytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
constexpr uint64_t kPages = 600;  // of each file; the last of them not full
constexpr uint64_t kRunPages = 32;
constexpr uint64_t kRangesMax = 8;  // asked for after one that has to be read

using Pages = std::set<uint64_t>;

Pages ResidentPages(const MappedFile& file) {
  const ResidencyProbe probe = ChooseResidencyProbe(file);
  Pages resident;
  for (uint64_t page = 0; page < kPages; ++page) {
    const auto residency = MeasureResidency(file, probe, page * kPageBytes, kPageBytes);
    EXPECT_TRUE(residency.has_value());
    if (residency && residency->resident > 0) resident.insert(page);
  }
  return resident;
}

void Touch(const MappedFile& file, uint64_t page) {
  (void)*static_cast<const volatile uint8_t*>(file.data() + page * kPageBytes);
}

// What was asked for is under way.
void ExpectSoonResident(const MappedFile& file, const Pages& wanted) {
  Pages resident;
  for (int i = 0; i < 5000; ++i) {
    resident = ResidentPages(file);
    if (resident == wanted) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(resident, wanted);
}

class PrefetcherTest : public SeededTest {
 protected:
  PrefetcherTest() {
    for (const char* name : {"first", "second"}) {
      const std::string path = dir_.Path(name);
      const std::string bytes = random_.Bytes((kPages - 1) * kPageBytes + 77);
      const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644);
      EXPECT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
      EXPECT_EQ(::fsync(fd), 0);
      ::close(fd);
      auto file = PosixFileSystem().Map(path);
      EXPECT_OK(file);
      if (file.ok()) files_.push_back(*std::move(file));
    }
  }

  void SetUp() override {
    ASSERT_EQ(files_.size(), 2u);
    for (const auto& file : files_) {
      AdvisePages(*file, 0, file->size_bytes(), PageAdvice::kRandom);
      ASSERT_NO_FATAL_FAILURE(MakeCold(*file));
    }
  }

  void WantPage(uint64_t page, size_t file = 0) {
    prefetcher_.Want(*files_[file], files_[file]->data() + page * kPageBytes, 1);
  }
  // Asks and says how many pages that were.
  uint64_t PagesOfAsking(bool may_wait = true, bool expected = true) {
    const uint64_t before = prefetcher_.pages_asked();
    EXPECT_EQ(prefetcher_.Ask(may_wait), expected);
    return prefetcher_.pages_asked() - before;
  }

  TempDir dir_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  Prefetcher prefetcher_;
};

// Ranges of all lengths in two files, in any order, overlapping, several waves.
TEST_F(PrefetcherTest, ExactlyTheWantedPages) {
  for (int round = 0; round < 6; ++round) {
    for (const auto& file : files_) ASSERT_NO_FATAL_FAILURE(MakeCold(*file));
    const uint64_t before = prefetcher_.pages_asked();
    // So much room that it forgets hardly any page.
    prefetcher_.Start(100'000);
    std::vector<Pages> wanted(2);
    for (int wave = 0; wave < 5; ++wave) {
      for (uint64_t i = random_.Below(60); i > 0; --i) {
        const size_t f = random_.Below(2);
        const uint64_t begin = random_.Below(files_[f]->size_bytes());
        uint64_t size_bytes = random_.Between(1, random_.OneIn(20)  ? 50 * kPageBytes
                                                 : random_.OneIn(3) ? 3 * kPageBytes
                                                                    : 100);
        size_bytes = std::min(size_bytes, files_[f]->size_bytes() - begin);
        prefetcher_.Want(*files_[f], files_[f]->data() + begin, size_bytes);
        for (uint64_t page = begin / kPageBytes; page * kPageBytes < begin + size_bytes; ++page) {
          wanted[f].insert(page);
        }
      }
      EXPECT_TRUE(prefetcher_.Ask(/*may_wait=*/true));
    }
    for (size_t f = 0; f < 2; ++f) ExpectSoonResident(*files_[f], wanted[f]);
    const uint64_t asked = prefetcher_.pages_asked() - before;
    EXPECT_GE(asked, wanted[0].size() + wanted[1].size());
    EXPECT_LE(asked, wanted[0].size() + wanted[1].size() + 5);
  }
}

TEST_F(PrefetcherTest, EachPageOnceABatch) {
  const auto want_twice = [&] {
    for (int i = 0; i < 2; ++i) {
      for (uint64_t page = 0; page < kPages; page += 3) WantPage(page);
    }
  };
  prefetcher_.Start(kPages / 3);
  want_twice();
  EXPECT_EQ(PagesOfAsking(), kPages / 3);
  // Later waves of the batch: not again, but for a few that were forgotten.
  want_twice();
  EXPECT_LE(PagesOfAsking(), kPages / 3 / 2);
  EXPECT_EQ(PagesOfAsking(), 0u) << "a wave without wants";
  // The other file's pages are others, though their numbers are the same.
  for (uint64_t page = 0; page < kPages; page += 3) WantPage(page, 1);
  EXPECT_EQ(PagesOfAsking(), kPages / 3);
  // Another batch asks anew: who knows what was evicted meanwhile.
  prefetcher_.Start(kPages / 3);
  want_twice();
  EXPECT_EQ(PagesOfAsking(), kPages / 3);
}

// What was wanted before the batch began is none of it.
TEST_F(PrefetcherTest, StartDropsTheWave) {
  prefetcher_.Start(10);
  WantPage(5);
  prefetcher_.Start(10);
  EXPECT_EQ(PagesOfAsking(), 0u);
  EXPECT_EQ(ResidentPages(*files_[0]), Pages());
}

TEST_F(PrefetcherTest, WhatLiesOutsideTheFile) {
  const MappedFile& file = *files_[0];
  const uint8_t* const end = file.data() + file.size_bytes();
  prefetcher_.Start(100);
  prefetcher_.Want(file, file.data(), 0);
  prefetcher_.Want(file, file.data() - 1, 1);
  prefetcher_.Want(file, end, 1);
  prefetcher_.Want(file, end + kPageBytes, 100 * kPageBytes);
  prefetcher_.Want(file, nullptr, 1);
  MemoryFileSystem in_memory;
  in_memory.Put("bytes", std::string(100'000, 'x'));
  ASSERT_OK_AND_ASSIGN(const auto bytes, in_memory.Map("bytes"));
  prefetcher_.Want(*bytes, bytes->data(), 100'000);
  EXPECT_EQ(PagesOfAsking(), 0u);
  EXPECT_EQ(ResidentPages(file), Pages());
  // Of ranges that reach beyond it, what lies within.
  prefetcher_.Want(file, end - 1, 1000 * kPageBytes);
  prefetcher_.Want(file, end - 2 * kPageBytes, UINT64_MAX);
  EXPECT_EQ(PagesOfAsking(), 3u);
  ExpectSoonResident(file, {kPages - 3, kPages - 2, kPages - 1});
}

// The kernel cuts long hints, so there are several for a long range.
TEST_F(PrefetcherTest, LongRangesAreReadToTheirEnd) {
  prefetcher_.Start(1);
  prefetcher_.Want(*files_[0], files_[0]->data() + 17 * kPageBytes, 500 * kPageBytes);
  EXPECT_EQ(PagesOfAsking(), 500u);
  Pages wanted;
  for (uint64_t page = 17; page < 517; ++page) wanted.insert(page);
  ExpectSoonResident(*files_[0], wanted);
}

// --- Without waiting ---

TEST_F(PrefetcherTest, GivesUpAfterEightRanges) {
  // In any order: the file's counts.
  std::vector<uint64_t> pages;
  for (uint64_t page = 0; page < kPages; page += 2) pages.push_back(page);
  for (size_t i = pages.size() - 1; i > 0; --i) std::swap(pages[i], pages[random_.Below(i + 1)]);
  prefetcher_.Start(pages.size());
  for (const uint64_t page : pages) WantPage(page);
  EXPECT_EQ(PagesOfAsking(/*may_wait=*/false, false), kRangesMax);
  ExpectSoonResident(*files_[0], {0, 2, 4, 6, 8, 10, 12, 14});
  // The rest of that wave is gone.
  EXPECT_EQ(PagesOfAsking(/*may_wait=*/false, true), 0u);
}

// Neighbours are one range, up to 32 pages.
TEST_F(PrefetcherTest, NeighboursGoTogether) {
  prefetcher_.Start(kPages);
  for (uint64_t page = 100; page < kPages; ++page) WantPage(page);
  EXPECT_EQ(PagesOfAsking(/*may_wait=*/false, false), kRangesMax * kRunPages);
  Pages wanted;
  for (uint64_t page = 100; page < 100 + kRangesMax * kRunPages; ++page) wanted.insert(page);
  ExpectSoonResident(*files_[0], wanted);
}

TEST_F(PrefetcherTest, FalseExactlyIfSomethingHadToBeRead) {
  for (int round = 0; round < 16; ++round) {
    ASSERT_NO_FATAL_FAILURE(MakeCold(*files_[0]));
    // Every other page, so that each is a range; few or none of them cold.
    std::vector<uint64_t> pages, cold;
    const uint64_t one_in = round % 4 == 0 ? UINT64_MAX : random_.Between(1, 200);
    for (uint64_t page = random_.Below(2); page < kPages; page += 2) {
      pages.push_back(page);
      if (one_in != UINT64_MAX && random_.OneIn(one_in)) {
        cold.push_back(pages.size());
      } else {
        Touch(*files_[0], page);
      }
    }
    prefetcher_.Start(pages.size());
    for (const uint64_t page : pages) WantPage(page);
    const uint64_t asked = PagesOfAsking(/*may_wait=*/false, cold.empty());
    if (cold.empty()) {
      EXPECT_EQ(asked, pages.size());
    } else {
      EXPECT_GE(asked, cold.front());
      EXPECT_LT(asked, cold.front() + kRangesMax);
    }
  }
}

// --- What a thread's lookups cost ---

TEST_F(PrefetcherTest, FaultsAndReadsOfThisThread) {
  const FetchCost before = ThreadFetchCost();
  Touch(*files_[0], 3);
  Touch(*files_[0], 5);
  const FetchCost two = ThreadFetchCost() - before;
  EXPECT_EQ(two.faults, 2u);
  EXPECT_EQ(two.read, 2u);
  EXPECT_EQ(two.keys + two.places + two.asked, 0u);
  // Warm ones cost nothing, nor do those of another thread; a hint reads, but is no fault.
  Touch(*files_[0], 3);
  std::thread([&] {
    const FetchCost begin = ThreadFetchCost();
    Touch(*files_[0], 10);
    EXPECT_EQ((ThreadFetchCost() - begin).faults, 1u);
  }).join();
  prefetcher_.Start(1);
  WantPage(20);
  WantPage(3);
  EXPECT_TRUE(prefetcher_.Ask(/*may_wait=*/true));
  const FetchCost three = ThreadFetchCost() - before;
  EXPECT_EQ(three.faults, 2u);
  EXPECT_EQ(three.read, 3u);
}

}  // namespace
}  // namespace latchkey::test
