// The daemon: opens the tables, serves them, and drains.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/table/catalog.h"
#include "server/options.h"

namespace grpc {
class Server;
}

namespace latchkey {

class AdminService;
class BackgroundCheck;
class Executor;
class LookupService;
class MetricsEndpoint;
class PrefetchScheduler;
class Reloader;

class Server {
 public:
  // Listens, opens every table of the data directory, warms them up, and begins to serve. Until
  // then it says NOT_SERVING and refuses look-ups. Errors name the table's file, or the address
  // that can't be listened on; nothing is left running then. Cancelled when `should_stop` said so.
  // From then on new generations are taken over as they come.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options,
      const std::function<bool()>& should_stop = [] { return false; });
  ~Server();

  // Says NOT_SERVING, takes no new calls, and returns when those in flight are done or the drain
  // time is over.
  void Drain();

  // Addresses that it listens on, with the ports that were taken.
  const std::vector<std::string>& addresses() const { return addresses_; }
  std::string http_address() const;  // empty: none
  uint64_t lookup_major_faults() const;

 private:
  explicit Server(const ServerOptions& options);
  absl::Status Listen();

  const ServerOptions options_;
  Catalog catalog_;
  std::unique_ptr<Executor> warm_executor_;
  std::unique_ptr<Executor> cold_executor_;
  std::unique_ptr<LookupService> lookup_service_;
  std::unique_ptr<PrefetchScheduler> scheduler_;
  std::unique_ptr<BackgroundCheck> check_;
  std::unique_ptr<Reloader> reloader_;
  std::unique_ptr<MetricsEndpoint> metrics_;
  std::unique_ptr<AdminService> admin_service_;
  std::vector<std::string> addresses_;
  std::unique_ptr<grpc::Server> grpc_server_;  // destroyed first: calls use all of the above
};

// OK when the server at `address` says that it serves.
absl::Status CheckHealth(const std::string& address);

}  // namespace latchkey
