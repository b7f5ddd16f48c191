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

void Catalog::Publish(const std::string& table, std::shared_ptr<const Snapshot> snapshot) {
  const std::lock_guard<std::mutex> publishing(publishing_);
  for (Slot& slot : slots_) {
    // Counts its own holders, and holds the snapshot itself once. It outlives the lock, since with
    // it goes what was current before: unmapping takes its time.
    std::shared_ptr<const Snapshot> counted(snapshot.get(), [snapshot](const Snapshot*) {});
    const std::lock_guard<std::mutex> lock(slot.mutex);
    slot.tables[table].swap(counted);
  }
}

void Catalog::Remove(const std::string& table) {
  const std::lock_guard<std::mutex> publishing(publishing_);
  for (Slot& slot : slots_) {
    std::shared_ptr<const Snapshot> removed;  // outlives the lock, as above
    const std::lock_guard<std::mutex> lock(slot.mutex);
    const auto found = slot.tables.find(table);
    if (found == slot.tables.end()) continue;
    removed = std::move(found->second);
    slot.tables.erase(found);
  }
}

std::vector<std::string> Catalog::Names() const {
  Slot& slot = MySlot();
  const std::lock_guard<std::mutex> lock(slot.mutex);
  std::vector<std::string> names;
  for (const auto& [name, snapshot] : slot.tables) names.push_back(name);
  return names;
}

}  // namespace latchkey
