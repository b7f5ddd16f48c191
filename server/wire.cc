#include "server/wire.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/key/key_kind.h"
#include "core/key/limits.h"

namespace latchkey {
namespace {

// Byte keys: their length is checked, for the rest they are taken as they are.
absl::Status CheckKeyBytes(KeyKind kind, size_t size_bytes) {
  const size_t width = KeyKindWidth(kind);
  if (width != 0 && size_bytes != width) {
    return InvalidArgument("key of kind {}: expected {} bytes, got {}", KeyKindName(kind), width,
                           size_bytes);
  }
  if (size_bytes == 0 || size_bytes > kKeyBytesMax) {
    return InvalidArgument("key: expected 1 to {} bytes, got {}", kKeyBytesMax, size_bytes);
  }
  return absl::OkStatus();
}

absl::Status DecodeTextKeys(const v1::BatchGetRequest& request, KeyKind kind,
                            std::vector<std::string_view>* keys, std::string* decoded) {
  decoded->clear();
  std::vector<size_t> ends;
  ends.reserve(static_cast<size_t>(request.text_keys_size()));
  for (int i = 0; i < request.text_keys_size(); ++i) {
    const absl::Status status = AppendKeyFromText(kind, request.text_keys(i), decoded);
    LATCHKEY_RETURN_IF_ERROR(Prefixed(status, fmt::format("text_keys[{}]", i)));
    ends.push_back(decoded->size());
  }
  size_t begin = 0;
  for (const size_t end : ends) {
    keys->push_back(std::string_view(*decoded).substr(begin, end - begin));
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status DecodePackedKeys(const v1::PackedKeys& packed, KeyKind kind,
                              std::vector<std::string_view>* keys) {
  const std::string_view data = packed.data();
  if (packed.width() != 0) {
    const size_t width = packed.width();
    if (packed.lengths_size() > 0) {
      return InvalidArgument("packed_keys: expected width or lengths, got both");
    }
    LATCHKEY_RETURN_IF_ERROR(Prefixed(CheckKeyBytes(kind, width), "packed_keys.width"));
    if (data.size() % width != 0) {
      return InvalidArgument("packed_keys.data: expected a multiple of width {}, got {} bytes",
                             width, data.size());
    }
    for (size_t at = 0; at < data.size(); at += width) keys->push_back(data.substr(at, width));
    return absl::OkStatus();
  }
  size_t at = 0;
  for (int i = 0; i < packed.lengths_size(); ++i) {
    const size_t size_bytes = packed.lengths(i);
    LATCHKEY_RETURN_IF_ERROR(
        Prefixed(CheckKeyBytes(kind, size_bytes), fmt::format("packed_keys.lengths[{}]", i)));
    if (size_bytes > data.size() - at) {
      return InvalidArgument(
          "packed_keys.lengths[{}]: the key ends at {}, beyond the data's {} bytes", i,
          at + size_bytes, data.size());
    }
    keys->push_back(data.substr(at, size_bytes));
    at += size_bytes;
  }
  if (at != data.size()) {
    return InvalidArgument("packed_keys.data: expected the {} bytes of the lengths, got {}", at,
                           data.size());
  }
  return absl::OkStatus();
}

v1::Outcome ToOutcome(Outcome outcome) {
  switch (outcome) {
    case Outcome::kFound:
      return v1::FOUND;
    case Outcome::kAbsent:
      return v1::ABSENT;
    case Outcome::kDamaged:
    case Outcome::kStopped:
      break;
  }
  return v1::NOT_DONE;
}

v1::Reason ToReason(Outcome outcome) {
  switch (outcome) {
    case Outcome::kFound:
    case Outcome::kAbsent:
      break;
    case Outcome::kDamaged:
      return v1::DAMAGED_DATA;
    case Outcome::kStopped:
      return v1::DEADLINE;
  }
  return v1::REASON_NONE;
}

template <typename Message>
void SetValue(std::string_view value, bool as_text, Message* message) {
  if (as_text && IsValidUtf8(value)) {
    message->set_text_value(value.data(), value.size());
  } else {
    message->set_value(value.data(), value.size());
  }
}

void EncodeRow(const LookupResult& result, bool values, bool as_text, v1::Row* row) {
  row->set_outcome(ToOutcome(result.outcome));
  row->set_reason(ToReason(result.outcome));
  if (result.outcome != Outcome::kFound) return;
  row->set_doc_id(result.doc_id);
  if (values) SetValue(result.value, as_text, row);
}

void EncodeColumns(const LookupResults& results, const std::vector<bool>& fits,
                   const TableSchema& schema, v1::PackedRows* packed) {
  const size_t count = results.size();
  std::string* const outcomes = packed->mutable_outcomes();
  outcomes->resize(count);
  for (size_t i = 0; i < count; ++i) {
    const Outcome outcome = results.outcomes[i];
    const int byte = fits[i] ? ToOutcome(outcome) | ToReason(outcome) << 4
                             : v1::NOT_DONE | v1::REPLY_BUDGET << 4;
    (*outcomes)[i] = static_cast<char>(byte);
  }
  if (schema.doc_id_bytes == 4) {
    auto* const doc_ids = packed->mutable_doc_ids_32();
    doc_ids->Resize(static_cast<int>(count), 0);
    for (size_t i = 0; i < count; ++i) {
      (*doc_ids)[static_cast<int>(i)] = fits[i] ? static_cast<uint32_t>(results.doc_ids[i]) : 0;
    }
  } else {
    auto* const doc_ids = packed->mutable_doc_ids_64();
    doc_ids->Resize(static_cast<int>(count), 0);
    for (size_t i = 0; i < count; ++i) {
      (*doc_ids)[static_cast<int>(i)] = fits[i] ? results.doc_ids[i] : 0;
    }
  }
  if (schema.value_kind == ValueKind::kNone) return;
  size_t value_bytes = 0;
  for (size_t i = 0; i < count; ++i) value_bytes += fits[i] ? results.values[i].size() : 0;
  std::string* const values = packed->mutable_values();
  values->reserve(value_bytes);
  auto* const lengths = packed->mutable_value_lengths();
  lengths->Resize(static_cast<int>(count), 0);
  for (size_t i = 0; i < count; ++i) {
    if (!fits[i]) continue;
    values->append(results.values[i]);
    (*lengths)[static_cast<int>(i)] = static_cast<uint32_t>(results.values[i].size());
  }
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  // The codes are the same numbers.
  return {static_cast<grpc::StatusCode>(status.raw_code()), Message(status)};
}

absl::Status NoSuchTable(const std::string& table) {
  return NotFound("no table '{}'", EscapeTsv(table.substr(0, kTableNameBytesMax)));
}

uint64_t CountKeys(const v1::BatchGetRequest& request) {
  const v1::PackedKeys& packed = request.packed_keys();
  uint64_t count = static_cast<uint64_t>(request.keys_size()) +
                   static_cast<uint64_t>(request.text_keys_size()) +
                   static_cast<uint64_t>(packed.lengths_size());
  if (packed.width() != 0) count += packed.data().size() / packed.width();
  return count;
}

absl::Status DecodeKeys(const v1::BatchGetRequest& request, KeyKind kind,
                        std::vector<std::string_view>* keys, std::string* decoded) {
  keys->clear();
  const int forms =
      (request.keys_size() > 0) + (request.text_keys_size() > 0) + request.has_packed_keys();
  if (forms > 1) {
    return InvalidArgument(
        "expected keys in one of keys, text_keys and packed_keys, got {} of them", forms);
  }
  if (request.has_packed_keys()) return DecodePackedKeys(request.packed_keys(), kind, keys);
  if (request.text_keys_size() > 0) return DecodeTextKeys(request, kind, keys, decoded);
  for (int i = 0; i < request.keys_size(); ++i) {
    LATCHKEY_RETURN_IF_ERROR(
        Prefixed(CheckKeyBytes(kind, request.keys(i).size()), fmt::format("keys[{}]", i)));
    keys->push_back(request.keys(i));
  }
  return absl::OkStatus();
}

absl::Status DecodeKey(const v1::GetRequest& request, KeyKind kind, std::string_view* key,
                       std::string* decoded) {
  switch (request.key_form_case()) {
    case v1::GetRequest::kKey:
      *key = request.key();
      return Prefixed(CheckKeyBytes(kind, key->size()), "key");
    case v1::GetRequest::kTextKey:
      decoded->clear();
      LATCHKEY_RETURN_IF_ERROR(
          Prefixed(AppendKeyFromText(kind, request.text_key(), decoded), "text_key"));
      *key = *decoded;
      return absl::OkStatus();
    case v1::GetRequest::KEY_FORM_NOT_SET:
      break;
  }
  return InvalidArgument("expected key or text_key, got neither");
}

void EncodeResult(const v1::GetRequest& request, const Snapshot& snapshot,
                  const LookupResult& result, uint64_t reply_bytes_max, v1::GetResponse* response) {
  response->Clear();
  response->set_generation(snapshot.generation());
  response->set_outcome(ToOutcome(result.outcome));
  response->set_reason(ToReason(result.outcome));
  if (result.outcome != Outcome::kFound) return;
  response->set_doc_id(result.doc_id);
  if (snapshot.schema().value_kind == ValueKind::kNone) return;
  response->set_value_size(result.value.size());
  const uint64_t asked = request.value_limit() != 0 ? request.value_limit() : kReplyBytesDefault;
  const size_t begin = std::min<uint64_t>(request.value_offset(), result.value.size());
  SetValue(result.value.substr(begin, std::min(asked, reply_bytes_max)),
           request.text_values() || request.has_text_key(), response);
}

void EncodeResults(const v1::BatchGetRequest& request, const Snapshot& snapshot,
                   const LookupResults& results, uint64_t reply_bytes_max,
                   v1::BatchGetResponse* response) {
  response->Clear();
  response->set_generation(snapshot.generation());
  const uint64_t asked =
      request.reply_bytes_max() != 0 ? request.reply_bytes_max() : kReplyBytesDefault;
  uint64_t budget = std::min(asked, reply_bytes_max);
  bool complete = true;
  // A row that does not fit is left out; smaller ones behind it may still fit.
  std::vector<bool> fits(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const size_t value_bytes = results.at(i).value.size();
    fits[i] = value_bytes <= budget;
    if (fits[i]) budget -= value_bytes;
    complete &= fits[i] && ToOutcome(results.outcomes[i]) != v1::NOT_DONE;
  }
  response->set_complete(complete);
  if (request.answer_form() == v1::PACKED) {
    EncodeColumns(results, fits, snapshot.schema(), response->mutable_packed_rows());
    return;
  }
  const bool values = snapshot.schema().value_kind != ValueKind::kNone;
  const bool as_text = request.text_values() || request.text_keys_size() > 0;
  response->mutable_rows()->Reserve(static_cast<int>(results.size()));
  for (size_t i = 0; i < results.size(); ++i) {
    v1::Row* const row = response->add_rows();
    if (fits[i]) {
      EncodeRow(results.at(i), values, as_text, row);
    } else {
      row->set_outcome(v1::NOT_DONE);
      row->set_reason(v1::REPLY_BUDGET);
    }
  }
}

void EncodeCost(const FetchCost& cost, v1::LookupCost* message) {
  message->set_places(cost.places);
  message->set_pages_asked(cost.asked);
  message->set_pages_read(cost.read);
  message->set_major_faults(cost.faults);
}

void DescribeSnapshot(const std::string& table, const Snapshot& snapshot,
                      v1::DescribeTableResponse* response) {
  const TableSchema& schema = snapshot.schema();
  response->set_table(table);
  response->set_generation(snapshot.generation());
  response->set_created_unix_s(snapshot.manifest().created_unix_s);
  response->set_key_kind(std::string(KeyKindName(schema.key_kind)));
  response->set_doc_id_bits(schema.doc_id_bytes * 8);
  response->set_values(std::string(ValueKindName(schema.value_kind)));
  response->set_value_width(schema.value_width);
  response->set_rows(snapshot.row_count());
  response->set_key_bytes(schema.key_bytes);
  response->set_memory_mode(std::string(MemoryModeName(snapshot.memory_mode())));
  response->set_huge_bytes(snapshot.huge_bytes());
  response->set_segment_map_bytes(snapshot.segment_map_bytes());
  response->set_segment_map_missing(Message(snapshot.segment_map_status()));
  for (const auto& segment : snapshot.segments()) {
    const SegmentHeader& header = segment->header();
    v1::SegmentDescription* const to = response->add_segments();
    to->set_file(segment->path().substr(segment->path().rfind('/') + 1));
    to->set_rows(header.row_count);
    to->set_layout(std::string(LayoutName(header.layout)));
    to->set_filter_bits_per_key(header.filter_bits_per_key);
    to->set_partitions(header.partition_count());
    to->set_file_bytes(header.file_bytes());
    for (size_t i = 0; i < kSectionCount; ++i) {
      (*to->mutable_section_bytes())[std::string(SectionName(static_cast<SectionKind>(i)))] =
          header.sections[i].size_bytes;
    }
    to->set_key_bytes_min(header.key_bytes_min);
    to->set_key_bytes_max(header.key_bytes_max);
  }
}

void DescribeLimits(const ServerOptions& options, v1::Limits* limits) {
  limits->set_batch_keys_max(options.batch_keys_max);
  limits->set_request_bytes_max(options.request_bytes_max());
  limits->set_reply_bytes_default(std::min(kReplyBytesDefault, options.reply_bytes_max));
  limits->set_reply_bytes_max(options.reply_bytes_max);
  limits->set_key_bytes_max(kKeyBytesMax);
}

}  // namespace latchkey
