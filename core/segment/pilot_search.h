// Places a partition's keys in lines so that every key's line follows from its hash and one byte.
//
// Keys are split into groups of 2.5 on average; each group has a pilot of one byte, and the search
// tries pilots until all keys of the group fall into lines with room. Large groups go first, while
// there is room everywhere. So lines are 96% full, and a lookup reads its group's pilot, which is
// 0.4 bytes a key, and one line.
//
// Source: perfect hashing by displacement: Fox, Heath, Chen, Daoud, 1992; Belazzougui, Botelho,
// Dietzfelbinger, "Hash, displace, and compress", ESA 2009; pilots of one byte: Groot Koerkamp,
// "PtrHash", 2025. Here a place takes several keys, which makes high loads cheap to find.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/checked_math.h"

namespace latchkey {

// Pilots are 1 to 255: zero is what a hole in the file reads as.
inline constexpr uint32_t kPilotMax = 255;

inline constexpr uint64_t GroupsFor(uint64_t rows) { return rows == 0 ? 1 : CeilDiv(2 * rows, 5); }

// Lines for `rows` keys, so many a line. A line of one is harder to fill.
inline constexpr uint64_t LinesFor(uint64_t rows, uint32_t entries) {
  if (rows == 0) return 1;
  return entries == 1 ? CeilDiv(20 * rows, 17) : CeilDiv(25 * rows, uint64_t{24} * entries);
}
// The most lines that the search goes up to.
inline constexpr uint64_t LinesBound(uint64_t rows, uint32_t entries) {
  return LinesFor(rows, entries) * 9 / 8 + 16;
}

// Thread-compatible: it keeps memory between searches.
class PilotSearch {
 public:
  // Finds pilots for keys of one partition, `hashes: N` in ascending order, `entries` to a line.
  // Starts with LinesFor lines, and takes more when that fails. False when LinesBound are not
  // enough, which no random seed brings about.
  bool Place(std::span<const uint64_t> hashes, unsigned shard_and_partition_bits, uint32_t entries);

  // Of the last search that succeeded.
  uint32_t lines() const { return lines_; }
  const std::vector<uint8_t>& pilots() const { return pilots_; }         // one a group
  const std::vector<uint32_t>& row_lines() const { return row_lines_; }  // N: the line of each key

 private:
  bool TryLines(std::span<const uint64_t> hashes, uint32_t entries);
  bool PlaceGroup(std::span<const uint64_t> hashes, uint32_t entries, uint8_t* pilot,
                  uint32_t* row_lines);

  uint32_t lines_ = 0;
  std::vector<uint8_t> pilots_;
  std::vector<uint32_t> row_lines_;
  std::vector<uint32_t> group_begins_;  // index of each group's first key, and N at the end
  std::vector<uint32_t> by_size_;       // groups, the largest first
  std::vector<uint32_t> size_begins_;
  std::vector<uint8_t> taken_;  // entries of each line
};

}  // namespace latchkey
