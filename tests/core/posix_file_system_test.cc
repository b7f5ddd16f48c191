#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/low_priority.h"
#include "core/io/file_system.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"

namespace {

// Paths that were synced since a test began to watch.
std::vector<std::string>* synced_paths = nullptr;

}  // namespace

// Stands in for the library's, to see what is really synced.
extern "C" int fsync(int fd) {
  if (synced_paths != nullptr) {
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    char path[PATH_MAX];
    const ssize_t size = ::readlink(link.c_str(), path, sizeof(path));
    synced_paths->emplace_back(path, size > 0 ? static_cast<size_t>(size) : 0);
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

class PosixFileSystemTest : public SeededTest {
 protected:
  void Write(const std::string& path, std::string_view bytes) {
    ASSERT_OK_AND_ASSIGN(const auto file, files_.Create(path));
    ASSERT_OK(file->WriteAt(0, bytes));
    ASSERT_OK(file->Close());
  }

  FileSystem& files_ = PosixFileSystem();
  const TempDir folder_;
  const std::string path_ = folder_.Path("file");
};

class SyncWatch {
 public:
  SyncWatch() { synced_paths = &paths_; }
  ~SyncWatch() { synced_paths = nullptr; }
  std::vector<std::string> paths_;
};

TEST_F(PosixFileSystemTest, WritesAtAnyOffsetAndReadsBack) {
  ASSERT_OK_AND_ASSIGN(const auto file, files_.Create(path_));
  ASSERT_OK(file->WriteAt(10, "world"));
  ASSERT_OK(file->WriteAt(0, "hello"));
  ASSERT_OK(file->WriteAt(3, ""));
  ASSERT_OK(file->Sync());
  ASSERT_OK(file->Close());
  ASSERT_OK_AND_ASSIGN(const std::string bytes, files_.ReadFile(path_, 100));
  EXPECT_EQ(bytes, std::string("hello\0\0\0\0\0world", 15));

  ASSERT_OK_AND_ASSIGN(const auto readable, files_.Open(path_));
  ASSERT_OK_AND_ASSIGN(const uint64_t size_bytes, readable->SizeBytes());
  EXPECT_EQ(size_bytes, 15u);
  char buffer[100];
  ASSERT_OK_AND_ASSIGN(const size_t in_the_middle, readable->ReadAt(2, 5, buffer));
  EXPECT_EQ(std::string(buffer, in_the_middle), std::string("llo\0\0", 5));
  ASSERT_OK_AND_ASSIGN(const size_t at_the_end, readable->ReadAt(12, 100, buffer));
  EXPECT_EQ(std::string(buffer, at_the_end), "rld");
  ASSERT_OK_AND_ASSIGN(const size_t beyond, readable->ReadAt(15, 100, buffer));
  EXPECT_EQ(beyond, 0u);
  std::string in_pieces;
  for (;;) {
    ASSERT_OK_AND_ASSIGN(const size_t got, readable->ReadNext(4, buffer));
    if (got == 0) break;
    in_pieces.append(buffer, got);
  }
  EXPECT_EQ(in_pieces, bytes);
}

TEST_F(PosixFileSystemTest, Truncates) {
  ASSERT_OK_AND_ASSIGN(const auto file, files_.Create(path_));
  ASSERT_OK(file->WriteAt(0, "hello world"));
  ASSERT_OK(file->Truncate(5));
  ASSERT_OK(file->Truncate(7));
  ASSERT_OK_AND_ASSIGN(const std::string bytes, files_.ReadFile(path_, 100));
  EXPECT_EQ(bytes, std::string("hello\0\0", 7));
}

TEST_F(PosixFileSystemTest, WhatIsCalledDurableIsSynced) {
  const std::string deep = folder_.Path("a/b/c");
  const std::string real = std::filesystem::canonical(folder_.path());
  {
    // A new folder's name lies in the one above it.
    SyncWatch watch;
    ASSERT_OK(files_.CreateDirectories(deep));
    EXPECT_THAT(watch.paths_,
                AllOf(Contains(real), Contains(real + "/a"), Contains(real + "/a/b")));
  }
  {
    SyncWatch watch;
    ASSERT_OK(files_.CreateDirectories(deep));
    ASSERT_OK_AND_ASSIGN(const auto file, files_.Create(deep + "/file"));
    ASSERT_OK(file->WriteAt(0, "x"));
    EXPECT_TRUE(watch.paths_.empty());
    ASSERT_OK(file->Sync());
    ASSERT_OK(files_.SyncDirectory(deep));
    EXPECT_THAT(watch.paths_, ElementsAre(real + "/a/b/c/file", real + "/a/b/c"));
  }
}

TEST_F(PosixFileSystemTest, MapsWholeFiles) {
  Write(path_, "mapped");
  ASSERT_OK_AND_ASSIGN(const auto map, files_.Map(path_));
  ASSERT_OK(files_.Remove(path_));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(map->data()), map->size_bytes()), "mapped");
  Write(path_, "");
  ASSERT_OK_AND_ASSIGN(const auto empty, files_.Map(path_));
  EXPECT_EQ(empty->size_bytes(), 0u);
}

// A thread of low priority maps and unmaps in parts.
TEST_F(PosixFileSystemTest, MapsInParts) {
  const std::string bytes((uint64_t{5} << 18) + 5, 'x');
  Write(path_, bytes);
  const auto mapped_bytes = [&] {
    std::ifstream maps("/proc/self/maps");
    uint64_t sum = 0;
    for (std::string line; std::getline(maps, line);) {
      uint64_t begin = 0, end = 0;
      if (!line.ends_with(path_)) continue;
      std::istringstream(line) >> std::hex >> begin;
      std::istringstream(line.substr(line.find('-') + 1)) >> std::hex >> end;
      sum += end - begin;
    }
    return sum;
  };
  for (const bool low : {false, true}) {
    std::thread([&] {
      if (low) LowerPriority();
      ASSERT_OK_AND_ASSIGN(auto map, files_.Map(path_));
      map->Populate(5, bytes.size() - 5);
      EXPECT_EQ(mapped_bytes(), (bytes.size() + 4095) / 4096 * 4096);
      EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(map->data()), map->size_bytes()),
                bytes);
      map.reset();
      EXPECT_EQ(mapped_bytes(), 0u);
    }).join();
  }
}

TEST_F(PosixFileSystemTest, CreateDoesNotReplace) {
  Write(path_, "first");
  EXPECT_FAILS(files_.Create(path_), kAlreadyExists, HasSubstr(path_));
  ASSERT_OK_AND_ASSIGN(const std::string bytes, files_.ReadFile(path_, 100));
  EXPECT_EQ(bytes, "first");
}

TEST_F(PosixFileSystemTest, RenamesOverWhatIsThere) {
  Write(path_, "new");
  Write(folder_.Path("target"), "old");
  ASSERT_OK(files_.Rename(path_, folder_.Path("target")));
  ASSERT_OK_AND_ASSIGN(const std::string bytes, files_.ReadFile(folder_.Path("target"), 100));
  EXPECT_EQ(bytes, "new");
  ASSERT_OK_AND_ASSIGN(const auto names, files_.List(folder_.path()));
  EXPECT_THAT(names, ElementsAre("target"));
}

TEST_F(PosixFileSystemTest, ListsSorted) {
  for (const char* name : {"b", "a", ".c", "A"}) Write(folder_.Path(name), "");
  ASSERT_OK(files_.CreateDirectories(folder_.Path("folder/inner")));
  ASSERT_OK_AND_ASSIGN(const auto names, files_.List(folder_.path()));
  EXPECT_THAT(names, ElementsAre(".c", "A", "a", "b", "folder"));
}

TEST_F(PosixFileSystemTest, ErrorsNameThePath) {
  const std::string none = folder_.Path("none");
  EXPECT_FAILS(files_.Open(none), kNotFound, HasSubstr(none));
  EXPECT_FAILS(files_.Map(none), kNotFound, HasSubstr(none));
  EXPECT_FAILS(files_.Remove(none), kNotFound, HasSubstr(none));
  EXPECT_FAILS(files_.List(none), kNotFound, HasSubstr(none));
  EXPECT_FAILS(files_.SyncDirectory(none), kNotFound, HasSubstr(none));
  EXPECT_FAILS(files_.Rename(none, path_), kNotFound, AllOf(HasSubstr(none), HasSubstr(path_)));
  EXPECT_FAILS(files_.Create(none + "/file"), kNotFound, HasSubstr(none));
  EXPECT_FAILS(files_.Lock(none + "/lock"), kNotFound, HasSubstr(none));
  // A folder is no file, and a file is no folder.
  EXPECT_FAILS(files_.Open(folder_.path()), kInvalidArgument, HasSubstr(folder_.path()));
  EXPECT_FAILS(files_.Map(folder_.path()), kInvalidArgument, HasSubstr(folder_.path()));
  Write(path_, "");
  EXPECT_FAILS(files_.CreateDirectories(path_), kNotFound, HasSubstr(path_));
  EXPECT_FAILS(files_.CreateDirectories(path_ + "/inner"), kNotFound, HasSubstr(path_));
  EXPECT_FAILS(files_.List(path_), kNotFound, HasSubstr(path_));
}

TEST_F(PosixFileSystemTest, ReadFileRefusesWhatIsTooLarge) {
  Write(path_, "0123456789");
  EXPECT_OK(files_.ReadFile(path_, 10));
  EXPECT_FAILS(files_.ReadFile(path_, 9), kInvalidArgument,
               AllOf(HasSubstr(path_), HasSubstr("10"), HasSubstr("9")));
}

TEST_F(PosixFileSystemTest, ALockKeepsOthersOut) {
  {
    ASSERT_OK_AND_ASSIGN(const auto lock, files_.Lock(path_));
    EXPECT_FAILS(files_.Lock(path_), kFailedPrecondition, HasSubstr(path_));
  }
  EXPECT_OK(files_.Lock(path_));
}

// The kernel drops a lock with its process.
TEST_F(PosixFileSystemTest, ALockDiesWithItsProcess) {
  int ready[2], done[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(done), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = files_.Lock(path_);
    char byte = lock.ok() ? 'y' : 'n';
    (void)!::write(ready[1], &byte, 1);
    (void)!::read(done[0], &byte, 1);
    ::_exit(0);  // without letting go
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_FAILS(files_.Lock(path_), kFailedPrecondition, HasSubstr(path_));
  ASSERT_EQ(::write(done[1], &byte, 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_OK(files_.Lock(path_));
  for (const int fd : {ready[0], ready[1], done[0], done[1]}) ::close(fd);
}

TEST_F(PosixFileSystemTest, ReadsStandardInput) {
  Write(path_, "from standard input");
  const int saved = ::dup(STDIN_FILENO);
  const int fd = ::open(path_.c_str(), O_RDONLY);
  ASSERT_EQ(::dup2(fd, STDIN_FILENO), STDIN_FILENO);
  ::close(fd);
  {
    ASSERT_OK_AND_ASSIGN(const auto file, files_.Open("-"));
    char buffer[100];
    ASSERT_OK_AND_ASSIGN(const size_t got, file->ReadNext(sizeof(buffer), buffer));
    EXPECT_EQ(std::string(buffer, got), "from standard input");
  }
  if (saved >= 0) {
    ::dup2(saved, STDIN_FILENO);
    ::close(saved);
  }
}

TEST_F(PosixFileSystemTest, ADiskThatIsFullSaysSo) {
  const int fd = ::open("/dev/full", O_WRONLY);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::write(fd, "x", 1), -1);
  const int error_number = errno;
  ::close(fd);
  const absl::Status status = ErrnoStatus(error_number, "cannot write some/file at offset 7");
  EXPECT_FAILS(status, kResourceExhausted,
               AllOf(HasSubstr("some/file"), HasSubstr("No space left on device")));
}

TEST(ErrnoStatusTest, Codes) {
  const auto code = [](int error_number) { return ErrnoStatus(error_number, "x").code(); };
  EXPECT_EQ(code(ENOENT), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(EACCES), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code(ENOSPC), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(EDQUOT), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(EMFILE), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(EEXIST), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(code(EISDIR), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(EIO), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code(EAGAIN), absl::StatusCode::kUnknown);
  EXPECT_EQ(Prefixed(absl::DataLossError("b"), "a"), absl::DataLossError("a: b"));
  EXPECT_EQ(Prefixed(absl::OkStatus(), "a"), absl::OkStatus());
}

}  // namespace
}  // namespace latchkey::test
