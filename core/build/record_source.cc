#include "core/build/record_source.h"

#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/build/delimited_source.h"
#include "core/build/fixed_source.h"
#include "core/build/lines_source.h"

namespace latchkey {

std::string_view InputFormatName(InputFormat format) {
  switch (format) {
    case InputFormat::kLines:
      return "lines";
    case InputFormat::kCsv:
      return "csv";
    case InputFormat::kTsv:
      return "tsv";
    case InputFormat::kFixed:
      return "fixed";
  }
  return "unknown";
}

std::optional<InputFormat> ParseInputFormat(std::string_view name) {
  for (const InputFormat format :
       {InputFormat::kLines, InputFormat::kCsv, InputFormat::kTsv, InputFormat::kFixed}) {
    if (name == InputFormatName(format)) return format;
  }
  return std::nullopt;
}

namespace {

// Refuses what a format without columns, or without widths, would silently ignore.
absl::Status CheckOptions(const InputOptions& options) {
  const std::string_view format = InputFormatName(options.format);
  const bool has_columns =
      options.format == InputFormat::kCsv || options.format == InputFormat::kTsv;
  if (!has_columns) {
    if (options.key_column != "1") {
      return InvalidArgument("format {} has no columns: expected no key column, got {}", format,
                             QuoteShort(options.key_column));
    }
    if (!options.doc_id_column.empty()) {
      return InvalidArgument("format {} has no columns: expected no doc id column, got {}", format,
                             QuoteShort(options.doc_id_column));
    }
    if (options.has_header) return InvalidArgument("format {} has no header", format);
  }
  if (options.format != InputFormat::kFixed &&
      (options.key_width != 0 || options.value_width != 0)) {
    return InvalidArgument("format {} has no widths: expected none, got key {} and value {}",
                           format, options.key_width, options.value_width);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RecordSource>> OpenRecordSource(
    FileSystem& file_system, const InputOptions& options, const std::vector<std::string>& paths) {
  LATCHKEY_RETURN_IF_ERROR(CheckOptions(options));
  switch (options.format) {
    case InputFormat::kLines:
      return OpenLinesSource(file_system, options, paths);
    case InputFormat::kCsv:
    case InputFormat::kTsv:
      return OpenDelimitedSource(file_system, options, paths);
    case InputFormat::kFixed:
      return OpenFixedSource(file_system, options, paths);
  }
  return InvalidArgument("unknown input format {}", static_cast<int>(options.format));
}

}  // namespace latchkey
