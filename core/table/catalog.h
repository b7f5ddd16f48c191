// The tables that a server has open.
#pragma once

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
class Catalog {
 public:
  // Null if there is no such table.
  std::shared_ptr<const Snapshot> Acquire(std::string_view table) const;
  // Makes `snapshot` the current one; the one before lives until its last holder lets go.
  void Publish(const std::string& table, std::shared_ptr<const Snapshot> snapshot);
  std::vector<std::string> Names() const;  // sorted

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Snapshot>, std::less<>> tables_;
};

}  // namespace latchkey
