// The hash list: the top bits of every row's hash, in ascending order, as differences of a fixed
// number of bytes. From it a generation's segment map is made without reading a record.
//
//   difference = little-endian; the greatest number of its width means: add that number, and go on
//
// The hashes have as many bits as make the average difference an eighth of the greatest, so that
// one in 3,000 takes a second number.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/bytes.h"
#include "core/key/key_hash.h"

namespace latchkey {

inline constexpr unsigned kHashDeltaBytesMin = 2, kHashDeltaBytesMax = 6;
inline constexpr unsigned kHashBitsMax = 48;
inline constexpr uint64_t kSmallListRows = 65'536;
inline constexpr unsigned kSmallListBits = 40;

// The shape of one segment's list.
struct HashListShape {
  uint8_t hash_bits = 0;
  uint8_t delta_bytes = 0;

  // For `rows` rows of a table that has `table_rows` with them. A map wants 9 bits beyond those
  // that number the rows of the whole table: 5 fewer for its buckets, 12 for its fingerprints, and
  // 2 for a table that grows fourfold. The shortest list limits the map, so a small segment, which
  // may be the first of what becomes a large table, has 40 bits whatever that costs a row.
  static HashListShape For(uint64_t rows, uint64_t table_rows) {
    const unsigned wanted =
        std::clamp<unsigned>(static_cast<unsigned>(std::bit_width(table_rows)) + 9,
                             rows <= kSmallListRows ? kSmallListBits : 0, kHashBitsMax);
    for (unsigned bytes = kHashDeltaBytesMin;; ++bytes) {
      const unsigned bits =
          static_cast<unsigned>(std::bit_width(std::max<uint64_t>(rows, 1))) - 1 + 8 * bytes - 3;
      if (bits < wanted && bytes < kHashDeltaBytesMax) continue;
      return {static_cast<uint8_t>(std::clamp(bits, wanted, kHashBitsMax)),
              static_cast<uint8_t>(bytes)};
    }
  }
  uint64_t escape() const { return (uint64_t{1} << (8 * delta_bytes)) - 1; }
  // An upper bound, in bytes, for `rows` rows, however they spread.
  uint64_t BytesBound(uint64_t rows) const {
    return (rows + ((uint64_t{1} << hash_bits) / escape()) + 1) * delta_bytes;
  }
};

// Appends the list's next hashes to `to`. Hashes must come in ascending order.
class HashListWriter {
 public:
  HashListWriter(const HashListShape& shape, unsigned shard_bits)
      : shape_(shape), shard_bits_(shard_bits) {}

  void Append(uint64_t hash, std::string* to) {
    const uint64_t prefix = TopBits(hash << shard_bits_, shape_.hash_bits);
    uint64_t delta = prefix - last_;
    last_ = prefix;
    for (; delta >= shape_.escape(); delta -= shape_.escape()) Put(shape_.escape(), to);
    Put(delta, to);
  }

 private:
  void Put(uint64_t delta, std::string* to) {
    to->append(reinterpret_cast<const char*>(&delta), shape_.delta_bytes);
  }
  const HashListShape shape_;
  const unsigned shard_bits_;
  uint64_t last_ = 0;
};

// Calls `visit(prefix)` for the hashes of a list, in ascending order; returns how many there were.
// Stops at one that does not fit its bits, which only damage can cause.
template <typename Visit>
uint64_t ForEachHash(const HashListShape& shape, std::string_view bytes, Visit visit) {
  uint64_t prefix = 0, count = 0;
  const uint64_t limit = uint64_t{1} << shape.hash_bits;
  for (size_t at = 0; at + shape.delta_bytes <= bytes.size(); at += shape.delta_bytes) {
    uint64_t delta = 0;
    std::memcpy(&delta, bytes.data() + at, shape.delta_bytes);
    prefix += delta;
    if (prefix >= limit) break;
    if (delta == shape.escape()) continue;
    visit(prefix);
    ++count;
  }
  return count;
}

}  // namespace latchkey
