// Rows of fields, as the formats with columns read them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/build/input_reader.h"

namespace latchkey {

// Fields after so many are not looked at, so that memory stays bounded whatever the input is.
inline constexpr size_t kRowFieldsMax = size_t{1} << 20;

// Splits the input files into rows, and rows into fields. One thread.
class FieldReader {
 public:
  virtual ~FieldReader() = default;

  // The next row's fields, of which those after the first `fields_needed` (at most kRowFieldsMax)
  // may be left out unless the row is its file's first; false after the last row. The views are
  // valid until the next call. InvalidArgument, after Position(), for a malformed row.
  virtual absl::StatusOr<bool> NextRow(size_t fields_needed,
                                       std::vector<std::string_view>* fields) = 0;

  // Of the row read last: whether it is the first of its file, and "FILE:LINE" of its start.
  virtual bool is_first_of_file() const = 0;
  virtual std::string Position() const = 0;

  virtual const InputReader& input() const = 0;
};

// Fields by comma, after RFC 4180, quotes taken off.
std::unique_ptr<FieldReader> MakeCsvReader(InputReader input);

// Fields by tab, as they stand, escapes and all.
std::unique_ptr<FieldReader> MakeTsvReader(InputReader input);

}  // namespace latchkey
