// latchkey inspect
#include <fmt/chrono.h>

#include <iostream>
#include <memory>

#include "client/cli/commands.h"
#include "client/cli/local_table.h"
#include "client/cli/row_printer.h"
#include "core/base/status_macros.h"

namespace latchkey {
namespace {

using Json = nlohmann::ordered_json;

uint64_t Number(const Json& json, const char* name) { return json.at(name).get<uint64_t>(); }

void PrintSegment(const Json& segment) {
  const uint64_t rows = Number(segment, "rows");
  std::string keys = fmt::format("{} B", Number(segment, "key_bytes_min"));
  if (Number(segment, "key_bytes_min") != Number(segment, "key_bytes_max")) {
    keys = fmt::format("{} to {} B", Number(segment, "key_bytes_min"),
                       Number(segment, "key_bytes_max"));
  }
  PutLine(fmt::format("  {}  {} rows, keys of {}, layout {}, filter {} bits a key, {} partitions",
                      segment.at("file").get<std::string>(), rows, keys,
                      segment.at("layout").get<std::string>(),
                      Number(segment, "filter_bits_per_key"), Number(segment, "partitions")));
  uint64_t sum = 0;
  std::string parts;
  for (size_t i = 0; i < kSectionCount; ++i) {
    const std::string name(SectionName(static_cast<SectionKind>(i)));
    const uint64_t bytes = Number(segment.at("section_bytes"), name.c_str());
    sum += bytes;
    if (bytes > 0)
      parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, BytesText(bytes));
  }
  PutLine(fmt::format("    {}; {:.2f} B a row", parts,
                      rows == 0 ? 0.0 : static_cast<double>(sum) / static_cast<double>(rows)));
}

void PrintTable(const Json& table) {
  const auto created = static_cast<std::time_t>(Number(table, "created_unix_s"));
  PutLine(fmt::format("table {}, generation {}, published {:%Y-%m-%d %H:%M:%S} UTC",
                      table.at("table").get<std::string>(), Number(table, "generation"),
                      fmt::gmtime(created)));
  std::string values = table.at("values").get<std::string>();
  if (values == "fixed") values = fmt::format("of {} bytes", Number(table, "value_width"));
  std::string kind = table.at("key_kind").get<std::string>();
  if (Number(table, "key_bytes") != 0) kind += fmt::format("({})", Number(table, "key_bytes"));
  PutLine(fmt::format("{} rows, key kind {}, {}-bit doc ids, values {}", Number(table, "rows"),
                      kind, Number(table, "doc_id_bits"), values));
  if (table.contains("memory_mode")) {
    PutLine(fmt::format("memory mode {}, {} in huge pages",
                        table.at("memory_mode").get<std::string>(),
                        BytesText(Number(table, "huge_bytes"))));
  }
  const std::string missing = table.at("segment_map_missing").get<std::string>();
  if (Number(table, "segment_map_bytes") != 0) {
    PutLine(
        fmt::format("segment map: {} of memory", BytesText(Number(table, "segment_map_bytes"))));
  } else if (!missing.empty()) {
    PutLine("no segment map: " + missing);
  }
  PutLine("segments, newest first:");
  if (table.contains("segments")) {
    for (const Json& segment : table.at("segments")) PrintSegment(segment);
  }
  if (table.contains("limits")) {
    const Json& limits = table.at("limits");
    PutLine(fmt::format("limits: {} keys a batch, requests of {}, replies of {}",
                        Number(limits, "batch_keys_max"),
                        BytesText(Number(limits, "request_bytes_max")),
                        BytesText(Number(limits, "reply_bytes_max"))));
    const Json& counts = table.at("counts");
    PutLine(
        fmt::format("since start: {} keys looked up, {} found, {} damaged, {} waits for the disk",
                    Number(counts, "keys"), Number(counts, "found"), Number(counts, "damaged"),
                    Number(counts, "major_faults")));
  }
}

absl::StatusOr<int> RunInspect(const BackendOptions& options, bool as_json) {
  LATCHKEY_ASSIGN_OR_RETURN(const auto backend, OpenBackend(options));
  const Json table = backend->Describe();
  if (as_json) {
    PutLine(table.dump(1));
  } else {
    PrintTable(table);
  }
  return kExitOk;
}

}  // namespace

void AddInspectCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command =
      app.add_subcommand("inspect", "Show what a table holds and how it is laid out");
  const auto options = std::make_shared<BackendOptions>();
  const auto json = std::make_shared<bool>(false);
  AddBackendOptions(*command, options.get());
  command->add_flag("--json", *json, "As one JSON object");
  command->callback([=] { *exit_code = ExitCodeOf(RunInspect(*options, *json)); });
}

}  // namespace latchkey
