// Where the command line looks keys up: on a server, or straight in a data directory.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/lookup_client.h"
#include "core/key/key_kind.h"
#include "core/table/snapshot.h"

namespace latchkey {

struct BackendOptions {
  std::string server;  // or
  std::string data_dir;
  std::string table;
  double timeout_s = 30;
};

// One thread.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual KeyKind key_kind() const = 0;
  // Of one BatchGet: keys, and bytes of keys with their lengths.
  virtual size_t batch_keys_max() const = 0;
  virtual size_t batch_bytes_max() const = 0;
  // What DescribeTable says, as JSON.
  virtual nlohmann::ordered_json Describe() const = 0;
  virtual absl::StatusOr<ClientRows> BatchGet(std::span<const std::string_view> keys) = 0;
};

absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(const BackendOptions& options);

// The newest generation of a table of a data directory.
absl::StatusOr<std::shared_ptr<const Snapshot>> OpenLocalTable(const std::string& data_dir,
                                                               const std::string& table);

}  // namespace latchkey
