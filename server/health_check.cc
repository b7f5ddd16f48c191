// The client side of grpc.health.v1, which the installed gRPC has no public header for: its two
// messages are a string and an enum, written here by hand.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>

#include "core/base/error.h"
#include "server/server.h"

namespace latchkey {

absl::Status CheckHealth(const std::string& address) {
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  grpc::CompletionQueue queue;
  const grpc::Slice empty("");  // an empty HealthCheckRequest asks for the server as a whole
  const grpc::ByteBuffer request(&empty, 1);
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, &queue);
  void* tag;
  bool ok;
  queue.Next(&tag, &ok);
  if (!status.ok()) {
    return absl::UnavailableError(fmt::format("{}: {}", address, status.error_message()));
  }
  grpc::Slice slice;
  if (!reply.DumpToSingleSlice(&slice).ok() || slice.size() != 2 || slice.begin()[0] != 0x08 ||
      slice.begin()[1] != 1) {  // field 1, a varint; SERVING is 1
    return absl::UnavailableError(fmt::format("{}: it says that it is not serving", address));
  }
  return absl::OkStatus();
}

}  // namespace latchkey
