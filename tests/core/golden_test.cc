// Files of the frozen format, as a 1.0 writer made them: they must open for ever, and a writer of
// today must make the same bytes.
//
// LATCHKEY_WRITE_GOLDEN=1 writes the files anew. That is for a new minor version only, into files
// of its own.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/status_macros.h"
#include "core/io/file_system.h"
#include "core/key/key_hash.h"
#include "core/lookup/probe_engine.h"
#include "core/segment/segment_writer.h"
#include "core/segment/value_locator.h"
#include "core/table/manifest.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/reference_engine.h"
#include "tests/support/status_asserts.h"

namespace latchkey::test {
namespace {

struct GoldenRow {
  std::string key;
  uint64_t doc_id = 0;
  std::string value = {};
  bool tombstone = false;
};

// One table: its segments, the oldest first.
struct GoldenTable {
  std::string name;
  TableSchema schema;
  Layout layout = Layout::kLine;
  uint8_t filter_bits_per_key = 10;
  bool hash_list = true;
  uint8_t partition_bits = 0;
  std::vector<std::vector<GoldenRow>> segments = {};
};

// Its name alone: test runners print it beside each test.
void PrintTo(const GoldenTable& table, std::ostream* out) { *out << table.name; }

std::string Key16(uint64_t number) {
  const std::string seed = std::to_string(number);
  std::string key(16, '\0');
  Store(key.data(), HashBytes(seed.data(), seed.size(), 1));
  Store(key.data() + 8, HashBytes(seed.data(), seed.size(), 2));
  return key;
}

std::vector<GoldenTable> GoldenTables() {
  std::vector<GoldenTable> tables;
  GoldenTable uuids{.name = "uuids", .schema = {.key_kind = KeyKind::kUuid}, .partition_bits = 2};
  uuids.segments.resize(3);
  for (uint64_t i = 0; i < 700; ++i) {
    // Newer segments replace and delete some of the older ones' rows.
    uuids.segments[0].push_back({Key16(i), i});
    if (i % 7 == 0) uuids.segments[1].push_back({Key16(i), 10'000 + i, "", i % 14 == 0});
    if (i % 50 == 0) uuids.segments[2].push_back({Key16(i), 20'000 + i});
  }
  tables.push_back(uuids);

  GoldenTable texts{
      .name = "texts",
      .schema = {.key_kind = KeyKind::kText, .doc_id_bytes = 8, .value_kind = ValueKind::kBytes},
      .layout = Layout::kPointer,
      .filter_bits_per_key = 12,
      .hash_list = false};
  texts.segments.resize(1);
  for (uint64_t i = 0; i < 300; ++i) {
    texts.segments[0].push_back({"key " + std::string(i % 40, 'x') + std::to_string(i),
                                 i * 1'000'000'007, std::string(i, 'v') + std::to_string(i),
                                 i % 31 == 0});
  }
  tables.push_back(texts);

  GoldenTable fixed{.name = "fixed",
                    .schema = {.key_kind = KeyKind::kHex,
                               .key_bytes = 20,
                               .value_kind = ValueKind::kFixed,
                               .value_width = 3},
                    .filter_bits_per_key = 0};
  fixed.segments.resize(2);
  for (uint64_t i = 0; i < 200; ++i) {
    const std::string number = std::to_string(100 + i);
    fixed.segments[i % 2].push_back({Key16(i) + "tail", UINT32_MAX - 2 - i, number});
  }
  tables.push_back(fixed);
  return tables;
}

constexpr uint64_t kSeed = 0x1234'5678'9ABC'DEF0;

SegmentPlan PlanOf(const GoldenTable& table, size_t index) {
  SegmentPlan plan;
  plan.identity.seed = kSeed;
  for (size_t i = 0; i < 16; ++i) plan.identity.table_id[i] = static_cast<uint8_t>(i * 17);
  plan.schema = table.schema;
  plan.segment_id = 1000 + index;
  plan.layout = table.layout;
  plan.filter_bits_per_key = table.filter_bits_per_key;
  plan.partition_bits = table.partition_bits;
  plan.partitions.resize(size_t{1} << table.partition_bits);
  if (table.hash_list) {
    plan.hash_list = HashListShape::For(table.segments[index].size(), table.segments[0].size());
  }
  return plan;
}

// Writes the table's files into a folder, with fixed ids instead of random ones.
absl::Status WriteTable(FileSystem& files, const std::string& dir, const GoldenTable& table) {
  Manifest manifest;
  for (size_t s = 0; s < table.segments.size(); ++s) {
    SegmentPlan plan = PlanOf(table, s);
    std::vector<std::vector<SegmentRow>> parts(plan.partitions.size());
    for (const GoldenRow& row : table.segments[s]) {
      const uint64_t hash = HashBytes(row.key.data(), row.key.size(), kSeed);
      const size_t part = PartitionOf(hash, 0, plan.partition_bits);
      parts[part].push_back({hash, row.doc_id, row.key, row.value, row.tombstone});
      ++plan.partitions[part].rows;
      plan.partitions[part].key_bytes += row.key.size();
      plan.value_bytes += StoredValueBytes(row.value.size());
      const auto key_bytes = static_cast<uint16_t>(row.key.size());
      plan.key_bytes_max = std::max(plan.key_bytes_max, key_bytes);
      plan.key_bytes_min =
          plan.key_bytes_min == 0 ? key_bytes : std::min(plan.key_bytes_min, key_bytes);
    }
    const std::string file = SegmentFileName(s + 1, 0);
    LATCHKEY_ASSIGN_OR_RETURN(const auto writer,
                              SegmentWriter::Create(files, JoinPath(dir, file), plan));
    for (auto& part : parts) {
      std::sort(part.begin(), part.end(),
                [](const SegmentRow& a, const SegmentRow& b) { return a.hash < b.hash; });
      LATCHKEY_RETURN_IF_ERROR(writer->AddPartition(part));
    }
    LATCHKEY_ASSIGN_OR_RETURN(const SegmentHeader header, writer->Finish());
    manifest.identity = plan.identity;
    manifest.segments.insert(manifest.segments.begin(),
                             {file, header.file_bytes(), header.segment_id,
                              HeaderChecksum(EncodeHeader(header)), header.row_count});
  }
  manifest.generation = table.segments.size();
  manifest.schema = table.schema;
  manifest.created_unix_s = 1'790'000'000;
  return PublishManifest(files, dir, manifest);
}

std::string GoldenDir(const std::string& table) {
  return std::string(LATCHKEY_SOURCE_DIR) + "/tests/golden/v1.0/" + table;
}

// What the newest segment that has the key says of it.
LookupResult Expected(const GoldenTable& table, const std::string& key) {
  for (auto segment = table.segments.rbegin(); segment != table.segments.rend(); ++segment) {
    for (const GoldenRow& row : *segment) {
      if (row.key != key) continue;
      if (row.tombstone) return {};
      const bool values = table.schema.value_kind != ValueKind::kNone;
      return {Outcome::kFound, row.doc_id, values ? std::string_view(row.value) : ""};
    }
  }
  return {};
}

class GoldenTest : public testing::TestWithParam<GoldenTable> {};

TEST_P(GoldenTest, OpensAndAnswers) {
  const GoldenTable& table = GetParam();
  if (std::getenv("LATCHKEY_WRITE_GOLDEN") != nullptr) {
    const std::string dir = GoldenDir(table.name);
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir);
    ASSERT_OK(WriteTable(PosixFileSystem(), dir, table));
  }
  const std::string dir = GoldenDir(table.name);
  ASSERT_OK_AND_ASSIGN(const auto snapshot, Snapshot::OpenNewest(PosixFileSystem(), dir));
  EXPECT_EQ(snapshot->segment_map() != nullptr, table.hash_list && table.segments.size() > 1);
  std::vector<std::string> keys = {"absent", Key16(1'000'000), Key16(1'000'001) + "tail"};
  for (const auto& segment : table.segments) {
    for (const GoldenRow& row : segment) keys.push_back(row.key);
  }
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  ProbeEngine engine;
  LookupResults results;
  engine.Lookup(*snapshot, views, &results);
  for (size_t i = 0; i < keys.size(); ++i) {
    const LookupResult expected = Expected(table, keys[i]);
    ASSERT_EQ(results.at(i), expected) << Describe(results.at(i)) << " for " << Describe(expected);
    ASSERT_EQ(LookupOne(*snapshot, keys[i]), expected);
  }
  for (const SegmentRef& ref : snapshot->manifest().segments) {
    std::vector<DamagedBlock> damaged;
    ASSERT_OK(VerifySegmentFile(PosixFileSystem(), JoinPath(dir, ref.file), &damaged));
    EXPECT_TRUE(damaged.empty());
  }
}

TEST_P(GoldenTest, IsWhatTheWriterMakes) {
  const GoldenTable& table = GetParam();
  MemoryFileSystem files;
  ASSERT_OK(files.CreateDirectories("t"));
  ASSERT_OK(WriteTable(files, "t", table));
  size_t compared = 0;
  for (const auto& [path, bytes] : files.Files()) {
    const std::string golden = JoinPath(GoldenDir(table.name), path.substr(2));
    ASSERT_OK_AND_ASSIGN(const std::string expected,
                         PosixFileSystem().ReadFile(golden, uint64_t{1} << 30));
    EXPECT_EQ(bytes.size(), expected.size()) << golden;
    EXPECT_TRUE(bytes == expected)
        << golden << " differs first at offset "
        << std::mismatch(bytes.begin(), bytes.end(), expected.begin(), expected.end()).first -
               bytes.begin();
    ++compared;
  }
  EXPECT_EQ(compared, table.segments.size() + 1);
}

INSTANTIATE_TEST_SUITE_P(V1_0, GoldenTest, testing::ValuesIn(GoldenTables()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace latchkey::test
