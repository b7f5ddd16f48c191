#include "core/table/generations.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/table/snapshot.h"

namespace latchkey {
namespace {

absl::StatusOr<std::vector<uint64_t>> SomeGenerations(FileSystem& file_system,
                                                      const std::string& table_dir) {
  LATCHKEY_ASSIGN_OR_RETURN(auto generations, ListGenerations(file_system, table_dir));
  if (generations.empty()) return NotFound("{} holds no manifest: there is no table", table_dir);
  return generations;
}

absl::StatusOr<std::unique_ptr<FileLock>> LockTable(FileSystem& file_system,
                                                    const std::string& table_dir) {
  // Not to make a lock file where no table is.
  LATCHKEY_RETURN_IF_ERROR(SomeGenerations(file_system, table_dir).status());
  return file_system.Lock(JoinPath(table_dir, "lock"));
}

class Collector {
 public:
  Collector(FileSystem& file_system, const std::string& table_dir, const GcOptions& options)
      : file_system_(file_system), table_dir_(table_dir), options_(options) {}

  absl::StatusOr<GcResult> Run() {
    if (options_.keep == 0) return InvalidArgument("keep: expected at least 1 generation, got 0");
    std::unique_ptr<FileLock> lock;
    if (!options_.dry_run) {
      LATCHKEY_ASSIGN_OR_RETURN(lock, LockTable(file_system_, table_dir_));
    }
    LATCHKEY_ASSIGN_OR_RETURN(const auto generations, SomeGenerations(file_system_, table_dir_));
    const size_t old = generations.size() - std::min(generations.size(), options_.keep);
    result_.kept.assign(generations.begin() + static_cast<ptrdiff_t>(old), generations.end());
    LATCHKEY_RETURN_IF_ERROR(KeepNewest());
    // The newest one's name must last before older ones go: its writer may have been killed between
    // renaming it and syncing the folder.
    if (!options_.dry_run) LATCHKEY_RETURN_IF_ERROR(file_system_.SyncDirectory(table_dir_));
    LATCHKEY_RETURN_IF_ERROR(
        RemoveManifests({generations.begin(), generations.begin() + static_cast<ptrdiff_t>(old)}));
    LATCHKEY_RETURN_IF_ERROR(RemoveFiles());
    return std::move(result_);
  }

 private:
  absl::StatusOr<Manifest> Read(uint64_t generation) const {
    return ReadManifest(file_system_, table_dir_, generation);
  }

  // What a generation that stays names, stays.
  absl::Status Stays(uint64_t generation, const absl::StatusOr<Manifest>& manifest) {
    if (!manifest.ok()) {
      return Prefixed(
          manifest.status(),
          fmt::format("no segment is removed, for it is not known which ones generation "
                      "{} needs",
                      generation));
    }
    for (const SegmentRef& ref : manifest->segments) needed_.insert(ref.file);
    return absl::OkStatus();
  }

  absl::Status KeepNewest() {
    std::string missing;  // of the newest that lacks a file
    bool whole = false;
    for (auto generation = result_.kept.rbegin(); generation != result_.kept.rend(); ++generation) {
      const auto manifest = Read(*generation);
      LATCHKEY_RETURN_IF_ERROR(Stays(*generation, manifest));
      const std::string file = MissingFileOf(*manifest);
      whole |= file.empty();
      if (missing.empty()) missing = file;
    }
    if (whole) return absl::OkStatus();
    return FailedPrecondition(
        "nothing is removed, for no generation that would stay is whole: {} is missing, or not all "
        "there yet",
        JoinPath(table_dir_, missing));
  }

  // A file that is not there with the size that it should have; empty if there is none.
  std::string MissingFileOf(const Manifest& manifest) const {
    for (const SegmentRef& ref : manifest.segments) {
      if (SizeOf(JoinPath(table_dir_, ref.file)) != ref.file_bytes) return ref.file;
    }
    return "";
  }

  absl::Status RemoveManifests(const std::vector<uint64_t>& old) {
    // Those that can't be read first: if one of them is held, nothing has happened yet.
    std::vector<std::pair<uint64_t, absl::StatusOr<Manifest>>> candidates;
    for (const uint64_t generation : old) candidates.emplace_back(generation, Read(generation));
    std::stable_partition(candidates.begin(), candidates.end(),
                          [](const auto& candidate) { return !candidate.second.ok(); });
    for (const auto& [generation, manifest] : candidates) {
      const std::string name = ManifestFileName(generation);
      // A reader that comes to the lock later finds that the file is gone.
      LATCHKEY_ASSIGN_OR_RETURN(const auto lock,
                                file_system_.TryLockExclusive(JoinPath(table_dir_, name)));
      if (lock == nullptr) {
        LATCHKEY_RETURN_IF_ERROR(Stays(generation, manifest));
        result_.held.push_back(generation);
      } else {
        LATCHKEY_RETURN_IF_ERROR(Remove(name));
        result_.removed.push_back(generation);
      }
    }
    std::sort(result_.held.begin(), result_.held.end());
    std::sort(result_.removed.begin(), result_.removed.end());
    return absl::OkStatus();
  }

  absl::Status RemoveFiles() {
    // Also what an earlier run removed and did not sync.
    if (!options_.dry_run) LATCHKEY_RETURN_IF_ERROR(file_system_.SyncDirectory(table_dir_));
    LATCHKEY_ASSIGN_OR_RETURN(const auto names, file_system_.List(table_dir_));
    for (const std::string& name : names) {
      const bool unneeded =
          IsSegmentFileName(name) ? !needed_.contains(name) : IsTemporaryFileName(name);
      if (unneeded) LATCHKEY_RETURN_IF_ERROR(Remove(name));
    }
    return absl::OkStatus();
  }

  absl::Status Remove(const std::string& name) {
    const std::string path = JoinPath(table_dir_, name);
    result_.bytes += SizeOf(path);
    result_.files.push_back(name);
    return options_.dry_run ? absl::OkStatus() : file_system_.Remove(path);
  }

  // 0 for what can't be opened, which can be removed all the same.
  uint64_t SizeOf(const std::string& path) const {
    const auto file = file_system_.Open(path);
    return file.ok() ? (*file)->SizeBytes().value_or(0) : 0;
  }

  FileSystem& file_system_;
  const std::string& table_dir_;
  const GcOptions& options_;
  std::set<std::string> needed_;  // segment files
  GcResult result_;
};

}  // namespace

std::string GenerationsText(const std::vector<uint64_t>& generations) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < generations.size(); begin = end) {
    for (end = begin + 1; end < generations.size(); ++end) {
      if (generations[end] != generations[end - 1] + 1) break;
    }
    if (end - begin == 2) end = begin + 1;  // "1, 2", not "1 to 2"
    text += fmt::format("{}{}", text.empty() ? "" : ", ", generations[begin]);
    if (end - begin > 1) text += fmt::format(" to {}", generations[end - 1]);
  }
  return text;
}

absl::StatusOr<std::vector<GenerationInfo>> ListTableGenerations(FileSystem& file_system,
                                                                 const std::string& table_dir) {
  LATCHKEY_ASSIGN_OR_RETURN(const auto generations, SomeGenerations(file_system, table_dir));
  std::vector<GenerationInfo> infos;
  for (const uint64_t generation : generations) {
    GenerationInfo info;
    info.generation = generation;
    info.newest = generation == generations.back();
    const auto manifest = ReadManifest(file_system, table_dir, generation);
    info.status = manifest.status();
    if (manifest.ok()) {
      info.created_unix_s = manifest->created_unix_s;
      info.segments = manifest->segments.size();
      for (const SegmentRef& ref : manifest->segments) {
        info.rows += ref.row_count;
        info.file_bytes += ref.file_bytes;
      }
    }
    const auto lock =
        file_system.TryLockExclusive(JoinPath(table_dir, ManifestFileName(generation)));
    if (lock.ok()) info.held = *lock == nullptr;
    // Removed since they were listed.
    if (absl::IsNotFound(info.status) || absl::IsNotFound(lock.status())) continue;
    infos.push_back(std::move(info));
  }
  return infos;
}

absl::StatusOr<HeldManifest> HoldGeneration(FileSystem& file_system, const std::string& table_dir,
                                            uint64_t generation) {
  auto held = HoldManifest(file_system, table_dir, generation);
  if (!absl::IsNotFound(held.status())) return held;
  LATCHKEY_ASSIGN_OR_RETURN(const auto generations, SomeGenerations(file_system, table_dir));
  return NotFound("{}: there is no generation {}; there are {}", table_dir, generation,
                  GenerationsText(generations));
}

absl::StatusOr<Manifest> Rollback(FileSystem& file_system, const std::string& table_dir,
                                  uint64_t generation) {
  LATCHKEY_ASSIGN_OR_RETURN(const auto lock, LockTable(file_system, table_dir));
  // A killed writer's segments, too, may have the number of the generation to come.
  LATCHKEY_RETURN_IF_ERROR(RemoveOrphans(file_system, table_dir));
  LATCHKEY_ASSIGN_OR_RETURN(const HeldManifest held,
                            HoldGeneration(file_system, table_dir, generation));
  LATCHKEY_ASSIGN_OR_RETURN(const auto generations, SomeGenerations(file_system, table_dir));
  const uint64_t newest = generations.back();
  if (generation == newest) {
    return FailedPrecondition("{}: generation {} is the newest already", table_dir, generation);
  }
  const auto opened =
      Snapshot::Open(file_system, table_dir, held.manifest, {.segment_map_bytes_max = 0});
  if (!opened.ok()) {
    return Prefixed(opened.status(), fmt::format("cannot roll back to generation {}", generation));
  }
  Manifest manifest = held.manifest;
  manifest.generation = newest + 1;
  // The newest one may be damaged: that is when an earlier one is wanted.
  const auto latest = ReadManifest(file_system, table_dir, newest);
  manifest.created_unix_s = CreatedAfter(
      std::max(manifest.created_unix_s, latest.ok() ? latest->created_unix_s : int64_t{0}));
  LATCHKEY_RETURN_IF_ERROR(PublishManifest(file_system, table_dir, manifest));
  return manifest;
}

absl::StatusOr<GcResult> Gc(FileSystem& file_system, const std::string& table_dir,
                            const GcOptions& options) {
  return Collector(file_system, table_dir, options).Run();
}

}  // namespace latchkey
