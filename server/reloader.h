// Keeps the catalog at what lies on disk: opens the tables at the start, and then every new
// generation beside the one that serves.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "core/prefetch/prefetch_scheduler.h"
#include "core/table/catalog.h"
#include "server/options.h"

namespace latchkey {

// Bytes that are read before what is opened serves, since the start.
struct WarmUpProgress {
  std::atomic<uint64_t> done_bytes{0};
  std::atomic<uint64_t> total_bytes{0};
};

// Thread-safe. What it is given must outlive it.
class Reloader {
 public:
  Reloader(const ServerOptions& options, Catalog& catalog, PrefetchScheduler& scheduler);
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
  // returns the one that serves. A table that is gone from the disk goes from the catalog
  // (NotFound). After any other error what served before still does, and it is tried again when
  // something changes, or in a second: the manifest may have come before its files.
  absl::StatusOr<uint64_t> Reload(const std::string& table);

  // Why the table's newest generation does not serve; OK if it does.
  absl::Status LastError(const std::string& table) const;
  const WarmUpProgress& warm_up() const { return warm_up_; }

 private:
  absl::StatusOr<uint64_t> Open(const std::string& table);
  absl::Status WarmUpTable(const std::string& table, const Snapshot& snapshot);
  void LookAtAll();
  void Watch();

  const ServerOptions& options_;
  Catalog& catalog_;
  PrefetchScheduler& scheduler_;
  WarmUpProgress warm_up_;
  std::function<bool()> should_stop_ = [] { return false; };

  std::mutex reloading_;  // one table at a time, so that their memory does not add up
  mutable std::mutex mutex_;
  std::map<std::string, absl::Status> errors_;  // of tables with one; guarded by mutex_
  std::atomic<bool> stopping_{false};
  int wake_fds_[2] = {-1, -1};  // a pipe: one byte ends the wait of `watcher_`
  std::thread watcher_;
};

}  // namespace latchkey
