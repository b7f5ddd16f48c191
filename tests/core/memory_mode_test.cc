#include "core/io/memory_mode.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "core/io/anonymous_memory.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr MemoryMode kModes[] = {MemoryMode::kMmap, MemoryMode::kHuge, MemoryMode::kLocked};

class MemoryModeTest : public SeededTest {
 protected:
  std::string Write(std::string_view bytes) {
    const std::string path = dir_.Path("file");
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  TempDir dir_;
};

// KiB of `field` in the mapping that holds `address`.
uint64_t SmapsKib(const void* address, const std::string& field) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin, end;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(address);
      inside = at >= begin && at < end;
    } else if (inside && line.starts_with(field + ":")) {
      return std::stoul(line.substr(field.size() + 1));
    }
  }
  return 0;
}

bool MayLock(uint64_t size_bytes) {
  struct rlimit limit;
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  return ::geteuid() == 0 || limit.rlim_cur > size_bytes;
}

TEST_F(MemoryModeTest, NamesAreInverse) {
  for (const MemoryMode mode : kModes) EXPECT_EQ(ParseMemoryMode(MemoryModeName(mode)), mode);
  EXPECT_EQ(MemoryModeName(MemoryMode::kHuge), "huge");
  EXPECT_EQ(ParseMemoryMode("Huge"), std::nullopt);
  EXPECT_EQ(ParseMemoryMode(""), std::nullopt);
}

TEST_F(MemoryModeTest, AllModesHaveTheFilesBytes) {
  // Smaller and larger than a huge page, with holes, with zero bytes at either end, and empty.
  const std::string random = random_.Bytes(5 << 20);
  for (const std::string& bytes :
       {std::string(), std::string("x"), random.substr(0, 4097), random,
        std::string(3 << 20, '\0') + random.substr(0, 100) + std::string(3 << 20, '\0')}) {
    const std::string path = Write(bytes);
    for (const MemoryMode mode : kModes) {
      if (mode == MemoryMode::kLocked && !MayLock(bytes.size())) continue;
      ASSERT_OK_AND_ASSIGN(const auto file, MapFile(PosixFileSystem(), path, mode));
      ASSERT_EQ(file->size_bytes(), bytes.size()) << MemoryModeName(mode);
      if (bytes.empty()) continue;  // then there is no address
      EXPECT_EQ(std::memcmp(file->data(), bytes.data(), bytes.size()), 0) << MemoryModeName(mode);
    }
  }
}

TEST_F(MemoryModeTest, HugeIsInHugePagesWhereTheKernelHasThem) {
  const std::string path = Write(random_.Bytes(16 << 20));
  ASSERT_OK_AND_ASSIGN(const auto file, MapFile(PosixFileSystem(), path, MemoryMode::kHuge));
  // The kernel may have run out of them, or be told to give none; what it gave is what is said.
  const uint64_t said = HugePageBytes(file->data(), file->size_bytes());
  EXPECT_EQ(said, std::min<uint64_t>(16 << 20, 1024 * (SmapsKib(file->data(), "AnonHugePages") +
                                                       SmapsKib(file->data(), "FilePmdMapped"))));
  std::ifstream enabled("/sys/kernel/mm/transparent_hugepage/enabled");
  std::stringstream text;
  text << enabled.rdbuf();
  if (text.str().find("[always]") != std::string::npos ||
      text.str().find("[madvise]") != std::string::npos) {
    EXPECT_GE(said, uint64_t{2} << 20) << text.str();
  }
}

TEST_F(MemoryModeTest, HugePageBytesOfSmallPagesIsZero) {
  ASSERT_OK_AND_ASSIGN(const auto memory, AnonymousMemory::Allocate(8 << 20));
  ASSERT_EQ(::madvise(memory->data(), 8 << 20, MADV_NOHUGEPAGE), 0);
  std::memset(memory->data(), 1, 8 << 20);
  EXPECT_EQ(HugePageBytes(memory->data(), 8 << 20), 0u);
}

TEST_F(MemoryModeTest, LockedIsLocked) {
  const std::string path = Write(random_.Bytes(1 << 20));
  if (!MayLock(1 << 20)) {
    EXPECT_FAILS(MapFile(PosixFileSystem(), path, MemoryMode::kLocked), kResourceExhausted,
                 HasSubstr(path));
    return;
  }
  ASSERT_OK_AND_ASSIGN(const auto file, MapFile(PosixFileSystem(), path, MemoryMode::kLocked));
#if !defined(__SANITIZE_ADDRESS__)  // which makes mlock do nothing
  EXPECT_EQ(SmapsKib(file->data(), "Locked"), 1024u);
  EXPECT_EQ(SmapsKib(file->data(), "Rss"), 1024u);
#endif
}

// A file of a size that no machine's memory has, all of it a hole: refused before it is read.
TEST_F(MemoryModeTest, MoreThanThereIsIsRefusedWithTheFigures) {
  const std::string path = Write("x");
  constexpr uint64_t kSize = uint64_t{8} << 40;
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(kSize)), 0);
  EXPECT_OK(MapFile(PosixFileSystem(), path, MemoryMode::kMmap));
  for (const MemoryMode mode : {MemoryMode::kHuge, MemoryMode::kLocked}) {
    EXPECT_FAILS(MapFile(PosixFileSystem(), path, mode), kResourceExhausted,
                 AllOf(HasSubstr(path), HasSubstr("takes 8388608 MiB"), HasSubstr("MiB left")));
  }
}

TEST_F(MemoryModeTest, FilesOfOtherFileSystemsAreCopied) {
  MemoryFileSystem files;
  const std::string bytes = random_.Bytes(100'000);
  files.Put("f", bytes);
  ASSERT_OK_AND_ASSIGN(const auto file, MapFile(files, "f", MemoryMode::kHuge));
  EXPECT_EQ(std::memcmp(file->data(), bytes.data(), bytes.size()), 0);
  EXPECT_FAILS(MapFile(files, "none", MemoryMode::kHuge), kNotFound, HasSubstr("none"));
}

TEST_F(MemoryModeTest, TablesAnswerTheSameInAllModes) {
  TestTable table(PosixFileSystem(), dir_.path(), random_);
  table.options.schema = {.value_kind = ValueKind::kBytes};
  std::vector<std::string> questions;
  for (int i = 0; i < 3; ++i) {
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, 3000, 9)) {
      questions.push_back(key);
      rows.push_back({std::move(key), random_.Bytes(random_.Below(50))});
    }
    ASSERT_OK(i == 0 ? table.Build(rows) : table.Append(rows));
  }
  for (std::string& key : StrangerKeys(random_, questions, 3000))
    questions.push_back(std::move(key));
  for (const MemoryMode mode : kModes) {
    if (mode == MemoryMode::kLocked && !MayLock(64 << 20)) continue;
    ASSERT_OK_AND_ASSIGN(const auto snapshot, Snapshot::OpenNewest(PosixFileSystem(), table.dir(),
                                                                   {.memory_mode = mode}));
    EXPECT_EQ(snapshot->memory_mode(), mode);
    ExpectSameAnswers(*snapshot, table.reference(), questions, 4096);
  }
}

TEST(SpareMemoryTest, IsZeroAgainAndTakenOnce) {
  constexpr uint64_t kMiB = 1 << 20;
  const auto keep = [](uint64_t size_bytes) {
    ASSERT_OK_AND_ASSIGN(auto memory, AnonymousMemory::Allocate(size_bytes));
    std::memset(memory->data(), 'x', size_bytes);
    AnonymousMemory::KeepSpare(std::move(memory));
  };
  AnonymousMemory::ReleaseSpare(std::chrono::seconds(0));
  EXPECT_EQ(AnonymousMemory::TakeSpare(8 * kMiB), nullptr);
  AnonymousMemory::KeepSpare(nullptr);
  // So little is not worth it.
  keep(1 * kMiB);
  EXPECT_FALSE(AnonymousMemory::HasSpare(1 * kMiB));
  keep(8 * kMiB - 5);
  AnonymousMemory::ReleaseSpare(std::chrono::hours(1));
  // Neither more than it has nor much less.
  for (const uint64_t size_bytes : {8 * kMiB + 1, 6 * kMiB - 1}) {
    EXPECT_FALSE(AnonymousMemory::HasSpare(size_bytes));
    EXPECT_EQ(AnonymousMemory::TakeSpare(size_bytes), nullptr);
  }
  for (const uint64_t size_bytes : {6 * kMiB, 8 * kMiB, 7 * kMiB + 3}) {
    EXPECT_TRUE(AnonymousMemory::HasSpare(size_bytes));
    auto memory = AnonymousMemory::TakeSpare(size_bytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_FALSE(AnonymousMemory::HasSpare(size_bytes));
    EXPECT_EQ(AnonymousMemory::TakeSpare(size_bytes), nullptr);
    ASSERT_EQ(memory->size_bytes(), size_bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % (2 * kMiB), 0u);
    EXPECT_TRUE(std::all_of(memory->data(), memory->data() + size_bytes,
                            [](uint8_t byte) { return byte == 0; }));
    std::memset(memory->data(), 'x', size_bytes);
    AnonymousMemory::KeepSpare(std::move(memory));
  }
  // The one that came last is kept.
  keep(16 * kMiB);
  EXPECT_FALSE(AnonymousMemory::HasSpare(8 * kMiB));
  EXPECT_TRUE(AnonymousMemory::HasSpare(16 * kMiB));
  AnonymousMemory::ReleaseSpare(std::chrono::seconds(0));
  EXPECT_FALSE(AnonymousMemory::HasSpare(16 * kMiB));
}

TEST_F(MemoryModeTest, AnonymousMemoryIsZeroAlignedAndWritable) {
  for (const uint64_t size : {uint64_t{1}, uint64_t{4096}, uint64_t{5} << 20}) {
    ASSERT_OK_AND_ASSIGN(const auto memory, AnonymousMemory::Allocate(size));
    EXPECT_EQ(memory->size_bytes(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % (2 << 20), 0u);
    EXPECT_EQ(memory->data()[0] | memory->data()[size - 1], 0);
    std::memset(memory->data(), 0xFF, size);
  }
  EXPECT_FAILS(AnonymousMemory::Allocate(uint64_t{1} << 60), kResourceExhausted,
               HasSubstr("cannot allocate"));
}

}  // namespace
}  // namespace latchkey::test
