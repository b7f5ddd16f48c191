#include <cerrno>
#include <clocale>
#include <iostream>
#include <string_view>

#include "client/cli/commands.h"
#include "core/io/fault_guard.h"

namespace {

// A command has not succeeded until what it printed is written.
int FinishOutput(int exit_code) {
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  if ((flushed && std::ferror(stdout) == 0 && std::cout) || exit_code == latchkey::kExitFailure) {
    return exit_code;
  }
  constexpr std::string_view kWhat = "cannot write standard output";
  // When an earlier write failed, its reason is gone.
  return latchkey::Fail(flushed ? latchkey::DataLoss(kWhat) : latchkey::ErrnoStatus(errno, kWhat));
}

}  // namespace

int main(int argc, char** argv) {
  latchkey::InstallFaultGuard();
  std::ios::sync_with_stdio(false);  // standard input is read by the million lines
  CLI::App app("Builds, asks and checks Latchkey tables.", "latchkey");
  app.set_version_flag("--version", std::string("latchkey ") + LATCHKEY_VERSION);
  app.require_subcommand(1);
  int exit_code = latchkey::kExitOk;
  latchkey::AddBuildCommand(app, &exit_code);
  latchkey::AddDeleteCommand(app, &exit_code);
  latchkey::AddMergeCommand(app, &exit_code);
  latchkey::AddGetCommand(app, &exit_code);
  latchkey::AddBatchCommand(app, &exit_code);
  latchkey::AddInspectCommand(app, &exit_code);
  latchkey::AddVerifyCommand(app, &exit_code);
  latchkey::AddDumpCommand(app, &exit_code);
  latchkey::AddGenerationsCommand(app, &exit_code);
  latchkey::AddRollbackCommand(app, &exit_code);
  latchkey::AddDiffCommand(app, &exit_code);
  latchkey::AddGcCommand(app, &exit_code);
  latchkey::AddStatusCommand(app, &exit_code);
  latchkey::AddReloadCommand(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return FinishOutput(app.exit(error) == 0 ? latchkey::kExitOk : latchkey::kExitUsage);
  }
  return FinishOutput(exit_code);
}
