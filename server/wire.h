// The only place where protocol messages meet the core: requests to keys, answers to replies.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "core/lookup/lookup_results.h"
#include "core/table/snapshot.h"
#include "latchkey/v1/lookup.pb.h"
#include "server/executor.h"
#include "server/options.h"

namespace latchkey {

grpc::Status ToGrpcStatus(const absl::Status& status);

absl::Status NoSuchTable(const std::string& table);

// The number of keys in a request, however they come; touches none. A width that does not divide
// the data counts the keys that are whole.
uint64_t CountKeys(const v1::BatchGetRequest& request);

// Decodes the keys of a request into *keys: K views into the request, or into *decoded if they came
// as text. InvalidArgument names the first key that can't be one.
absl::Status DecodeKeys(const v1::BatchGetRequest& request, KeyKind kind,
                        std::vector<std::string_view>* keys, std::string* decoded);
absl::Status DecodeKey(const v1::GetRequest& request, KeyKind kind, std::string_view* key,
                       std::string* decoded);

// The only copies of value bytes are made here, so call these and the lookup within ReadStably.
// They replace what is in *response.
void EncodeResult(const v1::GetRequest& request, const Snapshot& snapshot,
                  const LookupResult& result, uint64_t reply_bytes_max, v1::GetResponse* response);
void EncodeResults(const v1::BatchGetRequest& request, const Snapshot& snapshot,
                   const LookupResults& results, uint64_t reply_bytes_max,
                   v1::BatchGetResponse* response);

void EncodeCost(const FetchCost& cost, v1::LookupCost* message);
void DescribeSnapshot(const std::string& table, const Snapshot& snapshot,
                      v1::DescribeTableResponse* response);
void DescribeLimits(const ServerOptions& options, v1::Limits* limits);

}  // namespace latchkey
