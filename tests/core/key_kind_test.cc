#include "core/key/key_kind.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/key/limits.h"

namespace latchkey {
namespace {

using std::string_literals::operator""s;

constexpr KeyKind kKinds[] = {KeyKind::kRaw, KeyKind::kText, KeyKind::kHex, KeyKind::kUuid,
                              KeyKind::kU64};

uint64_t TestSeed() {
  const char* given = std::getenv("LATCHKEY_TEST_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "LATCHKEY_TEST_SEED=" << seed << std::endl;
  return seed;
}

std::string RandomBytes(std::mt19937_64& random, size_t size_bytes) {
  std::string bytes(size_bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Encodes without a check, so that it makes surrogates and numbers beyond Unicode too.
std::string EncodeUtf8(uint32_t code) {
  const auto tail = [code](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xC0 | code >> 6), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xE0 | code >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0)};
}

bool IsScalarValue(uint32_t code) { return code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF); }

std::string RandomText(std::mt19937_64& random, size_t character_count) {
  std::string text;
  while (character_count > 0) {
    // Equal shares for the lengths 1 to 4.
    const auto code = static_cast<uint32_t>(random() % 0x110000 >> (random() % 4 * 5));
    if (!IsScalarValue(code)) continue;
    text += EncodeUtf8(code);
    --character_count;
  }
  return text;
}

std::string RandomKey(std::mt19937_64& random, KeyKind kind) {
  const size_t size_bytes = 1 + random() % 80;
  if (kind == KeyKind::kText) return RandomText(random, size_bytes);
  const size_t width = KeyKindWidth(kind);
  return RandomBytes(random, width == 0 ? size_bytes : width);
}

TEST(KeyKind, NamesRoundTrip) {
  for (const KeyKind kind : kKinds) EXPECT_EQ(ParseKeyKind(KeyKindName(kind)), kind);
  for (const std::string_view name : {"", "RAW", "uuid ", "base64", "unknown"}) {
    EXPECT_EQ(ParseKeyKind(name), std::nullopt) << name;
  }
}

TEST(KeyKind, Widths) {
  EXPECT_EQ(KeyKindWidth(KeyKind::kRaw), 0u);
  EXPECT_EQ(KeyKindWidth(KeyKind::kText), 0u);
  EXPECT_EQ(KeyKindWidth(KeyKind::kHex), 0u);
  EXPECT_EQ(KeyKindWidth(KeyKind::kUuid), 16u);
  EXPECT_EQ(KeyKindWidth(KeyKind::kU64), 8u);
}

const std::string kUuidKey = "\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff"s;

struct TextAndKey {
  KeyKind kind;
  std::string text;
  std::string key;
  bool is_canonical = true;  // the text that KeyToText gives
};

TEST(KeyFromText, Accepts) {
  const TextAndKey cases[] = {
      {KeyKind::kRaw, "plain key", "plain key"},
      {KeyKind::kRaw, "\\t\\n\\\\", "\t\n\\"},
      {KeyKind::kRaw, "\\x00a\\xff", "\0a\xff"s},
      {KeyKind::kRaw, "\\xFF", "\xff", false},
      {KeyKind::kRaw, "\\x61", "a", false},
      {KeyKind::kRaw, "a\tb\nc", "a\tb\nc", false},
      {KeyKind::kRaw, "\xff", "\xff", false},
      {KeyKind::kRaw, "\\x0d", "\r"},
      {KeyKind::kRaw, "h\xc3\xa9", "h\xc3\xa9"},
      {KeyKind::kRaw, "\\xc2\\x85", "\xc2\x85"},
      {KeyKind::kRaw, std::string(kKeyBytesMax, 'k'), std::string(kKeyBytesMax, 'k')},
      {KeyKind::kText, "a\\tb", "a\\tb"},
      {KeyKind::kText, "a\tb", "a\tb"},
      {KeyKind::kText, "\0"s, "\0"s},
      {KeyKind::kText, "\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
      {KeyKind::kHex, "00ff", "\x00\xff"s},
      {KeyKind::kHex, "0aAbF9", "\x0a\xab\xf9", false},
      {KeyKind::kHex, std::string(2 * kKeyBytesMax, '0'), std::string(kKeyBytesMax, '\0')},
      {KeyKind::kUuid, "00112233-4455-6677-8899-aabbccddeeff", kUuidKey},
      {KeyKind::kUuid, "00112233-4455-6677-8899-AABBCCDDEEFF", kUuidKey, false},
      {KeyKind::kUuid, "00112233445566778899aAbBcCdDeEfF", kUuidKey, false},
      {KeyKind::kU64, "0", std::string(8, '\0')},
      {KeyKind::kU64, "258", "\0\0\0\0\0\0\1\2"s},
      {KeyKind::kU64, "18446744073709551615", std::string(8, '\xff')},
  };
  for (const TextAndKey& c : cases) {
    SCOPED_TRACE(std::string(KeyKindName(c.kind)) + " " + QuoteShort(c.text));
    std::string key = "before";
    const absl::Status status = AppendKeyFromText(c.kind, c.text, &key);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(key, "before" + c.key);
    EXPECT_EQ(KeyFromText(c.kind, c.text).value(), c.key);
    EXPECT_TRUE(ValidateKey(c.kind, c.key).ok());
    EXPECT_EQ(KeyToText(c.kind, c.key) == c.text, c.is_canonical) << KeyToText(c.kind, c.key);
  }
}

struct BadText {
  KeyKind kind;
  std::string text;
  std::string message;  // a part of it
};

TEST(KeyFromText, RefusesAndLeavesTheKeyAsItWas) {
  const std::string too_long(kKeyBytesMax + 1, 'a');
  std::vector<BadText> cases = {
      {KeyKind::kRaw, "\\", "bad escape at offset 0"},
      {KeyKind::kRaw, "ab\\q",
       "bad escape at offset 2: expected \\t \\n \\\\ or \\xHH, got \"\\\\q\""},
      {KeyKind::kRaw, "good\\t\\x4", "bad escape at offset 6"},
      {KeyKind::kRaw, "\\xg0", "bad escape"},
      {KeyKind::kRaw, "\\T", "bad escape"},
      {KeyKind::kRaw, too_long, "key too long: expected at most 32766 bytes, got 32767, \"aaa"},
      {KeyKind::kRaw, too_long + "\\t", "key too long: expected at most 32766 bytes, got 32768"},
      {KeyKind::kText, too_long, "key too long"},
      {KeyKind::kText, "ok\xff", "expected valid UTF-8, got byte \\xff at offset 2 of \"ok\\xff\""},
      {KeyKind::kHex, "abc", "expected an even number of hexadecimal digits, got \"abc\""},
      {KeyKind::kHex, "0g", "not hexadecimal"},
      {KeyKind::kHex, "0x00", "not hexadecimal"},
      {KeyKind::kHex, "00 0", "not hexadecimal"},
      {KeyKind::kHex, std::string(2 * kKeyBytesMax + 2, '0'), "got 32767"},
      {KeyKind::kUuid, "00112233-4455-6677-8899-aabbccddeef", "not a UUID: expected 8-4-4-4-12"},
      {KeyKind::kUuid, "00112233-4455-6677-8899-aabbccddeeff0", "not a UUID"},
      {KeyKind::kUuid, "00112233-4455-6677-8899-aabbccddeefg", "not a UUID"},
      {KeyKind::kUuid, "0011223344-55-6677-8899-aabbccddeeff", "not a UUID"},
      {KeyKind::kUuid, "00112233-4455-6677-8899aabb-ccddeeff", "not a UUID"},
      {KeyKind::kUuid, "{00112233-4455-6677-8899-aabbccddeeff}", "not a UUID"},
      {KeyKind::kUuid, "urn:uuid:00112233-4455-6677-8899-aabbccddeeff", "not a UUID"},
      {KeyKind::kUuid, "00112233445566778899aabbccddeef-", "not a UUID"},
      {KeyKind::kUuid, "0011-2233-4455-6677-8899-aabbccddeef", "not a UUID"},
      {KeyKind::kU64, "00", "not a u64: expected decimal digits, 0 to 18446744073709551615"},
      {KeyKind::kU64, "01", "not a u64"},
      {KeyKind::kU64, "-1", "not a u64"},
      {KeyKind::kU64, "+1", "not a u64"},
      {KeyKind::kU64, " 1", "not a u64"},
      {KeyKind::kU64, "1 ", "not a u64"},
      {KeyKind::kU64, "0x10", "not a u64"},
      {KeyKind::kU64, "1e3", "not a u64"},
      {KeyKind::kU64, "18446744073709551616", "not a u64"},
      {KeyKind::kU64, "99999999999999999999999", "not a u64"},
  };
  for (const KeyKind kind : kKinds) {
    cases.push_back({kind, "", "empty key: expected 1 to 32766 bytes"});
  }
  for (const BadText& c : cases) {
    SCOPED_TRACE(std::string(KeyKindName(c.kind)) + " " + QuoteShort(c.text));
    std::string key = "before";
    const absl::Status status = AppendKeyFromText(c.kind, c.text, &key);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(Message(status).find(c.message), std::string::npos) << status;
    EXPECT_LE(status.message().size(), 250u);
    EXPECT_EQ(key, "before");
    EXPECT_EQ(KeyFromText(c.kind, c.text).status(), status);
  }
}

TEST(ValidateKey, ChecksLengthWidthAndUtf8) {
  for (const KeyKind kind : kKinds) {
    EXPECT_FALSE(ValidateKey(kind, "").ok());
    EXPECT_FALSE(ValidateKey(kind, std::string(kKeyBytesMax + 1, 'a')).ok());
  }
  EXPECT_TRUE(ValidateKey(KeyKind::kHex, "\xff").ok());
  EXPECT_FALSE(ValidateKey(KeyKind::kText, "\xff").ok());
  EXPECT_FALSE(ValidateKey(KeyKind::kUuid, std::string(15, 'a')).ok());
  EXPECT_FALSE(ValidateKey(KeyKind::kU64, std::string(9, 'a')).ok());
  EXPECT_EQ(Message(ValidateKey(KeyKind::kUuid, "abc")),
            "not a key of kind uuid: expected 16 bytes, got 3");
}

TEST(KeyToText, OfBytesThatAreNoKeyOfTheKindIsEscaped) {
  EXPECT_EQ(KeyToText(KeyKind::kUuid, "a\n"), "a\\n");
  EXPECT_EQ(KeyToText(KeyKind::kU64, "\xff"), "\\xff");
  EXPECT_EQ(KeyToText(KeyKind::kText, "\xc0\x80"), "\\xc0\\x80");
  EXPECT_EQ(KeyToText(KeyKind::kHex, ""), "");
}

TEST(KeyKind, RandomKeysRoundTripThroughText) {
  std::mt19937_64 random(TestSeed());
  for (const KeyKind kind : kKinds) {
    for (int i = 0; i < 20'000; ++i) {
      const std::string key = RandomKey(random, kind);
      const std::string text = KeyToText(kind, key);
      ASSERT_EQ(KeyFromText(kind, text).value(), key) << KeyKindName(kind) << " " << text;
      if (kind != KeyKind::kText) {
        ASSERT_TRUE(IsValidUtf8(text));
        ASSERT_EQ(text.find_first_of("\t\n\r\0"s), std::string::npos) << text;
      }
    }
  }
}

TEST(KeyKind, TextsOfU64SortAsTheirKeysDo) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 1000; ++i) {
    const uint64_t a = random() >> random() % 64;
    const uint64_t b = random() >> random() % 64;
    const std::string key_a = KeyFromText(KeyKind::kU64, std::to_string(a)).value();
    const std::string key_b = KeyFromText(KeyKind::kU64, std::to_string(b)).value();
    ASSERT_EQ(a < b, key_a < key_b) << a << " " << b;
  }
}

TEST(Tsv, EscapesWhatIsNotPrintable) {
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"plain text, with \"quotes\"", "plain text, with \"quotes\""},
      {"\t\n\\", "\\t\\n\\\\"},
      {"\0\x01\r\x1f\x7f"s, "\\x00\\x01\\x0d\\x1f\\x7f"},
      {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x94\x91", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x94\x91"},
      {"\xc2\x80\xc2\x9f\xc2\xa0", "\\xc2\\x80\\xc2\\x9f\xc2\xa0"},
      {"\xc3", "\\xc3"},
      {"\xe2\x82", "\\xe2\\x82"},
      {"\xe2\x82z", "\\xe2\\x82z"},
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},
      {"\xff\xfe", "\\xff\\xfe"},
  };
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(EscapeTsv(bytes), text);
    EXPECT_EQ(UnescapeTsv(text).value(), bytes);
  }
}

TEST(Tsv, RandomBytesRoundTrip) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 20'000; ++i) {
    const std::string bytes =
        random() % 2 == 0 ? RandomBytes(random, random() % 100) : RandomText(random, random() % 50);
    std::string text = "before";
    AppendEscapedTsv(bytes, &text);
    ASSERT_EQ(text, "before" + EscapeTsv(bytes));
    text.erase(0, 6);
    ASSERT_TRUE(IsValidUtf8(text));
    std::string back = "before";
    ASSERT_TRUE(AppendUnescapedTsv(text, &back).ok());
    ASSERT_EQ(back, "before" + bytes);
  }
}

TEST(Tsv, BadEscapeNamesItsOffsetAndLeavesTheStringAsItWas) {
  std::string to = "before";
  const absl::Status status = AppendUnescapedTsv("ok\\t then \\r", &to);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(status),
            "bad escape at offset 10: expected \\t \\n \\\\ or \\xHH, got \"\\\\r\"");
  EXPECT_EQ(to, "before");
  for (const std::string_view text : {"\\", "\\x", "\\x1", "\\x1g", "\\xg1", "\\u0041", "\\0"}) {
    EXPECT_FALSE(UnescapeTsv(text).ok()) << text;
  }
}

TEST(QuoteShort, ShortensLongText) {
  EXPECT_EQ(QuoteShort("abc"), "\"abc\"");
  EXPECT_EQ(QuoteShort(std::string(60, 'a')), '"' + std::string(60, 'a') + '"');
  EXPECT_EQ(QuoteShort(std::string(1000, 'a')), '"' + std::string(60, 'a') + "...\" (1000 bytes)");
  EXPECT_LT(QuoteShort(std::string(1000, '\0')).size(), 90u);
  std::string euros;
  for (int i = 0; i < 40; ++i) euros += "\xe2\x82\xac";
  EXPECT_TRUE(IsValidUtf8(QuoteShort(euros)));
}

TEST(IsValidUtf8, HoldsForExactlyTheScalarValues) {
  for (uint32_t code = 0; code < 0x200000; ++code) {
    const std::string text = EncodeUtf8(code);
    ASSERT_EQ(IsValidUtf8(text), IsScalarValue(code)) << std::hex << code;
    if (text.size() > 1) {
      ASSERT_FALSE(IsValidUtf8(text.substr(0, text.size() - 1))) << std::hex << code;
      ASSERT_FALSE(IsValidUtf8(text.substr(1))) << std::hex << code;
    }
  }
}

TEST(IsValidUtf8, RefusesOverlongForms) {
  for (const std::string_view text :
       {"\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xf0\x80\x80\x80",
        "\xf0\x8f\xbf\xbf", "\xf8\x88\x80\x80\x80", "\xfc\x84\x80\x80\x80\x80", "\xfe", "\x80"}) {
    EXPECT_FALSE(IsValidUtf8(text)) << EscapeTsv(text);
    for (size_t before = 0; before < 20; ++before) {
      EXPECT_FALSE(IsValidUtf8(std::string(before, 'a') + std::string(text) + "aaaaaaaa"));
    }
  }
  EXPECT_TRUE(IsValidUtf8(""));
  EXPECT_TRUE(IsValidUtf8("\0abc"s));
}

}  // namespace
}  // namespace latchkey
