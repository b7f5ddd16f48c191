#include "core/build/delimited_source.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/build/field_reader.h"
#include "core/build/input_reader.h"
#include "core/build/row_parts.h"

namespace latchkey {
namespace {

struct Column {
  std::string_view role;  // for messages: what it holds
  std::string name;       // as given: a number, or a name in the header
  bool is_number = false;
  size_t index = 0;
};

std::string Describe(const Column& column) {
  return fmt::format("{} column {}", column.role,
                     column.is_number ? column.name : QuoteShort(column.name));
}

absl::StatusOr<Column> ParseColumn(std::string_view role, const std::string& name) {
  Column column{role, name};
  if (name.empty()) {
    return InvalidArgument("{} column: expected a number or a name, got none", role);
  }
  column.is_number =
      std::all_of(name.begin(), name.end(), [](char c) { return '0' <= c && c <= '9'; });
  if (!column.is_number) return column;
  size_t number = 0;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || number == 0 || number > kRowFieldsMax) {
    return InvalidArgument("{} column: expected a number from 1 to {}, got {}", role, kRowFieldsMax,
                           QuoteShort(name));
  }
  column.index = number - 1;
  return column;
}

// Which columns of a row mean what.
struct Columns {
  std::vector<Column> all;  // the key's, those of the value, that of the doc id
  size_t value_count = 0;
  bool has_doc_id = false;
  bool has_header = false;

  const Column& key() const { return all[0]; }
  std::span<const Column> values() const { return std::span(all).subspan(1, value_count); }
  const Column& doc_id() const { return all.back(); }
};

absl::StatusOr<Columns> ParseColumns(const InputOptions& options) {
  Columns columns;
  columns.value_count = options.value_columns.size();
  columns.has_doc_id = !options.doc_id_column.empty();
  LATCHKEY_ASSIGN_OR_RETURN(columns.all.emplace_back(), ParseColumn("key", options.key_column));
  for (const std::string& name : options.value_columns) {
    LATCHKEY_ASSIGN_OR_RETURN(columns.all.emplace_back(), ParseColumn("value", name));
  }
  if (columns.has_doc_id) {
    LATCHKEY_ASSIGN_OR_RETURN(columns.all.emplace_back(),
                              ParseColumn("doc id", options.doc_id_column));
  }
  columns.has_header =
      options.has_header || std::any_of(columns.all.begin(), columns.all.end(),
                                        [](const Column& column) { return !column.is_number; });
  return columns;
}

class DelimitedSource final : public RecordSource {
 public:
  DelimitedSource(std::unique_ptr<FieldReader> reader, const InputOptions& options, Columns columns)
      : reader_(std::move(reader)),
        key_kind_(options.key_kind),
        is_escaped_(options.format == InputFormat::kTsv),
        columns_(std::move(columns)) {
    CountFieldsNeeded();
  }

  // Reads the first header, if there is to be one, so that a wrong name is known before anything
  // else is done.
  absl::Status Begin() {
    if (!columns_.has_header) return absl::OkStatus();
    LATCHKEY_ASSIGN_OR_RETURN(const bool more, reader_->NextRow(fields_needed_, &fields_));
    return more ? Prefixed(ReadHeader(), Position()) : absl::OkStatus();
  }

  absl::StatusOr<bool> Next(InputRow* row) override {
    for (;;) {
      LATCHKEY_ASSIGN_OR_RETURN(const bool more, reader_->NextRow(fields_needed_, &fields_));
      if (!more) return false;
      const bool is_header = columns_.has_header && reader_->is_first_of_file();
      const absl::Status status = is_header ? ReadHeader() : DecodeRow(row);
      if (!status.ok()) return Prefixed(status, Position());
      if (!is_header) return true;
    }
  }

  std::string Position() const override { return reader_->Position(); }
  uint64_t bytes_read() const override { return reader_->input().bytes_read(); }
  uint64_t total_bytes() const override { return reader_->input().total_bytes(); }

 private:
  void CountFieldsNeeded() {
    fields_needed_ = 0;
    for (const Column& column : columns_.all) {
      fields_needed_ = std::max(fields_needed_, column.index + 1);
    }
  }

  // Finds the columns that are names in the header, which fields_ is.
  absl::Status ReadHeader() {
    for (Column& column : columns_.all) {
      if (column.is_number) continue;
      const auto found = std::find(fields_.begin(), fields_.end(), column.name);
      if (found == fields_.end()) {
        return InvalidArgument("{}: expected it in the header, got {}", Describe(column),
                               QuoteShort(fmt::format("{}", fmt::join(fields_, ", "))));
      }
      if (std::find(found + 1, fields_.end(), column.name) != fields_.end()) {
        return InvalidArgument("{}: expected it once in the header, got {}", Describe(column),
                               std::count(fields_.begin(), fields_.end(), column.name));
      }
      column.index = static_cast<size_t>(found - fields_.begin());
    }
    CountFieldsNeeded();
    return CheckFieldCount();
  }

  absl::Status CheckFieldCount() const {
    if (fields_.size() >= fields_needed_) return absl::OkStatus();
    const auto missing =
        std::find_if(columns_.all.begin(), columns_.all.end(),
                     [&](const Column& column) { return column.index >= fields_.size(); });
    return InvalidArgument("too few fields: expected at least {} for {}, got {}",
                           missing->index + 1, Describe(*missing), fields_.size());
  }

  absl::Status DecodeRow(InputRow* row) {
    LATCHKEY_RETURN_IF_ERROR(CheckFieldCount());
    std::string_view key = fields_[columns_.key().index];
    if (key_kind_ == KeyKind::kRaw || key_kind_ == KeyKind::kText) {
      LATCHKEY_RETURN_IF_ERROR(FieldBytes(columns_.key(), &unescaped_key_, &key));
    }
    LATCHKEY_RETURN_IF_ERROR(DecodeKey(key_kind_, key, &key_, &row->key));
    LATCHKEY_RETURN_IF_ERROR(DecodeValue(&row->value));
    row->doc_id.reset();
    if (!columns_.has_doc_id) return absl::OkStatus();
    const Column& column = columns_.doc_id();
    const absl::Status status = DecodeDocId(fields_[column.index], &row->doc_id.emplace());
    return status.ok() ? status : Prefixed(status, Describe(column));
  }

  absl::Status DecodeValue(std::string_view* value) {
    *value = {};
    const std::span<const Column> columns = columns_.values();
    if (columns.empty()) return absl::OkStatus();
    if (columns.size() == 1) {
      LATCHKEY_RETURN_IF_ERROR(FieldBytes(columns[0], &unescaped_value_, value));
      return CheckValue(*value);
    }
    value_.clear();
    for (const Column& column : columns) {
      std::string_view bytes;
      LATCHKEY_RETURN_IF_ERROR(FieldBytes(column, &unescaped_value_, &bytes));
      if (&column != columns.data()) value_ += '\t';
      AppendEscapedTsv(bytes, &value_);
    }
    *value = value_;
    return CheckValue(value_);
  }

  // The bytes of a column's field: the field itself, or what its escapes stand for, in *scratch.
  absl::Status FieldBytes(const Column& column, std::string* scratch,
                          std::string_view* bytes) const {
    *bytes = fields_[column.index];
    if (!is_escaped_ || std::memchr(bytes->data(), '\\', bytes->size()) == nullptr) {
      return absl::OkStatus();
    }
    scratch->clear();
    const absl::Status status = AppendUnescapedTsv(*bytes, scratch);
    if (!status.ok()) return Prefixed(status, Describe(column));
    *bytes = *scratch;
    return absl::OkStatus();
  }

  const std::unique_ptr<FieldReader> reader_;
  const KeyKind key_kind_;
  const bool is_escaped_;
  Columns columns_;
  size_t fields_needed_ = 0;
  std::vector<std::string_view> fields_;  // of the row read last
  // What a row's views point to, unless into the reader; kept, so that rows allocate nothing.
  std::string key_;
  std::string unescaped_key_;
  std::string unescaped_value_;
  std::string value_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RecordSource>> OpenDelimitedSource(
    FileSystem& file_system, const InputOptions& options, const std::vector<std::string>& paths) {
  LATCHKEY_ASSIGN_OR_RETURN(Columns columns, ParseColumns(options));
  LATCHKEY_ASSIGN_OR_RETURN(
      InputReader input, InputReader::Open(file_system, paths,
                                           columns.has_header ? InputReader::ByteOrderMark::kSkip
                                                              : InputReader::ByteOrderMark::kKeep));
  std::unique_ptr<FieldReader> reader = options.format == InputFormat::kCsv
                                            ? MakeCsvReader(std::move(input))
                                            : MakeTsvReader(std::move(input));
  auto source = std::make_unique<DelimitedSource>(std::move(reader), options, std::move(columns));
  LATCHKEY_RETURN_IF_ERROR(source->Begin());
  return source;
}

}  // namespace latchkey
