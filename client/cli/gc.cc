// latchkey gc
#include <memory>

#include "client/cli/commands.h"
#include "client/cli/local_table.h"
#include "client/cli/row_printer.h"

namespace latchkey {

absl::StatusOr<int> RunGc(const LocalTable& table, const GcOptions& options, bool as_json) {
  LATCHKEY_RETURN_IF_ERROR(ValidateTableName(table.name));
  LATCHKEY_ASSIGN_OR_RETURN(const GcResult result, Gc(PosixFileSystem(), table.dir(), options));
  if (as_json) {
    const nlohmann::ordered_json json = {{"table", table.name},       {"dry_run", options.dry_run},
                                         {"kept", result.kept},       {"held", result.held},
                                         {"removed", result.removed}, {"files", result.files},
                                         {"bytes", result.bytes}};
    PutLine(json.dump());
    return kExitOk;
  }
  std::string line =
      fmt::format("{}: {} {}", table.name, options.dry_run ? "would remove" : "removed",
                  result.removed.empty()
                      ? "no generation"
                      : fmt::format("{} ({})", CountText(result.removed.size(), "generation"),
                                    GenerationsText(result.removed)));
  line += fmt::format(", {}, {}; keeps {}", CountText(result.files.size(), "file"),
                      BytesText(result.bytes), GenerationsText(result.kept));
  if (!result.held.empty()) {
    line += fmt::format(", and {}, held by readers", GenerationsText(result.held));
  }
  PutLine(line);
  if (options.dry_run) {
    for (const std::string& file : result.files) PutLine("  " + file);
  }
  return kExitOk;
}

void AddGcCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command = app.add_subcommand(
      "gc", "Remove a table's old generations, but those that readers hold, and unneeded files");
  const auto table = std::make_shared<LocalTable>();
  const auto options = std::make_shared<GcOptions>();
  const auto json = std::make_shared<bool>(false);
  AddLocalTable(*command, table.get());
  command->add_option("--keep", options->keep, "How many of the newest generations to keep")
      ->required()
      ->check(CLI::PositiveNumber);
  command->add_flag("--dry-run", options->dry_run, "Only tell what it would remove");
  command->add_flag("--json", *json, "Report as one JSON object");
  command->callback([=] { *exit_code = ExitCodeOf(RunGc(*table, *options, *json)); });
}

}  // namespace latchkey
