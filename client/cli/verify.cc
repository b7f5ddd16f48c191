// latchkey verify, latchkey dump: what reads a whole table on this machine.
#include <memory>

#include "client/cli/commands.h"
#include "client/cli/local_table.h"
#include "client/cli/row_printer.h"
#include "core/lookup/probe_engine.h"
#include "core/lookup/visible_rows.h"
#include "core/segment/segment.h"

namespace latchkey {
namespace {

struct ReadOptions {
  LocalTable table;
  uint64_t generation = 0;  // 0: the newest
  bool json = false;
};

void AddReadOptions(CLI::App& command, ReadOptions* options) {
  AddLocalTable(command, &options->table);
  command
      .add_option("--generation", options->generation,
                  "Which one, as 'latchkey generations' lists them; the newest if not given")
      ->check(CLI::PositiveNumber);
}

absl::StatusOr<int> RunVerify(const ReadOptions& options) {
  const std::string table_dir = options.table.dir();
  LATCHKEY_ASSIGN_OR_RETURN(const HeldManifest held, HoldLocal(options.table, options.generation));
  // Every block first: it tells most about damage. Then every key, the way a request would look it
  // up.
  size_t damaged_blocks = 0;
  for (const SegmentRef& ref : held.manifest.segments) {
    const std::string path = JoinPath(table_dir, ref.file);
    std::vector<DamagedBlock> damaged;
    LATCHKEY_RETURN_IF_ERROR(VerifySegmentFile(PosixFileSystem(), path, &damaged));
    damaged_blocks += damaged.size();
    for (const DamagedBlock& block : damaged) {
      std::fprintf(stderr, "latchkey: %s: section '%s': %llu bytes at offset %llu are damaged\n",
                   path.c_str(), block.section.c_str(),
                   static_cast<unsigned long long>(block.size_bytes),
                   static_cast<unsigned long long>(block.offset));
    }
  }
  if (damaged_blocks > 0) return DataLoss("{}: {} blocks are damaged", table_dir, damaged_blocks);

  LATCHKEY_ASSIGN_OR_RETURN(const auto snapshot,
                            Snapshot::Open(PosixFileSystem(), table_dir, held.manifest));
  // On the way to the visible rows every row is read, and counted against the header.
  uint64_t visible = 0;
  LATCHKEY_RETURN_IF_ERROR(ForEachVisibleRow(*snapshot, [&](const StoredRow& row) -> absl::Status {
    ++visible;
    const LookupResult expected{Outcome::kFound, row.doc_id, row.value};
    if (LookupOne(*snapshot, row.key) == expected) return absl::OkStatus();
    return DataLoss("{}: looking up the stored key '{}' does not give its row", table_dir,
                    KeyToText(snapshot->schema().key_kind, row.key));
  }));
  if (options.json) {
    const nlohmann::ordered_json json = {{"table", options.table.name},
                                         {"generation", snapshot->generation()},
                                         {"segments", snapshot->segments().size()},
                                         {"rows", snapshot->row_count()},
                                         {"keys", visible}};
    PutLine(json.dump());
  } else {
    PutLine(fmt::format("{}: generation {} is sound: {} segments, {} rows, {} keys looked up",
                        options.table.name, snapshot->generation(), snapshot->segments().size(),
                        snapshot->row_count(), visible));
  }
  return kExitOk;
}

absl::StatusOr<int> RunDump(const ReadOptions& options) {
  LATCHKEY_ASSIGN_OR_RETURN(const HeldManifest held, HoldLocal(options.table, options.generation));
  LATCHKEY_ASSIGN_OR_RETURN(const auto snapshot,
                            Snapshot::Open(PosixFileSystem(), options.table.dir(), held.manifest));
  const KeyKind kind = snapshot->schema().key_kind;
  LATCHKEY_RETURN_IF_ERROR(ForEachVisibleRow(*snapshot, [&](const StoredRow& row) -> absl::Status {
    std::string line;
    if (options.json) {
      nlohmann::ordered_json json = {{"key", KeyToText(kind, row.key)}, {"doc_id", row.doc_id}};
      PutValue(row.value, &json);
      line = json.dump();
    } else {
      // A raw key's text is escaped already; the other kinds have nothing to escape but text.
      const std::string key = KeyToText(kind, row.key);
      line = fmt::format("{}\t{}\t{}", kind == KeyKind::kText ? EscapeTsv(key) : key, row.doc_id,
                         EscapeTsv(row.value));
    }
    return PutLine(line) ? absl::OkStatus() : ErrnoStatus(errno, "cannot write standard output");
  }));
  if (std::fflush(stdout) != 0) return ErrnoStatus(errno, "cannot write standard output");
  return kExitOk;
}

}  // namespace

void AddVerifyCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command = app.add_subcommand(
      "verify", "Read all of a table against its checksums, and look every key up");
  const auto options = std::make_shared<ReadOptions>();
  AddReadOptions(*command, options.get());
  command->add_flag("--json", options->json, "Report as one JSON object");
  command->callback([=] { *exit_code = ExitCodeOf(RunVerify(*options)); });
}

void AddDumpCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command =
      app.add_subcommand("dump", "Write the rows back out: key, doc id, value, in no stated order");
  const auto options = std::make_shared<ReadOptions>();
  AddReadOptions(*command, options.get());
  command->add_flag("--json", options->json, "One JSON object a row");
  command->callback([=] { *exit_code = ExitCodeOf(RunDump(*options)); });
}

}  // namespace latchkey
