#include "server/admin_service.h"

#include <algorithm>
#include <ctime>

#include "core/base/error.h"
#include "server/wire.h"

namespace latchkey {
namespace {

void Describe(const TableReport& report, v1::TableStatus* status) {
  status->set_residency_probe(std::string(ResidencyProbeName(report.probe)));
  status->set_thrashing(report.thrashing);
  for (const std::string& file : report.quarantined) status->add_quarantined(file);
  for (const SectionReport& section : report.sections) {
    v1::SectionStatus* const message = status->add_sections();
    message->set_segment(section.segment);
    message->set_section(std::string(section.section));
    message->set_size_bytes(section.size_bytes);
    message->set_resident_percent(section.resident_share ? *section.resident_share * 100 : -1);
    message->set_recently_evicted_percent(section.evicted_share * 100);
    message->set_advice(std::string(PageAdviceName(section.advice)));
  }
}

void Describe(const TableCounts& counts, v1::TableStatus* status) {
  const FetchCost& cost = counts.cost;
  status->set_keys(counts.keys);
  status->set_damaged(counts.damaged);
  status->set_places(cost.places);
  status->set_pages_asked(cost.asked);
  status->set_pages_read(cost.read);
  status->set_major_faults(cost.faults);
  // One touch may read more than the page it needs, never less.
  const uint64_t cold = std::min(cost.places, std::max(cost.read, cost.faults));
  status->set_hit_percent(cost.places == 0 ? 100
                                           : 100 * static_cast<double>(cost.places - cold) /
                                                 static_cast<double>(cost.places));
  status->set_threads_asking(counts.threads_asking);
  status->set_threads_silent(counts.threads_silent);
}

}  // namespace

AdminService::AdminService(const Catalog& catalog, const PrefetchScheduler& scheduler,
                           const LookupService& lookups, Reloader& reloader, Executor& executor)
    : catalog_(catalog),
      scheduler_(scheduler),
      lookups_(lookups),
      reloader_(reloader),
      executor_(executor),
      start_unix_s_(std::time(nullptr)) {}

grpc::ServerUnaryReactor* AdminService::Status(grpc::CallbackServerContext* context,
                                               const v1::StatusRequest* request,
                                               v1::StatusResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  response->set_serving(lookups_.serving());
  response->set_start_unix_s(start_unix_s_);
  response->mutable_warm_up()->set_done_bytes(reloader_.warm_up().done_bytes);
  response->mutable_warm_up()->set_total_bytes(reloader_.warm_up().total_bytes);
  const std::vector<TableReport> reports = scheduler_.Report();
  for (const auto& [table, state] : reloader_.States()) {
    if (!request->table().empty() && request->table() != table) continue;
    v1::TableStatus* const status = response->add_tables();
    status->set_table(table);
    status->set_generation(state.generation);
    status->set_reload_error(Message(state.error));
    status->set_reloads(state.opened);
    status->set_reload_failures(state.failed);
    if (const auto snapshot = catalog_.Acquire(table)) {
      status->set_memory_mode(std::string(MemoryModeName(snapshot->memory_mode())));
      status->set_unchecked_bytes(snapshot->unchecked_bytes());
    }
    for (const TableReport& report : reports) {
      if (report.table == table) Describe(report, status);
    }
    Describe(lookups_.CountsOf(table), status);
  }
  const bool found = request->table().empty() || response->tables_size() > 0;
  reactor->Finish(ToGrpcStatus(found ? absl::OkStatus() : NoSuchTable(request->table())));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Reload(grpc::CallbackServerContext* context,
                                               const v1::ReloadRequest* request,
                                               v1::ReloadResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  if (!lookups_.serving()) {
    reactor->Finish(ToGrpcStatus(absl::UnavailableError("the server is opening its tables")));
    return reactor;
  }
  const bool queued = executor_.Submit([this, reactor, request, response](Worker&) {
    const auto generation = reloader_.Reload(request->table());
    if (generation.ok()) response->set_generation(*generation);
    reactor->Finish(ToGrpcStatus(generation.status()));
  });
  if (!queued) reactor->Finish(ToGrpcStatus(absl::ResourceExhaustedError("the server is busy")));
  return reactor;
}

}  // namespace latchkey
