// The Lookup RPCs: admit on gRPC's thread, decode, look up and encode on the executors'. Every call
// begins on a thread that must not wait for the disk; when it would have to, it goes over to one
// that may.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "core/table/catalog.h"
#include "latchkey/v1/lookup.grpc.pb.h"
#include "server/executor.h"
#include "server/options.h"

namespace latchkey {

// Counts the calls whose reply is still to be made or sent. Thread-safe.
class CallsInFlight {
 public:
  // False, and nothing is counted, once draining.
  [[nodiscard]] bool Begin();
  void End();
  // Lets no more begin, and returns when those that have begun are over, or at the deadline.
  void Drain(std::chrono::system_clock::time_point deadline);

 private:
  std::mutex mutex_;
  std::condition_variable none_left_;
  uint64_t count_ = 0;
  bool draining_ = false;
};

// Thread-safe. Options, catalog and executors must outlive it.
class LookupService final : public v1::Lookup::CallbackService {
 public:
  LookupService(const ServerOptions& options, const Catalog& catalog, Executor& warm,
                Executor& cold);

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const v1::GetRequest* request,
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

  // Until then look-ups are refused with UNAVAILABLE, as the tables are still being opened.
  void Begin() { begun_ = true; }
  bool serving() const { return begun_; }
  // Of both executors.
  TableCounts CountsOf(const std::string& table) const;
  // Refuses look-ups from now on, with UNAVAILABLE; returns when the replies of those in flight are
  // sent, or at the deadline.
  void Drain(std::chrono::system_clock::time_point deadline) { calls_.Drain(deadline); }

 private:
  // Runs `answer(worker, snapshot, limits, &finished)` and finishes the call with the status it
  // returns, unless it sets `finished` to false, which it may when limits.may_wait is: then it runs
  // again where it may wait.
  template <typename Answer>
  grpc::ServerUnaryReactor* Execute(grpc::CallbackServerContext* context, const std::string& table,
                                    Answer answer);

  const ServerOptions& options_;
  const Catalog& catalog_;
  Executor& warm_;
  Executor& cold_;
  std::atomic<bool> begun_{false};
  CallsInFlight calls_;
  // When serving began; those of the executor's threads are counted apart.
  const uint64_t major_faults_before_;
};

}  // namespace latchkey
