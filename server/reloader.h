// Keeps the catalog at what lies on disk: opens the tables at the start, and then every new
// generation beside the one that serves.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "core/prefetch/background_check.h"
#include "core/prefetch/prefetch_scheduler.h"
#include "core/table/catalog.h"
#include "server/options.h"

namespace latchkey {

// How opening a table's generations went.
struct ReloadState {
  uint64_t generation = 0;  // that serves; 0: none
  absl::Status error;       // why the newest does not serve; OK if it does
  uint64_t opened = 0;      // generations that came to serve
  uint64_t failed = 0;      // attempts that left the one before
};

// Bytes that are read before what is opened serves, since the start.
struct WarmUpProgress {
  std::atomic<uint64_t> done_bytes{0};
  std::atomic<uint64_t> total_bytes{0};
};

// Thread-safe. What it is given must outlive it.
class Reloader {
 public:
  Reloader(const ServerOptions& options, Catalog& catalog, PrefetchScheduler& scheduler,
           BackgroundCheck& check);
  ~Reloader() { Stop(); }
  // Watches no more, and gives up a generation that is being warmed up.
  void Stop();

  // Opens every table of the data directory. NotFound when there is none and that is not allowed;
  // Cancelled when `should_stop` said so.
  absl::Status OpenAll(const std::function<bool()>& should_stop);
  // After OpenAll. From now on notices what changes in the data directory: by inotify at once, and
  // by looking once a second, for file systems that do not tell.
  void StartWatching();

  // After OpenAll. Opens the table's newest generation, if it does not serve yet, and publishes it;
  // returns the one that serves. A table whose folder is gone goes from the catalog
  // (NotFound). After any other error what served before still does, and it is tried again when
  // the table's folder changes, as the manifest may have come before its files, and now and then.
  absl::StatusOr<uint64_t> Reload(const std::string& table);

  // Of the tables that are on the disk, those that never opened included.
  std::map<std::string, ReloadState> States() const;
  const WarmUpProgress& warm_up() const { return warm_up_; }

 private:
  absl::StatusOr<uint64_t> Open(const std::string& table);
  // The table's newest generation, or what serves already if that is it.
  absl::StatusOr<std::shared_ptr<const Snapshot>> OpenNewest(const std::string& table);
  absl::StatusOr<std::shared_ptr<const Snapshot>> OpenSnapshot(const std::string& table,
                                                               Manifest manifest,
                                                               const Snapshot* previous);
  // Drops snapshots that no request holds any more.
  void DropRetired();
  absl::Status WarmUpTable(const std::string& table, const Snapshot& snapshot,
                           const Snapshot* previous);
  absl::StatusOr<uint64_t> Note(const std::string& table, absl::StatusOr<uint64_t> generation);
  void LookAtAll();
  void Watch();

  const ServerOptions& options_;
  Catalog& catalog_;
  PrefetchScheduler& scheduler_;
  BackgroundCheck& check_;
  WarmUpProgress warm_up_;
  std::function<bool()> should_stop_ = [] { return false; };

  std::mutex reloading_;  // one table at a time, so that their memory does not add up
  // Held here too, so that they go on a thread of this and not on that of the last request:
  // unmapping takes its time. Guarded by reloading_.
  std::map<std::string, std::shared_ptr<const Snapshot>> serving_;
  std::vector<std::shared_ptr<const Snapshot>> retired_;
  mutable std::mutex mutex_;
  std::map<std::string, ReloadState> states_;  // guarded by mutex_
  std::atomic<bool> stopping_{false};
  int wake_fds_[2] = {-1, -1};  // a pipe: one byte ends the wait of `watcher_`
  // When to try again what failed; of the watcher alone.
  struct Retry {
    std::string folder;  // as it was; empty: not known
    std::chrono::steady_clock::time_point at;
    std::chrono::seconds pause{0};
  };
  std::map<std::string, Retry> retries_;
  std::thread watcher_;
};

}  // namespace latchkey
