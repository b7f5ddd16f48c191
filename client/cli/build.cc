// latchkey build
#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/progress_line.h"
#include "client/cli/row_printer.h"
#include "core/base/status_macros.h"
#include "core/build/record_source.h"
#include "core/build/table_builder.h"

namespace latchkey {
namespace {

struct BuildArguments {
  BuildOptions build;
  InputOptions input;
  std::vector<std::string> paths;
  std::string format = "lines";
  std::string key_kind = "raw";
  std::string layout = "auto";
  std::string duplicates = "reject";
  unsigned doc_id_bits = 32;
  unsigned filter_bits_per_key = 10;
  uint64_t memory_mib = 256;
  size_t value_width = 0;
  bool json = false;
};

// The value kind that the flags ask for.
absl::Status SetValueKind(BuildArguments* arguments) {
  TableSchema& schema = arguments->build.schema;
  const size_t width = arguments->value_width;
  const bool fixed_format = arguments->input.format == InputFormat::kFixed;
  if (fixed_format) {
    arguments->input.value_width = width;
  } else if (width > kFixedValueBytesMax) {
    return InvalidArgument("--value-width: expected at most {}, got {}", kFixedValueBytesMax,
                           width);
  } else if (width > 0 && arguments->input.value_columns.empty()) {
    return InvalidArgument("--value-width: expected --value-column with it");
  }
  if (width == 0 && arguments->input.value_columns.empty()) return absl::OkStatus();
  const bool fixed = width > 0 && width <= kFixedValueBytesMax;
  schema.value_kind = fixed ? ValueKind::kFixed : ValueKind::kBytes;
  schema.value_width = static_cast<uint8_t>(fixed ? width : 0);
  return absl::OkStatus();
}

absl::Status Resolve(BuildArguments* arguments) {
  arguments->input.format = *ParseInputFormat(arguments->format);
  BuildOptions& build = arguments->build;
  LATCHKEY_RETURN_IF_ERROR(build.schema.SetKeyKind(arguments->key_kind));
  arguments->input.key_kind = build.schema.key_kind;
  build.schema.doc_id_bytes = static_cast<uint8_t>(arguments->doc_id_bits / 8);
  build.layout = arguments->layout == "line"      ? LayoutChoice::kLine
                 : arguments->layout == "pointer" ? LayoutChoice::kPointer
                                                  : LayoutChoice::kAuto;
  build.duplicates = arguments->duplicates == "first"  ? DuplicateRule::kFirst
                     : arguments->duplicates == "last" ? DuplicateRule::kLast
                                                       : DuplicateRule::kReject;
  build.filter_bits_per_key = static_cast<uint8_t>(arguments->filter_bits_per_key);
  build.memory_bytes = arguments->memory_mib << 20;
  return SetValueKind(arguments);
}

absl::StatusOr<int> RunBuild(BuildArguments arguments) {
  LATCHKEY_RETURN_IF_ERROR(Resolve(&arguments));
  LATCHKEY_ASSIGN_OR_RETURN(const auto source,
                            OpenRecordSource(PosixFileSystem(), arguments.input, arguments.paths));
  const auto begin = std::chrono::steady_clock::now();
  absl::StatusOr<BuildResult> built;
  {
    ProgressLine line;
    built = BuildTable(PosixFileSystem(), arguments.build, *source,
                       [&line](const BuildProgress& progress) { line.Show(progress); });
  }
  LATCHKEY_RETURN_IF_ERROR(built.status());
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  if (arguments.json) {
    const nlohmann::ordered_json json = {{"table", arguments.build.table},
                                         {"generation", built->generation},
                                         {"rows_read", built->rows_read},
                                         {"rows_stored", built->rows_stored},
                                         {"duplicates_dropped", built->duplicates_dropped},
                                         {"layout", LayoutName(built->header.layout)},
                                         {"file_bytes", built->header.file_bytes()},
                                         {"spilled_bytes", built->spilled_bytes},
                                         {"seconds", elapsed.count()}};
    PutLine(json.dump());
  } else {
    PutLine(fmt::format(
        "{}: generation {}: {} rows read, {} stored, {} duplicates dropped, layout {}, {:.1f} s",
        arguments.build.table, built->generation, built->rows_read, built->rows_stored,
        built->duplicates_dropped, LayoutName(built->header.layout), elapsed.count()));
  }
  return kExitOk;
}

void AddInputOptions(CLI::App& command, BuildArguments* to) {
  command.add_option("INPUT", to->paths, "Files to read, one after the other; - is standard input")
      ->required();
  command.add_option("--format", to->format, "lines, csv, tsv or fixed")
      ->check(CLI::IsMember({"lines", "csv", "tsv", "fixed"}))
      ->capture_default_str();
  command
      .add_option("--key-kind", to->key_kind,
                  "raw, text, hex, uuid or u64; the first three may name the bytes that every key "
                  "has: hex(20)")
      ->check([](const std::string& text) { return Message(TableSchema().SetKeyKind(text)); })
      ->capture_default_str();
  command
      .add_option("--key-column", to->input.key_column,
                  "csv, tsv: column of the key, a number from 1 or a name of the header")
      ->capture_default_str();
  command
      .add_option("--value-column", to->input.value_columns,
                  "csv, tsv: column of the value; several are joined by tabs. lines: 'rest', what "
                  "follows the key on its line")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);  // one a flag: what follows is an input
  command.add_option(
      "--id-column", to->input.doc_id_column,
      "csv, tsv: column of the doc id; without it a doc id is the row's ordinal, from 0");
  command.add_flag(
      "--header", to->input.has_header,
      "csv, tsv: the first row of each file is a header; so it is when a column is a name");
  command.add_option("--key-width", to->input.key_width, "fixed: bytes of a key")
      ->check(CLI::Range(size_t{1}, kKeyBytesMax));
  command
      .add_option("--value-width", to->value_width,
                  "fixed: bytes of a value behind the key. Others: values have exactly this many "
                  "bytes and are stored beside their keys")
      ->check(CLI::Range(size_t{1}, kValueBytesMax));
}

}  // namespace

void AddBuildCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command =
      app.add_subcommand("build", "Build a table from files and publish it as a new generation");
  const auto arguments = std::make_shared<BuildArguments>();
  BuildArguments* const to = arguments.get();
  command->add_option("--data", to->build.data_dir, "The data directory")->required();
  command->add_option("--table", to->build.table, "The table's name")->required();
  AddInputOptions(*command, to);
  command->add_option("--doc-id-bits", to->doc_id_bits, "32 or 64")
      ->check(CLI::IsMember({32, 64}))
      ->capture_default_str();
  command
      ->add_option("--duplicates", to->duplicates,
                   "When a key comes twice: reject the input, or keep the first or the last row")
      ->check(CLI::IsMember({"reject", "first", "last"}))
      ->capture_default_str();
  command
      ->add_option("--layout", to->layout,
                   "auto, line or pointer: whole rows in lines, or pointers to records")
      ->check(CLI::IsMember({"auto", "line", "pointer"}))
      ->capture_default_str();
  command
      ->add_option("--filter-bits", to->filter_bits_per_key,
                   "Bits of Bloom filter a key; 0 means no filter")
      ->check(CLI::Range(0u, kFilterBitsPerKeyMax))
      ->capture_default_str();
  command->add_flag("!--no-hash-list", to->build.hash_list,
                    "Leave out what a segment map is made of: 2 bytes a row less, but a table with "
                    "such segments has no map, and is slower");
  command->add_option("--memory", to->memory_mib, "MiB to work in; what does not fit is spilled")
      ->check(CLI::Range(uint64_t{kBuildMemoryBytesMin >> 20}, uint64_t{1} << 24))
      ->capture_default_str();
  command->add_flag("--append", to->build.append,
                    "Add the rows to the table, over what it has, instead of replacing it");
  command->add_flag("--json", to->json, "Report as one JSON object");
  command->callback([=] { *exit_code = ExitCodeOf(RunBuild(*arguments)); });
}

}  // namespace latchkey
