#include "core/build/row_parts.h"

#include <charconv>

#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/key/limits.h"

namespace latchkey {

absl::Status DecodeKey(KeyKind kind, std::string_view field, std::string* scratch,
                       std::string_view* key) {
  if (kind == KeyKind::kRaw || kind == KeyKind::kText) {
    *key = field;
    return ValidateKey(kind, field);
  }
  scratch->clear();
  LATCHKEY_RETURN_IF_ERROR(AppendKeyFromText(kind, field, scratch));
  *key = *scratch;
  return absl::OkStatus();
}

absl::Status CheckValue(std::string_view value) {
  if (value.size() <= kValueBytesMax) return absl::OkStatus();
  return InvalidArgument("value too long: expected at most {} bytes, got {}", kValueBytesMax,
                         value.size());
}

absl::Status DecodeDocId(std::string_view field, uint64_t* doc_id) {
  const char* end = field.data() + field.size();
  const auto [stop, error] = std::from_chars(field.data(), end, *doc_id);
  if (error == std::errc() && stop == end) return absl::OkStatus();
  return InvalidArgument("not a doc id: expected decimal digits, 0 to {}, got {}", UINT64_MAX,
                         QuoteShort(field));
}

}  // namespace latchkey
