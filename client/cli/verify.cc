// latchkey verify, latchkey dump: what reads a whole table on this machine.
#include <memory>

#include "client/cli/commands.h"
#include "client/cli/row_printer.h"
#include "core/base/status_macros.h"
#include "core/lookup/probe_engine.h"
#include "core/segment/segment.h"

namespace latchkey {
namespace {

struct LocalOptions {
  std::string data_dir;
  std::string table;
  bool json = false;
};

void AddLocalOptions(CLI::App& command, LocalOptions* options) {
  command.add_option("--data", options->data_dir, "The data directory")->required();
  command.add_option("--table", options->table, "The table's name")->required();
}

// Calls `visit(row)` for every row of the table that no newer segment hides.
template <typename Visit>
absl::Status ForEachVisibleRow(const Snapshot& snapshot, Visit visit) {
  const auto& segments = snapshot.segments();
  for (size_t i = 0; i < segments.size(); ++i) {
    LATCHKEY_RETURN_IF_ERROR(segments[i]->ForEachRow([&](const StoredRow& row) -> absl::Status {
      if (row.tombstone) return absl::OkStatus();
      for (size_t newer = 0; newer < i; ++newer) {
        RowRef hidden_by;
        switch (ProbeOne(*segments[newer], /*use_filter=*/true, row.key, row.hash, &hidden_by)) {
          case Held::kRow:
          case Held::kTombstone:
            return absl::OkStatus();
          case Held::kDamaged:
            return DataLoss("{}: what it holds for a key can't be read", segments[newer]->path());
          case Held::kNothing:
            break;
        }
      }
      return visit(row);
    }));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> RunVerify(const LocalOptions& options) {
  LATCHKEY_RETURN_IF_ERROR(ValidateTableName(options.table));
  const std::string table_dir = JoinPath(options.data_dir, options.table);
  LATCHKEY_ASSIGN_OR_RETURN(const Manifest manifest,
                            ReadNewestManifest(PosixFileSystem(), table_dir));
  // Every block first: it tells most about damage. Then every key, the way a request would look it
  // up.
  size_t damaged_blocks = 0;
  for (const SegmentRef& ref : manifest.segments) {
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
                            Snapshot::Open(PosixFileSystem(), table_dir, manifest));
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
    const nlohmann::ordered_json json = {{"table", options.table},
                                         {"generation", snapshot->generation()},
                                         {"segments", snapshot->segments().size()},
                                         {"rows", snapshot->row_count()},
                                         {"keys", visible}};
    PutLine(json.dump());
  } else {
    PutLine(fmt::format("{}: generation {} is sound: {} segments, {} rows, {} keys looked up",
                        options.table, snapshot->generation(), snapshot->segments().size(),
                        snapshot->row_count(), visible));
  }
  return kExitOk;
}

absl::StatusOr<int> RunDump(const LocalOptions& options) {
  LATCHKEY_ASSIGN_OR_RETURN(const auto snapshot, OpenLocalTable(options.data_dir, options.table));
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
  const auto options = std::make_shared<LocalOptions>();
  AddLocalOptions(*command, options.get());
  command->add_flag("--json", options->json, "Report as one JSON object");
  command->callback([=] { *exit_code = ExitCodeOf(RunVerify(*options)); });
}

void AddDumpCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command =
      app.add_subcommand("dump", "Write the rows back out: key, doc id, value, in no stated order");
  const auto options = std::make_shared<LocalOptions>();
  AddLocalOptions(*command, options.get());
  command->add_flag("--json", options->json, "One JSON object a row");
  command->callback([=] { *exit_code = ExitCodeOf(RunDump(*options)); });
}

}  // namespace latchkey
