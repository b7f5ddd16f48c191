#include "tests/bench/cold_pages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#endif

namespace latchkey {
namespace {

constexpr long kCachestatCall = 451;  // Linux 6.5
constexpr uint64_t kLoadChunkBytes = uint64_t{1} << 20;

uint64_t PageBegin(uint64_t offset) { return offset / kFilePageBytes * kFilePageBytes; }
uint64_t PageEnd(uint64_t offset) { return PageBegin(offset + kFilePageBytes - 1); }

// What a signal handler may use: no memory of its own, no objects that end.
int restore_fd = -1;
char restore_text[32];
size_t restore_bytes = 0;

void RestoreReadAhead() {
  if (restore_fd < 0) return;
  const ssize_t written = ::pwrite(restore_fd, restore_text, restore_bytes, 0);
  if (written < 0) (void)::write(STDERR_FILENO, "bench: read_ahead_kb not restored\n", 34);
  restore_fd = -1;
}

void OnSignal(int signal) {
  RestoreReadAhead();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Once: from here on, whatever ends the program puts the setting back.
void RestoreAtTheEnd() {
  static const bool installed = [] {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGABRT, SIGSEGV, SIGBUS}) {
      std::signal(signal, OnSignal);
    }
    return std::atexit(RestoreReadAhead) == 0;
  }();
  if (!installed) FailCold("cannot set read_ahead_kb back at the end");
}

}  // namespace

void FailCold(const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "bench: cold: %s\n", what.c_str());
  std::exit(3);
}

ColdFile::ColdFile(const std::string& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info = {};
  if (fd_ < 0 || ::fstat(fd_, &info) != 0) {
    FailCold(fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  }
  size_bytes_ = static_cast<uint64_t>(info.st_size);
}

ColdFile::~ColdFile() { ::close(fd_); }

void ColdFile::AddMap(const uint8_t* data) { maps_.push_back(data); }

void ColdFile::Drop(uint64_t begin, uint64_t end) const {
  begin = PageBegin(begin);
  end = PageEnd(std::min(end, size_bytes_));
  for (const uint8_t* map : maps_) Advise(map + begin, end - begin, MADV_DONTNEED);
  const int error = ::posix_fadvise(fd_, static_cast<off_t>(begin), static_cast<off_t>(end - begin),
                                    POSIX_FADV_DONTNEED);
  if (error != 0) FailCold(fmt::format("cannot drop pages of {}: {}", path_, std::strerror(error)));
}

void ColdFile::DropSurely(uint64_t begin, uint64_t end) const {
  Drop(begin, end);
  const double share = ResidentShare(begin, end);
  if (share >= 0.01) {
    FailCold(
        fmt::format("{:.1f}% of {} stayed in memory after it was dropped", 100 * share, path_));
  }
}

uint64_t ColdFile::ResidentPages(uint64_t begin, uint64_t end) const {
  begin = PageBegin(begin);
  struct {
    uint64_t offset, size_bytes;
  } range = {begin, PageEnd(std::min(end, size_bytes_)) - begin};
  struct {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } counts = {};
  if (range.size_bytes == 0) return 0;  // to cachestat, 0 is all of it
  if (::syscall(kCachestatCall, fd_, &range, &counts, 0) != 0) {
    FailCold(fmt::format("cannot tell what of {} is in memory: {} (cachestat needs Linux 6.5)",
                         path_, std::strerror(errno)));
  }
  return counts.cached;
}

double ColdFile::ResidentShare(uint64_t begin, uint64_t end) const {
  const uint64_t pages = (PageEnd(std::min(end, size_bytes_)) - PageBegin(begin)) / kFilePageBytes;
  return static_cast<double>(ResidentPages(begin, end)) / static_cast<double>(pages);
}

void ColdFile::Load(uint64_t begin, uint64_t end, bool single_pages) const {
  // A file that is read at random gets what was asked for and nothing ahead, in single pages.
  (void)::posix_fadvise(fd_, 0, 0, single_pages ? POSIX_FADV_RANDOM : POSIX_FADV_SEQUENTIAL);
  std::vector<char> chunk(kLoadChunkBytes);
  end = std::min(end, size_bytes_);
  for (uint64_t at = begin; at < end;) {
    const ssize_t got =
        ::pread(fd_, chunk.data(), std::min(kLoadChunkBytes, end - at), static_cast<off_t>(at));
    if (got <= 0) FailCold(fmt::format("cannot read {}: {}", path_, std::strerror(errno)));
    at += static_cast<uint64_t>(got);
  }
}

void Advise(const uint8_t* data, uint64_t size_bytes, int advice) {
  if (size_bytes == 0) return;
  if (::madvise(const_cast<uint8_t*>(data), size_bytes, advice) != 0) {
    FailCold(fmt::format("madvise {}: {}", advice, std::strerror(errno)));
  }
}

void Populate(const uint8_t* data, uint64_t size_bytes) {
  const auto address = reinterpret_cast<uint64_t>(data);
  const uint64_t begin = PageBegin(address);
  Advise(data - (address - begin), PageEnd(address + size_bytes) - begin, MADV_POPULATE_READ);
}

ReadAhead::ReadAhead(const std::string& file) {
  struct stat info = {};
  if (::stat(file.c_str(), &info) != 0) return;
  const std::string device =
      fmt::format("/sys/dev/block/{}:{}", ::major(info.st_dev), ::minor(info.st_dev));
  // A partition's queue is its disk's.
  for (const char* queue : {"/queue/read_ahead_kb", "/../queue/read_ahead_kb"}) {
    if (std::filesystem::exists(device + queue)) path_ = device + queue;
    if (!path_.empty()) break;
  }
}

ReadAhead::~ReadAhead() { RestoreReadAhead(); }

uint64_t ReadAhead::kb() const {
  uint64_t kb = 0;
  std::ifstream(path_) >> kb;
  return kb;
}

bool ReadAhead::Set(uint64_t kb, std::string* reason) {
  int fd = restore_fd;
  if (fd < 0 && !path_.empty()) fd = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) {
    *reason = path_.empty() ? "the file's device has no read_ahead_kb"
                            : fmt::format("cannot write {}: {}", path_, std::strerror(errno));
    return false;
  }
  if (restore_fd < 0) {
    const std::string before = std::to_string(this->kb());
    restore_bytes = before.copy(restore_text, sizeof(restore_text));
    restore_fd = fd;
    RestoreAtTheEnd();
  }
  const std::string text = std::to_string(kb);
  if (::pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
      this->kb() != kb) {
    *reason = fmt::format("cannot write {}: {}", path_, std::strerror(errno));
    return false;
  }
  return true;
}

}  // namespace latchkey
