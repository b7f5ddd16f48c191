// latchkey delete
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/progress_line.h"
#include "client/cli/row_printer.h"
#include "core/base/status_macros.h"
#include "core/build/key_deleter.h"
#include "core/build/record_source.h"
#include "core/table/manifest.h"

namespace latchkey {
namespace {

struct DeleteArguments {
  DeleteOptions options;
  InputOptions input;
  std::vector<std::string> paths;
  std::string format = "lines";
  uint64_t memory_mib = 256;
  bool json = false;
};

absl::StatusOr<int> RunDelete(DeleteArguments arguments) {
  DeleteOptions& options = arguments.options;
  LATCHKEY_RETURN_IF_ERROR(ValidateTableName(options.table));
  LATCHKEY_ASSIGN_OR_RETURN(
      const Manifest manifest,
      ReadNewestManifest(PosixFileSystem(), JoinPath(options.data_dir, options.table)));
  options.key_kind = manifest.schema.key_kind;
  options.memory_bytes = arguments.memory_mib << 20;
  arguments.input.format = *ParseInputFormat(arguments.format);
  arguments.input.key_kind = options.key_kind;
  LATCHKEY_ASSIGN_OR_RETURN(const auto source,
                            OpenRecordSource(PosixFileSystem(), arguments.input, arguments.paths));
  const auto begin = std::chrono::steady_clock::now();
  absl::StatusOr<DeleteResult> done;
  {
    ProgressLine line;
    done = DeleteKeys(PosixFileSystem(), options, *source,
                      [&line](const BuildProgress& progress) { line.Show(progress); });
  }
  LATCHKEY_RETURN_IF_ERROR(done.status());
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  if (arguments.json) {
    const nlohmann::ordered_json json = {
        {"table", options.table},       {"generation", done->generation},
        {"published", done->published}, {"keys_read", done->keys_read},
        {"deleted", done->deleted},     {"absent", done->absent},
        {"repeated", done->repeated},   {"file_bytes", done->header.file_bytes()},
        {"seconds", elapsed.count()}};
    PutLine(json.dump());
  } else {
    PutLine(fmt::format("{}: generation {}{}: {} keys read, {} deleted, {} not there, {} repeated",
                        options.table, done->generation, done->published ? "" : " as before",
                        done->keys_read, done->deleted, done->absent, done->repeated));
  }
  return kExitOk;
}

}  // namespace

void AddDeleteCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command = app.add_subcommand(
      "delete", "Delete keys of a table, and publish it without them as a new generation");
  const auto arguments = std::make_shared<DeleteArguments>();
  DeleteArguments* const to = arguments.get();
  command->add_option("--data", to->options.data_dir, "The data directory")->required();
  command->add_option("--table", to->options.table, "The table's name")->required();
  command
      ->add_option("INPUT", to->paths,
                   "Files of keys, of the table's kind, to read one after the other; - is standard "
                   "input")
      ->required();
  command->add_option("--format", to->format, "lines, csv, tsv or fixed")
      ->check(CLI::IsMember({"lines", "csv", "tsv", "fixed"}))
      ->capture_default_str();
  command
      ->add_option("--key-column", to->input.key_column,
                   "csv, tsv: column of the key, a number from 1 or a name of the header")
      ->capture_default_str();
  command->add_flag(
      "--header", to->input.has_header,
      "csv, tsv: the first row of each file is a header; so it is when a column is a name");
  command->add_option("--key-width", to->input.key_width, "fixed: bytes of a key")
      ->check(CLI::Range(size_t{1}, kKeyBytesMax));
  command
      ->add_option("--value-width", to->input.value_width,
                   "fixed: bytes behind each key, which are skipped")
      ->check(CLI::Range(size_t{1}, kValueBytesMax));
  command->add_option("--memory", to->memory_mib, "MiB to work in; what does not fit is spilled")
      ->check(CLI::Range(uint64_t{kBuildMemoryBytesMin >> 20}, uint64_t{1} << 24))
      ->capture_default_str();
  command->add_flag("--json", to->json, "Report as one JSON object");
  command->callback([=] { *exit_code = ExitCodeOf(RunDelete(*arguments)); });
}

}  // namespace latchkey
