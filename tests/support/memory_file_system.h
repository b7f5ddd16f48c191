// A file system in memory: quick, easily damaged, and a map of a file ends where its bytes do, so
// that a sanitizer sees every read beyond them.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/io/file_system.h"

namespace latchkey::test {

// One thread.
class MemoryFileSystem final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override;
  // The file's bytes as they are now: what is written later does not show.
  absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string& path) override;
  // As flock has it, locks are of the file, not of its name; but where another lock is in the way
  // of a shared one, that fails instead of waiting for ever.
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> LockShared(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> TryLockExclusive(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status CreateDirectories(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;

  bool Has(const std::string& path) const { return files_.contains(path); }
  // The bytes of a file that is there, to look at or to damage.
  std::string& Bytes(const std::string& path) { return *files_.at(path); }
  // Creates or replaces.
  void Put(const std::string& path, std::string bytes);
  // All files with their bytes.
  std::map<std::string, std::string> Files() const;

 private:
  absl::Status CheckFolderOf(const std::string& path) const;

  std::map<std::string, std::shared_ptr<std::string>> files_;
  std::set<std::string> folders_ = {""};
  // Of each locked file, how many hold it shared; or kExclusive. Locks may outlive the file system.
  using Locks = std::map<std::shared_ptr<std::string>, int>;
  static constexpr int kExclusive = -1;
  class MemoryFileLock;
  std::shared_ptr<Locks> locks_ = std::make_shared<Locks>();
};

}  // namespace latchkey::test
