#include "client/admin_client.h"

#include "client/rpc.h"
#include "core/base/status_macros.h"
#include "latchkey/v1/admin.grpc.pb.h"

namespace latchkey {

absl::StatusOr<v1::StatusResponse> GetStatus(const std::string& server, const std::string& table,
                                             double timeout_s) {
  grpc::ClientContext context;
  SetDeadline(&context, timeout_s);
  v1::StatusRequest request;
  request.set_table(table);
  v1::StatusResponse response;
  LATCHKEY_RETURN_IF_ERROR(
      ToStatus(v1::Admin::NewStub(Connect(server))->Status(&context, request, &response)));
  return response;
}

absl::StatusOr<uint64_t> Reload(const std::string& server, const std::string& table,
                                double timeout_s) {
  grpc::ClientContext context;
  SetDeadline(&context, timeout_s);
  v1::ReloadRequest request;
  request.set_table(table);
  v1::ReloadResponse response;
  LATCHKEY_RETURN_IF_ERROR(
      ToStatus(v1::Admin::NewStub(Connect(server))->Reload(&context, request, &response)));
  return response.generation();
}

}  // namespace latchkey
