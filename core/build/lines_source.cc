#include "core/build/lines_source.h"

#include <utility>

#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/build/input_reader.h"
#include "core/build/row_parts.h"

namespace latchkey {
namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t'; }

class LinesSource final : public RecordSource {
 public:
  LinesSource(InputReader input, KeyKind key_kind, bool has_value)
      : lines_(std::move(input)), key_kind_(key_kind), has_value_(has_value) {}

  absl::StatusOr<bool> Next(InputRow* row) override {
    std::string_view line;
    LATCHKEY_ASSIGN_OR_RETURN(const bool more, lines_.NextLine(&line));
    if (!more) return false;
    const absl::Status status = Decode(line, row);
    if (!status.ok()) return Prefixed(status, Position());
    return true;
  }

  std::string Position() const override { return lines_.Position(); }
  uint64_t bytes_read() const override { return lines_.input().bytes_read(); }
  uint64_t total_bytes() const override { return lines_.input().total_bytes(); }

 private:
  absl::Status Decode(std::string_view line, InputRow* row) {
    std::string_view key = line;
    row->value = {};
    row->doc_id.reset();
    if (has_value_) {
      size_t end = 0;
      while (end < line.size() && !IsBlank(line[end])) ++end;
      key = line.substr(0, end);
      // More than one blank is usual: md5sum, and so dpkg, puts two between hash and name.
      while (end < line.size() && IsBlank(line[end])) ++end;
      row->value = line.substr(end);
      LATCHKEY_RETURN_IF_ERROR(CheckValue(row->value));
    }
    return DecodeKey(key_kind_, key, &key_, &row->key);
  }

  LineReader lines_;
  const KeyKind key_kind_;
  const bool has_value_;
  std::string key_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RecordSource>> OpenLinesSource(
    FileSystem& file_system, const InputOptions& options, const std::vector<std::string>& paths) {
  const bool has_value = !options.value_columns.empty();
  if (has_value && options.value_columns != std::vector<std::string>{"rest"}) {
    return InvalidArgument("value column of format lines: expected \"rest\" or none, got {}",
                           QuoteShort(fmt::format("{}", fmt::join(options.value_columns, ", "))));
  }
  LATCHKEY_ASSIGN_OR_RETURN(InputReader input, InputReader::Open(file_system, paths));
  return std::make_unique<LinesSource>(std::move(input), options.key_kind, has_value);
}

}  // namespace latchkey
