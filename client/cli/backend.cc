#include "client/cli/backend.h"

#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/io/fault_guard.h"
#include "core/key/limits.h"
#include "core/lookup/probe_engine.h"

namespace latchkey {
namespace {

using Json = nlohmann::ordered_json;

// By hand, as protobuf's own JSON has numbers of 64 bits as strings: what a server says reads like
// what a data directory says.
Json DescribeSegment(const v1::SegmentDescription& segment) {
  Json json = {{"file", segment.file()},
               {"rows", segment.rows()},
               {"layout", segment.layout()},
               {"filter_bits_per_key", segment.filter_bits_per_key()},
               {"partitions", segment.partitions()},
               {"file_bytes", segment.file_bytes()},
               {"key_bytes_min", segment.key_bytes_min()},
               {"key_bytes_max", segment.key_bytes_max()}};
  const std::map<std::string, uint64_t> sections(segment.section_bytes().begin(),
                                                 segment.section_bytes().end());
  for (const auto& [section, bytes] : sections) json["section_bytes"][section] = bytes;
  return json;
}

class RemoteBackend final : public Backend {
 public:
  RemoteBackend(std::unique_ptr<LookupClient> client, v1::DescribeTableResponse table, KeyKind kind)
      : client_(std::move(client)), table_(std::move(table)), kind_(kind) {}

  KeyKind key_kind() const override { return kind_; }
  size_t batch_keys_max() const override { return table_.limits().batch_keys_max(); }
  size_t batch_bytes_max() const override {
    return table_.limits().request_bytes_max() - kTableNameBytesMax -
           64;  // the request's other fields
  }

  Json Describe() const override {
    Json json = {{"table", table_.table()},
                 {"generation", table_.generation()},
                 {"created_unix_s", table_.created_unix_s()},
                 {"key_kind", table_.key_kind()},
                 {"doc_id_bits", table_.doc_id_bits()},
                 {"values", table_.values()},
                 {"value_width", table_.value_width()},
                 {"rows", table_.rows()},
                 {"key_bytes", table_.key_bytes()},
                 {"segment_map_bytes", table_.segment_map_bytes()},
                 {"segment_map_missing", table_.segment_map_missing()},
                 {"memory_mode", table_.memory_mode()},
                 {"huge_bytes", table_.huge_bytes()}};
    json["segments"] = Json::array();
    for (const v1::SegmentDescription& segment : table_.segments()) {
      json["segments"].push_back(DescribeSegment(segment));
    }
    const v1::Limits& limits = table_.limits();
    json["limits"] = {{"batch_keys_max", limits.batch_keys_max()},
                      {"request_bytes_max", limits.request_bytes_max()},
                      {"reply_bytes_default", limits.reply_bytes_default()},
                      {"reply_bytes_max", limits.reply_bytes_max()},
                      {"key_bytes_max", limits.key_bytes_max()}};
    const v1::LookupCounts& counts = table_.counts();
    json["counts"] = {{"keys", counts.keys()},
                      {"found", counts.found()},
                      {"damaged", counts.damaged()},
                      {"major_faults", counts.major_faults()}};
    json["rpc_thread_major_faults"] = table_.rpc_thread_major_faults();
    return json;
  }

  absl::StatusOr<ClientRows> BatchGet(std::span<const std::string_view> keys) override {
    return client_->BatchGet(table_.table(), keys);
  }

 private:
  const std::unique_ptr<LookupClient> client_;
  const v1::DescribeTableResponse table_;
  const KeyKind kind_;
};

Json DescribeSegment(const Segment& segment) {
  const SegmentHeader& header = segment.header();
  Json json = {{"file", segment.path().substr(segment.path().rfind('/') + 1)},
               {"rows", header.row_count},
               {"layout", LayoutName(header.layout)},
               {"filter_bits_per_key", header.filter_bits_per_key},
               {"partitions", header.partition_count()},
               {"file_bytes", header.file_bytes()},
               {"key_bytes_min", header.key_bytes_min},
               {"key_bytes_max", header.key_bytes_max},
               {"tombstones", header.tombstone_count},
               {"line_bytes", header.line_bytes},
               {"hash_bits", header.hash_bits},
               {"segment_id", fmt::format("{:016x}", header.segment_id)},
               {"format", fmt::format("{}.{}", kFormatMajor, kFormatMinor)}};
  for (size_t i = 0; i < kSectionCount; ++i) {
    json["section_bytes"][std::string(SectionName(static_cast<SectionKind>(i)))] =
        header.sections[i].size_bytes;
  }
  return json;
}

class LocalBackend final : public Backend {
 public:
  LocalBackend(std::string table, std::shared_ptr<const Snapshot> snapshot)
      : table_(std::move(table)), snapshot_(std::move(snapshot)) {}

  KeyKind key_kind() const override { return snapshot_->schema().key_kind; }
  size_t batch_keys_max() const override { return kBatchKeysDefault; }
  size_t batch_bytes_max() const override { return kBatchKeysDefault * kRequestBytesPerKey; }

  Json Describe() const override {
    const Manifest& manifest = snapshot_->manifest();
    Json json = {{"table", table_},
                 {"generation", manifest.generation},
                 {"created_unix_s", manifest.created_unix_s},
                 {"key_kind", KeyKindName(manifest.schema.key_kind)},
                 {"doc_id_bits", manifest.schema.doc_id_bytes * 8},
                 {"values", ValueKindName(manifest.schema.value_kind)},
                 {"value_width", manifest.schema.value_width},
                 {"rows", snapshot_->row_count()},
                 {"key_bytes", manifest.schema.key_bytes},
                 {"segment_map_bytes", snapshot_->segment_map_bytes()},
                 {"segment_map_missing", Message(snapshot_->segment_map_status())},
                 {"table_id", TableIdText(manifest.identity.table_id)}};
    json["segments"] = Json::array();
    for (const auto& segment : snapshot_->segments()) {
      json["segments"].push_back(DescribeSegment(*segment));
    }
    return json;
  }

  absl::StatusOr<ClientRows> BatchGet(std::span<const std::string_view> keys) override {
    ClientRows result;
    result.generation = snapshot_->generation();
    ReadStably([&] {
      engine_.Lookup(*snapshot_, keys, &results_);
      CopyRows(&result.rows);
      snapshot_->TouchEnds();
    });
    return result;
  }

 private:
  void CopyRows(std::vector<ClientRow>* rows) const {
    rows->clear();
    for (size_t i = 0; i < results_.size(); ++i) {
      const LookupResult row = results_.at(i);
      const bool damaged = row.outcome == Outcome::kDamaged;
      rows->push_back({damaged                          ? v1::NOT_DONE
                       : row.outcome == Outcome::kFound ? v1::FOUND
                                                        : v1::ABSENT,
                       damaged ? v1::DAMAGED_DATA : v1::REASON_NONE, row.doc_id,
                       std::string(row.value)});
    }
  }

  const std::string table_;
  const std::shared_ptr<const Snapshot> snapshot_;
  ProbeEngine engine_;
  LookupResults results_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Snapshot>> OpenLocalTable(const std::string& data_dir,
                                                               const std::string& table) {
  LATCHKEY_RETURN_IF_ERROR(ValidateTableName(table));
  return Snapshot::OpenNewest(PosixFileSystem(), JoinPath(data_dir, table));
}

absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(const BackendOptions& options) {
  if (options.server.empty()) {
    LATCHKEY_ASSIGN_OR_RETURN(auto snapshot, OpenLocalTable(options.data_dir, options.table));
    return std::make_unique<LocalBackend>(options.table, std::move(snapshot));
  }
  auto client = std::make_unique<LookupClient>(options.server, options.timeout_s);
  auto table = client->Describe(options.table);
  if (!table.ok()) return Prefixed(table.status(), options.server);
  const auto kind = ParseKeyKind(table->key_kind());
  if (!kind) {
    return FailedPrecondition("{}: a newer server: this program does not know key kind '{}'",
                              options.server, table->key_kind());
  }
  return std::make_unique<RemoteBackend>(std::move(client), *std::move(table), *kind);
}

}  // namespace latchkey
