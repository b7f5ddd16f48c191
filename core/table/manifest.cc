#include "core/table/manifest.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"

namespace latchkey {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "latchkey manifest 1.0";
constexpr std::string_view kChecksumLabel = "checksum ";
constexpr uint64_t kManifestBytesMax = uint64_t{64} << 20;
constexpr std::string_view kManifestSuffix = ".manifest";
constexpr std::string_view kSegmentSuffix = ".segment";
constexpr std::string_view kTemporarySuffix = ".tmp";

std::string Hex(uint64_t number) { return fmt::format("{:016x}", number); }

std::optional<uint64_t> ParseHex(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

// Reads fields of a JSON object, and remembers the first that is missing or wrong.
class Fields {
 public:
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  uint64_t Number(const char* name, uint64_t low, uint64_t high) {
    const Json* field = Find(name);
    if (field == nullptr) return low;
    if (!field->is_number_unsigned()) return Fail<uint64_t>(name, "a number", low);
    const auto number = field->get<uint64_t>();
    if (number < low || number > high) {
      return Fail(name, fmt::format("{} to {}", low, high), low);
    }
    return number;
  }
  std::string Text(const char* name) {
    const Json* field = Find(name);
    if (field == nullptr) return {};
    if (!field->is_string()) return Fail<std::string>(name, "a string", {});
    return field->get<std::string>();
  }
  uint64_t Hex64(const char* name) {
    const auto number = ParseHex(Text(name));
    return number ? *number : Fail<uint64_t>(name, "16 hexadecimal digits", 0);
  }
  template <typename T>
  T Fail(const char* name, std::string_view expected, T result) {
    if (!status_.ok()) return result;
    const auto found = object_.find(name);
    const std::string got = found == object_.end() ? "" : ", got " + found->dump().substr(0, 100);
    status_ = DataLoss("field '{}{}': expected {}{}", path_, name, expected, got);
    return result;
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json* Find(const char* name) {
    const auto found = object_.find(name);
    if (found != object_.end()) return &*found;
    return Fail<const Json*>(name, "it to be there", nullptr);
  }

  const Json& object_;
  const std::string path_;
  absl::Status status_;
};

absl::StatusOr<SegmentRef> DecodeSegmentRef(const Json& object, size_t index) {
  if (!object.is_object()) return DataLoss("field 'segments[{}]': expected an object", index);
  Fields fields(object, fmt::format("segments[{}].", index));
  SegmentRef ref;
  ref.file = fields.Text("file");
  // A name in the table's own folder, not a way out of it.
  if (!ref.file.ends_with(kSegmentSuffix) ||
      ref.file.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
    fields.Fail("file", "a segment file's name", 0);
  }
  ref.file_bytes = fields.Number("file_bytes", kHeaderBytes, INT64_MAX);
  ref.segment_id = fields.Hex64("segment_id");
  ref.header_checksum = fields.Hex64("header_checksum");
  ref.row_count = fields.Number("rows", 0, kSegmentRowsMax);
  LATCHKEY_RETURN_IF_ERROR(fields.status());
  return ref;
}

// Whether it is of this major version.
bool IsReadable(std::string_view format) {
  constexpr size_t kMajorBytes = kFormat.size() - 1;
  const std::string_view minor = format.substr(std::min(kMajorBytes, format.size()));
  return format.substr(0, kMajorBytes) == kFormat.substr(0, kMajorBytes) && !minor.empty() &&
         minor.size() <= 5 && (minor == "0" || minor[0] != '0') &&
         minor.find_first_not_of("0123456789") == std::string_view::npos;
}

absl::StatusOr<Manifest> DecodeBody(std::string_view body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return DataLoss("expected a JSON object");
  Fields fields(json, "");
  if (const std::string format = fields.Text("format"); !IsReadable(format)) {
    return FailedPrecondition(
        "version: this program reads '{}' and later minor ones, the file is '{}'", kFormat, format);
  }
  Manifest manifest;
  manifest.generation = fields.Number("generation", 1, INT64_MAX);
  const std::string id = fields.Text("table_id");
  for (int i = 0; i < 2; ++i) {
    const auto half = ParseHex(id.size() == 32 ? std::string_view(id).substr(i * 16, 16) : "");
    if (!half) fields.Fail("table_id", "32 hexadecimal digits", 0);
    for (int byte = 0; byte < 8; ++byte) {
      manifest.identity.table_id[i * 8 + byte] =
          static_cast<uint8_t>(half.value_or(0) >> (56 - 8 * byte));
    }
  }
  manifest.identity.seed = fields.Hex64("seed");
  manifest.created_unix_s = static_cast<int64_t>(fields.Number("created_unix_s", 0, INT64_MAX));
  const auto schema = ParseSchema(fields.Text("schema"));
  if (schema.ok()) {
    manifest.schema = *schema;
  } else if (fields.status().ok()) {
    return FailedPrecondition("field 'schema': {}", Message(schema.status()));
  }
  const uint64_t shards = fields.Number("shards", 1, uint64_t{1} << kPartitionBitsMax);
  manifest.shard = static_cast<uint16_t>(fields.Number("shard", 0, shards - 1));
  manifest.shard_bits = static_cast<uint8_t>(std::countr_zero(shards));
  if (!std::has_single_bit(shards)) fields.Fail("shards", "a power of two", 0);
  LATCHKEY_RETURN_IF_ERROR(fields.status());
  const auto segments = json.find("segments");
  if (segments == json.end() || !segments->is_array() ||
      segments->size() > kSegmentsPerGenerationMax) {
    return DataLoss("field 'segments': expected an array of at most {}", kSegmentsPerGenerationMax);
  }
  for (size_t i = 0; i < segments->size(); ++i) {
    LATCHKEY_ASSIGN_OR_RETURN(SegmentRef ref, DecodeSegmentRef((*segments)[i], i));
    manifest.segments.push_back(std::move(ref));
  }
  return manifest;
}

// The generation in a manifest's file name; nothing for other names.
std::optional<uint64_t> GenerationOf(std::string_view name) {
  if (!name.starts_with('g') || !name.ends_with(kManifestSuffix)) return {};
  const std::string_view digits = name.substr(1, name.size() - 1 - kManifestSuffix.size());
  uint64_t generation = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), generation);
  if (error != std::errc() || end != digits.data() + digits.size()) return {};
  if (ManifestFileName(generation) != name) return {};
  return generation;
}

// The generation in a segment file's name; 0 for other names.
uint64_t SegmentGenerationOf(std::string_view name) {
  if (!name.starts_with('g') || !name.ends_with(kSegmentSuffix)) return 0;
  uint64_t generation = 0;
  const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), generation);
  return error == std::errc() && *end == '-' ? generation : 0;
}

}  // namespace

std::string ManifestFileName(uint64_t generation) {
  return fmt::format("g{:08}{}", generation, kManifestSuffix);
}

std::string SegmentFileName(uint64_t generation, size_t index) {
  return fmt::format("g{:08}-{}{}", generation, index, kSegmentSuffix);
}

bool IsSegmentFileName(std::string_view name) { return SegmentGenerationOf(name) != 0; }

bool IsTemporaryFileName(std::string_view name) { return name.ends_with(kTemporarySuffix); }

std::string EncodeManifest(const Manifest& manifest) {
  Json json;
  json["format"] = kFormat;
  json["generation"] = manifest.generation;
  json["table_id"] = TableIdText(manifest.identity.table_id);
  json["seed"] = Hex(manifest.identity.seed);
  json["created_unix_s"] = static_cast<uint64_t>(manifest.created_unix_s);
  json["schema"] = manifest.schema.Descriptor();
  json["shard"] = manifest.shard;
  json["shards"] = 1u << manifest.shard_bits;
  json["segments"] = Json::array();
  for (const SegmentRef& ref : manifest.segments) {
    json["segments"].push_back({{"file", ref.file},
                                {"file_bytes", ref.file_bytes},
                                {"segment_id", Hex(ref.segment_id)},
                                {"header_checksum", Hex(ref.header_checksum)},
                                {"rows", ref.row_count}});
  }
  const std::string body = json.dump(1) + "\n";
  return fmt::format("{}{}{}\n", body, kChecksumLabel, Hex(Checksum(body.data(), body.size())));
}

absl::StatusOr<Manifest> DecodeManifest(std::string_view text) {
  constexpr size_t kLastLineBytes = kChecksumLabel.size() + 16 + 1;
  const size_t body_bytes = text.size() < kLastLineBytes ? 0 : text.size() - kLastLineBytes;
  const std::string_view body = text.substr(0, body_bytes), last = text.substr(body_bytes);
  if (body.empty() || !last.starts_with(kChecksumLabel) || !last.ends_with('\n')) {
    return DataLoss("cut off: no checksum in the last line");
  }
  const auto stated = ParseHex(last.substr(kChecksumLabel.size(), 16));
  const uint64_t computed = Checksum(body.data(), body.size());
  if (stated != computed) {
    return DataLoss("damaged or edited: checksum of the text is {}, the last line says {}",
                    Hex(computed), last.substr(kChecksumLabel.size(), 16));
  }
  return DecodeBody(body);
}

absl::Status ValidateTableName(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  if (name.empty() || name.size() > kTableNameBytesMax || name.front() == '.' ||
      !std::all_of(name.begin(), name.end(), allowed)) {
    return InvalidArgument(
        "table name '{}': expected 1 to {} letters, digits, '-', '_' or '.', not beginning with "
        "'.'",
        EscapeTsv(name.substr(0, kTableNameBytesMax)), kTableNameBytesMax);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ListTables(FileSystem& file_system,
                                                    const std::string& data_dir) {
  LATCHKEY_ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system.List(data_dir));
  std::vector<std::string> tables;
  for (const std::string& name : names) {
    if (!ValidateTableName(name).ok()) continue;
    const auto generations = ListGenerations(file_system, JoinPath(data_dir, name));
    if (absl::IsNotFound(generations.status())) continue;  // a plain file
    LATCHKEY_RETURN_IF_ERROR(generations.status());
    if (!generations->empty()) tables.push_back(name);
  }
  return tables;
}

absl::StatusOr<std::vector<uint64_t>> ListGenerations(FileSystem& file_system,
                                                      const std::string& table_dir) {
  LATCHKEY_ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system.List(table_dir));
  std::vector<uint64_t> generations;
  for (const std::string& name : names) {
    if (const auto generation = GenerationOf(name)) generations.push_back(*generation);
  }
  std::sort(generations.begin(), generations.end());
  return generations;
}

absl::StatusOr<Manifest> ReadManifest(FileSystem& file_system, const std::string& table_dir,
                                      uint64_t generation) {
  const std::string path = JoinPath(table_dir, ManifestFileName(generation));
  LATCHKEY_ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path, kManifestBytesMax));
  absl::StatusOr<Manifest> manifest = DecodeManifest(text);
  if (!manifest.ok()) return Prefixed(manifest.status(), path);
  if (manifest->generation != generation) {
    return DataLoss("{}: it is the manifest of generation {}", path, manifest->generation);
  }
  return manifest;
}

absl::StatusOr<Manifest> ReadNewestManifest(FileSystem& file_system, const std::string& table_dir) {
  LATCHKEY_ASSIGN_OR_RETURN(const auto generations, ListGenerations(file_system, table_dir));
  if (generations.empty()) return NotFound("{} holds no manifest: there is no table", table_dir);
  return ReadManifest(file_system, table_dir, generations.back());
}

absl::StatusOr<HeldManifest> HoldManifest(FileSystem& file_system, const std::string& table_dir,
                                          uint64_t generation) {
  HeldManifest held;
  LATCHKEY_ASSIGN_OR_RETURN(
      held.lock, file_system.LockShared(JoinPath(table_dir, ManifestFileName(generation))));
  LATCHKEY_ASSIGN_OR_RETURN(held.manifest, ReadManifest(file_system, table_dir, generation));
  return held;
}

absl::StatusOr<HeldManifest> HoldNewestManifest(FileSystem& file_system,
                                                const std::string& table_dir) {
  for (uint64_t tried = 0;;) {
    LATCHKEY_ASSIGN_OR_RETURN(const auto generations, ListGenerations(file_system, table_dir));
    if (generations.empty()) return NotFound("{} holds no manifest: there is no table", table_dir);
    auto held = HoldManifest(file_system, table_dir, generations.back());
    // Gone since it was listed, so there is a newer one.
    if (!absl::IsNotFound(held.status()) || generations.back() == tried) return held;
    tried = generations.back();
  }
}

int64_t CreatedAfter(int64_t before_unix_s) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::max<int64_t>(before_unix_s,
                           std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

absl::Status PublishManifest(FileSystem& file_system, const std::string& table_dir,
                             const Manifest& manifest) {
  const std::string path = JoinPath(table_dir, ManifestFileName(manifest.generation));
  const std::string temporary = path + std::string(kTemporarySuffix);
  // The segment files' names must be durable before a manifest that needs them.
  LATCHKEY_RETURN_IF_ERROR(file_system.SyncDirectory(table_dir));
  const auto write = [&]() -> absl::Status {
    LATCHKEY_ASSIGN_OR_RETURN(auto file, file_system.Create(temporary));
    LATCHKEY_RETURN_IF_ERROR(file->WriteAt(0, EncodeManifest(manifest)));
    LATCHKEY_RETURN_IF_ERROR(file->Sync());
    LATCHKEY_RETURN_IF_ERROR(file->Close());
    return file_system.Rename(temporary, path);
  };
  if (absl::Status status = write(); !status.ok()) {
    (void)file_system.Remove(temporary);
    return status;
  }
  return file_system.SyncDirectory(table_dir);
}

absl::Status RemoveOrphans(FileSystem& file_system, const std::string& table_dir) {
  LATCHKEY_ASSIGN_OR_RETURN(const auto generations, ListGenerations(file_system, table_dir));
  const uint64_t newest = generations.empty() ? 0 : generations.back();
  LATCHKEY_ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system.List(table_dir));
  for (const std::string& name : names) {
    // A manifest names no file of a later generation than its own.
    const bool orphan = IsTemporaryFileName(name) || SegmentGenerationOf(name) > newest;
    if (orphan) LATCHKEY_RETURN_IF_ERROR(file_system.Remove(JoinPath(table_dir, name)));
  }
  return absl::OkStatus();
}

}  // namespace latchkey
