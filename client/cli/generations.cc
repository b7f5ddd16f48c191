// latchkey generations, latchkey rollback
#include <algorithm>
#include <memory>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/local_table.h"
#include "client/cli/row_printer.h"

namespace latchkey {
namespace {

using Json = nlohmann::ordered_json;

Json JsonOf(const GenerationInfo& info) {
  Json json = {{"generation", info.generation}, {"newest", info.newest}};
  json["held"] = info.held ? Json(*info.held) : Json(nullptr);
  if (!info.status.ok()) {
    json["error"] = Message(info.status);
    return json;
  }
  json["created_unix_s"] = info.created_unix_s;
  json["segments"] = info.segments;
  json["rows"] = info.rows;
  json["file_bytes"] = info.file_bytes;
  return json;
}

void PrintGenerations(const std::string& table, const std::vector<GenerationInfo>& infos) {
  PutLine(fmt::format("table {}, {}, newest first:", table, CountText(infos.size(), "generation")));
  // As wide as the widest, so that they stand one below the other.
  size_t number_width = 0, rows_width = 0;
  for (const GenerationInfo& info : infos) {
    number_width = std::max(number_width, fmt::formatted_size("{}", info.generation));
    rows_width = std::max(rows_width, fmt::formatted_size("{}", info.rows));
  }
  for (auto info = infos.rbegin(); info != infos.rend(); ++info) {
    const std::string_view held = info->held.value_or(false) ? ", held by a reader" : "";
    if (!info->status.ok()) {
      PutLine(fmt::format("  {:>{}}  can't be read: {}{}", info->generation, number_width,
                          Message(info->status), held));
      continue;
    }
    PutLine(fmt::format("  {:>{}}  {}  {:>{}} rows in {}, {}{}", info->generation, number_width,
                        TimeText(info->created_unix_s), info->rows, rows_width,
                        CountText(info->segments, "segment"), BytesText(info->file_bytes), held));
  }
}

absl::StatusOr<int> RunGenerations(const LocalTable& table, bool as_json) {
  LATCHKEY_RETURN_IF_ERROR(ValidateTableName(table.name));
  LATCHKEY_ASSIGN_OR_RETURN(const auto infos, ListTableGenerations(PosixFileSystem(), table.dir()));
  if (as_json) {
    Json json = {{"table", table.name}, {"generations", Json::array()}};
    for (const GenerationInfo& info : infos) json["generations"].push_back(JsonOf(info));
    PutLine(json.dump(1));
  } else {
    PrintGenerations(table.name, infos);
  }
  return kExitOk;
}

absl::StatusOr<int> RunRollback(const LocalTable& table, uint64_t to) {
  LATCHKEY_RETURN_IF_ERROR(ValidateTableName(table.name));
  LATCHKEY_ASSIGN_OR_RETURN(const Manifest manifest, Rollback(PosixFileSystem(), table.dir(), to));
  uint64_t rows = 0, bytes = 0;
  for (const SegmentRef& ref : manifest.segments) {
    rows += ref.row_count;
    bytes += ref.file_bytes;
  }
  PutLine(fmt::format("{}: generation {} has the content of {}: {} rows in {}, {}", table.name,
                      manifest.generation, to, rows, CountText(manifest.segments.size(), "segment"),
                      BytesText(bytes)));
  return kExitOk;
}

}  // namespace

void AddGenerationsCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command =
      app.add_subcommand("generations", "List a table's generations, their times and sizes");
  const auto table = std::make_shared<LocalTable>();
  const auto json = std::make_shared<bool>(false);
  AddLocalTable(*command, table.get());
  command->add_flag("--json", *json, "As one JSON object");
  command->callback([=] { *exit_code = ExitCodeOf(RunGenerations(*table, *json)); });
}

void AddRollbackCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command = app.add_subcommand(
      "rollback", "Publish an earlier generation's content again, under a new number");
  const auto table = std::make_shared<LocalTable>();
  const auto to = std::make_shared<uint64_t>(0);
  AddLocalTable(*command, table.get());
  command->add_option("--to", *to, "The generation to go back to")
      ->required()
      ->check(CLI::PositiveNumber);
  command->callback([=] { *exit_code = ExitCodeOf(RunRollback(*table, *to)); });
}

}  // namespace latchkey
