#include <csv.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/build/field_reader.h"
#include "core/key/key_kind.h"

namespace latchkey {
namespace {

// What libcsv is given at once: small enough for its rows to stay in the cache until they are
// taken.
constexpr size_t kSliceBytes = size_t{64} << 10;
// By how much a field's buffer grows at least within libcsv.
constexpr size_t kFieldGrowthBytes = size_t{64} << 10;
// How much of the text on either side of an error is quoted.
constexpr size_t kErrorContextBytes = 25;

// Blanks are part of a field in RFC 4180, while libcsv by itself would trim them.
int IsTrimmed(unsigned char) { return 0; }

// libcsv hands fields to callbacks, which queue the rows of a slice; NextRow takes them from the
// queue.
class CsvReader final : public FieldReader {
 public:
  explicit CsvReader(InputReader input) : input_(std::move(input)) {
    // Empty lines are reported, so that lines can be counted.
    csv_init(&parser_, CSV_STRICT | CSV_STRICT_FINI | CSV_REPALL_NL);
    csv_set_space_func(&parser_, &IsTrimmed);
  }
  CsvReader(const CsvReader&) = delete;
  CsvReader& operator=(const CsvReader&) = delete;
  ~CsvReader() override { csv_free(&parser_); }

  absl::StatusOr<bool> NextRow(size_t fields_needed,
                               std::vector<std::string_view>* fields) override;

  bool is_first_of_file() const override { return is_first_of_file_; }
  std::string Position() const override {
    return fmt::format("{}:{}", input_.name(), position_line_);
  }
  const InputReader& input() const override { return input_; }

 private:
  struct QueuedRow {
    uint64_t line;
    size_t field_end;  // index in field_ends_ after its last field
  };

  // Parses a slice, or ends a file, or begins one; false after the last. Called with no row left to
  // take.
  absl::StatusOr<bool> ParseMore();
  void ParseSlice(std::string_view slice);
  absl::StatusOr<bool> EndFile();
  void DropTakenRows();

  void OnField(std::string_view field);
  void OnRowEnd(int terminator);
  static void OnFieldCallback(void* field, size_t size_bytes, void* self) {
    static_cast<CsvReader*>(self)->OnField({static_cast<const char*>(field), size_bytes});
  }
  static void OnRowEndCallback(int terminator, void* self) {
    static_cast<CsvReader*>(self)->OnRowEnd(terminator);
  }

  void Fail(const absl::Status& error) {
    if (!error_.ok()) return;
    error_line_ = row_is_open_ ? row_line_ : line_;
    error_ = Prefixed(error, fmt::format("{}:{}", input_.name(), error_line_));
  }

  InputReader input_;
  csv_parser parser_;

  // The queue: the fields' bytes one after the other, where each ends, and which fields make a row.
  // The last fields may belong to a row that is not ended.
  std::string bytes_;
  std::vector<size_t> field_ends_;
  std::vector<QueuedRow> rows_;
  size_t next_row_ = 0;

  bool file_is_open_ = false;
  uint64_t line_ = 0;                // at which libcsv is, up to the last callback
  bool row_is_open_ = false;         // some of the row's fields are queued
  uint64_t row_line_ = 0;            // where the open row begins
  bool after_return_ = false;        // the last row was ended by a carriage return
  bool row_ended_in_slice_ = false;  // or an empty line was
  size_t open_row_text_bytes_ = 0;   // at most this much of the text belongs to the open row

  // Reported after the rows before it.
  absl::Status error_;
  uint64_t error_line_ = 0;

  uint64_t position_line_ = 0;
  bool is_first_of_file_ = false;
  bool file_has_rows_ = false;  // some of the current file were taken
};

absl::StatusOr<bool> CsvReader::NextRow(size_t fields_needed,
                                        std::vector<std::string_view>* fields) {
  while (next_row_ == rows_.size()) {
    if (!error_.ok()) {
      position_line_ = error_line_;
      return error_;
    }
    LATCHKEY_ASSIGN_OR_RETURN(const bool more, ParseMore());
    if (!more) return false;
  }
  size_t field = next_row_ == 0 ? 0 : rows_[next_row_ - 1].field_end;
  const QueuedRow& row = rows_[next_row_++];
  position_line_ = row.line;
  is_first_of_file_ = !file_has_rows_;
  file_has_rows_ = true;
  const size_t field_count =
      std::min(row.field_end - field, is_first_of_file_ ? SIZE_MAX : fields_needed);
  size_t begin = field == 0 ? 0 : field_ends_[field - 1];
  fields->clear();
  for (const size_t field_end = field + field_count; field < field_end; ++field) {
    fields->emplace_back(bytes_.data() + begin, field_ends_[field] - begin);
    begin = field_ends_[field];
  }
  return true;
}

absl::StatusOr<bool> CsvReader::ParseMore() {
  DropTakenRows();
  if (input_.window().empty()) {
    LATCHKEY_ASSIGN_OR_RETURN(const bool grew, input_.Fill());
    if (!grew) return EndFile();
  }
  const std::string_view slice = input_.window().substr(0, kSliceBytes);
  ParseSlice(slice);
  input_.Consume(slice.size());
  return true;
}

void CsvReader::ParseSlice(std::string_view slice) {
  row_ended_in_slice_ = false;
  // Doubling: growth by a constant would copy a long field over and over.
  csv_set_blk_size(&parser_, std::max(kFieldGrowthBytes, csv_get_buffer_size(&parser_)));
  const size_t parsed =
      csv_parse(&parser_, slice.data(), slice.size(), &OnFieldCallback, &OnRowEndCallback, this);
  if (parsed < slice.size()) {
    if (csv_error(&parser_) != CSV_EPARSE) {
      return Fail(absl::ResourceExhaustedError(csv_strerror(csv_error(&parser_))));
    }
    const size_t begin = parsed - std::min(parsed, kErrorContextBytes);
    return Fail(InvalidArgument(
        "malformed CSV: expected quotes only around a field, and doubled within, got one in {}",
        QuoteShort(slice.substr(begin, parsed - begin + kErrorContextBytes))));
  }
  open_row_text_bytes_ = slice.size() + (row_ended_in_slice_ ? 0 : open_row_text_bytes_);
  if (open_row_text_bytes_ > kRowTextBytesMax) {
    Fail(InvalidArgument("row too long: expected at most {} bytes, got more", kRowTextBytesMax));
  }
}

absl::StatusOr<bool> CsvReader::EndFile() {
  if (file_is_open_) {
    file_is_open_ = false;
    if (csv_fini(&parser_, &OnFieldCallback, &OnRowEndCallback, this) != 0) {
      Fail(InvalidArgument("malformed CSV: expected a closing quote, got the end of the file"));
    }
    return true;
  }
  LATCHKEY_ASSIGN_OR_RETURN(const bool more, input_.NextFile());
  if (!more) return false;
  file_is_open_ = true;
  file_has_rows_ = false;
  after_return_ = false;
  open_row_text_bytes_ = 0;
  line_ = 1;
  return true;
}

void CsvReader::DropTakenRows() {
  if (rows_.empty()) return;
  const size_t fields_taken = rows_.back().field_end;
  const size_t bytes_taken = field_ends_[fields_taken - 1];
  bytes_.erase(0, bytes_taken);
  field_ends_.erase(field_ends_.begin(),
                    field_ends_.begin() + static_cast<ptrdiff_t>(fields_taken));
  for (size_t& field_end : field_ends_) field_end -= bytes_taken;
  rows_.clear();
  next_row_ = 0;
}

void CsvReader::OnField(std::string_view field) {
  if (after_return_) {
    Fail(InvalidArgument("malformed CSV: expected a newline after a carriage return, got {}",
                         QuoteShort(field)));
  }
  if (!error_.ok()) return;
  if (!row_is_open_) {
    row_is_open_ = true;
    row_line_ = line_;
  }
  if (field_ends_.size() - (rows_.empty() ? 0 : rows_.back().field_end) < kRowFieldsMax) {
    bytes_.append(field);
    field_ends_.push_back(bytes_.size());
  }
  const char* end = field.data() + field.size();
  for (const char* at = field.data();
       (at = static_cast<const char*>(std::memchr(at, '\n', static_cast<size_t>(end - at))));
       ++at) {
    ++line_;
  }
}

void CsvReader::OnRowEnd(int terminator) {
  row_ended_in_slice_ = true;
  if (terminator == CSV_CR && after_return_) {
    Fail(InvalidArgument("malformed CSV: expected a newline after a carriage return, got another"));
  }
  if (!error_.ok()) return;
  after_return_ = terminator == CSV_CR;
  if (terminator == CSV_LF) ++line_;
  if (!row_is_open_) return;
  rows_.push_back({row_line_, field_ends_.size()});
  row_is_open_ = false;
}

}  // namespace

std::unique_ptr<FieldReader> MakeCsvReader(InputReader input) {
  return std::make_unique<CsvReader>(std::move(input));
}

}  // namespace latchkey
