#include "server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/prefetch/background_check.h"
#include "core/prefetch/prefetch_scheduler.h"
#include "server/admin_service.h"
#include "server/executor.h"
#include "server/lookup_service.h"
#include "server/metrics.h"
#include "server/reloader.h"

namespace latchkey {
namespace {

constexpr std::chrono::milliseconds kGoodbyeTime(500);
// Threads that wait for the disk take little of a processor, but should take none from the others.
constexpr unsigned kColdThreadsMin = 8;
constexpr int kColdNiceness = 10;

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      const std::function<bool()>& should_stop) {
  std::unique_ptr<Server> server(new Server(options));
  LATCHKEY_RETURN_IF_ERROR(server->Listen());
  LATCHKEY_RETURN_IF_ERROR(server->reloader_->OpenAll(should_stop));
  server->lookup_service_->Begin();
  server->grpc_server_->GetHealthCheckService()->SetServingStatus(true);
  server->reloader_->StartWatching();
  return server;
}

Server::Server(const ServerOptions& options) : options_(options) {
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  ProbeEngineOptions engine_options;
  engine_options.prefetch = options.prefetch;
  warm_executor_ = std::make_unique<Executor>(options.threads != 0 ? options.threads : cores,
                                              options.queue_max, engine_options);
  cold_executor_ = std::make_unique<Executor>(
      options.cold_threads != 0 ? options.cold_threads : std::max(kColdThreadsMin, 4 * cores),
      options.queue_max, engine_options, kColdNiceness);
  lookup_service_ =
      std::make_unique<LookupService>(options_, catalog_, *warm_executor_, *cold_executor_);
  PrefetchSchedulerOptions scheduler_options;
  scheduler_options.advise = options.prefetch != PrefetchChoice::kNever;
  scheduler_options.on_event = [](const std::string& event) { spdlog::info(event); };
  scheduler_options.cost_of = [this](const std::string& table) {
    return lookup_service_->CountsOf(table).cost;
  };
  scheduler_ = std::make_unique<PrefetchScheduler>(std::move(scheduler_options));
  BackgroundCheckOptions check_options;
  check_options.bytes_per_s_max = options.verify_mib_per_s_max << 20;
  check_options.on_damage = [](const std::string& table, const absl::Status& damage) {
    spdlog::error("damaged table={}: {}", table, Message(damage));
  };
  check_ = std::make_unique<BackgroundCheck>(std::move(check_options));
  reloader_ = std::make_unique<Reloader>(options_, catalog_, *scheduler_, *check_);
  admin_service_ = std::make_unique<AdminService>(catalog_, *scheduler_, *lookup_service_,
                                                  *reloader_, *cold_executor_);
}

Server::~Server() { Drain(); }

absl::Status Server::Listen() {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  // A second server on the same port would take half of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options_.request_bytes_max()));
  builder.RegisterService(lookup_service_.get());
  builder.RegisterService(admin_service_.get());
  std::vector<int> ports(options_.listen.size(), 0);
  for (size_t i = 0; i < ports.size(); ++i) {
    builder.AddListeningPort(options_.listen[i], grpc::InsecureServerCredentials(), &ports[i]);
  }
  grpc_server_ = builder.BuildAndStart();
  for (size_t i = 0; i < ports.size(); ++i) {
    const std::string& address = options_.listen[i];
    if (ports[i] == 0) {  // gRPC gives up at the first that fails
      return absl::UnavailableError(fmt::format(
          "cannot listen on {}: the address is not one of this machine's, or is taken", address));
    }
    addresses_.push_back(
        address.starts_with("unix:")
            ? address
            : fmt::format("{}:{}", address.substr(0, address.rfind(':')), ports[i]));
  }
  if (grpc_server_ == nullptr) return absl::InternalError("gRPC did not start; its log says why");
  auto* const health = grpc_server_->GetHealthCheckService();
  health->SetServingStatus(v1::Lookup::service_full_name(), false);
  health->SetServingStatus(false);
  if (options_.http.empty()) return absl::OkStatus();
  LATCHKEY_ASSIGN_OR_RETURN(
      metrics_, MetricsEndpoint::Start(options_.http, catalog_, *lookup_service_, *reloader_));
  return absl::OkStatus();
}

std::string Server::http_address() const { return metrics_ == nullptr ? "" : metrics_->address(); }

void Server::Drain() {
  if (grpc_server_ == nullptr) return;
  grpc_server_->GetHealthCheckService()->SetServingStatus(false);
  // First, so that nothing is taken once that is said.
  lookup_service_->Drain(std::chrono::system_clock::now() + std::chrono::seconds(options_.drain_s));
  reloader_->Stop();
  // gRPC waits for the connections too, until this deadline: a client that is idle may not notice
  // that it should go.
  grpc_server_->Shutdown(std::chrono::system_clock::now() + kGoodbyeTime);
  grpc_server_->Wait();
  grpc_server_ = nullptr;
  metrics_ = nullptr;
}

uint64_t Server::lookup_major_faults() const {
  return warm_executor_->MajorFaults() + cold_executor_->MajorFaults();
}

}  // namespace latchkey
