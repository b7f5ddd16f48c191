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
#include "server/executor.h"
#include "server/lookup_service.h"

namespace latchkey {
namespace {

constexpr std::chrono::milliseconds kGoodbyeTime(500);

}  // namespace

Server::Server(const ServerOptions& options) : options_(options) {}
Server::~Server() { Drain(); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  std::unique_ptr<Server> server(new Server(options));
  LATCHKEY_RETURN_IF_ERROR(server->OpenTables());
  const unsigned threads =
      options.threads != 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  server->executor_ = std::make_unique<Executor>(threads, options.queue_max);
  server->lookup_service_ =
      std::make_unique<LookupService>(server->options_, server->catalog_, *server->executor_);
  LATCHKEY_RETURN_IF_ERROR(server->Listen());
  return server;
}

absl::Status Server::OpenTables() {
  FileSystem& file_system = PosixFileSystem();
  LATCHKEY_ASSIGN_OR_RETURN(const auto tables, ListTables(file_system, options_.data_dir));
  if (tables.empty() && !options_.allow_empty) {
    return NotFound(
        "{} holds no table; build one with 'latchkey build', or start with --allow-empty",
        options_.data_dir);
  }
  for (const std::string& table : tables) {
    const auto begin = std::chrono::steady_clock::now();
    LATCHKEY_ASSIGN_OR_RETURN(auto snapshot,
                              Snapshot::OpenNewest(file_system, JoinPath(options_.data_dir, table),
                                                   options_.OptionsOf(table)));
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - begin;
    spdlog::info(
        "table opened table={} generation={} segments={} rows={} memory_mode={} huge_mib={} "
        "segment_map_mib={} ms={:.1f}",
        table, snapshot->generation(), snapshot->segments().size(), snapshot->row_count(),
        MemoryModeName(snapshot->memory_mode()), snapshot->huge_bytes() >> 20,
        snapshot->segment_map_bytes() >> 20, elapsed.count());
    if (!snapshot->segment_map_status().ok()) {
      spdlog::warn("table {} has no segment map, and is slower for it: {}", table,
                   Message(snapshot->segment_map_status()));
    }
    catalog_.Publish(table, std::move(snapshot));
  }
  return absl::OkStatus();
}

absl::Status Server::Listen() {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  // A second server on the same port would take half of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options_.request_bytes_max()));
  builder.RegisterService(lookup_service_.get());
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
  // The empty name stands for the server as a whole.
  auto* const health = grpc_server_->GetHealthCheckService();
  health->SetServingStatus(v1::Lookup::service_full_name(), true);
  return absl::OkStatus();
}

void Server::Drain() {
  if (grpc_server_ == nullptr) return;
  grpc_server_->GetHealthCheckService()->SetServingStatus(false);
  lookup_service_->Drain(std::chrono::system_clock::now() + std::chrono::seconds(options_.drain_s));
  // gRPC waits for the connections too, until this deadline: a client that is idle may not notice
  // that it should go.
  grpc_server_->Shutdown(std::chrono::system_clock::now() + kGoodbyeTime);
  grpc_server_->Wait();
  grpc_server_ = nullptr;
}

uint64_t Server::lookup_major_faults() const { return executor_->MajorFaults(); }

}  // namespace latchkey
