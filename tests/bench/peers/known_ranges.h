// What the peers took where they were measured with care, so that a run in which one of them did
// badly is seen.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace latchkey {

// Empty, or why a comparison is not to be trusted: the figure's peer took longer than its known
// range by over a quarter. Figures of whose peer nothing is known are taken as they come.
std::string WhyInvalid(std::string_view figure, uint64_t rows, double peer_ns_a_key);

}  // namespace latchkey
