#include <clocale>

#include "client/cli/commands.h"

int main(int argc, char** argv) {
  CLI::App app("Builds, asks and checks Latchkey tables.", "latchkey");
  app.set_version_flag("--version", std::string("latchkey ") + LATCHKEY_VERSION);
  app.require_subcommand(1);
  int exit_code = latchkey::kExitOk;
  latchkey::AddBuildCommand(app, &exit_code);
  latchkey::AddGetCommand(app, &exit_code);
  latchkey::AddBatchCommand(app, &exit_code);
  latchkey::AddInspectCommand(app, &exit_code);
  latchkey::AddVerifyCommand(app, &exit_code);
  latchkey::AddDumpCommand(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? latchkey::kExitOk : latchkey::kExitUsage;
  }
  return exit_code;
}
