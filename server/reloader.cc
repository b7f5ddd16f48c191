#include "server/reloader.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "core/base/error.h"
#include "core/base/low_priority.h"
#include "core/base/status_macros.h"
#include "core/io/anonymous_memory.h"
#include "core/prefetch/warm_up.h"

namespace latchkey {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kProgressTime(2);  // between two lines of the log
constexpr int kLookMs = 1000;
constexpr std::chrono::seconds kRetryMax(60);
// Most requests that hold the generation before are answered in that time.
constexpr int kDrainMs = 20;
// The memory of a segment map that is out of use waits so long for the next generation's.
constexpr std::chrono::seconds kSpareTime(10);

// Runs `work` on a thread that lookups go before, as do the threads that it starts, and waits for
// it.
template <typename Work>
void AtLowPriority(const Work& work) {
  std::thread thread([&] {
    LowerPriority();
    work();
  });
  thread.join();
}

// Names, sizes and times of the files in a table's folder: what shows that it is worth while to try
// again.
std::string StateOfFolder(const std::string& table_dir) {
  std::string state;
  std::error_code error;
  for (std::filesystem::directory_iterator at(table_dir, error), end; !error && at != end;
       at.increment(error)) {
    struct stat file = {};
    if (::stat(at->path().c_str(), &file) != 0) continue;
    state += fmt::format("{} {} {}.{}\n", at->path().filename().string(), file.st_size,
                         file.st_mtim.tv_sec, file.st_mtim.tv_nsec);
  }
  return state;
}

}  // namespace

Reloader::Reloader(const ServerOptions& options, Catalog& catalog, PrefetchScheduler& scheduler,
                   BackgroundCheck& check)
    : options_(options), catalog_(catalog), scheduler_(scheduler), check_(check) {}

void Reloader::Stop() {
  stopping_ = true;
  if (watcher_.joinable()) {
    (void)!::write(wake_fds_[1], "", 1);
    watcher_.join();
  }
  for (int& fd : wake_fds_) {
    if (fd >= 0) ::close(std::exchange(fd, -1));
  }
}

absl::Status Reloader::OpenAll(const std::function<bool()>& should_stop) {
  LATCHKEY_ASSIGN_OR_RETURN(const auto tables, ListTables(PosixFileSystem(), options_.data_dir));
  if (tables.empty() && !options_.allow_empty) {
    return NotFound(
        "{} holds no table; build one with 'latchkey build', or start with --allow-empty",
        options_.data_dir);
  }
  should_stop_ = should_stop;
  for (const std::string& table : tables) {
    LATCHKEY_RETURN_IF_ERROR(Note(table, Open(table)).status());
  }
  should_stop_ = [this] { return stopping_.load(); };
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Reloader::Open(const std::string& table) {
  absl::StatusOr<std::shared_ptr<const Snapshot>> snapshot;
  const auto open = [&] { snapshot = OpenNewest(table); };
  if (watcher_.joinable()) {
    AtLowPriority(open);
  } else {
    open();
  }
  LATCHKEY_RETURN_IF_ERROR(snapshot.status());
  const uint64_t generation = (*snapshot)->generation();
  std::shared_ptr<const Snapshot>& serving = serving_[table];
  if (serving == *snapshot) return generation;
  scheduler_.Watch(table, *snapshot);
  check_.Add(table, **snapshot);
  catalog_.Publish(table, *snapshot);
  if (serving != nullptr) retired_.push_back(serving);
  serving = *std::move(snapshot);
  return generation;
}

absl::StatusOr<std::shared_ptr<const Snapshot>> Reloader::OpenNewest(const std::string& table) {
  LATCHKEY_ASSIGN_OR_RETURN(
      Manifest manifest, ReadNewestManifest(PosixFileSystem(), JoinPath(options_.data_dir, table)));
  const auto serving = serving_.find(table);
  const auto current = serving == serving_.end() ? nullptr : serving->second;
  const bool same_table = current != nullptr && current->manifest().identity == manifest.identity;
  if (same_table && current->generation() == manifest.generation) return current;
  return OpenSnapshot(table, std::move(manifest), same_table ? current.get() : nullptr);
}

absl::StatusOr<std::shared_ptr<const Snapshot>> Reloader::OpenSnapshot(const std::string& table,
                                                                       Manifest manifest,
                                                                       const Snapshot* previous) {
  const auto begin = Clock::now();
  LATCHKEY_ASSIGN_OR_RETURN(
      auto snapshot, Snapshot::Open(PosixFileSystem(), JoinPath(options_.data_dir, table),
                                    std::move(manifest), options_.OptionsOf(table), previous));
  const std::chrono::duration<double, std::milli> elapsed = Clock::now() - begin;
  spdlog::info(
      "table opened table={} generation={} segments={} rows={} memory_mode={} huge_mib={} "
      "segment_map_mib={} ms={:.1f}",
      table, snapshot->generation(), snapshot->segments().size(), snapshot->row_count(),
      MemoryModeName(snapshot->memory_mode()), snapshot->huge_bytes() >> 20,
      snapshot->segment_map_bytes() >> 20, elapsed.count());
  if (!snapshot->segment_map_status().ok()) {
    spdlog::warn("table {} has no segment map, and is slower for it: {}", table,
                 Message(snapshot->segment_map_status()));
  }
  LATCHKEY_RETURN_IF_ERROR(WarmUpTable(table, *snapshot, previous));
  return snapshot;
}

void Reloader::DropRetired() {
  // Whoever took one from the catalog is an owner more.
  const auto in_use = [](const auto& snapshot) { return snapshot.use_count() > 1; };
  const auto unused = std::partition(retired_.begin(), retired_.end(), in_use);
  if (unused == retired_.end()) return;
  AtLowPriority([&] { retired_.erase(unused, retired_.end()); });
}

absl::Status Reloader::WarmUpTable(const std::string& table, const Snapshot& snapshot,
                                   const Snapshot* previous) {
  const auto begin = Clock::now();
  auto said = begin;
  const uint64_t done_before = warm_up_.done_bytes, total_before = warm_up_.total_bytes;
  WarmUpOptions options;
  options.what = options_.warm_up;
  options.verify = options_.verify;
  options.previous = previous;
  // One that takes turns counts them by itself.
  if (IsLowPriority()) options.threads = 1;
  options.bytes_per_s_max = options_.warm_up_mib_per_s_max << 20;
  options.should_stop = should_stop_;
  options.on_damage = [&](const absl::Status& damage) {
    spdlog::error("damaged table={}: {}", table, Message(damage));
  };
  options.on_progress = [&](uint64_t done_bytes, uint64_t total_bytes) {
    warm_up_.done_bytes = done_before + done_bytes;
    warm_up_.total_bytes = total_before + total_bytes;
    const auto now = Clock::now();
    if (now - said < kProgressTime) return;
    said = now;
    spdlog::info("warming up table={} mib={} of={}", table, done_bytes >> 20, total_bytes >> 20);
  };
  LATCHKEY_RETURN_IF_ERROR(WarmUpSnapshot(snapshot, options));
  const std::chrono::duration<double> elapsed = Clock::now() - begin;
  spdlog::info("warmed up table={} what={} mib={} seconds={:.1f} unchecked_mib={}", table,
               WarmUpName(options_.warm_up), (warm_up_.done_bytes - done_before) >> 20,
               elapsed.count(), snapshot.unchecked_bytes() >> 20);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Reloader::Reload(const std::string& table) {
  LATCHKEY_RETURN_IF_ERROR(ValidateTableName(table));
  const std::lock_guard<std::mutex> reloading(reloading_);
  absl::StatusOr<uint64_t> generation = Note(table, Open(table));
  DropRetired();
  for (int ms = 0; ms < kDrainMs && !retired_.empty(); ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    DropRetired();
  }
  return generation;
}

absl::StatusOr<uint64_t> Reloader::Note(const std::string& table,
                                        absl::StatusOr<uint64_t> generation) {
  const absl::Status& status = generation.status();
  const auto before = catalog_.Acquire(table);
  if (absl::IsNotFound(status)) {
    // Gone as a whole, or files of it only? A copy may remove the old manifest before the new one
    // comes.
    std::error_code error;
    if (!std::filesystem::exists(JoinPath(options_.data_dir, table), error) && !error) {
      if (before != nullptr) spdlog::info("table gone table={}", table);
      catalog_.Remove(table);
      if (auto node = serving_.extract(table)) retired_.push_back(std::move(node.mapped()));
      const std::lock_guard<std::mutex> lock(mutex_);
      states_.erase(table);
      return generation;
    }
  }
  if (absl::IsCancelled(status)) return generation;
  const std::lock_guard<std::mutex> lock(mutex_);
  ReloadState& state = states_[table];
  if (status.ok()) {
    state.opened += *generation != state.generation;
    state.generation = *generation;
  } else {
    ++state.failed;
    if (status != state.error) {
      spdlog::error("table not {} table={}{}: {}", before == nullptr ? "opened" : "reloaded", table,
                    before == nullptr ? "" : ", what served before still does", Message(status));
    }
  }
  state.error = status;
  return generation;
}

std::map<std::string, ReloadState> Reloader::States() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return states_;
}

void Reloader::LookAtAll() {
  // A folder that can't be read at present says nothing about the tables in it.
  const auto on_disk = ListTables(PosixFileSystem(), options_.data_dir);
  if (!on_disk.ok()) return;
  std::vector<std::string> tables = *on_disk;
  for (const std::string& table : catalog_.Names()) tables.push_back(table);
  std::sort(tables.begin(), tables.end());
  tables.erase(std::unique(tables.begin(), tables.end()), tables.end());
  for (const std::string& table : tables) {
    if (stopping_) return;
    const auto failed = retries_.find(table);
    std::string folder;
    if (failed != retries_.end()) {
      // Taken first: what changes meanwhile shall be seen.
      folder = StateOfFolder(JoinPath(options_.data_dir, table));
      if (folder == failed->second.folder && Clock::now() < failed->second.at) continue;
    }
    if (Reload(table).ok()) {
      retries_.erase(table);
      continue;
    }
    Retry& retry = retries_[table];
    if (folder != retry.folder) retry.pause = {};
    retry.folder = std::move(folder);
    retry.pause = std::clamp(2 * retry.pause, std::chrono::seconds(1), kRetryMax);
    retry.at = Clock::now() + retry.pause;
  }
}

void Reloader::StartWatching() {
  if (::pipe2(wake_fds_, O_CLOEXEC) != 0) {
    spdlog::error("cannot watch for new generations: no pipe is to be had");
    return;
  }
  watcher_ = std::thread([this] { Watch(); });
}

void Reloader::Watch() {
  // Without it, as when the user has too many already, looking once a second is all there is.
  const int inotify = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  constexpr uint32_t kEvents = IN_MOVED_TO | IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_ONLYDIR;
  while (!stopping_) {
    if (inotify >= 0) {
      // To add one that is there already changes nothing.
      (void)::inotify_add_watch(inotify, options_.data_dir.c_str(), kEvents);
      for (const std::string& table : catalog_.Names()) {
        (void)::inotify_add_watch(inotify, JoinPath(options_.data_dir, table).c_str(), kEvents);
      }
    }
    pollfd waits[2] = {{wake_fds_[0], POLLIN, 0}, {inotify, POLLIN, 0}};
    (void)::poll(waits, inotify >= 0 ? 2 : 1, kLookMs);
    if (inotify >= 0) {
      char events[4096];
      while (::read(inotify, events, sizeof(events)) > 0) {
      }
    }
    LookAtAll();
    AnonymousMemory::ReleaseSpare(kSpareTime);
  }
  if (inotify >= 0) ::close(inotify);
}

}  // namespace latchkey
