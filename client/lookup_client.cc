#include "client/lookup_client.h"

#include <grpcpp/grpcpp.h>

#include <limits>

#include "client/rpc.h"
#include "core/base/error.h"
#include "core/base/status_macros.h"

namespace latchkey {
namespace {

// Columns to rows. DataLoss when they do not agree with each other.
absl::Status Unpack(v1::BatchGetResponse* response, size_t count, std::vector<ClientRow>* rows) {
  const v1::PackedRows& packed = response->packed_rows();
  const bool wide = packed.doc_ids_64_size() > 0;
  const bool values = packed.value_lengths_size() > 0;
  const auto columns = static_cast<int>(count);
  if (packed.outcomes().size() != count ||
      (wide ? packed.doc_ids_64_size() : packed.doc_ids_32_size()) != columns ||
      (values && packed.value_lengths_size() != columns)) {
    return DataLoss("the server's reply does not have {} rows", count);
  }
  rows->resize(count);
  size_t at = 0;
  for (int i = 0; i < columns; ++i) {
    ClientRow& row = (*rows)[static_cast<size_t>(i)];
    const auto outcome = static_cast<uint8_t>(packed.outcomes()[static_cast<size_t>(i)]);
    row.outcome = static_cast<v1::Outcome>(outcome & 0x0F);
    row.reason = static_cast<v1::Reason>(outcome >> 4);
    row.doc_id = wide ? packed.doc_ids_64(i) : packed.doc_ids_32(i);
    const size_t value_bytes = values ? packed.value_lengths(i) : 0;
    if (value_bytes > packed.values().size() - at) {
      return DataLoss("the server's reply is cut off at the value of row {}", i);
    }
    row.value = packed.values().substr(at, value_bytes);
    at += value_bytes;
  }
  return absl::OkStatus();
}

absl::Status OtherGeneration(uint64_t expected, uint64_t got) {
  return absl::AbortedError(fmt::format(
      "the table changed meanwhile, from generation {} to {}; try again", expected, got));
}

}  // namespace

LookupClient::LookupClient(const std::string& server, double timeout_s)
    : timeout_s_(timeout_s), stub_(v1::Lookup::NewStub(Connect(server))) {}

absl::StatusOr<v1::DescribeTableResponse> LookupClient::Describe(const std::string& table) const {
  grpc::ClientContext context;
  SetDeadline(&context, timeout_s_);
  v1::DescribeTableRequest request;
  request.set_table(table);
  v1::DescribeTableResponse response;
  LATCHKEY_RETURN_IF_ERROR(ToStatus(stub_->DescribeTable(&context, request, &response)));
  return response;
}

absl::StatusOr<ClientRows> LookupClient::BatchGetOnce(
    const std::string& table, std::span<const std::string_view> keys) const {
  grpc::ClientContext context;
  SetDeadline(&context, timeout_s_);
  v1::BatchGetRequest request;
  request.set_table(table);
  request.set_answer_form(v1::PACKED);
  request.set_reply_bytes_max(std::numeric_limits<uint32_t>::max());
  v1::PackedKeys& packed = *request.mutable_packed_keys();
  for (const std::string_view key : keys) {
    packed.mutable_data()->append(key);
    packed.add_lengths(static_cast<uint32_t>(key.size()));
  }
  v1::BatchGetResponse response;
  LATCHKEY_RETURN_IF_ERROR(ToStatus(stub_->BatchGet(&context, request, &response)));
  ClientRows result;
  result.generation = response.generation();
  LATCHKEY_RETURN_IF_ERROR(Unpack(&response, keys.size(), &result.rows));
  return result;
}

absl::StatusOr<ClientRow> LookupClient::GetWhole(const std::string& table, std::string_view key,
                                                 uint64_t generation) const {
  v1::GetRequest request;
  request.set_table(table);
  request.set_key(key.data(), key.size());
  ClientRow row;
  do {
    request.set_value_offset(row.value.size());
    grpc::ClientContext context;
    SetDeadline(&context, timeout_s_);
    v1::GetResponse response;
    LATCHKEY_RETURN_IF_ERROR(ToStatus(stub_->Get(&context, request, &response)));
    if (response.generation() != generation) {
      return OtherGeneration(generation, response.generation());
    }
    row.outcome = response.outcome();
    row.reason = response.reason();
    row.doc_id = response.doc_id();
    row.value += response.value();
    if (row.value.size() >= response.value_size()) return row;
    if (response.value().empty()) return DataLoss("the server sent an empty part of a value");
  } while (true);
}

absl::StatusOr<ClientRows> LookupClient::BatchGet(const std::string& table,
                                                  std::span<const std::string_view> keys) const {
  LATCHKEY_ASSIGN_OR_RETURN(ClientRows result, BatchGetOnce(table, keys));
  for (;;) {
    std::vector<size_t> missing;
    std::vector<std::string_view> missing_keys;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (result.rows[i].reason != v1::REPLY_BUDGET) continue;
      missing.push_back(i);
      missing_keys.push_back(keys[i]);
    }
    if (missing.empty()) return result;
    LATCHKEY_ASSIGN_OR_RETURN(ClientRows more, BatchGetOnce(table, missing_keys));
    if (more.generation != result.generation) {
      return OtherGeneration(result.generation, more.generation);
    }
    // A value may be larger than any reply.
    if (more.rows[0].reason == v1::REPLY_BUDGET) {
      LATCHKEY_ASSIGN_OR_RETURN(more.rows[0], GetWhole(table, missing_keys[0], result.generation));
    }
    for (size_t i = 0; i < missing.size(); ++i) {
      result.rows[missing[i]] = std::move(more.rows[i]);
    }
  }
}

}  // namespace latchkey
