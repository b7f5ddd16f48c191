// Against files of the machine. Where its file system keeps every page in memory (tmpfs), these
// tests fail and say so.
#include "core/prefetch/page_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/support/cold_file.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

namespace latchkey::test {
namespace {

const auto kPageBytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
constexpr uint64_t kPages = 301;  // the last of them not full

bool CachestatWorks(int fd) {
  uint64_t range[2] = {0, 1}, counts[5];
  return ::syscall(SYS_cachestat, fd, range, counts, 0) == 0;
}

void* Address(const MappedFile& file, uint64_t offset = 0) {
  return const_cast<uint8_t*>(file.data()) + offset;
}

// Pages of the file that are in memory, as its owner is told.
std::set<uint64_t> ResidentPages(const MappedFile& file) {
  const uint64_t pages = (file.size_bytes() + kPageBytes - 1) / kPageBytes;
  std::vector<unsigned char> in_memory(pages);
  EXPECT_EQ(::mincore(Address(file), file.size_bytes(), in_memory.data()), 0);
  std::set<uint64_t> resident;
  for (uint64_t page = 0; page < pages; ++page) {
    if (in_memory[page] & 1) resident.insert(page);
  }
  return resident;
}

void Touch(const MappedFile& file, uint64_t page) {
  (void)*static_cast<const volatile uint8_t*>(file.data() + page * kPageBytes);
}

// What smaps says of the mapping that holds the address: "rd sh mr …".
std::string FlagsAt(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool chosen = false;
  while (std::getline(maps, line)) {
    unsigned long begin, end;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(address);
      chosen = begin <= at && at < end;
    } else if (chosen && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return "";
}
bool HasFlag(const MappedFile& file, uint64_t page, const std::string& flag) {
  const std::string flags = FlagsAt(Address(file, page * kPageBytes));
  EXPECT_NE(flags, "");
  return flags.find(" " + flag + " ") != std::string::npos;
}

class PageCacheTest : public SeededTest {
 protected:
  PageCacheTest() {
    const std::string bytes = random_.Bytes((kPages - 1) * kPageBytes + 123);
    const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644);
    EXPECT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(::fsync(fd), 0);
    ::close(fd);
    auto file = PosixFileSystem().Map(path_);
    EXPECT_OK(file);
    if (file.ok()) file_ = *std::move(file);
  }

  void SetUp() override { ASSERT_NE(file_, nullptr); }

  std::vector<ResidencyProbe> Probes() const {
    std::vector<ResidencyProbe> probes = {ResidencyProbe::kMincore};
    if (CachestatWorks(file_->fd())) probes.push_back(ResidencyProbe::kCachestat);
    return probes;
  }

  TempDir dir_;
  const std::string path_ = dir_.Path("file");
  std::unique_ptr<MappedFile> file_;
};

TEST_F(PageCacheTest, Names) {
  EXPECT_EQ(ResidencyProbeName(ResidencyProbe::kCachestat), "cachestat");
  EXPECT_EQ(ResidencyProbeName(ResidencyProbe::kMincore), "mincore");
  EXPECT_EQ(ResidencyProbeName(ResidencyProbe::kFaults), "faults");
  EXPECT_EQ(PageAdviceName(PageAdvice::kNormal), "normal");
  EXPECT_EQ(PageAdviceName(PageAdvice::kRandom), "random");
  EXPECT_EQ(PageAdviceName(PageAdvice::kHuge), "huge");
}

// --- Residency ---

// Of ranges that begin and end anywhere, also beyond the file.
TEST_F(PageCacheTest, ResidencyIsThatOfThePagesThatWereTouched) {
  AdvisePages(*file_, 0, file_->size_bytes(), PageAdvice::kRandom);
  for (const uint64_t one_in : {1, 2, 10, 100}) {
    ASSERT_NO_FATAL_FAILURE(MakeCold(*file_));
    for (const ResidencyProbe probe : Probes()) {
      const auto cold = MeasureResidency(*file_, probe, 0, file_->size_bytes());
      ASSERT_TRUE(cold.has_value());
      EXPECT_EQ(cold->pages, kPages);
      EXPECT_EQ(cold->resident, 0u);
    }
    std::set<uint64_t> touched;
    for (uint64_t page = 0; page < kPages; ++page) {
      if (!random_.OneIn(one_in)) continue;
      Touch(*file_, page);
      touched.insert(page);
    }
    ASSERT_EQ(ResidentPages(*file_), touched);
    for (int round = 0; round < 300; ++round) {
      const uint64_t offset = random_.Below(file_->size_bytes() + 2 * kPageBytes);
      const uint64_t size_bytes = random_.OneIn(3)    ? random_.Below(2 * file_->size_bytes())
                                  : random_.OneIn(10) ? UINT64_MAX - random_.Below(2)
                                                      : random_.Below(3 * kPageBytes);
      uint64_t pages = 0, resident = 0;
      for (uint64_t page = 0; page < kPages; ++page) {
        const uint64_t begin = page * kPageBytes,
                       end = std::min(begin + kPageBytes, file_->size_bytes());
        if (size_bytes == 0 || offset >= end) continue;
        if (offset < begin && size_bytes <= begin - offset) continue;
        ++pages;
        resident += touched.contains(page);
      }
      for (const ResidencyProbe probe : Probes()) {
        const auto residency = MeasureResidency(*file_, probe, offset, size_bytes);
        ASSERT_TRUE(residency.has_value());
        ASSERT_EQ(residency->pages, pages) << offset << ' ' << size_bytes;
        ASSERT_EQ(residency->resident, resident)
            << ResidencyProbeName(probe) << ' ' << offset << ' ' << size_bytes;
      }
    }
  }
}

TEST_F(PageCacheTest, WhereNothingCanBeMeasured) {
  EXPECT_FALSE(MeasureResidency(*file_, ResidencyProbe::kFaults, 0, 10).has_value());
  // Bytes in memory, and no bytes.
  MemoryFileSystem files;
  files.Put("bytes", std::string(10'000, 'x'));
  ASSERT_OK_AND_ASSIGN(const auto bytes, files.Map("bytes"));
  EXPECT_EQ(ChooseResidencyProbe(*bytes), ResidencyProbe::kFaults);
  EXPECT_FALSE(MeasureResidency(*bytes, ResidencyProbe::kCachestat, 0, 10).has_value());
  AdvisePages(*bytes, 0, 10'000, PageAdvice::kRandom);
  ::close(::open(dir_.Path("empty").c_str(), O_WRONLY | O_CREAT, 0644));
  ASSERT_OK_AND_ASSIGN(const auto empty, PosixFileSystem().Map(dir_.Path("empty")));
  EXPECT_EQ(ChooseResidencyProbe(*empty), ResidencyProbe::kFaults);
  AdvisePages(*empty, 0, 10'000, PageAdvice::kRandom);
}

TEST_F(PageCacheTest, ResidenciesAddUp) {
  Residency sum = {10, 5, 1};
  sum += {100, 20, 3};
  EXPECT_EQ(sum.pages, 110u);
  EXPECT_EQ(sum.resident, 25u);
  EXPECT_EQ(sum.recently_evicted, 4u);
}

// --- Who is told the truth ---

// Makes the kernel answer cachestat as one that has no such call.
bool ForbidCachestat() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),  // the call's number
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_cachestat, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

bool DropCapabilities() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  return ::syscall(SYS_capset, &header, none) == 0;
}

struct Child {
  uid_t user = 0;
  bool capabilities = true;
  bool cachestat = true;
};

// What a process of that kind chooses for a file, all of which is cold, and how many of its pages
// mincore tells it are in memory.
struct Choice {
  int probe = -1;
  bool cachestat_works = false;
  uint64_t mincore_resident = 0;
};
Choice ChooseAs(const Child& child, const MappedFile& file) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    bool ok = child.user == 0 || (::setresgid(child.user, child.user, child.user) == 0 &&
                                  ::setresuid(child.user, child.user, child.user) == 0);
    ok = ok && (child.capabilities || DropCapabilities());
    ok = ok && (child.cachestat || ForbidCachestat());
    Choice choice;
    if (ok) {
      choice.probe = static_cast<int>(ChooseResidencyProbe(file));
      choice.cachestat_works = CachestatWorks(file.fd());
      choice.mincore_resident = ResidentPages(file).size();
    }
    ::_exit(::write(ends[1], &choice, sizeof choice) != sizeof choice);
  }
  Choice choice;
  int status = -1;
  EXPECT_GT(pid, 0);
  EXPECT_EQ(::read(ends[0], &choice, sizeof choice), static_cast<ssize_t>(sizeof choice));
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_GE(choice.probe, 0) << "the child did not become what it should";
  return choice;
}

TEST_F(PageCacheTest, OwnersAreToldTheTruth) {
  const auto best =
      CachestatWorks(file_->fd()) ? ResidencyProbe::kCachestat : ResidencyProbe::kMincore;
  EXPECT_EQ(ChooseResidencyProbe(*file_), best);
}

constexpr uid_t kNobody = 65'534;

struct Access {
  const char* what;
  uid_t owner;
  mode_t mode;
  Child child;
  ResidencyProbe best;  // where the kernel has all of them
};

// The probe that is chosen is one that tells the truth, and the best of those.
TEST_F(PageCacheTest, TheBestProbeThatTellsTheTruth) {
  constexpr auto kCachestat = ResidencyProbe::kCachestat;
  constexpr auto kMincore = ResidencyProbe::kMincore;
  constexpr auto kFaults = ResidencyProbe::kFaults;
  if (::geteuid() != 0) {
    // Nobody else's file can be made, but there are some.
    ASSERT_OK_AND_ASSIGN(const auto other, PosixFileSystem().Map("/bin/sh"));
    EXPECT_EQ(ChooseResidencyProbe(*other), kFaults);
    return;
  }
  const std::vector<Access> accesses = {
      {"root, its own file", 0, 0644, {}, kCachestat},
      {"root, another's file", kNobody, 0644, {}, kCachestat},
      {"a user, the owner", kNobody, 0444, {.user = kNobody}, kCachestat},
      {"a user, root's file", 0, 0644, {.user = kNobody}, kFaults},
      {"a user, root's file that all may write", 0, 0666, {.user = kNobody}, kCachestat},
      {"an older kernel: root", 0, 0644, {.cachestat = false}, kMincore},
      {"… another's file", kNobody, 0644, {.cachestat = false}, kMincore},
      {"… the owner", kNobody, 0444, {.user = kNobody, .cachestat = false}, kMincore},
      {"… root's file", 0, 0644, {.user = kNobody, .cachestat = false}, kFaults},
      {"… that all may write", 0, 0666, {.user = kNobody, .cachestat = false}, kMincore},
      // As in a container that dropped them.
      {"root without capabilities, its own file", 0, 0644, {.capabilities = false}, kCachestat},
      {"… another's file", kNobody, 0644, {.capabilities = false}, kFaults},
      {"… on an older kernel", kNobody, 0644, {.capabilities = false, .cachestat = false}, kFaults},
  };
  ASSERT_NO_FATAL_FAILURE(MakeCold(*file_));
  for (const Access& access : accesses) {
    SCOPED_TRACE(access.what);
    ASSERT_EQ(::chown(path_.c_str(), access.owner, access.owner), 0);
    ASSERT_EQ(::chmod(path_.c_str(), access.mode), 0);
    const Choice choice = ChooseAs(access.child, *file_);
    // Why: who may neither own nor write a file is told that all of it is in memory.
    EXPECT_EQ(choice.mincore_resident, access.best == kFaults ? kPages : 0);
    // The first kernels with cachestat answer everybody; older ones nobody.
    const auto best = choice.cachestat_works      ? kCachestat
                      : access.best == kCachestat ? kMincore
                                                  : access.best;
    EXPECT_TRUE(access.child.cachestat || !choice.cachestat_works);
    EXPECT_EQ(ResidencyProbeName(static_cast<ResidencyProbe>(choice.probe)),
              ResidencyProbeName(best));
  }
}

// --- Advice ---

TEST_F(PageCacheTest, AdviceReachesTheKernel) {
  const std::string enabled = "/sys/kernel/mm/transparent_hugepage/enabled";
  const bool has_huge_pages = ::access(enabled.c_str(), F_OK) == 0;
  ASSERT_FALSE(HasFlag(*file_, 0, "rr"));
  // A part in the middle, which begins and ends within pages.
  AdvisePages(*file_, 10 * kPageBytes + 7, 20 * kPageBytes, PageAdvice::kRandom);
  for (const uint64_t page : {0, 9, 31, 300}) EXPECT_FALSE(HasFlag(*file_, page, "rr")) << page;
  for (const uint64_t page : {10, 20, 30}) EXPECT_TRUE(HasFlag(*file_, page, "rr")) << page;
  AdvisePages(*file_, 15 * kPageBytes, kPageBytes, PageAdvice::kNormal);
  for (const uint64_t page : {9, 15, 31}) EXPECT_FALSE(HasFlag(*file_, page, "rr")) << page;
  for (const uint64_t page : {10, 14, 16, 30}) EXPECT_TRUE(HasFlag(*file_, page, "rr")) << page;
  AdvisePages(*file_, 20 * kPageBytes, 2 * kPageBytes, PageAdvice::kHuge);
  for (const uint64_t page : {20, 21}) {
    EXPECT_FALSE(HasFlag(*file_, page, "rr")) << page;
    EXPECT_EQ(HasFlag(*file_, page, "hg"), has_huge_pages) << page;
  }
  EXPECT_FALSE(HasFlag(*file_, 19, "hg"));
  EXPECT_FALSE(HasFlag(*file_, 22, "hg"));
  // All of it, however much is said.
  AdvisePages(*file_, 0, UINT64_MAX, PageAdvice::kRandom);
  for (uint64_t page = 0; page < kPages; page += 30) EXPECT_TRUE(HasFlag(*file_, page, "rr"));
  AdvisePages(*file_, 0, file_->size_bytes(), PageAdvice::kNormal);
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_FALSE(HasFlag(*file_, page, "rr"));
}

TEST_F(PageCacheTest, AdviceForNothing) {
  AdvisePages(*file_, file_->size_bytes(), 10, PageAdvice::kRandom);
  AdvisePages(*file_, UINT64_MAX, UINT64_MAX, PageAdvice::kRandom);
  AdvisePages(*file_, 0, 0, PageAdvice::kRandom);
  for (uint64_t page = 0; page < kPages; page += 30) EXPECT_FALSE(HasFlag(*file_, page, "rr"));
}

// What the advice is for: a touch reads one page, or its neighbours too.
TEST_F(PageCacheTest, RandomPagesComeAlone) {
  for (const PageAdvice advice : {PageAdvice::kRandom, PageAdvice::kNormal}) {
    AdvisePages(*file_, 0, file_->size_bytes(), advice);
    ASSERT_NO_FATAL_FAILURE(MakeCold(*file_));
    Touch(*file_, 150);
    const size_t resident = ResidentPages(*file_).size();
    EXPECT_EQ(resident == 1, advice == PageAdvice::kRandom) << resident;
  }
}

}  // namespace
}  // namespace latchkey::test
