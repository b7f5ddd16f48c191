#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/error.h"
#include "core/base/low_priority.h"
#include "core/base/status_macros.h"
#include "core/io/file_system.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#endif

namespace latchkey {
namespace {

// What a thread of low priority has the kernel map and unmap at once, which can't be interrupted:
// some 20 and 40 us.
constexpr uint64_t kPopulateBytes = uint64_t{128} << 10, kUnmapBytes = uint64_t{512} << 10;

uint64_t PartBytes(uint64_t part_bytes) { return IsLowPriority() ? part_bytes : UINT64_MAX; }

class UniqueFd {
 public:
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&&) = delete;
  ~UniqueFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

absl::Status Failed(std::string_view verb, const std::string& path) {
  return ErrnoStatus(errno, fmt::format("cannot {} {}", verb, path));
}

absl::StatusOr<UniqueFd> OpenFd(const std::string& path, int flags, mode_t mode,
                                std::string_view verb) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return Failed(verb, path);
  return UniqueFd(fd);
}

absl::StatusOr<uint64_t> FileSize(int fd, const std::string& path) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return Failed("stat", path);
  if (S_ISDIR(info.st_mode)) return ErrnoStatus(EISDIR, fmt::format("cannot read {}", path));
  return S_ISREG(info.st_mode) ? static_cast<uint64_t>(info.st_size) : 0;
}

// The folder that holds the name of `path`.
std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::Status WriteAt(uint64_t offset, std::string_view data) override {
    while (!data.empty()) {
      const ssize_t written =
          ::pwrite(fd_.get(), data.data(), data.size(), static_cast<off_t>(offset));
      if (written < 0) {
        if (errno == EINTR) continue;
        return ErrnoStatus(errno, fmt::format("cannot write {} at offset {}", path_, offset));
      }
      offset += static_cast<uint64_t>(written);
      data.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status Truncate(uint64_t size_bytes) override {
    if (::ftruncate(fd_.get(), static_cast<off_t>(size_bytes)) != 0) return Failed("resize", path_);
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (::fsync(fd_.get()) != 0) return Failed("sync", path_);
    return absl::OkStatus();
  }

  absl::Status Close() override {
    if (::close(fd_.Release()) != 0 && errno != EINTR) return Failed("close", path_);
    return absl::OkStatus();
  }

 private:
  UniqueFd fd_;
  const std::string path_;
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t size_bytes, char* to) const override {
    size_t done = 0;
    while (done < size_bytes) {
      const ssize_t got =
          ::pread(fd_.get(), to + done, size_bytes - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        return ErrnoStatus(errno, fmt::format("cannot read {} at offset {}", path_, offset + done));
      }
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }

  absl::StatusOr<size_t> ReadNext(size_t size_bytes, char* to) override {
    for (;;) {
      const ssize_t got = ::read(fd_.get(), to, size_bytes);
      if (got >= 0) return static_cast<size_t>(got);
      if (errno != EINTR) return Failed("read", path_);
    }
  }

  absl::StatusOr<uint64_t> SizeBytes() const override { return FileSize(fd_.get(), path_); }

 private:
  UniqueFd fd_;
  const std::string path_;
};

class PosixMappedFile final : public MappedFile {
 public:
  PosixMappedFile(UniqueFd fd, const uint8_t* data, uint64_t size_bytes)
      : unique_fd_(std::move(fd)) {
    data_ = data;
    size_bytes_ = size_bytes;
    fd_ = unique_fd_.get();
    if (size_bytes > 0) guard_.emplace(data, size_bytes);
  }
  ~PosixMappedFile() override {
    guard_.reset();
    // From the end, so that what is left is one map.
    while (size_bytes_ > 0) {
      const uint64_t part_bytes = (size_bytes_ - 1) % PartBytes(kUnmapBytes) + 1;
      size_bytes_ -= part_bytes;
      ::munmap(const_cast<uint8_t*>(data_) + size_bytes_, part_bytes);
      GiveWay();
    }
  }

 private:
  const UniqueFd unique_fd_;
};

}  // namespace

void MappedFile::ReadAhead(uint64_t offset, uint64_t size_bytes) const {
  if (fd_ < 0) return;
  (void)::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(size_bytes),
                        POSIX_FADV_WILLNEED);
}

void MappedFile::Populate(uint64_t offset, uint64_t size_bytes) const {
  if (fd_ < 0) return;
  const uint64_t page_mask = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) - 1;
  for (uint64_t at = offset & ~page_mask, end = offset + size_bytes; at < end;) {
    const uint64_t part_bytes = std::min(end - at, PartBytes(kPopulateBytes));
    (void)::madvise(const_cast<uint8_t*>(data_) + at, part_bytes, MADV_POPULATE_READ);
    at += part_bytes;
    GiveWay();
  }
}

void MappedFile::LetGo(const uint8_t* begin, const uint8_t* end) const {
  static const auto page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  if (fd_ < 0) return;  // not a file's pages: they would be lost
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / page_bytes * page_bytes;
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) / page_bytes * page_bytes;
  if (first < last) (void)::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void MappedFile::SetReadAround(bool on) const {
  if (fd_ < 0 || size_bytes_ == 0) return;
  (void)::madvise(const_cast<uint8_t*>(data_), size_bytes_, on ? MADV_NORMAL : MADV_RANDOM);
}

namespace {

class PosixFileLock final : public FileLock {
 public:
  explicit PosixFileLock(UniqueFd fd) : fd_(std::move(fd)) {}

 private:
  UniqueFd fd_;
};

// Over NFS only what is open for writing can be locked so; elsewhere what is read-only, too.
absl::StatusOr<UniqueFd> OpenToLockExclusive(const std::string& path) {
  auto fd = OpenFd(path, O_RDWR, 0, "open");
  if (!absl::IsPermissionDenied(fd.status())) return fd;
  return OpenFd(path, O_RDONLY, 0, "open");
}

absl::Status Flock(int fd, int operation, const std::string& path, bool* held_by_others) {
  *held_by_others = false;
  while (::flock(fd, operation) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return Failed("lock", path);
    *held_by_others = true;
    break;
  }
  return absl::OkStatus();
}

// NotFound for an open file that was removed, or replaced. By the name too: some file systems only
// rename a file that is removed while it is open.
absl::Status CheckStillThere(int fd, const std::string& path) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return Failed("stat", path);
  if (info.st_nlink == 0) return ErrnoStatus(ENOENT, fmt::format("cannot lock {}", path));
  if (::stat(path.c_str(), &info) != 0) return Failed("lock", path);
  return absl::OkStatus();
}

class Posix final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    LATCHKEY_ASSIGN_OR_RETURN(UniqueFd fd,
                              OpenFd(path, O_WRONLY | O_CREAT | O_EXCL, 0644, "create"));
    return std::make_unique<PosixWritableFile>(std::move(fd), path);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    if (path == "-") {
      const int fd = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
      if (fd < 0) return Failed("read", "standard input");
      return std::make_unique<PosixReadableFile>(UniqueFd(fd), "standard input");
    }
    LATCHKEY_ASSIGN_OR_RETURN(UniqueFd fd, OpenFd(path, O_RDONLY, 0, "open"));
    LATCHKEY_RETURN_IF_ERROR(FileSize(fd.get(), path).status());
    return std::make_unique<PosixReadableFile>(std::move(fd), path);
  }

  absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string& path) override {
    LATCHKEY_ASSIGN_OR_RETURN(UniqueFd fd, OpenFd(path, O_RDONLY, 0, "open"));
    LATCHKEY_ASSIGN_OR_RETURN(const uint64_t size_bytes, FileSize(fd.get(), path));
    if (size_bytes == 0) return std::make_unique<PosixMappedFile>(std::move(fd), nullptr, 0);
    void* data = ::mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) return Failed("map", path);
    return std::make_unique<PosixMappedFile>(std::move(fd), static_cast<const uint8_t*>(data),
                                             size_bytes);
  }

  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    LATCHKEY_ASSIGN_OR_RETURN(UniqueFd fd, OpenFd(path, O_RDWR | O_CREAT, 0644, "create"));
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return Failed("lock", path);
      return FailedPrecondition("{} is locked: another writer is at work on this table", path);
    }
    return std::make_unique<PosixFileLock>(std::move(fd));
  }

  absl::StatusOr<std::unique_ptr<FileLock>> LockShared(const std::string& path) override {
    LATCHKEY_ASSIGN_OR_RETURN(UniqueFd fd, OpenFd(path, O_RDONLY, 0, "open"));
    bool held_by_others;
    LATCHKEY_RETURN_IF_ERROR(Flock(fd.get(), LOCK_SH, path, &held_by_others));
    LATCHKEY_RETURN_IF_ERROR(CheckStillThere(fd.get(), path));
    return std::make_unique<PosixFileLock>(std::move(fd));
  }

  absl::StatusOr<std::unique_ptr<FileLock>> TryLockExclusive(const std::string& path) override {
    LATCHKEY_ASSIGN_OR_RETURN(UniqueFd fd, OpenToLockExclusive(path));
    bool held_by_others;
    LATCHKEY_RETURN_IF_ERROR(Flock(fd.get(), LOCK_EX | LOCK_NB, path, &held_by_others));
    if (held_by_others) return nullptr;
    LATCHKEY_RETURN_IF_ERROR(CheckStillThere(fd.get(), path));
    return std::make_unique<PosixFileLock>(std::move(fd));
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) {
      return ErrnoStatus(errno, fmt::format("cannot rename {} to {}", from, to));
    }
    return absl::OkStatus();
  }

  absl::Status Remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return Failed("remove", path);
    return absl::OkStatus();
  }

  absl::Status CreateDirectories(const std::string& path) override {
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
      const std::string part = path.substr(0, end);
      if (::mkdir(part.c_str(), 0755) == 0) {
        LATCHKEY_RETURN_IF_ERROR(SyncDirectory(FolderOf(part)));
      } else if (errno != EEXIST) {
        return Failed("create folder", part);
      }
      if (end == std::string::npos) break;
    }
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return Failed("stat", path);
    if (!S_ISDIR(info.st_mode)) return ErrnoStatus(ENOTDIR, fmt::format("cannot use {}", path));
    return absl::OkStatus();
  }

  absl::Status SyncDirectory(const std::string& path) override {
    LATCHKEY_ASSIGN_OR_RETURN(UniqueFd fd, OpenFd(path, O_RDONLY | O_DIRECTORY, 0, "open"));
    if (::fsync(fd.get()) != 0) return Failed("sync", path);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    DIR* folder = ::opendir(path.c_str());
    if (folder == nullptr) return Failed("list", path);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(folder)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    const int error_number = errno;
    ::closedir(folder);
    if (error_number != 0) return ErrnoStatus(error_number, fmt::format("cannot list {}", path));
    std::sort(names.begin(), names.end());
    return names;
  }
};

}  // namespace

FileSystem& PosixFileSystem() {
  static Posix* const posix = new Posix;
  return *posix;
}

absl::StatusOr<std::string> FileSystem::ReadFile(const std::string& path, uint64_t size_bytes_max) {
  LATCHKEY_ASSIGN_OR_RETURN(auto file, Open(path));
  LATCHKEY_ASSIGN_OR_RETURN(const uint64_t size_bytes, file->SizeBytes());
  if (size_bytes > size_bytes_max) {
    return InvalidArgument("{} has {} bytes, expected at most {}", path, size_bytes,
                           size_bytes_max);
  }
  std::string text(size_bytes, '\0');
  LATCHKEY_ASSIGN_OR_RETURN(const size_t got, file->ReadAt(0, size_bytes, text.data()));
  text.resize(got);
  return text;
}

}  // namespace latchkey
