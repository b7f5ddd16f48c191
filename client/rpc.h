// What all calls to a server need.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"

namespace latchkey {

absl::Status ToStatus(const grpc::Status& status);
void SetDeadline(grpc::ClientContext* context, double timeout_s);
// Connects on first use; takes replies of any size, as the server's limits hold.
std::shared_ptr<grpc::Channel> Connect(const std::string& server);

}  // namespace latchkey
