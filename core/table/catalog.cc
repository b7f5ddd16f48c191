#include "core/table/catalog.h"

#include <utility>

namespace latchkey {

std::shared_ptr<const Snapshot> Catalog::Acquire(std::string_view table) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = tables_.find(table);
  return found == tables_.end() ? nullptr : found->second;
}

void Catalog::Publish(const std::string& table, std::shared_ptr<const Snapshot> snapshot) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tables_[table].swap(snapshot);
  }
  // What was current dies here, outside the lock, if nobody holds it: unmapping takes its time.
}

std::vector<std::string> Catalog::Names() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, snapshot] : tables_) names.push_back(name);
  return names;
}

}  // namespace latchkey
