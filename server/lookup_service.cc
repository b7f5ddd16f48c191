#include "server/lookup_service.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/io/fault_guard.h"
#include "server/wire.h"

namespace latchkey {
namespace {

TableCounts OutcomeCounts(const LookupResults& results) {
  TableCounts counts;
  counts.keys = results.size();
  for (const Outcome outcome : results.outcomes) {
    counts.found += outcome == Outcome::kFound;
    counts.damaged += outcome == Outcome::kDamaged;
  }
  return counts;
}

// Time for the reply to reach the caller before its deadline.
constexpr std::chrono::milliseconds kReplyTimeMax(20);

LookupLimits LimitsOf(grpc::CallbackServerContext* context, bool may_wait) {
  const auto deadline = context->deadline();
  const auto left = deadline - std::chrono::system_clock::now();
  const auto reply_time = std::min<std::chrono::system_clock::duration>(left / 8, kReplyTimeMax);
  return {may_wait, [context, stop_at = deadline - reply_time] {
            return context->IsCancelled() || std::chrono::system_clock::now() >= stop_at;
          }};
}

// Ends a call that was counted.
class CountedReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit CountedReactor(CallsInFlight& calls) : calls_(calls) {}
  void OnDone() override {
    calls_.End();
    delete this;
  }

 private:
  CallsInFlight& calls_;
};

grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace

bool CallsInFlight::Begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (draining_) return false;
  ++count_;
  return true;
}

void CallsInFlight::End() {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Under the lock, since this may be gone as soon as Drain has returned.
  if (--count_ == 0 && draining_) none_left_.notify_all();
}

void CallsInFlight::Drain(std::chrono::system_clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  draining_ = true;
  none_left_.wait_until(lock, deadline, [this] { return count_ == 0; });
}

LookupService::LookupService(const ServerOptions& options, const Catalog& catalog, Executor& warm,
                             Executor& cold)
    : options_(options),
      catalog_(catalog),
      warm_(warm),
      cold_(cold),
      major_faults_before_(ProcessMajorFaults() - warm.MajorFaults() - cold.MajorFaults()) {}

TableCounts LookupService::CountsOf(const std::string& table) const {
  TableCounts counts = warm_.CountsOf(table);
  return counts += cold_.CountsOf(table);
}

template <typename Answer>
grpc::ServerUnaryReactor* LookupService::Execute(grpc::CallbackServerContext* context,
                                                 const std::string& table, Answer answer) {
  if (!begun_) return Finish(context, absl::UnavailableError("the server is opening its tables"));
  if (!calls_.Begin())
    return Finish(context, absl::UnavailableError("the server is shutting down"));
  grpc::ServerUnaryReactor* const reactor = new CountedReactor(calls_);
  const auto queue_full = [this, reactor] {
    reactor->Finish(ToGrpcStatus(absl::ResourceExhaustedError(
        fmt::format("{} requests are waiting already", options_.queue_max))));
  };
  // Request and reply live until Finish, also when the call is cancelled meanwhile. False: nothing
  // is finished, since it would have to wait.
  const auto run = [this, context, reactor, &table, answer](Worker& worker, bool may_wait) {
    absl::Status status;
    bool finished = true;
    if (context->IsCancelled()) {
      status = absl::CancelledError("the caller has gone");
    } else if (context->deadline() < std::chrono::system_clock::now()) {
      status = absl::DeadlineExceededError("the deadline came before the look-up began");
    } else if (const auto snapshot = catalog_.Acquire(table)) {
      status = answer(worker, *snapshot, LimitsOf(context, may_wait), &finished);
    } else {
      status = NoSuchTable(table);
    }
    if (finished) reactor->Finish(ToGrpcStatus(status));
    return finished;
  };
  const bool queued = warm_.Submit([this, run, queue_full](Worker& worker) {
    if (run(worker, /*may_wait=*/false)) return;
    if (!cold_.Submit([run](Worker& other) { run(other, /*may_wait=*/true); })) queue_full();
  });
  if (!queued) queue_full();
  return reactor;
}

grpc::ServerUnaryReactor* LookupService::Get(grpc::CallbackServerContext* context,
                                             const v1::GetRequest* request,
                                             v1::GetResponse* response) {
  return Execute(context, request->table(),
                 [this, request, response](Worker& worker, const Snapshot& snapshot,
                                           const LookupLimits& limits, bool* finished) {
                   std::string_view key;
                   LATCHKEY_RETURN_IF_ERROR(
                       DecodeKey(*request, snapshot.schema().key_kind, &key, &worker.key_bytes));
                   LookupResult result;
                   ReadStably([&] {
                     *finished = worker.engine.LookupOne(snapshot, key, &result, limits);
                     EncodeResult(*request, snapshot, result, options_.reply_bytes_max, response);
                     snapshot.TouchEnds();
                   });
                   TableCounts counts;
                   if (*finished) {
                     counts.keys = 1;
                     counts.found = result.outcome == Outcome::kFound;
                     counts.damaged = result.outcome == Outcome::kDamaged;
                   }
                   const FetchCost cost = worker.Count(request->table(), snapshot, counts);
                   if (request->report_cost()) EncodeCost(cost, response->mutable_cost());
                   return absl::OkStatus();
                 });
}

grpc::ServerUnaryReactor* LookupService::BatchGet(grpc::CallbackServerContext* context,
                                                  const v1::BatchGetRequest* request,
                                                  v1::BatchGetResponse* response) {
  // Before any work is done for it, a place in the queue included.
  if (const uint64_t count = CountKeys(*request); count > options_.batch_keys_max) {
    return Finish(
        context, absl::ResourceExhaustedError(fmt::format("batch: expected at most {} keys, got {}",
                                                          options_.batch_keys_max, count)));
  }
  return Execute(
      context, request->table(),
      [this, request, response](Worker& worker, const Snapshot& snapshot,
                                const LookupLimits& limits, bool* finished) {
        LATCHKEY_RETURN_IF_ERROR(
            DecodeKeys(*request, snapshot.schema().key_kind, &worker.keys, &worker.key_bytes));
        ReadStably([&] {
          *finished = worker.engine.Lookup(snapshot, worker.keys, &worker.results, limits);
          if (!*finished) return;
          EncodeResults(*request, snapshot, worker.results, options_.reply_bytes_max, response);
          snapshot.TouchEnds();
        });
        const FetchCost cost = worker.Count(
            request->table(), snapshot, *finished ? OutcomeCounts(worker.results) : TableCounts());
        if (request->report_cost()) EncodeCost(cost, response->mutable_cost());
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* LookupService::ListTables(grpc::CallbackServerContext* context,
                                                    const v1::ListTablesRequest* /*request*/,
                                                    v1::ListTablesResponse* response) {
  for (const std::string& name : catalog_.Names()) {
    const auto snapshot = catalog_.Acquire(name);
    if (snapshot == nullptr) continue;
    v1::ListTablesResponse::Table* const table = response->add_tables();
    table->set_name(name);
    table->set_generation(snapshot->generation());
    table->set_rows(snapshot->row_count());
  }
  return Finish(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* LookupService::DescribeTable(grpc::CallbackServerContext* context,
                                                       const v1::DescribeTableRequest* request,
                                                       v1::DescribeTableResponse* response) {
  const auto snapshot = catalog_.Acquire(request->table());
  if (snapshot == nullptr) return Finish(context, NoSuchTable(request->table()));
  DescribeSnapshot(request->table(), *snapshot, response);
  DescribeLimits(options_, response->mutable_limits());
  const TableCounts counts = CountsOf(request->table());
  response->mutable_counts()->set_keys(counts.keys);
  response->mutable_counts()->set_found(counts.found);
  response->mutable_counts()->set_damaged(counts.damaged);
  response->mutable_counts()->set_major_faults(counts.cost.faults);
  const uint64_t others = ProcessMajorFaults() - warm_.MajorFaults() - cold_.MajorFaults();
  response->set_rpc_thread_major_faults(std::max(others, major_faults_before_) -
                                        major_faults_before_);
  return Finish(context, absl::OkStatus());
}

}  // namespace latchkey
