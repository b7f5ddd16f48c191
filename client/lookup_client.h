// Look-ups in a table of a remote server.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "latchkey/v1/lookup.grpc.pb.h"

namespace latchkey {

// The answer to one key, as its own.
struct ClientRow {
  v1::Outcome outcome = v1::OUTCOME_UNSPECIFIED;
  v1::Reason reason = v1::REASON_NONE;
  uint64_t doc_id = 0;
  std::string value;
};

// K answers, all of one generation.
struct ClientRows {
  uint64_t generation = 0;
  std::vector<ClientRow> rows;
};

// Thread-safe.
class LookupClient {
 public:
  // Connects on first use; `server` is a gRPC address. Calls fail after `timeout_s`.
  LookupClient(const std::string& server, double timeout_s);

  absl::StatusOr<v1::DescribeTableResponse> Describe(const std::string& table) const;

  // Looks up `keys: K views`, K within the server's batch limit. A row whose value did not fit the
  // reply is asked for again, with others or alone, as long as all is of one generation.
  absl::StatusOr<ClientRows> BatchGet(const std::string& table,
                                      std::span<const std::string_view> keys) const;

 private:
  absl::StatusOr<ClientRows> BatchGetOnce(const std::string& table,
                                          std::span<const std::string_view> keys) const;
  // One row with all of its value, however large: part by part.
  absl::StatusOr<ClientRow> GetWhole(const std::string& table, std::string_view key,
                                     uint64_t generation) const;

  const double timeout_s_;
  const std::unique_ptr<v1::Lookup::Stub> stub_;
};

}  // namespace latchkey
