// latchkey status, latchkey reload
#include <fmt/chrono.h>
#include <google/protobuf/util/json_util.h>

#include <memory>

#include "client/admin_client.h"
#include "client/cli/commands.h"
#include "client/cli/row_printer.h"
#include "core/base/status_macros.h"

namespace latchkey {
namespace {

struct StatusOptions {
  std::string server;
  std::string table;
  double timeout_s = 10;
  bool json = false;
};

std::string Mib(uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 1024 / 1024);
}

void PrintTable(const v1::TableStatus& table) {
  PutLine(fmt::format("table {}, generation {}, memory mode {}, residency by {}{}", table.table(),
                      table.generation(), table.memory_mode(), table.residency_probe(),
                      table.thrashing() ? ", THRASHING: memory does not suffice" : ""));
  PutLine(fmt::format(
      "  {} keys looked up, {} damaged; of {} places {:.2f}% were in memory; {} pages asked for, "
      "{} "
      "read, {} waits; {} threads ask for pages, {} are silent",
      table.keys(), table.damaged(), table.places(), table.hit_percent(), table.pages_asked(),
      table.pages_read(), table.major_faults(), table.threads_asking(), table.threads_silent()));
  if (table.unchecked_bytes() != 0) {
    PutLine(fmt::format("  {} not read against their checksums yet", Mib(table.unchecked_bytes())));
  }
  if (!table.reload_error().empty()) {
    PutLine(fmt::format("  {} does not serve: {}",
                        table.generation() == 0 ? "it" : "a newer generation",
                        table.reload_error()));
  }
  for (const std::string& file : table.quarantined()) {
    PutLine(fmt::format("  QUARANTINED {}: its file is damaged, or pages of it are lost", file));
  }
  for (const v1::SectionStatus& section : table.sections()) {
    const std::string resident = section.resident_percent() < 0
                                     ? "not known"
                                     : fmt::format("{:.1f}%", section.resident_percent());
    PutLine(fmt::format("  {}  {:8} {:>12}  in memory {:>9}  advice {}", section.segment(),
                        section.section(), Mib(section.size_bytes()), resident, section.advice()));
  }
}

absl::StatusOr<int> RunStatus(const StatusOptions& options) {
  LATCHKEY_ASSIGN_OR_RETURN(const v1::StatusResponse status,
                            GetStatus(options.server, options.table, options.timeout_s));
  if (options.json) {
    std::string json;
    google::protobuf::util::JsonPrintOptions print;
    print.always_print_primitive_fields = true;
    print.preserve_proto_field_names = true;
    (void)google::protobuf::util::MessageToJsonString(status, &json, print);
    PutLine(json);
    return kExitOk;
  }
  PutLine(fmt::format("{}, started {:%Y-%m-%d %H:%M:%S} UTC, warmed up {} of {}",
                      status.serving() ? "serving" : "opening tables",
                      fmt::gmtime(static_cast<std::time_t>(status.start_unix_s())),
                      Mib(status.warm_up().done_bytes()), Mib(status.warm_up().total_bytes())));
  for (const v1::TableStatus& table : status.tables()) PrintTable(table);
  return kExitOk;
}

absl::StatusOr<int> RunReload(const StatusOptions& options) {
  LATCHKEY_ASSIGN_OR_RETURN(const uint64_t generation,
                            Reload(options.server, options.table, options.timeout_s));
  if (options.json) {
    PutLine(nlohmann::ordered_json({{"table", options.table}, {"generation", generation}}).dump());
  } else {
    PutLine(fmt::format("{}: generation {} serves", options.table, generation));
  }
  return kExitOk;
}

}  // namespace

void AddReloadCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command =
      app.add_subcommand("reload", "Have a server open a table's newest generation now");
  const auto options = std::make_shared<StatusOptions>();
  options->timeout_s = 600;
  command->add_option("--server", options->server, "A server: HOST:PORT or unix:PATH")->required();
  command->add_option("--table", options->table, "The table's name")->required();
  command->add_option("--timeout-s", options->timeout_s, "Seconds that the call may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--json", options->json, "As one JSON object");
  command->callback([=] { *exit_code = ExitCodeOf(RunReload(*options)); });
}

void AddStatusCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command =
      app.add_subcommand("status", "Show how a server is and how its tables lie in memory");
  const auto options = std::make_shared<StatusOptions>();
  command->add_option("--server", options->server, "A server: HOST:PORT or unix:PATH")->required();
  command->add_option("--table", options->table, "One table; else all");
  command->add_option("--timeout-s", options->timeout_s, "Seconds that the call may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--json", options->json, "As one JSON object");
  command->callback([=] { *exit_code = ExitCodeOf(RunStatus(*options)); });
}

}  // namespace latchkey
