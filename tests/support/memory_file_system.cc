#include "tests/support/memory_file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/status_macros.h"

namespace latchkey::test {
namespace {

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

absl::Status Failed(int error_number, std::string_view verb, const std::string& path) {
  return ErrnoStatus(error_number, fmt::format("cannot {} {}", verb, path));
}

class MemoryWritableFile final : public WritableFile {
 public:
  explicit MemoryWritableFile(std::shared_ptr<std::string> bytes) : bytes_(std::move(bytes)) {}
  absl::Status WriteAt(uint64_t offset, std::string_view data) override {
    if (offset + data.size() > bytes_->size()) bytes_->resize(offset + data.size());
    bytes_->replace(offset, data.size(), data);
    return absl::OkStatus();
  }
  absl::Status Truncate(uint64_t size_bytes) override {
    bytes_->resize(size_bytes);
    return absl::OkStatus();
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status Close() override { return absl::OkStatus(); }

 private:
  const std::shared_ptr<std::string> bytes_;
};

class MemoryReadableFile final : public ReadableFile {
 public:
  explicit MemoryReadableFile(std::shared_ptr<const std::string> bytes)
      : bytes_(std::move(bytes)) {}
  absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t size_bytes, char* to) const override {
    if (offset >= bytes_->size()) return 0;
    return bytes_->copy(to, size_bytes, offset);
  }
  absl::StatusOr<size_t> ReadNext(size_t size_bytes, char* to) override {
    const size_t got = bytes_->copy(to, size_bytes, std::min(next_, bytes_->size()));
    next_ += got;
    return got;
  }
  absl::StatusOr<uint64_t> SizeBytes() const override { return bytes_->size(); }

 private:
  const std::shared_ptr<const std::string> bytes_;
  size_t next_ = 0;
};

class MemoryMappedFile final : public MappedFile {
 public:
  explicit MemoryMappedFile(const std::string& bytes)
      : copy_(std::make_unique_for_overwrite<uint8_t[]>(bytes.size())) {
    std::memcpy(copy_.get(), bytes.data(), bytes.size());
    data_ = copy_.get();
    size_bytes_ = bytes.size();
  }

 private:
  const std::unique_ptr<uint8_t[]> copy_;
};

}  // namespace

class MemoryFileSystem::MemoryFileLock final : public FileLock {
 public:
  // `by`: 1, or kExclusive.
  MemoryFileLock(std::shared_ptr<Locks> locks, std::shared_ptr<std::string> file, int by)
      : locks_(std::move(locks)), file_(std::move(file)), by_(by) {
    (*locks_)[file_] += by_;
  }
  ~MemoryFileLock() override {
    if (((*locks_)[file_] -= by_) == 0) locks_->erase(file_);
  }

 private:
  const std::shared_ptr<Locks> locks_;
  const std::shared_ptr<std::string> file_;
  const int by_;
};

absl::Status MemoryFileSystem::CheckFolderOf(const std::string& path) const {
  if (folders_.contains(FolderOf(path))) return absl::OkStatus();
  return Failed(ENOENT, "create", path);
}

void MemoryFileSystem::Put(const std::string& path, std::string bytes) {
  (void)CreateDirectories(FolderOf(path));
  files_[path] = std::make_shared<std::string>(std::move(bytes));
}

std::map<std::string, std::string> MemoryFileSystem::Files() const {
  std::map<std::string, std::string> files;
  for (const auto& [path, bytes] : files_) files[path] = *bytes;
  return files;
}

absl::StatusOr<std::unique_ptr<WritableFile>> MemoryFileSystem::Create(const std::string& path) {
  LATCHKEY_RETURN_IF_ERROR(CheckFolderOf(path));
  const auto [at, created] = files_.try_emplace(path, std::make_shared<std::string>());
  if (!created) return Failed(EEXIST, "create", path);
  return std::make_unique<MemoryWritableFile>(at->second);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> MemoryFileSystem::Open(const std::string& path) {
  const auto found = files_.find(path);
  if (found == files_.end()) return Failed(ENOENT, "open", path);
  return std::make_unique<MemoryReadableFile>(found->second);
}

absl::StatusOr<std::unique_ptr<MappedFile>> MemoryFileSystem::Map(const std::string& path) {
  const auto found = files_.find(path);
  if (found == files_.end()) return Failed(ENOENT, "open", path);
  return std::make_unique<MemoryMappedFile>(*found->second);
}

absl::StatusOr<std::unique_ptr<FileLock>> MemoryFileSystem::Lock(const std::string& path) {
  LATCHKEY_RETURN_IF_ERROR(CheckFolderOf(path));
  files_.try_emplace(path, std::make_shared<std::string>());
  LATCHKEY_ASSIGN_OR_RETURN(auto lock, TryLockExclusive(path));
  if (lock == nullptr) return FailedPrecondition("{} is locked", path);
  return lock;
}

absl::StatusOr<std::unique_ptr<FileLock>> MemoryFileSystem::LockShared(const std::string& path) {
  const auto found = files_.find(path);
  if (found == files_.end()) return Failed(ENOENT, "open", path);
  const auto lock = locks_->find(found->second);
  if (lock != locks_->end() && lock->second == kExclusive) {
    return FailedPrecondition("{} is locked", path);
  }
  return std::make_unique<MemoryFileLock>(locks_, found->second, 1);
}

absl::StatusOr<std::unique_ptr<FileLock>> MemoryFileSystem::TryLockExclusive(
    const std::string& path) {
  const auto found = files_.find(path);
  if (found == files_.end()) return Failed(ENOENT, "open", path);
  if (locks_->contains(found->second)) return nullptr;
  return std::make_unique<MemoryFileLock>(locks_, found->second, kExclusive);
}

absl::Status MemoryFileSystem::Rename(const std::string& from, const std::string& to) {
  const auto found = files_.find(from);
  if (found == files_.end()) return Failed(ENOENT, "rename", from);
  files_[to] = found->second;
  files_.erase(from);
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::Remove(const std::string& path) {
  if (files_.erase(path) == 0) return Failed(ENOENT, "remove", path);
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::CreateDirectories(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    folders_.insert(path.substr(0, end));
    if (end == std::string::npos) return absl::OkStatus();
  }
}

absl::Status MemoryFileSystem::SyncDirectory(const std::string& path) {
  return folders_.contains(path) ? absl::OkStatus() : Failed(ENOENT, "open", path);
}

absl::StatusOr<std::vector<std::string>> MemoryFileSystem::List(const std::string& path) {
  if (files_.contains(path)) return Failed(ENOTDIR, "list", path);
  if (!folders_.contains(path)) return Failed(ENOENT, "list", path);
  std::set<std::string> names;
  const auto add = [&](const std::string& member) {
    if (member.size() > path.size() && FolderOf(member) == path) {
      names.insert(member.substr(path.size() + 1));
    }
  };
  for (const auto& [file, bytes] : files_) add(file);
  for (const auto& folder : folders_) add(folder);
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace latchkey::test
