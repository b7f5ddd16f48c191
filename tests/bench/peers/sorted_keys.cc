#include "tests/bench/peers/sorted_keys.h"

#include <algorithm>
#include <cstring>

namespace latchkey {
namespace {

struct SortItem {
  uint64_t prefix;  // the first bytes of the key, big-endian, so that numbers compare as bytes do
  uint32_t index;
};

}  // namespace

std::vector<uint32_t> SortedKeyOrder(KeyShape shape, uint64_t rows) {
  const size_t key_bytes = KeyShapeBytes(shape);
  std::vector<SortItem> items(rows);
  for (uint64_t i = 0; i < rows; ++i) {
    char key[64] = {};
    MakeKey(shape, i, 0, key);
    uint64_t prefix;
    std::memcpy(&prefix, key, sizeof(prefix));
    items[i] = {__builtin_bswap64(prefix), static_cast<uint32_t>(i)};
  }
  std::sort(items.begin(), items.end(), [&](const SortItem& a, const SortItem& b) {
    if (a.prefix != b.prefix) return a.prefix < b.prefix;
    char key_a[64], key_b[64];
    MakeKey(shape, a.index, 0, key_a);
    MakeKey(shape, b.index, 0, key_b);
    return std::memcmp(key_a, key_b, key_bytes) < 0;
  });
  std::vector<uint32_t> order(rows);
  for (uint64_t i = 0; i < rows; ++i) order[i] = items[i].index;
  return order;
}

}  // namespace latchkey
