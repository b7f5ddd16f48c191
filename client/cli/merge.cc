// latchkey merge
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "client/cli/commands.h"
#include "client/cli/local_table.h"
#include "client/cli/progress_line.h"
#include "client/cli/row_printer.h"
#include "core/base/status_macros.h"
#include "core/build/table_merger.h"
#include "core/table/manifest.h"

namespace latchkey {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kLookTime(1), kRetryTimeMax(16);

struct MergeArguments {
  MergeOptions options;
  std::string policy;
  uint64_t memory_mib = 256;
  bool dry_run = false;
  bool watch = false;
  uint64_t keep = 0;
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

// `say_nothing`: of a merge that had nothing to do.
absl::StatusOr<MergeResult> MergeOnce(const MergeArguments& arguments, bool say_nothing) {
  const MergeOptions& options = arguments.options;
  const auto begin = std::chrono::steady_clock::now();
  absl::StatusOr<MergeResult> done;
  {
    ProgressLine line;
    done = MergeTable(PosixFileSystem(), options,
                      [&line](const BuildProgress& progress) { line.Show(progress); });
  }
  if (!done.ok() || (say_nothing && !done->published)) return done;
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
  return done;
}

// SIGTERM and SIGINT while this lives, and nothing is merged, are kept for Wait to find. During a
// merge they end the process, which leaves what the next writer removes.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    Block(true);
  }
  void Block(bool on) { sigprocmask(on ? SIG_BLOCK : SIG_UNBLOCK, &signals_, nullptr); }
  // True when one came.
  bool Wait(std::chrono::seconds time) {
    const timespec timeout = {time.count(), 0};
    return sigtimedwait(&signals_, nullptr, &timeout) > 0;
  }

 private:
  sigset_t signals_;
};

// Merges whenever there is a new generation that needs it, until it is told to stop. What fails is
// said once and tried again, as the reason may go: another writer, or a full disk.
absl::StatusOr<int> WatchTable(const MergeArguments& arguments) {
  const LocalTable table{arguments.options.data_dir, arguments.options.table};
  StopSignals signals;
  uint64_t seen = 0;  // the newest generation that needs nothing more
  std::string said;
  std::chrono::seconds wait = kLookTime;
  // A table that is not there now is a mistake; one that goes later may come back.
  LATCHKEY_RETURN_IF_ERROR(ValidateTableName(table.name));
  LATCHKEY_RETURN_IF_ERROR(ReadNewestManifest(PosixFileSystem(), table.dir()).status());
  do {
    const auto tidy = [&]() -> absl::Status {
      LATCHKEY_ASSIGN_OR_RETURN(const Manifest manifest,
                                ReadNewestManifest(PosixFileSystem(), table.dir()));
      if (manifest.generation == seen) return absl::OkStatus();
      signals.Block(false);
      LATCHKEY_ASSIGN_OR_RETURN(const MergeResult done, MergeOnce(arguments, /*say_nothing=*/true));
      if (done.published && arguments.keep != 0) {
        LATCHKEY_RETURN_IF_ERROR(RunGc(table, {.keep = arguments.keep}, arguments.json).status());
      }
      seen = done.generation;
      return absl::OkStatus();
    };
    const absl::Status status = tidy();
    signals.Block(true);
    wait = status.ok() ? kLookTime : std::min(2 * wait, kRetryTimeMax);
    if (!status.ok() && Message(status) != said) (void)Fail(status);
    said = status.ok() ? "" : Message(status);
    if (std::fflush(stdout) != 0) return ErrnoStatus(errno, "cannot write standard output");
  } while (!signals.Wait(wait));
  return kExitOk;
}

absl::StatusOr<int> RunMerge(MergeArguments arguments) {
  MergeOptions& options = arguments.options;
  const bool tiered = arguments.policy.empty() ? arguments.watch : arguments.policy == "tiered";
  options.policy = tiered ? MergePolicy::kTiered : MergePolicy::kAll;
  options.memory_bytes = arguments.memory_mib << 20;
  if (arguments.dry_run) return ShowPlan(arguments);
  if (arguments.watch) return WatchTable(arguments);
  LATCHKEY_RETURN_IF_ERROR(MergeOnce(arguments, /*say_nothing=*/false).status());
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
                   "at most 15 remain; by default all, with --watch tiered")
      ->check(CLI::IsMember({"all", "tiered"}));
  CLI::Option* const dry_run =
      command->add_flag("--dry-run", to->dry_run, "Only say what would be done");
  CLI::Option* const watch = command->add_flag(
      "--watch", to->watch,
      "Keep the table tidy: merge whenever a new generation needs it, until SIGTERM or SIGINT");
  watch->excludes(dry_run);
  command
      ->add_option("--keep", to->keep,
                   "Besides, after each merge, remove all but so many of the newest generations, "
                   "as gc does; 0: none")
      ->needs(watch)
      ->capture_default_str();
  command->add_option("--memory", to->memory_mib, "MiB to work in; what does not fit is spilled")
      ->check(CLI::Range(uint64_t{kBuildMemoryBytesMin >> 20}, uint64_t{1} << 24))
      ->capture_default_str();
  command->add_flag("--json", to->json, "Report as one JSON object");
  command->callback([=] { *exit_code = ExitCodeOf(RunMerge(*arguments)); });
}

}  // namespace latchkey
