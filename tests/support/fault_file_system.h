// Wraps a file system and makes one of its calls go wrong, or the machine lose power.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/io/file_system.h"
#include "tests/support/test_random.h"

namespace latchkey::test {

enum class Fault {
  kNone,
  kError,       // the call fails, and nothing happens
  kLateError,   // the call fails, though it took effect
  kTornWrite,   // of a write, a part is written; other calls fail as with kError
  kWrongWrite,  // a write comes out with a byte changed, without an error; other calls are as ever
  kShortRead,   // of a read, half of the bytes come, without an error; other calls are as ever
  kDiskFull,    // from this call on, creating and writing fail, and nothing else
  kCrash,       // a write may be torn; from this call on, everything fails
};

// One thread. Files that are there already when it is made count as synced.
class FaultFileSystem final : public FileSystem {
 public:
  explicit FaultFileSystem(FileSystem& base) : base_(base) {}

  // Counts calls from 0 again; call `at_call` goes wrong, with `error_number` where it fails.
  void Arm(Fault fault, uint64_t at_call, int error_number);
  // Calls since then, of this and of the files that it gave: "WriteAt data/t/spill.tmp".
  const std::vector<std::string>& calls() const { return calls_; }

  // What is on the disk after power was lost: names and bytes that were not synced are gone, if
  // `random` is null; else some of the changes of names are, and of each file's bytes some pages.
  void LoseUnsynced(Random* random);

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> LockShared(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> TryLockExclusive(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status CreateDirectories(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;

 private:
  class FaultyWritableFile;
  class FaultyReadableFile;

  // A file that was created here, or whose name went away here.
  struct Node {
    std::string bytes;   // as written
    std::string synced;  // as they surely are on the disk
  };
  // A change of names in a folder, not yet synced.
  struct NameChange {
    std::string from, to;  // one is empty for a file created or removed
    std::shared_ptr<Node> replaced_or_removed;
  };

  // Does `what` and returns its status, unless the call goes wrong.
  template <typename Do>
  auto Call(std::string_view name, const std::string& path, bool writes, Do what)
      -> decltype(what());
  // Whether the present call is the one that goes wrong in that way.
  bool Now(Fault fault) const { return fault_ == fault && calls_.size() == at_call_ + 1; }
  std::shared_ptr<Node> TakeNode(const std::string& path);
  void Undo(const NameChange& change);
  void Rewrite(const std::string& path, const std::string& bytes);

  FileSystem& base_;
  Fault fault_ = Fault::kNone;
  uint64_t at_call_ = 0;
  int error_number_ = 0;
  bool failing_ = false;  // kCrash and kDiskFull: it has begun
  std::vector<std::string> calls_;
  Random torn_{1};
  std::map<std::string, std::shared_ptr<Node>> nodes_;
  std::map<std::string, std::vector<NameChange>> unsynced_names_;  // by folder, oldest first
};

}  // namespace latchkey::test
