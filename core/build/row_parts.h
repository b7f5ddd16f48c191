// The parts of a row, checked and decoded the same way for every format. Errors are
// InvalidArgument, and the caller puts the row's position before them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "core/key/key_kind.h"

namespace latchkey {

// The key that `field` stands for: for raw and text keys the field's bytes, for other kinds what
// its text means. *key views the field or *scratch.
absl::Status DecodeKey(KeyKind kind, std::string_view field, std::string* scratch,
                       std::string_view* key);

absl::Status CheckValue(std::string_view value);

// Decimal digits, at most 2^64-1.
absl::Status DecodeDocId(std::string_view field, uint64_t* doc_id);

}  // namespace latchkey
