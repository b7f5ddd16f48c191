// The guard alone: real files, cut under their maps.
#include "core/io/fault_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/bytes.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kSpan = uint64_t{2} << 20;  // what is given up with a lost page

// Reads that the compiler can't leave out, move or share.
uint8_t ByteAt(const uint8_t* at) { return *const_cast<const volatile uint8_t*>(at); }

// A file of the machine, full of bytes that are not zero.
class File {
 public:
  File(const std::string& path, Random& random, uint64_t size_bytes) : bytes_(size_bytes, 0) {
    for (char& byte : bytes_) byte = static_cast<char>(random.Between(1, 255));
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0644);
    EXPECT_GE(fd_, 0);
    EXPECT_EQ(::pwrite(fd_, bytes_.data(), bytes_.size(), 0), static_cast<ssize_t>(bytes_.size()));
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  uint64_t size_bytes() const { return bytes_.size(); }
  uint8_t byte(uint64_t at) const { return static_cast<uint8_t>(bytes_[at]); }
  void Cut(uint64_t size_bytes) const {
    ASSERT_EQ(::ftruncate(fd_, static_cast<off_t>(size_bytes)), 0);
  }

 private:
  std::string bytes_;
  int fd_;
};

// A map of a whole file, guarded unless it is said not to be.
class Map {
 public:
  explicit Map(const File& file, bool guarded = true, uint8_t* at = nullptr)
      : size_bytes_(file.size_bytes()) {
    void* const data = ::mmap(at, size_bytes_, PROT_READ,
                              MAP_SHARED | (at != nullptr ? MAP_FIXED : 0), file.fd(), 0);
    if (data == MAP_FAILED) std::abort();
    data_ = static_cast<uint8_t*>(data);
    if (guarded) range_.emplace(data_, size_bytes_);
  }
  ~Map() {
    range_.reset();
    ::munmap(data_, size_bytes_);
  }
  Map(const Map&) = delete;
  Map& operator=(const Map&) = delete;

  const uint8_t* data() const { return data_; }
  uint8_t operator[](uint64_t at) const { return ByteAt(data_ + at); }
  bool lost() const { return range_->lost(); }
  void StopGuarding() { range_.reset(); }

  // Where the span that the byte lies in begins and ends, in the file.
  uint64_t SpanBegin(uint64_t at) const {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(data_ + at) & ~(kSpan - 1);
    const auto data = reinterpret_cast<uintptr_t>(data_);
    return begin < data ? 0 : begin - data;
  }
  uint64_t SpanEnd(uint64_t at) const {
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data_ + at) | (kSpan - 1)) + 1;
    return end - reinterpret_cast<uintptr_t>(data_);
  }

 private:
  uint64_t size_bytes_;
  uint8_t* data_;
  std::optional<GuardedRange> range_;
};

class FaultGuardTest : public SeededTest {
 protected:
  std::unique_ptr<File> MakeFile(uint64_t size_bytes) {
    return std::make_unique<File>(folder_.Path(std::to_string(files_++)), random_, size_bytes);
  }

  TempDir folder_;
  int files_ = 0;
};

// One thread, one fault after the other. Each takes its span, and no byte beyond.
TEST_F(FaultGuardTest, LostPagesReadAsZerosAndOthersAsTheyAre) {
  InstallFaultGuard();
  const auto file = MakeFile(5 * kSpan + 3 * kPage + 123);
  const Map map(*file);
  const uint64_t cut = 3 * kSpan;
  file->Cut(cut);
  EXPECT_FALSE(map.lost());  // nobody has looked
  for (uint64_t at = 0; at < cut; at += kPage) ASSERT_EQ(map[at], file->byte(at));
  EXPECT_FALSE(map.lost());
  const uint64_t epoch = FaultEpoch();

  const uint64_t first = cut + 100;
  EXPECT_EQ(map[first], 0);
  EXPECT_TRUE(map.lost());
  EXPECT_EQ(FaultEpoch(), epoch + 1);
  // All of its span is gone, with what the file still has.
  for (uint64_t at = map.SpanBegin(first); at < std::min(map.SpanEnd(first), file->size_bytes());
       at += kPage) {
    ASSERT_EQ(map[at], 0) << at;
  }
  EXPECT_EQ(FaultEpoch(), epoch + 1);
  for (uint64_t at = 0; at < map.SpanBegin(first); ++at) ASSERT_EQ(map[at], file->byte(at));

  const uint64_t last = file->size_bytes() - 1;
  ASSERT_GE(last, map.SpanEnd(first));
  EXPECT_EQ(map[last], 0);
  EXPECT_EQ(FaultEpoch(), epoch + 2);
  for (uint64_t at = cut; at < file->size_bytes(); at += 64) ASSERT_EQ(map[at], 0);
  for (uint64_t at = 0; at < map.SpanBegin(first); at += 64) ASSERT_EQ(map[at], file->byte(at));
}

// One read that both pages of are lost: it faults twice before it is done.
TEST_F(FaultGuardTest, AReadAcrossTwoSpans) {
  InstallFaultGuard();
  const auto file = MakeFile(3 * kSpan);
  const Map map(*file);
  const uint64_t edge = map.SpanEnd(kSpan / 2);
  file->Cut(0);
  const uint64_t epoch = FaultEpoch();
  const volatile uint64_t across = Load<uint64_t>(map.data() + edge - 4);
  EXPECT_EQ(across, 0u);
  EXPECT_EQ(FaultEpoch(), epoch + 2);
}

TEST_F(FaultGuardTest, PagesThatComeBackStayLost) {
  InstallFaultGuard();
  const auto file = MakeFile(3 * kPage);
  const Map map(*file), other(*file);
  file->Cut(kPage);
  EXPECT_EQ(map[2 * kPage], 0);
  file->Cut(3 * kPage);
  const char byte = 'x';
  ASSERT_EQ(::pwrite(file->fd(), &byte, 1, 2 * kPage), 1);
  EXPECT_EQ(other[2 * kPage], 'x');
  EXPECT_FALSE(other.lost());
  EXPECT_EQ(map[2 * kPage], 0);
  EXPECT_TRUE(map.lost());
}

TEST_F(FaultGuardTest, ErrnoStaysAsItWas) {
  InstallFaultGuard();
  const auto file = MakeFile(kPage);
  const Map map(*file);
  file->Cut(0);
  errno = 1234;
  EXPECT_EQ(map[0], 0);
  EXPECT_EQ(errno, 1234);
  EXPECT_TRUE(map.lost());
}

// All threads fault at once: on the same page, and on pages of their own.
TEST_F(FaultGuardTest, ThreadsAtOnce) {
  InstallFaultGuard();
  constexpr size_t kThreads = 4;
  for (int round = 0; round < 20; ++round) {
    const auto shared_file = MakeFile(3 * kPage);
    const Map shared(*shared_file);
    std::vector<std::unique_ptr<File>> files;
    std::vector<std::unique_ptr<Map>> maps;
    for (size_t i = 0; i < kThreads; ++i) {
      files.push_back(MakeFile(2 * kPage));
      maps.push_back(std::make_unique<Map>(*files[i]));
      files[i]->Cut(0);
    }
    shared_file->Cut(kPage);
    const uint64_t epoch = FaultEpoch();
    std::latch ready(kThreads);
    std::atomic<int> not_zero = 0, not_lost = 0;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        ready.arrive_and_wait();
        not_zero += shared[2 * kPage] != 0;
        not_lost += !shared.lost();
        not_zero += (*maps[i])[i % 2 * kPage] != 0;
        not_lost += !maps[i]->lost();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(not_zero, 0);
    EXPECT_EQ(not_lost, 0);
    EXPECT_GE(FaultEpoch(), epoch + 1 + kThreads);
    EXPECT_LE(FaultEpoch(), epoch + 2 * kThreads);
  }
}

// Ranges come and go on one thread while others fault. What lies beside the ranges is left alone.
TEST_F(FaultGuardTest, FaultsWhileRangesComeAndGo) {
  InstallFaultGuard();
  const auto file = MakeFile(kPage);
  // Low, high and all around what faults: an end of one with the begin of another would hold it.
  constexpr uint64_t kPages = 64;
  auto* const area = static_cast<uint8_t*>(
      ::mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(area, MAP_FAILED);
  std::fill_n(area, kPages * kPage, 1);
  std::atomic<bool> stop = false;
  std::vector<std::thread> coming_and_going;
  for (int i = 0; i < 2; ++i) {
    coming_and_going.emplace_back([&] {
      while (!stop) {
        const GuardedRange low(area, kPage);
        { const GuardedRange high(area + (kPages - 1) * kPage, kPage); }
        const GuardedRange next(area + kPage, kPage);
      }
    });
  }
  file->Cut(0);
  for (int round = 0; round < 2000; ++round) {
    const Map map(*file, true, area + kPages / 2 * kPage);
    ASSERT_EQ(map[round % kPage], 0);
    ASSERT_TRUE(map.lost());
  }
  stop = true;
  for (std::thread& thread : coming_and_going) thread.join();
  for (uint64_t page = 0; page < kPages; ++page) {
    if (page != kPages / 2) {
      ASSERT_EQ(ByteAt(area + page * kPage), 1) << page;
    }
  }
  ::munmap(area, kPages * kPage);
}

TEST_F(FaultGuardTest, LostIsOfOneMapping) {
  InstallFaultGuard();
  const auto file = MakeFile(2 * kPage), other_file = MakeFile(2 * kPage);
  const Map one(*file), two(*file), other(*other_file);
  file->Cut(kPage);
  EXPECT_EQ(one[kPage], 0);
  EXPECT_TRUE(one.lost());
  EXPECT_FALSE(two.lost());
  EXPECT_FALSE(other.lost());
  EXPECT_EQ(two[0], file->byte(0));
  EXPECT_FALSE(two.lost());
  EXPECT_EQ(two[kPage], 0);
  EXPECT_TRUE(two.lost());
  EXPECT_EQ(other[kPage], other_file->byte(kPage));
  EXPECT_FALSE(other.lost());
}

// Neighbours in one span of addresses, guarded and not.
TEST_F(FaultGuardTest, NeighboursAreLeftAlone) {
  InstallFaultGuard();
  auto* const area = static_cast<uint8_t*>(
      ::mmap(nullptr, 2 * kSpan, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(area, MAP_FAILED);
  uint8_t* const span = area + (kSpan - reinterpret_cast<uintptr_t>(area) % kSpan) % kSpan;
  span[2 * kPage] = 1;
  span[8 * kPage] = 8;
  {
    // The last page of the one in the middle is not full.
    const auto below_file = MakeFile(kPage), file = MakeFile(2 * kPage + 5),
               above_file = MakeFile(kPage);
    const Map below(*below_file, true, span + 3 * kPage), map(*file, true, span + 4 * kPage),
        above(*above_file, false, span + 7 * kPage);
    file->Cut(0);
    EXPECT_EQ(map[2 * kPage + 4], 0);
    EXPECT_EQ(map[0], 0);
    EXPECT_TRUE(map.lost());
    EXPECT_FALSE(below.lost());
    for (uint64_t at = 0; at < kPage; ++at) {
      ASSERT_EQ(below[at], below_file->byte(at));
      ASSERT_EQ(above[at], above_file->byte(at));
    }
    EXPECT_EQ(ByteAt(span + 2 * kPage), 1);
    EXPECT_EQ(ByteAt(span + 8 * kPage), 8);
    span[8 * kPage] = 9;  // and can still be written
  }
  ::munmap(area, 2 * kSpan);
}

TEST_F(FaultGuardTest, MoreRangesThanOneBlockHolds) {
  InstallFaultGuard();
  const auto file = MakeFile(kPage);
  std::vector<std::unique_ptr<Map>> maps;
  for (int i = 0; i < 700; ++i) maps.push_back(std::make_unique<Map>(*file));
  file->Cut(0);
  std::vector<bool> touched(maps.size());
  for (int i = 0; i < 300; ++i) {
    const size_t one = i == 0 ? maps.size() - 1 : random_.Below(maps.size());
    ASSERT_EQ((*maps[one])[random_.Below(kPage)], 0);
    touched[one] = true;
  }
  for (size_t i = 0; i < maps.size(); ++i) ASSERT_EQ(maps[i]->lost(), touched[i]) << i;
}

// Whoever gets the place of a range that is gone gets nothing of what was lost there.
TEST_F(FaultGuardTest, ANewRangeHasLostNothing) {
  InstallFaultGuard();
  const auto file = MakeFile(kPage);
  file->Cut(0);
  for (int i = 0; i < 300; ++i) {
    const Map map(*file);
    ASSERT_FALSE(map.lost());
    ASSERT_EQ(map[0], 0);
    ASSERT_TRUE(map.lost());
  }
}

TEST_F(FaultGuardTest, ReadStablyCallsOnceWhenNothingIsLost) {
  InstallFaultGuard();
  const auto file = MakeFile(kPage);
  const Map map(*file);
  int calls = 0;
  uint8_t byte = 0;
  ReadStably([&] {
    ++calls;
    byte = map[7];
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(byte, file->byte(7));
}

// The handler counts a loss before it puts the zero bytes in place, and again when they are.
TEST_F(FaultGuardTest, ReadStablyDoesNotEndWhileALossIsUnderWay) {
  ++internal::losses_begun;
  int calls = 0;
  ReadStably([&] {
    ++calls;
    if (calls == 3) ++internal::losses_done;
  });
  // The third began before it was over; the fourth is the first that saw nothing change.
  EXPECT_EQ(calls, 4);
}

TEST_F(FaultGuardTest, ReadStablyCallsAgainAfterEachLoss) {
  InstallFaultGuard();
  const auto file = MakeFile(kPage);
  const Map one(*file), two(*file), three(*file);
  file->Cut(0);
  int calls = 0;
  ReadStably([&] {
    ++calls;
    EXPECT_EQ(one[0], 0);
    if (calls == 2) {
      // Two at once count as one.
      EXPECT_EQ(two[0], 0);
      EXPECT_EQ(three[0], 0);
    }
  });
  EXPECT_EQ(calls, 3);
  ReadStably([&] {
    ++calls;
    EXPECT_EQ(one[0] + two[0] + three[0], 0);
  });
  EXPECT_EQ(calls, 4);
}

// What another thread loses meanwhile counts as well: here it takes a page that was already read.
TEST_F(FaultGuardTest, ReadStablyCallsAgainAfterAnotherThreadsLoss) {
  InstallFaultGuard();
  const auto file = MakeFile(2 * kPage);
  const Map map(*file);
  file->Cut(kPage);
  int calls = 0;
  uint8_t first = 1, again = 1;
  ReadStably([&] {
    first = map[0];
    if (++calls == 1) {
      EXPECT_EQ(first, file->byte(0));
      std::thread([&] { EXPECT_EQ(map[kPage], 0); }).join();
    }
    again = map[0];
  });
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(first, again);
}

// --- Faults that are not the guard's business ----------------------------------------------------

// Dies of the signal, or of the sanitizer's handler, which was there before.
bool DiedOfBusError(int status) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) != 0);
#else
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS;
#endif
}

void LeaveNoCore() {
  const rlimit none = {0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
}

std::string MessageFor(const uint8_t* address) {
  char digits[32];
  std::snprintf(digits, sizeof(digits), "0x%016lx",
                static_cast<unsigned long>(reinterpret_cast<uintptr_t>(address)));
  return std::string("fatal: bus error at ") + digits + ", which is no part of a table's files\n";
}

using FaultGuardDeathTest = FaultGuardTest;

TEST_F(FaultGuardDeathTest, AFaultOutsideAllRangesEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "fast");
  InstallFaultGuard();
  const auto file = MakeFile(4 * kPage), guarded_file = MakeFile(kPage);
  const Map map(*file, /*guarded=*/false), guarded(*guarded_file);
  file->Cut(0);
  guarded_file->Cut(0);
  const uint8_t* const at = map.data() + random_.Below(file->size_bytes());
  EXPECT_EXIT(
      {
        LeaveNoCore();
        ByteAt(at);
      },
      DiedOfBusError, MessageFor(at));
  // Also after one that it could deal with.
  EXPECT_EQ(guarded[0], 0);
  EXPECT_EXIT(
      {
        LeaveNoCore();
        ByteAt(at);
      },
      DiedOfBusError, MessageFor(at));
}

TEST_F(FaultGuardDeathTest, ARangeThatIsGoneIsNotGuarded) {
  GTEST_FLAG_SET(death_test_style, "fast");
  InstallFaultGuard();
  const auto file = MakeFile(kPage);
  Map map(*file);
  const Map other(*file);
  file->Cut(0);
  map.StopGuarding();
  EXPECT_EQ(other[5], 0);
  const uint8_t* const at = map.data() + 5;
  EXPECT_EXIT(
      {
        LeaveNoCore();
        ByteAt(at);
      },
      DiedOfBusError, MessageFor(at));
}

TEST_F(FaultGuardDeathTest, TheHandlerThatWasThereBeforeGetsTheFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process in which no guard is installed yet
  const auto file = MakeFile(kPage);
  const Map map(*file, /*guarded=*/false), guarded(*file);
  file->Cut(0);
  EXPECT_EXIT(
      {
        LeaveNoCore();
        struct sigaction action = {};
        action.sa_handler = [](int) { ::_exit(17); };
        ::sigaction(SIGBUS, &action, nullptr);
        InstallFaultGuard();
        InstallFaultGuard();  // once is enough, twice no harm
        if (guarded[0] != 0 || !guarded.lost()) ::_exit(18);
        ByteAt(map.data());
      },
      testing::ExitedWithCode(17), "no part of a table's files");
}

TEST_F(FaultGuardDeathTest, ASignalThatWasSentEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "fast");
  InstallFaultGuard();
  EXPECT_EXIT(
      {
        LeaveNoCore();
        ::raise(SIGBUS);
        ::_exit(0);
      },
      DiedOfBusError, "fatal: bus error");
}

}  // namespace
}  // namespace latchkey::test
