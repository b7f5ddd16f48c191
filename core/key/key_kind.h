// How text stands for the bytes of a key; declared once per table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace latchkey {

// The numbers stand in files.
enum class KeyKind : uint8_t {
  // The bytes as they are; in text, those that are not printable are escaped: \t \n \\ \xHH.
  kRaw = 1,
  // Valid UTF-8, as it is: no overlong form, no surrogate, nothing above U+10FFFF.
  kText = 2,
  // An even number of hexadecimal digits, either case; printed in lower case.
  kHex = 3,
  // RFC 9562 text, 8-4-4-4-12 or 32 digits, either case -> 16 bytes in the order they are written.
  kUuid = 4,
  // Decimal 0 to 2^64-1 -> 8 bytes, big-endian, so that byte order is numeric order. Digits alone,
  // no sign and no leading zeros, so that each key has one text.
  kU64 = 5,
};

// "raw", "text", "hex", "uuid", "u64".
std::string_view KeyKindName(KeyKind kind);
std::optional<KeyKind> ParseKeyKind(std::string_view name);

// The length that every key of this kind has, in bytes; 0 if lengths differ.
size_t KeyKindWidth(KeyKind kind);

// Appends to *key the bytes that `text` stands for. InvalidArgument, with *key as it was, when
// `text` is not of that kind, or the key is empty or longer than kKeyBytesMax; the message quotes
// the text, shortened.
absl::Status AppendKeyFromText(KeyKind kind, std::string_view text, std::string* key);
absl::StatusOr<std::string> KeyFromText(KeyKind kind, std::string_view text);

// OK if `key` can be a key of a table of that kind: length, UTF-8 for kText, width for kUuid and
// kU64.
absl::Status ValidateKey(KeyKind kind, std::string_view key);

// The text of a key, such that KeyFromText gives the key back. Bytes that are no key of the kind,
// as damage may leave them, come out escaped like a raw key.
std::string KeyToText(KeyKind kind, std::string_view key);

// Escapes for TSV: tab, newline and backslash become \t \n \\, and control characters and bytes
// that are not part of valid UTF-8 become \xHH. Unescaping is its inverse, and takes \xHH of any
// byte in either case; InvalidArgument names the offset of a bad escape and leaves *to as it was.
std::string EscapeTsv(std::string_view bytes);
absl::StatusOr<std::string> UnescapeTsv(std::string_view text);
void AppendEscapedTsv(std::string_view bytes, std::string* to);
absl::Status AppendUnescapedTsv(std::string_view text, std::string* to);

// For messages: `bytes` in quotes, escaped as in TSV; of a long one the first 60 or so characters
// and its size.
std::string QuoteShort(std::string_view bytes);

bool IsValidUtf8(std::string_view bytes);

}  // namespace latchkey
