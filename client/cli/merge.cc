// latchkey merge
#include <chrono>
#include <memory>
#include <string>

#include "client/cli/commands.h"
#include "client/cli/progress_line.h"
#include "client/cli/row_printer.h"
#include "core/base/status_macros.h"
#include "core/build/table_merger.h"
#include "core/table/manifest.h"

namespace latchkey {
namespace {

using Json = nlohmann::ordered_json;

struct MergeArguments {
  MergeOptions options;
  std::string policy = "all";
  uint64_t memory_mib = 256;
  bool dry_run = false;
  bool json = false;
};

Json JsonOf(const MergeOptions& options, uint64_t generation, bool published,
            const MergePlan& plan) {
  return {{"table", options.table},           {"generation", generation},
          {"published", published},           {"table_segments", plan.table_segments},
          {"segments_merged", plan.segments}, {"rows_read", plan.rows},
          {"bytes_read", plan.file_bytes}};
}

absl::StatusOr<int> ShowPlan(const MergeArguments& arguments) {
  const MergeOptions& options = arguments.options;
  LATCHKEY_RETURN_IF_ERROR(ValidateTableName(options.table));
  const std::string table_dir = JoinPath(options.data_dir, options.table);
  LATCHKEY_ASSIGN_OR_RETURN(const Manifest manifest,
                            ReadNewestManifest(PosixFileSystem(), table_dir));
  LATCHKEY_ASSIGN_OR_RETURN(const MergePlan plan,
                            PlanTableMerge(PosixFileSystem(), table_dir, manifest, options.policy));
  if (arguments.json) {
    PutLine(JsonOf(options, manifest.generation, false, plan).dump());
  } else if (plan.segments == 0) {
    PutLine(fmt::format("{}: generation {}: nothing to merge", options.table, manifest.generation));
  } else {
    PutLine(fmt::format(
        "{}: generation {}: would merge the newest {} of {} segments: {} rows, {} bytes",
        options.table, manifest.generation, plan.segments, plan.table_segments, plan.rows,
        plan.file_bytes));
  }
  return kExitOk;
}

absl::StatusOr<int> RunMerge(MergeArguments arguments) {
  MergeOptions& options = arguments.options;
  options.policy = arguments.policy == "all" ? MergePolicy::kAll : MergePolicy::kTiered;
  options.memory_bytes = arguments.memory_mib << 20;
  if (arguments.dry_run) return ShowPlan(arguments);
  const auto begin = std::chrono::steady_clock::now();
  absl::StatusOr<MergeResult> done;
  {
    ProgressLine line;
    done = MergeTable(PosixFileSystem(), options,
                      [&line](const BuildProgress& progress) { line.Show(progress); });
  }
  LATCHKEY_RETURN_IF_ERROR(done.status());
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  if (arguments.json) {
    Json json = JsonOf(options, done->generation, done->published, done->plan);
    json["rows_stored"] = done->rows_stored;
    json["rows_hidden"] = done->rows_hidden;
    json["tombstones_dropped"] = done->tombstones_dropped;
    json["file_bytes"] = done->header.file_bytes();
    json["spilled_bytes"] = done->spilled_bytes;
    json["seconds"] = elapsed.count();
    PutLine(json.dump());
  } else if (!done->published) {
    PutLine(fmt::format("{}: generation {}: nothing to merge", options.table, done->generation));
  } else {
    PutLine(
        fmt::format("{}: generation {}: {} of {} segments merged, {} rows read, {} stored, {} "
                    "hidden by newer ones, {} tombstones dropped, {:.1f} s",
                    options.table, done->generation, done->plan.segments, done->plan.table_segments,
                    done->rows_read, done->rows_stored, done->rows_hidden, done->tombstones_dropped,
                    elapsed.count()));
  }
  return kExitOk;
}

}  // namespace

void AddMergeCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command = app.add_subcommand(
      "merge", "Make one segment of a table's newest ones, and publish it as a new generation");
  const auto arguments = std::make_shared<MergeArguments>();
  MergeArguments* const to = arguments.get();
  command->add_option("--data", to->options.data_dir, "The data directory")->required();
  command->add_option("--table", to->options.table, "The table's name")->required();
  command
      ->add_option("--policy", to->policy,
                   "all: one segment; tiered: as many of the newest as are of like size, so that "
                   "at most 15 remain")
      ->check(CLI::IsMember({"all", "tiered"}))
      ->capture_default_str();
  command->add_flag("--dry-run", to->dry_run, "Only say what would be done");
  command->add_option("--memory", to->memory_mib, "MiB to work in; what does not fit is spilled")
      ->check(CLI::Range(uint64_t{kBuildMemoryBytesMin >> 20}, uint64_t{1} << 24))
      ->capture_default_str();
  command->add_flag("--json", to->json, "Report as one JSON object");
  command->callback([=] { *exit_code = ExitCodeOf(RunMerge(*arguments)); });
}

}  // namespace latchkey
