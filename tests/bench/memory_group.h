// Runs a part of a benchmark in a process and a memory cgroup of its own, so that it has less
// memory than data. Version 1 or 2 of cgroups, whichever has the memory controller.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace latchkey {

// The group's own word on how hard its memory was pressed.
struct MemoryPressure {
  uint64_t limit_bytes = 0;
  uint64_t usage_bytes = 0;
  uint64_t limit_hits = 0;  // how often it ran into the limit and had to give pages up
  std::string ToString() const;
};

// Fails now rather than after minutes of other work.
void CheckMemoryGroups();

// Forks, enters a group of `limit_bytes`, and returns what `part` returned there; fails with a
// message if there is no group to be had, if the part fails, and if the group never ran into its
// limit. The caller has one thread. Pages that are in memory before count as somebody else's: drop
// them first.
std::vector<double> RunInMemoryGroup(uint64_t limit_bytes,
                                     const std::function<std::vector<double>()>& part,
                                     MemoryPressure* pressure);

}  // namespace latchkey
