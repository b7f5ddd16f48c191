// The order that peers with sorted files are built in.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/bench/key_sets.h"

namespace latchkey {

// The indices of the keys [0, rows) in the order of the keys' bytes. Memory: 16 bytes a row while
// sorting.
std::vector<uint32_t> SortedKeyOrder(KeyShape shape, uint64_t rows);

}  // namespace latchkey
