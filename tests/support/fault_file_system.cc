#include "tests/support/fault_file_system.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/status_macros.h"

namespace latchkey::test {
namespace {

constexpr size_t kPage = 4096;

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

void WriteTo(std::string* bytes, uint64_t offset, std::string_view data) {
  bytes->resize(std::max(bytes->size(), offset + data.size()));
  bytes->replace(offset, data.size(), data);
}

std::string ReadAll(FileSystem& files, const std::string& path) {
  auto bytes = files.ReadFile(path, UINT64_MAX);
  LATCHKEY_CHECK(bytes.ok());
  return *std::move(bytes);
}

// Each page either as it was synced, or as it was written; the size likewise.
std::string SomePagesLost(const std::string& bytes, const std::string& synced, Random& random) {
  std::string left = bytes;
  for (size_t at = 0; at < left.size(); at += kPage) {
    if (random.OneIn(2)) continue;
    for (size_t i = at; i < std::min(at + kPage, left.size()); ++i) {
      left[i] = i < synced.size() ? synced[i] : '\0';
    }
  }
  if (random.OneIn(3)) left.resize(random.Below(left.size() + 1));
  return left;
}

}  // namespace

template <typename Do>
auto FaultFileSystem::Call(std::string_view name, const std::string& path, bool writes, Do what)
    -> decltype(what()) {
  calls_.push_back(fmt::format("{} {}", name, path));
  if (calls_.size() == at_call_ + 1 && (fault_ == Fault::kCrash || fault_ == Fault::kDiskFull)) {
    failing_ = true;
  }
  const bool fails = Now(Fault::kError) || Now(Fault::kTornWrite) ||
                     (failing_ && (writes || fault_ == Fault::kCrash));
  const absl::Status failure = ErrnoStatus(error_number_, fmt::format("cannot {} {}", name, path));
  if (fails) return failure;
  auto result = what();
  if (Now(Fault::kLateError)) return failure;
  return result;
}

class FaultFileSystem::FaultyWritableFile final : public WritableFile {
 public:
  FaultyWritableFile(FaultFileSystem& faults, std::string path, std::shared_ptr<Node> node,
                     std::unique_ptr<WritableFile> file)
      : faults_(faults), path_(std::move(path)), node_(std::move(node)), file_(std::move(file)) {}

  absl::Status WriteAt(uint64_t offset, std::string_view data) override {
    const bool crashed = faults_.failing_;
    const auto write = [&](std::string_view part) {
      WriteTo(&node_->bytes, offset, part);
      return file_->WriteAt(offset, part);
    };
    const absl::Status status = faults_.Call("WriteAt", path_, true, [&] {
      if (!faults_.Now(Fault::kWrongWrite) || data.empty()) return write(data);
      std::string wrong(data);
      wrong[faults_.torn_.Below(wrong.size())] ^= 0x04;
      return write(wrong);
    });
    if (!status.ok() && !crashed &&
        (faults_.Now(Fault::kTornWrite) || faults_.Now(Fault::kCrash))) {
      LATCHKEY_RETURN_IF_ERROR(write(data.substr(0, faults_.torn_.Below(data.size() + 1))));
    }
    return status;
  }
  absl::Status Truncate(uint64_t size_bytes) override {
    return faults_.Call("Truncate", path_, true, [&] {
      node_->bytes.resize(size_bytes);
      return file_->Truncate(size_bytes);
    });
  }
  // What is really synced makes no difference but to a machine that really loses power.
  absl::Status Sync() override {
    return faults_.Call("Sync", path_, false, [&] {
      node_->synced = node_->bytes;
      return absl::OkStatus();
    });
  }
  absl::Status Close() override {
    return faults_.Call("Close", path_, false, [&] { return file_->Close(); });
  }

 private:
  FaultFileSystem& faults_;
  const std::string path_;
  const std::shared_ptr<Node> node_;
  const std::unique_ptr<WritableFile> file_;
};

class FaultFileSystem::FaultyReadableFile final : public ReadableFile {
 public:
  FaultyReadableFile(FaultFileSystem& faults, std::string path, std::unique_ptr<ReadableFile> file)
      : faults_(faults), path_(std::move(path)), file_(std::move(file)) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t size_bytes, char* to) const override {
    return Shortened(faults_.Call("ReadAt", path_, false,
                                  [&] { return file_->ReadAt(offset, size_bytes, to); }));
  }
  absl::StatusOr<size_t> ReadNext(size_t size_bytes, char* to) override {
    return faults_.Call("ReadNext", path_, false, [&] { return file_->ReadNext(size_bytes, to); });
  }
  absl::StatusOr<uint64_t> SizeBytes() const override {
    return faults_.Call("SizeBytes", path_, false, [&] { return file_->SizeBytes(); });
  }

 private:
  absl::StatusOr<size_t> Shortened(absl::StatusOr<size_t> got) const {
    if (got.ok() && faults_.Now(Fault::kShortRead)) return *got / 2;
    return got;
  }

  FaultFileSystem& faults_;
  const std::string path_;
  const std::unique_ptr<ReadableFile> file_;
};

void FaultFileSystem::Arm(Fault fault, uint64_t at_call, int error_number) {
  fault_ = fault;
  at_call_ = at_call;
  error_number_ = error_number;
  failing_ = false;
  calls_.clear();
  torn_ = Random(at_call);
}

std::shared_ptr<FaultFileSystem::Node> FaultFileSystem::TakeNode(const std::string& path) {
  auto found = nodes_.extract(path);
  if (!found.empty()) return found.mapped();
  if (!base_.Open(path).ok()) return nullptr;
  auto node = std::make_shared<Node>();
  node->bytes = node->synced = ReadAll(base_, path);
  return node;
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultFileSystem::Create(const std::string& path) {
  return Call("Create", path, true, [&]() -> absl::StatusOr<std::unique_ptr<WritableFile>> {
    LATCHKEY_ASSIGN_OR_RETURN(auto file, base_.Create(path));
    auto node = std::make_shared<Node>();
    nodes_[path] = node;
    unsynced_names_[FolderOf(path)].push_back({"", path, nullptr});
    return std::make_unique<FaultyWritableFile>(*this, path, std::move(node), std::move(file));
  });
}

absl::StatusOr<std::unique_ptr<ReadableFile>> FaultFileSystem::Open(const std::string& path) {
  return Call("Open", path, false, [&]() -> absl::StatusOr<std::unique_ptr<ReadableFile>> {
    LATCHKEY_ASSIGN_OR_RETURN(auto file, base_.Open(path));
    return std::make_unique<FaultyReadableFile>(*this, path, std::move(file));
  });
}

absl::StatusOr<std::unique_ptr<MappedFile>> FaultFileSystem::Map(const std::string& path) {
  return Call("Map", path, false, [&] { return base_.Map(path); });
}

absl::StatusOr<std::unique_ptr<FileLock>> FaultFileSystem::Lock(const std::string& path) {
  return Call("Lock", path, true, [&] { return base_.Lock(path); });
}

absl::StatusOr<std::unique_ptr<FileLock>> FaultFileSystem::LockShared(const std::string& path) {
  return Call("LockShared", path, false, [&] { return base_.LockShared(path); });
}

absl::StatusOr<std::unique_ptr<FileLock>> FaultFileSystem::TryLockExclusive(
    const std::string& path) {
  return Call("TryLockExclusive", path, false, [&] { return base_.TryLockExclusive(path); });
}

absl::Status FaultFileSystem::Rename(const std::string& from, const std::string& to) {
  return Call("Rename", from, false, [&]() -> absl::Status {
    LATCHKEY_CHECK(FolderOf(from) == FolderOf(to));
    auto node = TakeNode(from);
    auto replaced = TakeNode(to);
    LATCHKEY_RETURN_IF_ERROR(base_.Rename(from, to));
    nodes_[to] = std::move(node);
    unsynced_names_[FolderOf(to)].push_back({from, to, std::move(replaced)});
    return absl::OkStatus();
  });
}

absl::Status FaultFileSystem::Remove(const std::string& path) {
  return Call("Remove", path, false, [&]() -> absl::Status {
    auto node = TakeNode(path);
    LATCHKEY_RETURN_IF_ERROR(base_.Remove(path));
    unsynced_names_[FolderOf(path)].push_back({path, "", std::move(node)});
    return absl::OkStatus();
  });
}

// Durable, as FileSystem promises.
absl::Status FaultFileSystem::CreateDirectories(const std::string& path) {
  return Call("CreateDirectories", path, true, [&] { return base_.CreateDirectories(path); });
}

absl::Status FaultFileSystem::SyncDirectory(const std::string& path) {
  return Call("SyncDirectory", path, false, [&]() -> absl::Status {
    LATCHKEY_RETURN_IF_ERROR(base_.List(path).status());
    unsynced_names_.erase(path);
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<std::string>> FaultFileSystem::List(const std::string& path) {
  return Call("List", path, false, [&] { return base_.List(path); });
}

void FaultFileSystem::Rewrite(const std::string& path, const std::string& bytes) {
  (void)base_.Remove(path);
  auto file = base_.Create(path);
  LATCHKEY_CHECK(file.ok() && (*file)->WriteAt(0, bytes).ok() && (*file)->Close().ok());
}

void FaultFileSystem::Undo(const NameChange& change) {
  std::shared_ptr<Node> node = change.replaced_or_removed;
  if (change.from.empty()) {
    nodes_.erase(change.to);
    LATCHKEY_CHECK(base_.Remove(change.to).ok());
    return;
  }
  const std::string& restored = change.to.empty() ? change.from : change.to;
  if (!change.to.empty()) {
    nodes_[change.from] = TakeNode(change.to);
    LATCHKEY_CHECK(base_.Rename(change.to, change.from).ok());
  }
  if (node != nullptr) {
    Rewrite(restored, node->bytes);
    nodes_[restored] = std::move(node);
  }
}

void FaultFileSystem::LoseUnsynced(Random* random) {
  for (auto& [folder, changes] : unsynced_names_) {
    // In no order, but for changes of one name.
    std::set<std::string> kept;
    for (; !changes.empty(); changes.pop_back()) {
      const NameChange& change = changes.back();
      if (kept.contains(change.from) || kept.contains(change.to) ||
          (random != nullptr && random->OneIn(2))) {
        for (const std::string& name : {change.from, change.to}) {
          if (!name.empty()) kept.insert(name);
        }
      } else {
        Undo(change);
      }
    }
  }
  for (const auto& [path, node] : nodes_) {
    if (node->bytes == node->synced) continue;
    Rewrite(path,
            random == nullptr ? node->synced : SomePagesLost(node->bytes, node->synced, *random));
  }
  unsynced_names_.clear();
  nodes_.clear();
  Arm(Fault::kNone, 0, 0);
}

}  // namespace latchkey::test
