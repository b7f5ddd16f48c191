// Rows read from input files, one implementation a format.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/io/file_system.h"
#include "core/key/key_kind.h"

namespace latchkey {

// One row of the input. The views are valid until the next call of Next.
struct InputRow {
  std::string_view key;            // the key's bytes, already of the table's kind
  std::string_view value;          // empty if the input has none
  std::optional<uint64_t> doc_id;  // the number given with the row, if any
};

// In all formats but kFixed a line ends with a newline, which the last one may lack, and a carriage
// return right before it is dropped. A file with no bytes has no rows.
enum class InputFormat {
  // A key a line, or, with `value_columns` {"rest"}, a key that ends at the first space or tab,
  // blanks, and the rest of the line as value. Nothing is unescaped: raw and text keys and values
  // are the line's bytes. An empty line is an error.
  kLines,
  // RFC 4180, fields by comma; raw and text keys and values are the field's bytes, blanks included.
  // Blank lines are skipped.
  kCsv,
  // Fields by tab; \t \n \\ \xHH are unescaped in values and in raw and text keys. An empty line
  // is an error.
  kTsv,
  // Records of key_width + value_width bytes, nothing between them; keys are bytes, not text.
  kFixed,
};

std::string_view InputFormatName(InputFormat format);
std::optional<InputFormat> ParseInputFormat(std::string_view name);

struct InputOptions {
  InputFormat format = InputFormat::kLines;
  KeyKind key_kind = KeyKind::kRaw;
  // csv and tsv: a column is a number from 1, or a name of the header row (the first row of each
  // file, which may order the columns differently; a UTF-8 byte order mark before it is dropped).
  bool has_header = false;  // set by itself when any column is a name
  std::string key_column = "1";
  // One: the value is that field. Several: the fields are joined by tabs, each escaped as in TSV.
  // lines: "rest" or none.
  std::vector<std::string> value_columns;
  std::string doc_id_column;  // a decimal number; empty: doc ids are the rows' ordinals
  // fixed: bytes of a record's parts; other formats have neither.
  size_t key_width = 0;
  size_t value_width = 0;
};

// Reads the rows of several inputs one after the other. One thread.
class RecordSource {
 public:
  virtual ~RecordSource() = default;

  // Reads the next row into *row and returns true; false after the last one. InvalidArgument for a
  // row that can't be read: malformed, an empty or oversize key, a key that is not of the kind, an
  // oversize value, a doc id that is no number; the message begins with Position(). After an error
  // the source is spent.
  virtual absl::StatusOr<bool> Next(InputRow* row) = 0;

  // Where the row read last begins, for messages: "FILE:LINE" or, for fixed records, "FILE, offset
  // N"; LINE counts newlines from 1, those in quoted fields too.
  virtual std::string Position() const = 0;

  // Bytes read so far of `total_bytes()`; the total is 0 if any input is a pipe.
  virtual uint64_t bytes_read() const = 0;
  virtual uint64_t total_bytes() const = 0;
};

// Opens `paths` ("-" is standard input, at most once) and, where there is one, reads the first
// header; files other than pipes are held open only while they are read. Errors: InvalidArgument
// for options that contradict each other or a column that the header lacks or has twice, and what
// opening the files gives; a later file's header is checked by Next. `file_system` must outlive the
// source.
absl::StatusOr<std::unique_ptr<RecordSource>> OpenRecordSource(
    FileSystem& file_system, const InputOptions& options, const std::vector<std::string>& paths);

}  // namespace latchkey
