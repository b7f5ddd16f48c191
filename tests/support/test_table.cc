#include "tests/support/test_table.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/status_macros.h"
#include "core/key/key_hash.h"
#include "core/segment/segment_writer.h"
#include "core/table/manifest.h"

namespace latchkey::test {

TestTable::TestTable(FileSystem& file_system, const std::string& data_dir, Random& random)
    : file_system_(file_system), dir_(JoinPath(data_dir, "t")) {
  options.data_dir = data_dir;
  options.table = "t";
  Manifest manifest;
  manifest.generation = 1;
  manifest.identity = RandomIdentity(random);
  absl::Status status = file_system.CreateDirectories(dir_);
  if (status.ok()) status = PublishManifest(file_system, dir_, manifest);
  if (!status.ok()) {
    std::cerr << "test table: " << status << std::endl;
    std::abort();
  }
}

absl::StatusOr<BuildResult> TestTable::Run(const std::vector<Row>& rows, bool append) {
  options.append = append;
  VectorSource source(rows);
  absl::StatusOr<BuildResult> result = BuildTable(file_system_, options, source, nullptr);
  if (!result.ok()) return result;
  if (!append) reference_.Clear();
  reference_.AddSegment(rows, options.duplicates, options.schema);
  return result;
}

absl::Status TestTable::AppendPartitioned(const std::vector<Row>& rows, uint8_t partition_bits) {
  LATCHKEY_ASSIGN_OR_RETURN(Manifest manifest, ReadNewestManifest(file_system_, dir_));
  ++manifest.generation;
  manifest.schema = options.schema;
  SegmentPlan plan;
  plan.identity = manifest.identity;
  plan.schema = options.schema;
  plan.segment_id = manifest.generation;
  plan.filter_bits_per_key = options.filter_bits_per_key;
  plan.partition_bits = partition_bits;
  plan.partitions.resize(size_t{1} << partition_bits);
  std::vector<std::vector<SegmentRow>> parts(plan.partitions.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string& key = rows[i].key;
    const uint64_t hash = HashBytes(key.data(), key.size(), plan.identity.seed);
    const size_t part = PartitionOf(hash, 0, partition_bits);
    parts[part].push_back({hash, rows[i].doc_id.value_or(i), key, rows[i].value});
    ++plan.partitions[part].rows;
    plan.partitions[part].key_bytes += key.size();
    if (options.schema.value_kind == ValueKind::kBytes) {
      plan.value_bytes += kVarintBytesMax + rows[i].value.size();
    }
    const auto key_bytes = static_cast<uint16_t>(key.size());
    plan.key_bytes_min = i == 0 ? key_bytes : std::min(plan.key_bytes_min, key_bytes);
    plan.key_bytes_max = std::max(plan.key_bytes_max, key_bytes);
  }
  const bool fits_lines = plan.key_bytes_min == plan.key_bytes_max &&
                          LineShape::SuitsRows(options.schema, plan.key_bytes_max);
  plan.layout =
      fits_lines && options.layout != LayoutChoice::kPointer ? Layout::kLine : Layout::kPointer;
  if (options.hash_list) plan.hash_list = HashListShape::For(rows.size(), rows.size());
  const std::string file = SegmentFileName(manifest.generation, 0);
  LATCHKEY_ASSIGN_OR_RETURN(const auto writer,
                            SegmentWriter::Create(file_system_, Path(file), plan));
  for (auto& part : parts) {
    std::sort(part.begin(), part.end(),
              [](const SegmentRow& a, const SegmentRow& b) { return a.hash < b.hash; });
    LATCHKEY_RETURN_IF_ERROR(writer->AddPartition(part));
  }
  LATCHKEY_ASSIGN_OR_RETURN(const SegmentHeader header, writer->Finish());
  manifest.segments.insert(manifest.segments.begin(),
                           {file, header.file_bytes(), header.segment_id,
                            HeaderChecksum(EncodeHeader(header)), header.row_count});
  LATCHKEY_RETURN_IF_ERROR(PublishManifest(file_system_, dir_, manifest));
  reference_.AddSegment(rows, DuplicateRule::kReject, options.schema);
  return absl::OkStatus();
}

TableIdentity RandomIdentity(Random& random) {
  TableIdentity identity;
  identity.seed = random.Next();
  for (uint8_t& byte : identity.table_id) byte = static_cast<uint8_t>(random.Next());
  return identity;
}

std::vector<std::string> DistinctKeys(Random& random, size_t count, size_t key_bytes) {
  if (key_bytes == 1) count = std::min<size_t>(count, 256);
  if (key_bytes == 2) count = std::min<size_t>(count, 65'536);
  std::set<std::string> seen;
  std::vector<std::string> keys;
  while (keys.size() < count) {
    std::string key = random.Bytes(key_bytes);
    if (seen.insert(key).second) keys.push_back(std::move(key));
  }
  return keys;
}

std::vector<std::string> StrangerKeys(Random& random, const std::vector<std::string>& keys,
                                      size_t count) {
  std::vector<std::string> strangers;
  while (strangers.size() < count) {
    if (keys.empty() || random.OneIn(4)) {
      const size_t like = keys.empty() ? 16 : random.Pick(keys).size();
      strangers.push_back(random.Bytes(random.OneIn(4) ? random.Between(1, 40) : like));
      continue;
    }
    std::string key = random.Pick(keys);
    switch (random.Below(5)) {
      case 0:
        key[random.Below(key.size())] ^= static_cast<char>(random.Between(1, 255));
        break;
      case 1:
        key.back() ^= 1;
        break;
      case 2:
        key.pop_back();
        break;
      case 3:
        key += random.OneIn(2) ? '\0' : static_cast<char>(random.Next());
        break;
      default:
        key.resize(random.Below(key.size() + 1));
    }
    strangers.push_back(std::move(key));
  }
  return strangers;
}

}  // namespace latchkey::test
