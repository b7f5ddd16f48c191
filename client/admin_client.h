// What those who run a remote server ask of it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "latchkey/v1/admin.pb.h"

namespace latchkey {

// The status of one table, or of all if `table` is empty. `server` is a gRPC address. Errors are
// the call's own; DeadlineExceeded after `timeout_s`.
absl::StatusOr<v1::StatusResponse> GetStatus(const std::string& server, const std::string& table,
                                             double timeout_s);

// Has the server open the table's newest generation; returns its number. Errors as above.
absl::StatusOr<uint64_t> Reload(const std::string& server, const std::string& table,
                                double timeout_s);

}  // namespace latchkey
