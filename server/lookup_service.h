// The Lookup RPCs: admit on gRPC's thread, decode, look up and encode on the executor's.
#pragma once

#include <atomic>
#include <string>

#include "core/table/catalog.h"
#include "latchkey/v1/lookup.grpc.pb.h"
#include "server/executor.h"
#include "server/options.h"

namespace latchkey {

// Thread-safe. Options, catalog and executor must outlive it.
class LookupService final : public v1::Lookup::CallbackService {
 public:
  LookupService(const ServerOptions& options, const Catalog& catalog, Executor& executor);

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const v1::GetRequest* request,
                                v1::GetResponse* response) override;
  grpc::ServerUnaryReactor* BatchGet(grpc::CallbackServerContext* context,
                                     const v1::BatchGetRequest* request,
                                     v1::BatchGetResponse* response) override;
  grpc::ServerUnaryReactor* ListTables(grpc::CallbackServerContext* context,
                                       const v1::ListTablesRequest* request,
                                       v1::ListTablesResponse* response) override;
  grpc::ServerUnaryReactor* DescribeTable(grpc::CallbackServerContext* context,
                                          const v1::DescribeTableRequest* request,
                                          v1::DescribeTableResponse* response) override;

 private:
  // Runs `answer(worker, snapshot)` on the executor and finishes the call with the status it returns.
  template <typename Answer>
  grpc::ServerUnaryReactor* Execute(grpc::CallbackServerContext* context, const std::string& table,
                                    Answer answer);

  const ServerOptions& options_;
  const Catalog& catalog_;
  Executor& executor_;
  // When serving began; those of the executor's threads are counted apart.
  const uint64_t major_faults_before_;
};

}  // namespace latchkey
