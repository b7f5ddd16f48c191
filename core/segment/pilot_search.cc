#include "core/segment/pilot_search.h"

#include <algorithm>

#include "core/key/key_hash.h"

namespace latchkey {

bool PilotSearch::Place(std::span<const uint64_t> hashes, unsigned shard_and_partition_bits,
                        uint32_t entries) {
  const auto groups = static_cast<uint32_t>(GroupsFor(hashes.size()));
  group_begins_.assign(groups + 1, 0);
  for (const uint64_t hash : hashes) {
    ++group_begins_[GroupOf(hash, shard_and_partition_bits, groups) + 1];
  }
  const uint32_t largest = *std::max_element(group_begins_.begin(), group_begins_.end());
  // A counting sort of the groups by size, the largest first.
  size_begins_.assign(largest + 2, 0);
  for (uint32_t g = 0; g < groups; ++g) ++size_begins_[largest - group_begins_[g + 1] + 1];
  for (uint32_t size = 1; size < size_begins_.size(); ++size) {
    size_begins_[size] += size_begins_[size - 1];
  }
  by_size_.resize(groups);
  for (uint32_t g = 0; g < groups; ++g)
    by_size_[size_begins_[largest - group_begins_[g + 1]]++] = g;
  for (uint32_t g = 0; g < groups; ++g) group_begins_[g + 1] += group_begins_[g];

  pilots_.resize(groups);
  row_lines_.resize(hashes.size());
  const uint64_t bound = LinesBound(hashes.size(), entries);
  for (uint64_t lines = LinesFor(hashes.size(), entries); lines <= bound; lines += 1 + lines / 32) {
    lines_ = static_cast<uint32_t>(lines);
    if (TryLines(hashes, entries)) return true;
  }
  return false;
}

bool PilotSearch::TryLines(std::span<const uint64_t> hashes, uint32_t entries) {
  taken_.assign(lines_, 0);
  for (const uint32_t g : by_size_) {
    const uint32_t begin = group_begins_[g];
    const auto group = hashes.subspan(begin, group_begins_[g + 1] - begin);
    if (!PlaceGroup(group, entries, &pilots_[g], row_lines_.data() + begin)) return false;
  }
  return true;
}

bool PilotSearch::PlaceGroup(std::span<const uint64_t> hashes, uint32_t entries, uint8_t* pilot,
                             uint32_t* row_lines) {
  for (uint32_t tried = 1; tried <= kPilotMax; ++tried) {
    *pilot = static_cast<uint8_t>(tried);
    size_t placed = 0;
    for (; placed < hashes.size(); ++placed) {
      const uint32_t line = LineOf(hashes[placed], *pilot, lines_);
      if (taken_[line] == entries) break;
      ++taken_[line];
      row_lines[placed] = line;
    }
    if (placed == hashes.size()) return true;
    while (placed > 0) --taken_[row_lines[--placed]];
  }
  return false;
}

}  // namespace latchkey
