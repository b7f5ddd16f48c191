#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <cstdio>

#include "core/base/error.h"
#include "core/io/fault_guard.h"
#include "server/options.h"
#include "server/server.h"

namespace latchkey {
namespace {

int Serve(const ServerOptions& options) {
  InstallFaultGuard();
  // Blocked before the first thread starts, so that only this one takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  spdlog::set_default_logger(spdlog::stderr_logger_mt("latchkeyd"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%f%z %l %v");
  spdlog::set_level(spdlog::level::from_str(options.log_level));

  // A descriptor a segment is kept open, and there may be more than the usual 1,024.
  struct rlimit files = {};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }

  auto server = Server::Start(options, [] {
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1;
  });
  if (absl::IsCancelled(server.status())) {
    spdlog::info("stopped before it served");
    return 0;
  }
  if (!server.ok()) {
    spdlog::error("cannot start: {}", Message(server.status()));
    return 3;
  }
  for (const std::string& address : (*server)->addresses())
    spdlog::info("serving address={}", address);
  if (!(*server)->http_address().empty()) {
    spdlog::info("metrics address={}", (*server)->http_address());
  }

  int signal_number = 0;
  sigwait(&signals, &signal_number);
  spdlog::info("draining signal={} seconds_max={}", signal_number, options.drain_s);
  (*server)->Drain();
  spdlog::info("stopped lookup_major_faults={}", (*server)->lookup_major_faults());
  return 0;
}

}  // namespace
}  // namespace latchkey

int main(int argc, char** argv) {
  const latchkey::ParsedCommandLine parsed = latchkey::ParseServerCommandLine(argc, argv);
  switch (parsed.command) {
    case latchkey::ServerCommand::kServe:
      return latchkey::Serve(parsed.options);
    case latchkey::ServerCommand::kHealthCheck: {
      const absl::Status status = latchkey::CheckHealth(parsed.health_server);
      if (!status.ok()) std::fprintf(stderr, "latchkeyd: %s\n", latchkey::Message(status).c_str());
      return status.ok() ? 0 : 1;
    }
    case latchkey::ServerCommand::kExit:
      return parsed.exit_code;
  }
}
