// The tables that a server has open.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/table/snapshot.h"

namespace latchkey {

// Thread-safe. A request acquires a table's snapshot once and holds it until it is answered.
//
// The catalog is kept once a slot, and each thread uses one slot: with its own lock, and its own
// count of a snapshot's holders. So taking and dropping a snapshot write nothing that threads of
// other slots touch; publishing visits them all instead.
class Catalog {
 public:
  // Null if there is no such table.
  std::shared_ptr<const Snapshot> Acquire(std::string_view table) const;
  // Makes `snapshot` the current one, for all threads at once; the one before lives until its last
  // holder lets go.
  void Publish(const std::string& table, std::shared_ptr<const Snapshot> snapshot);
  // Takes the table out; its snapshot lives until its last holder lets go.
  void Remove(const std::string& table);
  std::vector<std::string> Names() const;  // sorted

 private:
  struct alignas(64) Slot {
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<const Snapshot>, std::less<>> tables;
  };
  static constexpr size_t kSlotCount = 64;

  Slot& MySlot() const;
  // Null takes the table out.
  void Set(const std::string& table, const std::shared_ptr<const Snapshot>& snapshot);

  mutable std::array<Slot, kSlotCount> slots_;  // locked in their order, where all are
};

}  // namespace latchkey
