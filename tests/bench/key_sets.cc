#include "tests/bench/key_sets.h"

#include <cstring>

namespace latchkey {
namespace {

constexpr char kBase36[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

void PutBase36(uint64_t number, int digits, char* to) {
  for (int i = digits - 1; i >= 0; --i, number /= 36) to[i] = kBase36[number % 36];
}

// A bijection of [0, 2^40): products with odd numbers and shifted sums are.
uint64_t Scatter40(uint64_t index) {
  constexpr uint64_t kMask = (uint64_t{1} << 40) - 1;
  uint64_t x = (index * 0x9E3779B97F4A7C15) & kMask;
  x ^= x >> 20;
  return (x * 0xD6E8FEB86659FD93) & kMask;
}

}  // namespace

std::string_view KeyShapeName(KeyShape shape) {
  switch (shape) {
    case KeyShape::kSeq6:
      return "seq6";
    case KeyShape::kAsin10:
      return "asin10";
    case KeyShape::kUuid16:
      return "uuid16";
    case KeyShape::kUuid36:
      break;
  }
  return "uuid36";
}

size_t KeyShapeBytes(KeyShape shape) {
  switch (shape) {
    case KeyShape::kSeq6:
      return 6;
    case KeyShape::kAsin10:
      return 10;
    case KeyShape::kUuid16:
      return 16;
    case KeyShape::kUuid36:
      break;
  }
  return 36;
}

void MakeKey(KeyShape shape, uint64_t index, uint64_t salt, char* to) {
  switch (shape) {
    case KeyShape::kSeq6:
      // Absent keys of another salt lie behind the present ones.
      PutBase36(index + salt * 1'000'000'000, 6, to);
      return;
    case KeyShape::kAsin10:
      std::memcpy(to, "B0", 2);
      // 36^8 is more than 2^41, so there is room for the sets of two salts.
      PutBase36(Scatter40(index) + (salt << 40), 8, to + 2);
      return;
    case KeyShape::kUuid16: {
      const uint64_t halves[2] = {Mix(index * 2 + 1 + (salt << 48)), Mix(index * 2 + (salt << 48))};
      std::memcpy(to, halves, 16);
      return;
    }
    case KeyShape::kUuid36: {
      char bytes[16];
      MakeKey(KeyShape::kUuid16, index, salt, bytes);
      static constexpr char kHex[] = "0123456789abcdef";
      for (int i = 0; i < 16; ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *to++ = '-';
        *to++ = kHex[static_cast<uint8_t>(bytes[i]) >> 4];
        *to++ = kHex[static_cast<uint8_t>(bytes[i]) & 15];
      }
      return;
    }
  }
}

}  // namespace latchkey
