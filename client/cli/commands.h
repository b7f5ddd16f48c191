// The subcommands. Each registers its flags with the application, and runs when its callback is
// called; exit codes: 0 ok, 1 something was not found or not equal, 2 usage, 3 failure.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/backend.h"
#include "core/base/error.h"

namespace latchkey {

inline constexpr int kExitOk = 0, kExitNotFound = 1, kExitUsage = 2, kExitFailure = 3;

void AddBuildCommand(CLI::App& app, int* exit_code);
void AddDeleteCommand(CLI::App& app, int* exit_code);
void AddMergeCommand(CLI::App& app, int* exit_code);
void AddGetCommand(CLI::App& app, int* exit_code);
void AddBatchCommand(CLI::App& app, int* exit_code);
void AddInspectCommand(CLI::App& app, int* exit_code);
void AddVerifyCommand(CLI::App& app, int* exit_code);
void AddDumpCommand(CLI::App& app, int* exit_code);
void AddGenerationsCommand(CLI::App& app, int* exit_code);
void AddRollbackCommand(CLI::App& app, int* exit_code);
void AddDiffCommand(CLI::App& app, int* exit_code);
void AddGcCommand(CLI::App& app, int* exit_code);
void AddStatusCommand(CLI::App& app, int* exit_code);
void AddReloadCommand(CLI::App& app, int* exit_code);

// --server or --data, --table, --timeout-s.
inline void AddBackendOptions(CLI::App& command, BackendOptions* options) {
  auto* const where = command.add_option_group("where", "Where the table is");
  where->add_option("--server", options->server, "A server: HOST:PORT or unix:PATH");
  where->add_option("--data", options->data_dir, "A data directory on this machine");
  where->require_option(1);
  command.add_option("--table", options->table, "The table's name")->required();
  command.add_option("--timeout-s", options->timeout_s, "Seconds that a call may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

// Says what failed, on standard error; the exit code for it.
inline int Fail(const absl::Status& status) {
  std::fprintf(stderr, "latchkey: %s\n", Message(status).c_str());
  return kExitFailure;
}
inline int ExitCodeOf(const absl::StatusOr<int>& result) {
  return result.ok() ? *result : Fail(result.status());
}

}  // namespace latchkey
