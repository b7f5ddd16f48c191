#include "core/key/key_kind.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>

#include "core/base/bytes.h"
#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/key/limits.h"

namespace latchkey {
namespace {

constexpr size_t kUuidBytes = 16;
constexpr size_t kUuidDigits = 32;
constexpr size_t kUuidTextBytes = 36;
constexpr size_t kQuotedCharsMax = 60;

constexpr char kDigits[] = "0123456789abcdef";
constexpr uint8_t kNoDigit = 0xFF;

constexpr std::array<uint8_t, 256> kDigitValues = [] {
  std::array<uint8_t, 256> values{};
  values.fill(kNoDigit);
  for (uint8_t i = 0; i < 16; ++i) values[static_cast<uint8_t>(kDigits[i])] = i;
  for (uint8_t i = 10; i < 16; ++i) values[static_cast<size_t>('A' + i - 10)] = i;
  return values;
}();

// Characters that stand for themselves in TSV.
constexpr std::array<bool, 256> kIsPlain = [] {
  std::array<bool, 256> plain{};
  for (size_t c = 0x20; c < 0x7F; ++c) plain[c] = c != '\\';
  return plain;
}();

uint8_t DigitValue(char c) { return kDigitValues[static_cast<uint8_t>(c)]; }

// Decodes 2 * `size_bytes` digits; false, with anything in `to`, if one of them is no digit.
bool DecodeHex(const char* digits, size_t size_bytes, char* to) {
  uint8_t seen = 0;
  for (size_t i = 0; i < size_bytes; ++i) {
    const uint8_t high = DigitValue(digits[2 * i]);
    const uint8_t low = DigitValue(digits[2 * i + 1]);
    seen |= high | low;
    to[i] = static_cast<char>(high << 4 | (low & 0xF));
  }
  return seen < 16;
}

bool DecodeUuid(std::string_view text, char* to) {
  if (text.size() == kUuidDigits) return DecodeHex(text.data(), kUuidBytes, to);
  if (text.size() != kUuidTextBytes) return false;
  if (text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-') return false;
  const char* from = text.data();
  return DecodeHex(from, 4, to) && DecodeHex(from + 9, 2, to + 4) &&
         DecodeHex(from + 14, 2, to + 6) && DecodeHex(from + 19, 2, to + 8) &&
         DecodeHex(from + 24, 6, to + 10);
}

bool DecodeU64(std::string_view text, char* to) {
  if (text.empty() || (text.size() > 1 && text[0] == '0')) return false;
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return false;
  Store(to, __builtin_bswap64(number));
  return true;
}

void AppendHex(std::string_view bytes, std::string* to) {
  for (const char c : bytes) {
    *to += kDigits[static_cast<uint8_t>(c) >> 4];
    *to += kDigits[static_cast<uint8_t>(c) & 0xF];
  }
}

// The size of the valid UTF-8 sequence that `text` begins with; 0 if it begins with none.
// The ranges of the second byte are those of the Unicode standard, table 3-7.
size_t Utf8SequenceBytes(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t size_bytes = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() < size_bytes) return 0;
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < size_bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return size_bytes;
}

// The offset of the first byte that is not part of valid UTF-8; the size of `bytes` if all are.
size_t ValidUtf8Bytes(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (at + 8 <= bytes.size() && (Load<uint64_t>(bytes.data() + at) & 0x8080808080808080) == 0) {
      at += 8;
      continue;
    }
    const size_t size_bytes = Utf8SequenceBytes(bytes.substr(at));
    if (size_bytes == 0) break;
    at += size_bytes;
  }
  return at;
}

// Appends the character, or stray byte, that `bytes` begins with, escaped, and returns its size.
size_t AppendEscapedCharacter(std::string_view bytes, std::string* to) {
  const auto first = static_cast<uint8_t>(bytes[0]);
  if (first >= 0x80) {
    const size_t size_bytes = Utf8SequenceBytes(bytes);
    // U+0080 to U+009F are control characters, some of which terminals obey.
    const bool control = first == 0xC2 && size_bytes == 2 && static_cast<uint8_t>(bytes[1]) < 0xA0;
    if (size_bytes > 0 && !control) {
      to->append(bytes.substr(0, size_bytes));
      return size_bytes;
    }
  } else if (kIsPlain[first]) {
    *to += bytes[0];
    return 1;
  }
  *to += '\\';
  switch (first) {
    case '\t':
      *to += 't';
      break;
    case '\n':
      *to += 'n';
      break;
    case '\\':
      *to += '\\';
      break;
    default:
      *to += 'x';
      AppendHex(bytes.substr(0, 1), to);
  }
  return 1;
}

// Decodes the escape that `text` begins with into *byte and returns its size; 0 if it is none.
size_t DecodeEscape(std::string_view text, char* byte) {
  if (text.size() < 2) return 0;
  switch (text[1]) {
    case 't':
      *byte = '\t';
      return 2;
    case 'n':
      *byte = '\n';
      return 2;
    case '\\':
      *byte = '\\';
      return 2;
    case 'x':
      return text.size() >= 4 && DecodeHex(text.data() + 2, 1, byte) ? 4 : 0;
    default:
      return 0;
  }
}

absl::Status BadKeySize(size_t size_bytes, std::string_view text) {
  if (size_bytes == 0) return InvalidArgument("empty key: expected 1 to {} bytes", kKeyBytesMax);
  return InvalidArgument("key too long: expected at most {} bytes, got {}, {}", kKeyBytesMax,
                         size_bytes, QuoteShort(text));
}

bool IsKeySize(size_t size_bytes) { return size_bytes >= 1 && size_bytes <= kKeyBytesMax; }

absl::Status AppendBytesKey(std::string_view bytes, std::string_view text, std::string* key) {
  if (!IsKeySize(bytes.size())) return BadKeySize(bytes.size(), text);
  key->append(bytes);
  return absl::OkStatus();
}

absl::Status AppendRawKey(std::string_view text, std::string* key) {
  if (std::memchr(text.data(), '\\', text.size()) == nullptr) {
    return AppendBytesKey(text, text, key);
  }
  const size_t begin = key->size();
  LATCHKEY_RETURN_IF_ERROR(AppendUnescapedTsv(text, key));
  const size_t size_bytes = key->size() - begin;
  if (IsKeySize(size_bytes)) return absl::OkStatus();
  key->resize(begin);
  return BadKeySize(size_bytes, text);
}

// Appends the key of `size_bytes` that `decode(text, to)` makes, or leaves *key as it was.
template <typename Decode>
bool AppendDecoded(size_t size_bytes, std::string* key, Decode decode) {
  const size_t begin = key->size();
  key->resize(begin + size_bytes);
  if (decode(key->data() + begin)) return true;
  key->resize(begin);
  return false;
}

absl::Status AppendHexKey(std::string_view text, std::string* key) {
  const size_t size_bytes = text.size() / 2;
  if (text.size() % 2 == 0) {
    if (!IsKeySize(size_bytes)) return BadKeySize(size_bytes, text);
    if (AppendDecoded(size_bytes, key,
                      [&](char* to) { return DecodeHex(text.data(), size_bytes, to); })) {
      return absl::OkStatus();
    }
  }
  return InvalidArgument("not hexadecimal: expected an even number of hexadecimal digits, got {}",
                         QuoteShort(text));
}

absl::Status CheckUtf8(std::string_view text) {
  const size_t valid = ValidUtf8Bytes(text);
  if (valid == text.size()) return absl::OkStatus();
  return InvalidArgument("not text: expected valid UTF-8, got byte \\x{:02x} at offset {} of {}",
                         static_cast<uint8_t>(text[valid]), valid, QuoteShort(text));
}

}  // namespace

std::string_view KeyKindName(KeyKind kind) {
  switch (kind) {
    case KeyKind::kRaw:
      return "raw";
    case KeyKind::kText:
      return "text";
    case KeyKind::kHex:
      return "hex";
    case KeyKind::kUuid:
      return "uuid";
    case KeyKind::kU64:
      return "u64";
  }
  return "unknown";
}

std::optional<KeyKind> ParseKeyKind(std::string_view name) {
  for (const KeyKind kind :
       {KeyKind::kRaw, KeyKind::kText, KeyKind::kHex, KeyKind::kUuid, KeyKind::kU64}) {
    if (name == KeyKindName(kind)) return kind;
  }
  return std::nullopt;
}

size_t KeyKindWidth(KeyKind kind) {
  switch (kind) {
    case KeyKind::kUuid:
      return kUuidBytes;
    case KeyKind::kU64:
      return sizeof(uint64_t);
    default:
      return 0;
  }
}

absl::Status AppendKeyFromText(KeyKind kind, std::string_view text, std::string* key) {
  if (text.empty()) return BadKeySize(0, text);
  switch (kind) {
    case KeyKind::kRaw:
      return AppendRawKey(text, key);
    case KeyKind::kText:
      LATCHKEY_RETURN_IF_ERROR(CheckUtf8(text));
      return AppendBytesKey(text, text, key);
    case KeyKind::kHex:
      return AppendHexKey(text, key);
    case KeyKind::kUuid:
      if (AppendDecoded(kUuidBytes, key, [&](char* to) { return DecodeUuid(text, to); })) {
        return absl::OkStatus();
      }
      return InvalidArgument("not a UUID: expected 8-4-4-4-12 or 32 hexadecimal digits, got {}",
                             QuoteShort(text));
    case KeyKind::kU64:
      if (AppendDecoded(sizeof(uint64_t), key, [&](char* to) { return DecodeU64(text, to); })) {
        return absl::OkStatus();
      }
      return InvalidArgument(
          "not a u64: expected decimal digits, 0 to {}, without leading zeros, got {}", UINT64_MAX,
          QuoteShort(text));
  }
  return InvalidArgument("unknown key kind {}", static_cast<int>(kind));
}

absl::StatusOr<std::string> KeyFromText(KeyKind kind, std::string_view text) {
  std::string key;
  LATCHKEY_RETURN_IF_ERROR(AppendKeyFromText(kind, text, &key));
  return key;
}

absl::Status ValidateKey(KeyKind kind, std::string_view key) {
  if (!IsKeySize(key.size())) return BadKeySize(key.size(), key);
  if (kind == KeyKind::kText) return CheckUtf8(key);
  const size_t width = KeyKindWidth(kind);
  if (width != 0 && key.size() != width) {
    return InvalidArgument("not a key of kind {}: expected {} bytes, got {}", KeyKindName(kind),
                           width, key.size());
  }
  return absl::OkStatus();
}

std::string KeyToText(KeyKind kind, std::string_view key) {
  if (!ValidateKey(kind, key).ok()) return EscapeTsv(key);
  std::string text;
  switch (kind) {
    case KeyKind::kRaw:
      return EscapeTsv(key);
    case KeyKind::kText:
      return std::string(key);
    case KeyKind::kHex:
      AppendHex(key, &text);
      return text;
    case KeyKind::kUuid:
      text.reserve(kUuidTextBytes);
      AppendHex(key, &text);
      for (const size_t at : {8, 13, 18, 23}) text.insert(at, 1, '-');
      return text;
    case KeyKind::kU64:
      return fmt::format("{}", __builtin_bswap64(Load<uint64_t>(key.data())));
  }
  return EscapeTsv(key);
}

void AppendEscapedTsv(std::string_view bytes, std::string* to) {
  while (!bytes.empty()) {
    size_t plain = 0;
    while (plain < bytes.size() && kIsPlain[static_cast<uint8_t>(bytes[plain])]) ++plain;
    to->append(bytes.substr(0, plain));
    bytes.remove_prefix(plain);
    if (!bytes.empty()) bytes.remove_prefix(AppendEscapedCharacter(bytes, to));
  }
}

absl::Status AppendUnescapedTsv(std::string_view text, std::string* to) {
  const size_t begin = to->size();
  size_t at = 0;
  while (at < text.size()) {
    const size_t escape = std::min(text.find('\\', at), text.size());
    to->append(text.substr(at, escape - at));
    at = escape;
    if (at == text.size()) break;
    char byte = 0;
    const size_t size_bytes = DecodeEscape(text.substr(at), &byte);
    if (size_bytes == 0) {
      to->resize(begin);
      return InvalidArgument("bad escape at offset {}: expected \\t \\n \\\\ or \\xHH, got {}", at,
                             QuoteShort(text.substr(at, 4)));
    }
    *to += byte;
    at += size_bytes;
  }
  return absl::OkStatus();
}

std::string EscapeTsv(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  AppendEscapedTsv(bytes, &text);
  return text;
}

absl::StatusOr<std::string> UnescapeTsv(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  LATCHKEY_RETURN_IF_ERROR(AppendUnescapedTsv(text, &bytes));
  return bytes;
}

std::string QuoteShort(std::string_view bytes) {
  std::string text = "\"";
  size_t at = 0;
  while (at < bytes.size() && text.size() <= kQuotedCharsMax) {
    at += AppendEscapedCharacter(bytes.substr(at), &text);
  }
  if (at == bytes.size()) return text + '"';
  return text + fmt::format("...\" ({} bytes)", bytes.size());
}

bool IsValidUtf8(std::string_view bytes) { return ValidUtf8Bytes(bytes) == bytes.size(); }

}  // namespace latchkey
