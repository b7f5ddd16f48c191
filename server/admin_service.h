// The Admin RPCs: what those who run the server ask of it.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/prefetch/prefetch_scheduler.h"
#include "core/table/catalog.h"
#include "latchkey/v1/admin.grpc.pb.h"
#include "server/lookup_service.h"

namespace latchkey {

// Bytes that are read before the tables serve. Thread-safe.
struct WarmUpProgress {
  std::atomic<uint64_t> done_bytes{0};
  std::atomic<uint64_t> total_bytes{0};
};

// Thread-safe. What it is given must outlive it.
class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(const Catalog& catalog, const PrefetchScheduler& scheduler,
               const LookupService& lookups, const WarmUpProgress& warm_up);

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const v1::StatusRequest* request,
                                   v1::StatusResponse* response) override;

 private:
  const Catalog& catalog_;
  const PrefetchScheduler& scheduler_;
  const LookupService& lookups_;
  const WarmUpProgress& warm_up_;
  const int64_t start_unix_s_;
};

}  // namespace latchkey
