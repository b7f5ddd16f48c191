// latchkey diff
#include <memory>

#include "client/cli/commands.h"
#include "client/cli/local_table.h"
#include "client/cli/row_printer.h"
#include "core/lookup/visible_rows.h"

namespace latchkey {
namespace {

struct DiffArguments {
  LocalTable table;
  uint64_t from = 0;
  uint64_t to = 0;
  bool keys = false;
  bool json = false;
};

absl::StatusOr<std::shared_ptr<const Snapshot>> OpenGeneration(const LocalTable& table,
                                                               uint64_t generation) {
  LATCHKEY_ASSIGN_OR_RETURN(const HeldManifest held, HoldLocal(table, generation));
  // A segment map would be made of all hash lists, to look up what few segments have.
  return Snapshot::Open(PosixFileSystem(), table.dir(), held.manifest,
                        {.segment_map_bytes_max = 0});
}

absl::Status PrintKey(const Difference& difference, KeyKind before, KeyKind after, bool as_json) {
  const bool was = difference.before.outcome == Outcome::kFound;
  const bool is = difference.after.outcome == Outcome::kFound;
  const char* const change = was && is ? "changed" : is ? "added" : "removed";
  const KeyKind kind = is ? after : before;
  std::string key = KeyToText(kind, difference.key);
  if (as_json) {
    key = nlohmann::ordered_json({{"change", change}, {"key", key}}).dump();
  } else {
    key = fmt::format("{}\t{}", change, kind == KeyKind::kText ? EscapeTsv(key) : key);
  }
  return PutLine(key) ? absl::OkStatus() : ErrnoStatus(errno, "cannot write standard output");
}

absl::StatusOr<int> RunDiff(const DiffArguments& arguments) {
  LATCHKEY_ASSIGN_OR_RETURN(const auto before, OpenGeneration(arguments.table, arguments.from));
  LATCHKEY_ASSIGN_OR_RETURN(const auto after, OpenGeneration(arguments.table, arguments.to));
  std::function<absl::Status(const Difference&)> visit;
  if (arguments.keys) {
    visit = [&](const Difference& difference) {
      return PrintKey(difference, before->schema().key_kind, after->schema().key_kind,
                      arguments.json);
    };
  }
  LATCHKEY_ASSIGN_OR_RETURN(const DifferenceCounts counts,
                            CompareGenerations(*before, *after, visit));
  if (arguments.keys) {
    // The lines are all there is to say.
  } else if (arguments.json) {
    const nlohmann::ordered_json json = {
        {"table", arguments.table.name}, {"from", arguments.from},    {"to", arguments.to},
        {"added", counts.added},         {"removed", counts.removed}, {"changed", counts.changed}};
    PutLine(json.dump());
  } else {
    PutLine(fmt::format("{}: generation {} to {}: {} keys added, {} removed, {} changed",
                        arguments.table.name, arguments.from, arguments.to, counts.added,
                        counts.removed, counts.changed));
  }
  return counts.all() == 0 ? kExitOk : kExitNotFound;
}

}  // namespace

void AddDiffCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command = app.add_subcommand(
      "diff", "Compare two generations; the exit code is 0 if they hold the same, 1 if not");
  const auto arguments = std::make_shared<DiffArguments>();
  AddLocalTable(*command, &arguments->table);
  command->add_option("--from", arguments->from, "The generation before")
      ->required()
      ->check(CLI::PositiveNumber);
  command->add_option("--to", arguments->to, "The generation after")
      ->required()
      ->check(CLI::PositiveNumber);
  command->add_flag("--keys", arguments->keys,
                    "A line for each key instead of counts: added, removed or changed, and the "
                    "key; in no stated order");
  command->add_flag("--json", arguments->json, "As one JSON object, or one a line with --keys");
  command->callback([=] { *exit_code = ExitCodeOf(RunDiff(*arguments)); });
}

}  // namespace latchkey
