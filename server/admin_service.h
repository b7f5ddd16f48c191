// The Admin RPCs: what those who run the server ask of it.
#pragma once

#include <cstdint>

#include "core/prefetch/prefetch_scheduler.h"
#include "core/table/catalog.h"
#include "latchkey/v1/admin.grpc.pb.h"
#include "server/lookup_service.h"
#include "server/reloader.h"

namespace latchkey {

// Thread-safe. What it is given must outlive it.
class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(const Catalog& catalog, const PrefetchScheduler& scheduler,
               const LookupService& lookups, Reloader& reloader, Executor& executor);

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const v1::StatusRequest* request,
                                   v1::StatusResponse* response) override;
  grpc::ServerUnaryReactor* Reload(grpc::CallbackServerContext* context,
                                   const v1::ReloadRequest* request,
                                   v1::ReloadResponse* response) override;

 private:
  const Catalog& catalog_;
  const PrefetchScheduler& scheduler_;
  const LookupService& lookups_;
  Reloader& reloader_;
  Executor& executor_;  // opening a table may take its time
  const int64_t start_unix_s_;
};

}  // namespace latchkey
