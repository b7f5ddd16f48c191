#include "core/table/catalog.h"

#include <atomic>
#include <utility>

namespace latchkey {

Catalog::Slot& Catalog::MySlot() const {
  static std::atomic<size_t> threads{0};
  thread_local const size_t thread = threads.fetch_add(1, std::memory_order_relaxed);
  return slots_[thread % kSlotCount];
}

std::shared_ptr<const Snapshot> Catalog::Acquire(std::string_view table) const {
  Slot& slot = MySlot();
  const std::lock_guard<std::mutex> lock(slot.mutex);
  const auto found = slot.tables.find(table);
  return found == slot.tables.end() ? nullptr : found->second;
}

void Catalog::Set(const std::string& table, const std::shared_ptr<const Snapshot>& snapshot) {
  // Each slot counts its own holders, and holds the snapshot itself once. What was current before
  // goes after the locks: unmapping takes its time.
  std::array<std::shared_ptr<const Snapshot>, kSlotCount> counted;
  if (snapshot != nullptr) {
    for (auto& holder : counted) holder.reset(snapshot.get(), [snapshot](const Snapshot*) {});
  }
  // All slots at once: nobody shall see the older one after somebody has seen the newer.
  std::array<std::unique_lock<std::mutex>, kSlotCount> locks;
  for (size_t i = 0; i < kSlotCount; ++i) locks[i] = std::unique_lock(slots_[i].mutex);
  for (size_t i = 0; i < kSlotCount; ++i) {
    auto& tables = slots_[i].tables;
    tables[table].swap(counted[i]);
    if (snapshot == nullptr) tables.erase(table);
  }
}

void Catalog::Publish(const std::string& table, std::shared_ptr<const Snapshot> snapshot) {
  Set(table, snapshot);
}

void Catalog::Remove(const std::string& table) { Set(table, nullptr); }

std::vector<std::string> Catalog::Names() const {
  Slot& slot = MySlot();
  const std::lock_guard<std::mutex> lock(slot.mutex);
  std::vector<std::string> names;
  for (const auto& [name, snapshot] : slot.tables) names.push_back(name);
  return names;
}

}  // namespace latchkey
