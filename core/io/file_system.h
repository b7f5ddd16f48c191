// The file system as the product uses it: an interface, so that tests can make the n-th call fail,
// tear a write, or lose what was not synced. Every error names the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/io/fault_guard.h"

namespace latchkey {

// A file being written. Thread-compatible. Destroying it closes it without a sync.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Writes all of `data` at `offset`; what was never written reads as zero bytes.
  virtual absl::Status WriteAt(uint64_t offset, std::string_view data) = 0;
  virtual absl::Status Truncate(uint64_t size_bytes) = 0;
  // Returns once data and size are on the device.
  virtual absl::Status Sync() = 0;
  // Errors that only closing reveals; the file can't be used afterwards.
  virtual absl::Status Close() = 0;
};

// A file read with read calls, not through a map. Thread-compatible.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // Reads up to `size_bytes` at `offset` and returns how many there were: fewer only at the end.
  virtual absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t size_bytes, char* to) const = 0;
  // Reads on from where the last such call ended, or from the start; 0 at the end.
  // Works on pipes, where ReadAt does not.
  virtual absl::StatusOr<size_t> ReadNext(size_t size_bytes, char* to) = 0;
  // 0 for a pipe.
  virtual absl::StatusOr<uint64_t> SizeBytes() const = 0;
};

// A whole file mapped read-only, for as long as this lives. Any thread may read it. Pages that the
// file no longer backs read as zero bytes, once the fault guard is installed.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  const uint8_t* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }
  // Whether there were such pages. From then on the file can't be relied on.
  bool lost() const { return guard_.has_value() && guard_->lost(); }
  // For questions about its page cache; -1 if it is no map of a file, which has none.
  int fd() const { return fd_; }
  // Asks for a part of it, which does not wait for the disk. At most as much as the device reads
  // ahead at once, 128 KiB or more, is surely read.
  void ReadAhead(uint64_t offset, uint64_t size_bytes) const;
  // Maps a part of it that is in the page cache, so that touching it is no fault; what is not there
  // is read first.
  void Populate(uint64_t offset, uint64_t size_bytes) const;
  // Lets the whole pages between two addresses in it go: the process does not need them any more,
  // and can have them again.
  void LetGo(const uint8_t* begin, const uint8_t* end) const;
  // Whether a touch of a cold page reads its neighbours too, megabytes of them perhaps; so it is at
  // first.
  void SetReadAround(bool on) const;

 protected:
  const uint8_t* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  int fd_ = -1;
  std::optional<GuardedRange> guard_;
};

// Held until destroyed; the kernel drops it when the process dies, however it dies.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates an empty file; AlreadyExists if there is one.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // Path "-" is standard input.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string& path) = 0;
  // FailedPrecondition when somebody else holds it.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) = 0;
  // Locks a file that is there, beside others that do the same, and against those who want it for
  // themselves; waits while one of them has it. Works where nothing can be written. NotFound if
  // there is no such file, or none any more once it is locked.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> LockShared(const std::string& path) = 0;
  // Locks a file that is there against everybody else; null when somebody holds it, shared or not.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> TryLockExclusive(const std::string& path) = 0;

  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  // With all missing parents, durably; what is there already is no error.
  virtual absl::Status CreateDirectories(const std::string& path) = 0;
  // Makes the names in a folder durable.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // Names in a folder, sorted, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;

  // The whole file; InvalidArgument when it is larger than `size_bytes_max`.
  absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t size_bytes_max);
};

// The machine's own. Lives for ever; thread-safe.
FileSystem& PosixFileSystem();

inline std::string JoinPath(std::string_view folder, std::string_view name) {
  std::string path(folder);
  if (!path.empty() && path.back() != '/') path += '/';
  path += name;
  return path;
}

}  // namespace latchkey
