// The probe engine, the one-key path and a plain map answer alike, whatever the table looks like.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/status_macros.h"
#include "core/key/key_hash.h"
#include "core/key/limits.h"
#include "core/lookup/probe_engine.h"
#include "core/segment/segment_writer.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/reference_engine.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::HasSubstr;

constexpr std::array<uint8_t, 8> kFilterBits = {0, 1, 4, 8, 10, 12, 16, 32};
constexpr std::array<size_t, 9> kBatchKeys = {
    1, 7, 63, 64, 65, kTileKeysMax - 1, kTileKeysMax, kTileKeysMax + 1, 4096};
constexpr std::array<KeyKind, 5> kKeyKinds = {KeyKind::kRaw, KeyKind::kText, KeyKind::kHex,
                                              KeyKind::kUuid, KeyKind::kU64};
// Lengths of keys that the engine has code of their own for.
constexpr std::array<size_t, 4> kCommonLengths = {8, 16, 20, 36};
constexpr std::array<LayoutChoice, 2> kLayouts = {LayoutChoice::kLine, LayoutChoice::kPointer};

// With a segment map where there can be one, and without.
constexpr std::array<SnapshotOptions, 2> kWithAndWithoutMap = {
    SnapshotOptions{}, SnapshotOptions{.segment_map_bytes_max = 0}};

// The longest key that a line takes.
size_t LineKeyBytesMax(const TableSchema& schema) {
  return kLineRecordBytesMax - schema.doc_id_bytes - schema.InlineValueBytes();
}

Layout AutoLayout(const TableSchema& schema, size_t key_bytes) {
  return LineShape::SuitsRows(schema, key_bytes) ? Layout::kLine : Layout::kPointer;
}

TableSchema RandomSchema(Random& random) {
  TableSchema schema;
  schema.doc_id_bytes = random.OneIn(2) ? 4 : 8;
  schema.value_kind = static_cast<ValueKind>(random.Below(3));
  if (schema.value_kind == ValueKind::kFixed) {
    schema.value_width = static_cast<uint8_t>(random.Between(1, kFixedValueBytesMax));
  }
  return schema;
}

uint64_t RandomDocId(Random& random, const TableSchema& schema) {
  switch (random.Below(4)) {
    case 0:
      return 0;
    case 1:
      return schema.DocIdMax();
    default:
      return random.Next() % schema.DocIdMax();
  }
}

std::string RandomValue(Random& random, const TableSchema& schema) {
  switch (schema.value_kind) {
    case ValueKind::kNone:
      // Given by an input that has some, and dropped.
      return random.Bytes(random.Below(3));
    case ValueKind::kFixed:
      return random.OneIn(8) ? std::string(schema.value_width, '\0')
                             : random.Bytes(schema.value_width);
    case ValueKind::kBytes:
      return random.Bytes(random.OneIn(4)   ? 0
                          : random.OneIn(8) ? random.Below(10'000)
                                            : random.Below(200));
  }
  return {};
}

Row RowOf(Random& random, const TableSchema& schema, std::string key) {
  Row row{std::move(key), RandomValue(random, schema)};
  if (!random.OneIn(4)) row.doc_id = RandomDocId(random, schema);
  return row;
}

// Every key that was built, strangers, repetitions, and all of it in some order.
std::vector<std::string> Questions(Random& random, const std::vector<std::string>& keys) {
  std::vector<std::string> questions = keys;
  for (std::string& stranger : StrangerKeys(random, keys, keys.size() + 100)) {
    questions.push_back(std::move(stranger));
  }
  for (int i = 0; i < 50; ++i) questions.push_back(random.Pick(questions));
  for (size_t i = questions.size() - 1; i > 0; --i) {
    std::swap(questions[i], questions[random.Below(i + 1)]);
  }
  // Side by side too, so that one tile holds them.
  questions.push_back(questions.back());
  questions.push_back(questions.back());
  return questions;
}

// There is a segment map exactly where there should be one: its base alone needs no hash list.
void ExpectMap(const Snapshot& snapshot, const SnapshotOptions& options) {
  const auto& segments = snapshot.segments();
  const auto listed = [](const auto& segment) { return segment->header().hash_bits != 0; };
  const SegmentMap* const map = snapshot.segment_map();
  if (segments.size() < 2 || segments.size() > kMappedSegmentsMax ||
      options.segment_map_bytes_max == 0 ||
      !std::all_of(segments.begin(), segments.end() - 1, listed)) {
    ASSERT_EQ(map, nullptr);
  } else if (listed(segments.back())) {
    ASSERT_NE(map, nullptr);
  } else if (map != nullptr) {
    ASSERT_EQ(map->base(), segments.back().get());
  } else {
    const uint64_t oldest_rows = segments.back()->header().row_count;
    ASSERT_TRUE(oldest_rows == 0 || oldest_rows < 3 * (snapshot.row_count() - oldest_rows));
  }
}

// A row as the segment writer takes it: what no build writes so far.
struct WrittenRow {
  std::string key;
  uint64_t doc_id = 0;
  std::string value;
  bool tombstone = false;
};

struct WriteOptions {
  Layout layout = Layout::kPointer;
  uint8_t filter_bits = 10;
  bool hash_list = true;
  uint8_t hash_bits = 0;  // of the list; 0: as many as a build chooses
  uint8_t partition_bits = 0;
};

// Segments written one by one, beside the reference of what they must answer.
class WrittenTable {
 public:
  WrittenTable(MemoryFileSystem& files, const TableSchema& schema, Random& random,
               uint8_t shard_bits = 0)
      : files_(files) {
    manifest_.generation = 1;
    manifest_.identity = RandomIdentity(random);
    manifest_.schema = schema;
    manifest_.shard_bits = shard_bits;
    manifest_.shard = static_cast<uint16_t>(random.Below(uint64_t{1} << shard_bits));
  }

  // Whether the key's hash is one of this shard.
  bool Holds(std::string_view key) const {
    return TopBits(HashOf(key), manifest_.shard_bits) == manifest_.shard;
  }

  absl::Status Add(const std::vector<WrittenRow>& rows, const WriteOptions& options) {
    SegmentPlan plan;
    plan.identity = manifest_.identity;
    plan.schema = manifest_.schema;
    plan.segment_id = manifest_.segments.size() + 1;
    plan.shard_bits = manifest_.shard_bits;
    plan.shard = manifest_.shard;
    plan.layout = options.layout;
    plan.filter_bits_per_key = options.filter_bits;
    plan.partition_bits = options.partition_bits;
    plan.partitions.resize(size_t{1} << plan.partition_bits);
    if (options.hash_list) plan.hash_list = HashListShape::For(rows.size(), 10 * rows.size());
    if (options.hash_bits != 0) plan.hash_list = {options.hash_bits, kHashDeltaBytesMin};
    std::vector<std::vector<SegmentRow>> parts(plan.partitions.size());
    auto& reference = reference_.emplace_back();
    for (const WrittenRow& row : rows) {
      const uint64_t hash = HashOf(row.key);
      const size_t part = PartitionOf(hash, plan.shard_bits, plan.partition_bits);
      parts[part].push_back({hash, row.doc_id, row.key, row.value, row.tombstone});
      ++plan.partitions[part].rows;
      plan.partitions[part].key_bytes += row.key.size();
      plan.value_bytes += kVarintBytesMax + row.value.size();
      const auto key_bytes = static_cast<uint16_t>(row.key.size());
      plan.key_bytes_min = reference.empty() ? key_bytes : std::min(plan.key_bytes_min, key_bytes);
      plan.key_bytes_max = std::max(plan.key_bytes_max, key_bytes);
      reference.emplace(row.key, row);
    }
    const std::string file = SegmentFileName(1, manifest_.segments.size());
    LATCHKEY_RETURN_IF_ERROR(files_.CreateDirectories("written"));
    LATCHKEY_ASSIGN_OR_RETURN(const auto writer,
                              SegmentWriter::Create(files_, JoinPath("written", file), plan));
    for (auto& part : parts) {
      std::sort(part.begin(), part.end(),
                [](const SegmentRow& a, const SegmentRow& b) { return a.hash < b.hash; });
      LATCHKEY_RETURN_IF_ERROR(writer->AddPartition(part));
    }
    LATCHKEY_ASSIGN_OR_RETURN(const SegmentHeader header, writer->Finish());
    manifest_.segments.insert(manifest_.segments.begin(),
                              {file, header.file_bytes(), header.segment_id,
                               HeaderChecksum(EncodeHeader(header)), header.row_count});
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<const Snapshot>> Open(const SnapshotOptions& options,
                                                       const Snapshot* previous = nullptr) const {
    LATCHKEY_RETURN_IF_ERROR(PublishManifest(files_, "written", manifest_));
    return Snapshot::Open(files_, "written", manifest_, options, previous);
  }

  LookupResult Lookup(std::string_view key) const {
    for (auto segment = reference_.rbegin(); segment != reference_.rend(); ++segment) {
      const auto found = segment->find(std::string(key));
      if (found == segment->end()) continue;
      if (found->second.tombstone) return {};
      return {Outcome::kFound, found->second.doc_id, found->second.value};
    }
    return {};
  }

 private:
  uint64_t HashOf(std::string_view key) const {
    return HashBytes(key.data(), key.size(), manifest_.identity.seed);
  }

  MemoryFileSystem& files_;
  Manifest manifest_;
  std::vector<std::map<std::string, WrittenRow>> reference_;  // oldest first
};

void ExpectSameAnswers(const Snapshot& snapshot, const WrittenTable& table,
                       const std::vector<std::string>& questions, size_t batch_keys) {
  const std::vector<std::string_view> views(questions.begin(), questions.end());
  ProbeEngine engine;
  LookupResults results;
  for (size_t begin = 0; begin < views.size(); begin += batch_keys) {
    const auto batch = std::span(views).subspan(begin, std::min(batch_keys, views.size() - begin));
    engine.Lookup(snapshot, batch, &results);
    ASSERT_EQ(results.size(), batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      const LookupResult expected = table.Lookup(batch[i]);
      ASSERT_EQ(results.at(i), expected)
          << "batch: expected " << Describe(expected) << ", got " << Describe(results.at(i));
      const LookupResult one = LookupOne(snapshot, batch[i]);
      ASSERT_EQ(one, expected) << "one by one: expected " << Describe(expected) << ", got "
                               << Describe(one);
    }
  }
}

class LookupPropertyTest : public SeededTest {
 protected:
  // Holds the newest generation to the reference: all its keys and many strangers, with and without
  // a segment map.
  void ExpectHolds(const TestTable& table, size_t batch_keys, FileSystem* file_system = nullptr) {
    const std::vector<std::string> keys = table.reference().Keys();
    for (const std::string& key : keys) {
      ASSERT_EQ(table.reference().Lookup(key).outcome, Outcome::kFound);
    }
    const std::vector<std::string> questions = Questions(random_, keys);
    for (const SnapshotOptions& options : kWithAndWithoutMap) {
      SCOPED_TRACE(options.segment_map_bytes_max == 0 ? "without a map" : "with a map");
      ASSERT_OK_AND_ASSIGN(
          const auto snapshot,
          Snapshot::OpenNewest(file_system ? *file_system : files_, table.dir(), options));
      ASSERT_NO_FATAL_FAILURE(ExpectMap(*snapshot, options));
      ASSERT_NO_FATAL_FAILURE(
          ExpectSameAnswers(*snapshot, table.reference(), questions, batch_keys));
    }
  }

  MemoryFileSystem files_;
};

// Two segments, of which the newer has some of the keys, for each of layout x doc id width x value
// kind x filter size.
TEST_F(LookupPropertyTest, EveryShapeOfSegment) {
  int round = 0;
  for (const LayoutChoice layout : kLayouts) {
    for (const uint8_t doc_id_bytes : {4, 8}) {
      for (const ValueKind values : {ValueKind::kNone, ValueKind::kFixed, ValueKind::kBytes}) {
        for (const uint8_t filter_bits : kFilterBits) {
          SCOPED_TRACE(testing::Message()
                       << "layout " << static_cast<int>(layout) << ", doc id bytes "
                       << int{doc_id_bytes} << ", values " << ValueKindName(values)
                       << ", filter bits " << int{filter_bits});
          // Every width comes up: 16 rounds of fixed values a layout and doc id width, 4 each.
          for (int i = 0; i < (values == ValueKind::kFixed ? 4 : 1); ++i, ++round) {
            TestTable table(files_, "data", random_);
            table.options.layout = layout;
            table.options.filter_bits_per_key = filter_bits;
            TableSchema& schema = table.options.schema;
            schema.doc_id_bytes = doc_id_bytes;
            schema.value_kind = values;
            schema.value_width =
                values == ValueKind::kFixed ? static_cast<uint8_t>(1 + round % 64) : 0;
            std::vector<Row> older, newer;
            for (std::string& key : DistinctKeys(random_, 300, 1 + round % 40)) {
              if (random_.OneIn(3)) newer.push_back(RowOf(random_, schema, key));
              if (random_.OneIn(3)) continue;
              older.push_back(RowOf(random_, schema, std::move(key)));
            }
            ASSERT_OK(table.Build(older));
            ASSERT_OK(table.Append(newer));
            ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, kBatchKeys[round % kBatchKeys.size()]));
            files_ = MemoryFileSystem();
          }
        }
      }
    }
  }
}

TEST_F(LookupPropertyTest, EveryWidthOfFixedValues) {
  for (const LayoutChoice layout : kLayouts) {
    for (uint8_t width = 1; width <= kFixedValueBytesMax; ++width) {
      SCOPED_TRACE(testing::Message() << "width " << int{width});
      TestTable table(files_, "data", random_);
      table.options.layout = layout;
      table.options.schema.value_kind = ValueKind::kFixed;
      table.options.schema.value_width = width;
      std::vector<Row> rows;
      for (std::string& key : DistinctKeys(random_, 150, random_.Between(1, 50))) {
        rows.push_back(RowOf(random_, table.options.schema, std::move(key)));
      }
      ASSERT_OK(table.Build(rows));
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, 64));
      files_ = MemoryFileSystem();
    }
  }
}

TEST_F(LookupPropertyTest, EveryLengthOfKey) {
  std::vector<size_t> lengths;
  for (size_t length = 1; length <= 300; ++length) lengths.push_back(length);
  // Around the records that fill a page, and the longest.
  for (size_t length = 4000; length <= 4200; length += 7) lengths.push_back(length);
  for (const size_t length : {1000, 2047, 2048, 8191, 16'384, 32'765, 32'766}) {
    lengths.push_back(length);
  }
  for (const size_t length : lengths) {
    SCOPED_TRACE(testing::Message() << "keys of " << length << " bytes");
    TestTable table(files_, "data", random_);
    const TableSchema schema = table.options.schema = RandomSchema(random_);
    table.options.layout =
        length <= 31 && random_.OneIn(3) ? LayoutChoice::kPointer : LayoutChoice::kAuto;
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, length > 300 ? 12 : 40, length)) {
      rows.push_back(RowOf(random_, schema, std::move(key)));
    }
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(rows));
    if (table.options.layout == LayoutChoice::kAuto) {
      EXPECT_EQ(built.header.layout, AutoLayout(schema, length));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, 64));
    files_ = MemoryFileSystem();
  }
}

// Whatever the key's length, lines take it if it fits them at all.
TEST_F(LookupPropertyTest, EveryLengthOfKeyInLines) {
  for (size_t length = 1; length <= kLineRecordBytesMax; ++length) {
    SCOPED_TRACE(testing::Message() << "keys of " << length << " bytes");
    TestTable table(files_, "data", random_);
    TableSchema& schema = table.options.schema;
    schema = RandomSchema(random_);
    if (length > LineKeyBytesMax(schema)) schema = {};
    table.options.layout = LayoutChoice::kLine;
    table.options.filter_bits_per_key = random_.Pick(kFilterBits);
    for (const bool append : {false, true}) {
      std::vector<Row> rows;
      for (std::string& key : DistinctKeys(random_, 150, length)) {
        rows.push_back(RowOf(random_, schema, std::move(key)));
      }
      const auto built = append ? table.Append(rows) : table.Build(rows);
      if (length > LineKeyBytesMax(schema)) {
        EXPECT_FAILS(built, kInvalidArgument, HasSubstr("at most 123 bytes"));
        break;
      }
      ASSERT_OK(built);
      EXPECT_EQ(built->header.layout, Layout::kLine);
      EXPECT_EQ(built->header.key_bytes_max, length);
    }
    if (length <= LineKeyBytesMax(schema)) {
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, 129));
    }
    files_ = MemoryFileSystem();
  }
}

TEST_F(LookupPropertyTest, AllLengthsOfKeysInOneSegment) {
  TestTable table(files_, "data", random_);
  table.options.schema = {.value_kind = ValueKind::kBytes};
  std::set<std::string> keys = {random_.Bytes(kKeyBytesMax)};
  for (size_t length = 1; length <= kKeyBytesMax; length += 1 + length / 20) {
    for (std::string& key : DistinctKeys(random_, 3, length)) keys.insert(std::move(key));
  }
  // Keys that are a prefix of one another.
  for (size_t length = 1; length < 200; ++length) keys.insert(std::string(length, 'x'));
  std::vector<Row> rows;
  for (const std::string& key : keys) rows.push_back(RowOf(random_, table.options.schema, key));
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(rows));
  EXPECT_EQ(built.header.layout, Layout::kPointer);
  EXPECT_EQ(built.header.key_bytes_min, 1);
  EXPECT_EQ(built.header.key_bytes_max, kKeyBytesMax);
  ExpectHolds(table, 65);
}

TEST_F(LookupPropertyTest, EveryKeyKind) {
  for (const KeyKind kind : kKeyKinds) {
    SCOPED_TRACE(KeyKindName(kind));
    TestTable table(files_, std::string(KeyKindName(kind)), random_);
    table.options.schema = RandomSchema(random_);
    table.options.schema.key_kind = kind;
    std::vector<Row> rows;
    for (uint64_t i = 0; i < 2000; ++i) {
      std::string text;
      switch (kind) {
        case KeyKind::kRaw:
        case KeyKind::kText:
          text = "key " + std::to_string(i);
          break;
        case KeyKind::kHex:
          for (const char byte : std::to_string(i)) text += {'3', byte};
          break;
        case KeyKind::kUuid: {
          const std::string digits = std::to_string(1'000'000 + i);
          text = "0f" + digits.substr(1) + "-9abc-4def-8012-" + digits + "56789";
          break;
        }
        case KeyKind::kU64:
          text = std::to_string(i * 4'611'686'018'427'388);
          break;
      }
      ASSERT_OK_AND_ASSIGN(std::string key, KeyFromText(kind, text));
      rows.push_back(RowOf(random_, table.options.schema, std::move(key)));
    }
    ASSERT_OK(table.Build(rows));
    ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, 4096));
  }
}

TEST_F(LookupPropertyTest, ManySegmentsWithOverlappingKeys) {
  for (int round = 0; round < 24; ++round) {
    TestTable table(files_, "data", random_);
    const TableSchema schema = table.options.schema = RandomSchema(random_);
    const size_t segments = round < 20 ? round + 1 : random_.Between(1, 20);
    // Segments of several lengths and layouts stand beside each other; in some rounds all alike.
    std::vector<std::string> pool;
    const bool alike = round % 3 == 1;
    for (int i = 0; i < (alike ? 1 : 4); ++i) {
      const size_t key_bytes = random_.OneIn(3) ? 16 : random_.Between(3, 50);
      for (std::string& key : DistinctKeys(random_, alike ? 320 : 80, key_bytes)) {
        pool.push_back(std::move(key));
      }
    }
    table.options.duplicates = DuplicateRule::kLast;
    for (size_t i = 0; i < segments; ++i) {
      const size_t only_length = random_.OneIn(2) ? random_.Pick(pool).size() : 0;
      std::vector<Row> rows;
      for (const std::string& key : pool) {
        if (random_.OneIn(3) || (only_length != 0 && key.size() != only_length)) continue;
        rows.push_back(RowOf(random_, schema, key));
      }
      table.options.filter_bits_per_key = random_.Pick(kFilterBits);
      table.options.layout =
          alike || random_.OneIn(2) ? LayoutChoice::kAuto : LayoutChoice::kPointer;
      // Without one list there is no map.
      table.options.hash_list = round % 4 != 3 || i != segments / 2;
      ASSERT_OK(i == 0 ? table.Build(rows) : table.Append(rows));
    }
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
    ASSERT_EQ(snapshot->segments().size(), segments);
    for (int i = 0; i < 5; ++i) {
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, random_.Pick(kBatchKeys)));
    }
    files_ = MemoryFileSystem();
  }
}

// Keys that take up a small part of all there could be are told apart by their first bytes too.
// A line's keys are told apart by their last bytes first: here these are the same in all of them.
TEST_F(LookupPropertyTest, KeysThatEndAlike) {
  for (const size_t length : {9, 12, 16, 20, 36, 60}) {
    SCOPED_TRACE(testing::Message() << "keys of " << length << " bytes");
    const std::string end = random_.Bytes(8);
    TestTable table(files_, "data", random_);
    TableSchema& schema = table.options.schema;
    // Of rows that fit a line.
    do schema = RandomSchema(random_);
    while (schema.InlineValueBytes() > 40);
    table.options.layout = LayoutChoice::kLine;
    std::vector<std::string> questions;
    for (int i = 0; i < 2; ++i) {
      std::vector<Row> rows;
      for (const std::string& begin : DistinctKeys(random_, 250, length - 8)) {
        questions.push_back(begin + end);
        // Half of them stay strangers, with the same end as all keys of the lines they come to.
        if (random_.OneIn(2)) {
          rows.push_back(RowOf(random_, schema, questions.back()));
        }
      }
      ASSERT_OK(i == 0 ? table.Build(rows) : table.Append(rows));
      ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
      EXPECT_EQ(snapshot->segments()[0]->header().layout, Layout::kLine);
      ExpectSameAnswers(*snapshot, table.reference(), questions, 64);
    }
    files_ = MemoryFileSystem();
  }
}

TEST_F(LookupPropertyTest, KeysThatBeginAlike) {
  for (const LayoutChoice layout : kLayouts) {
    for (const std::string& begin : {std::string("user/"), std::string("\xFF\xFF\xFF\xFE"),
                                     std::string(8, '\0'), std::string("0123456789abcdef")}) {
      TestTable table(files_, "data", random_);
      table.options.layout = layout;
      for (int i = 0; i < 4; ++i) {
        // Each segment has its own range; they border on each other and overlap.
        std::vector<Row> rows;
        for (std::string& key : DistinctKeys(random_, 200, 9)) {
          key[0] = static_cast<char>(10 * i + random_.Below(12));
          rows.push_back({begin + key, ""});
        }
        table.options.duplicates = DuplicateRule::kLast;
        ASSERT_OK(i == 0 ? table.Build(rows) : table.Append(rows));
      }
      ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
      for (const auto& segment : snapshot->segments()) EXPECT_TRUE(segment->keys_are_close());
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, 64));
      // Just outside of every range, and of the length of none.
      std::vector<std::string> questions;
      for (int first = 0; first < 256; ++first) {
        questions.push_back(begin + static_cast<char>(first) + "12345678");
        questions.push_back(begin + static_cast<char>(first));
        questions.push_back(std::string(1, static_cast<char>(first)) + begin + "12345678");
        questions.push_back(std::string(1, static_cast<char>(first)));
      }
      for (const SnapshotOptions& options : kWithAndWithoutMap) {
        ASSERT_OK_AND_ASSIGN(const auto opened, Snapshot::OpenNewest(files_, table.dir(), options));
        ExpectSameAnswers(*opened, table.reference(), questions, 64);
      }
      files_ = MemoryFileSystem();
    }
  }
}

TEST_F(LookupPropertyTest, DuplicatesCountByTheirRule) {
  for (const DuplicateRule rule : {DuplicateRule::kFirst, DuplicateRule::kLast}) {
    for (const LayoutChoice layout : kLayouts) {
      TestTable table(files_, "data", random_);
      table.options.schema = {.value_kind = ValueKind::kBytes};
      table.options.duplicates = rule;
      table.options.layout = layout;
      const std::vector<std::string> keys = DistinctKeys(random_, 300, 9);
      std::vector<Row> rows;
      for (int i = 0; i < 2000; ++i) {
        rows.push_back(RowOf(random_, table.options.schema, random_.Pick(keys)));
      }
      ASSERT_OK(table.Build(rows));
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, 64));
      files_ = MemoryFileSystem();
    }
  }
}

TEST_F(LookupPropertyTest, ExtremeDocIds) {
  for (const uint8_t doc_id_bytes : {4, 8}) {
    for (const LayoutChoice layout : kLayouts) {
      TestTable table(files_, "data", random_);
      table.options.schema.doc_id_bytes = doc_id_bytes;
      table.options.layout = layout;
      const uint64_t largest =
          doc_id_bytes == 4 ? uint64_t{4'294'967'293} : uint64_t{18'446'744'073'709'551'613u};
      ASSERT_EQ(table.options.schema.DocIdMax(), largest);
      std::vector<Row> rows = {
          {"a", "", 0}, {"b", "", 1}, {"c", "", largest - 1}, {"d", "", largest}, {"e", ""}};
      ASSERT_OK(table.Build(rows));
      ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
      EXPECT_EQ(LookupOne(*snapshot, "a"), (LookupResult{Outcome::kFound, 0, ""}));
      EXPECT_EQ(LookupOne(*snapshot, "b"), (LookupResult{Outcome::kFound, 1, ""}));
      EXPECT_EQ(LookupOne(*snapshot, "c"), (LookupResult{Outcome::kFound, largest - 1, ""}));
      EXPECT_EQ(LookupOne(*snapshot, "d"), (LookupResult{Outcome::kFound, largest, ""}));
      EXPECT_EQ(LookupOne(*snapshot, "e"), (LookupResult{Outcome::kFound, 4, ""}));
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, 64));
      // The two above the largest stand for no doc ids.
      for (const uint64_t beyond : {largest + 1, largest + 2}) {
        EXPECT_FAILS(table.Append({{"f", "", beyond}}), kInvalidArgument,
                     HasSubstr(std::to_string(largest)));
      }
      files_ = MemoryFileSystem();
    }
  }
}

TEST_F(LookupPropertyTest, LargestValues) {
  TestTable table(files_, "data", random_);
  table.options.schema = {.value_kind = ValueKind::kBytes};
  const std::vector<Row> rows = {{"largest", random_.Bytes(kValueBytesMax)},
                                 {"empty", ""},
                                 {"large", random_.Bytes(3 << 20)},
                                 {"zeros", std::string(100'000, '\0')},
                                 {"small", "v"}};
  ASSERT_OK(table.Build(rows));
  ExpectHolds(table, 64);
}

TEST_F(LookupPropertyTest, TablesWithoutRows) {
  TestTable table(files_, "data", random_);
  const std::vector<std::string> questions = {"", "a", std::string(16, '\0'),
                                              std::string(kKeyBytesMax, 'x')};
  const auto ask = [&] {
    for (const SnapshotOptions& options : kWithAndWithoutMap) {
      ASSERT_OK_AND_ASSIGN(const auto snapshot, Snapshot::OpenNewest(files_, table.dir(), options));
      ASSERT_NO_FATAL_FAILURE(ExpectMap(*snapshot, options));
      ExpectSameAnswers(*snapshot, table.reference(), questions, 64);
      EXPECT_EQ(LookupOne(*snapshot, std::string_view()), LookupResult{});
      ProbeEngine engine;
      LookupResults results;
      engine.Lookup(*snapshot, std::vector<std::string_view>(3), &results);
      EXPECT_EQ(results.outcomes, std::vector<Outcome>(3, Outcome::kAbsent));
    }
  };
  ASSERT_OK_AND_ASSIGN(const auto no_segments, table.Open());
  ASSERT_TRUE(no_segments->segments().empty());
  ASSERT_NO_FATAL_FAILURE(ask());
  for (const uint8_t filter_bits : kFilterBits) {
    for (const LayoutChoice layout : kLayouts) {
      table.options.filter_bits_per_key = filter_bits;
      table.options.layout = layout;
      ASSERT_OK(table.Build({}));
      ASSERT_NO_FATAL_FAILURE(ask());
      ASSERT_OK(table.Append({}));
      ASSERT_NO_FATAL_FAILURE(ask());
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, 64));
      ASSERT_OK(table.Append({{"a", ""}}));
      ASSERT_OK(table.Append({}));
      ASSERT_NO_FATAL_FAILURE(ask());
    }
  }
}

TEST_F(LookupPropertyTest, BatchesOfNoKeysAndKeysThatNoTableHolds) {
  for (const ValueKind values : {ValueKind::kNone, ValueKind::kBytes}) {
    TestTable table(files_, "data", random_);
    table.options.schema.value_kind = values;
    ASSERT_OK(table.Build({{"a", ""}, {"bc", ""}}));
    ASSERT_OK(table.Append({{"d", ""}}));
    for (const SnapshotOptions& options : kWithAndWithoutMap) {
      ASSERT_OK_AND_ASSIGN(const auto snapshot, Snapshot::OpenNewest(files_, table.dir(), options));
      ProbeEngine engine;
      LookupResults results;
      engine.Lookup(*snapshot, std::vector<std::string_view>{"a", "x", "d"}, &results);
      EXPECT_EQ(results.size(), 3u);
      EXPECT_EQ(results.doc_ids, (std::vector<uint64_t>{0, 0, 0}));
      // A table without values has no column of them.
      EXPECT_EQ(results.values.size(), values == ValueKind::kNone ? 0u : 3u);
      EXPECT_EQ(results.at(0).outcome, Outcome::kFound);
      EXPECT_EQ(results.at(1), LookupResult{});
      engine.Lookup(*snapshot, {}, &results);
      EXPECT_EQ(results.size(), 0u);
      EXPECT_TRUE(results.doc_ids.empty());
      EXPECT_TRUE(results.values.empty());
      ExpectSameAnswers(*snapshot, table.reference(),
                        {"", std::string(kKeyBytesMax + 1, 'a'), std::string(1 << 20, 'a')}, 64);
      // A view of nothing is a key as well.
      EXPECT_EQ(LookupOne(*snapshot, std::string_view()), LookupResult{});
      engine.Lookup(*snapshot, std::vector<std::string_view>(3), &results);
      EXPECT_EQ(results.outcomes, std::vector<Outcome>(3, Outcome::kAbsent));
    }
    files_ = MemoryFileSystem();
  }
}

TEST_F(LookupPropertyTest, EveryNumberOfPartitions) {
  for (uint8_t bits = 0; bits <= kPartitionBitsMax; ++bits) {
    for (const LayoutChoice layout : {LayoutChoice::kAuto, LayoutChoice::kPointer}) {
      SCOPED_TRACE(testing::Message() << "partition bits " << int{bits});
      TestTable table(files_, "data", random_);
      table.options.schema = RandomSchema(random_);
      table.options.layout = layout;
      // With few rows most partitions have none or one; with many all have some.
      for (const size_t row_count : {0, 1, 2, 50, 5000}) {
        table.options.filter_bits_per_key = random_.Pick(kFilterBits);
        std::vector<Row> rows;
        for (std::string& key : DistinctKeys(random_, row_count, random_.Between(3, 50))) {
          rows.push_back(RowOf(random_, table.options.schema, std::move(key)));
        }
        ASSERT_OK(table.AppendPartitioned(rows, bits));
        ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
        const Segment& newest = *snapshot->segments()[0];
        EXPECT_EQ(newest.partitions().size(), size_t{1} << bits);
        EXPECT_EQ(newest.header().row_count, rows.size());
        EXPECT_EQ(newest.header().layout,
                  layout == LayoutChoice::kPointer
                      ? Layout::kPointer
                      : AutoLayout(table.options.schema, newest.header().key_bytes_max));
      }
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, 4096));
      files_ = MemoryFileSystem();
    }
  }
}

// As a build splits its rows.
TEST_F(LookupPropertyTest, ManyRowsTakeSeveralPartitions) {
  struct Case {
    size_t row_count;
    int partition_bits;
  };
  for (const Case& expected :
       {Case{49'152, 0}, Case{49'153, 1}, Case{98'305, 1}, Case{98'306, 2}, Case{200'000, 3}}) {
    for (const LayoutChoice layout : kLayouts) {
      TestTable table(files_, "data", random_);
      table.options.layout = layout;
      std::vector<Row> rows;
      std::vector<std::string> questions;
      for (uint64_t i = 0; i < 2 * expected.row_count; ++i) {
        std::string key = "k" + std::to_string(i + 1'000'000);
        if (i % 8 < 2) questions.push_back(key);
        if (i % 2 == 0) rows.push_back({std::move(key), ""});
      }
      ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(rows));
      EXPECT_EQ(built.header.partition_bits, expected.partition_bits) << expected.row_count;
      ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
      ExpectSameAnswers(*snapshot, table.reference(), questions, 4096);
      files_ = MemoryFileSystem();
    }
  }
}

// The same through the machine's file system, whose maps are the kernel's.
TEST_F(LookupPropertyTest, OnTheMachinesFileSystem) {
  for (const LayoutChoice layout : kLayouts) {
    const TempDir folder;
    TestTable table(PosixFileSystem(), folder.path(), random_);
    table.options.layout = layout;
    table.options.schema = {.doc_id_bytes = 8, .value_kind = ValueKind::kBytes};
    for (int i = 0; i < 4; ++i) {
      std::vector<Row> rows;
      for (std::string& key : DistinctKeys(random_, 3000, 2)) {
        rows.push_back(RowOf(random_, table.options.schema, std::move(key)));
      }
      ASSERT_OK(i == 0 ? table.Build(rows) : table.Append(rows));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, 64, &PosixFileSystem()));
  }
}

// Segments of every layout and shape beside each other, with tombstones in them, in shards too.
// Each generation's map is made from the last one's.
TEST_F(LookupPropertyTest, WrittenGenerationsOfEveryKind) {
  for (int round = 0; round < 32; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const TableSchema schema = RandomSchema(random_);
    WrittenTable table(files_, schema, random_,
                       static_cast<uint8_t>(random_.OneIn(3) ? random_.Between(1, 4) : 0));
    std::vector<std::string> pool;
    for (const size_t length : {random_.Between(3, 60), random_.Between(3, 60),
                                random_.Pick(kCommonLengths), random_.Pick(kCommonLengths)}) {
      for (std::string& key : DistinctKeys(random_, 150, length)) {
        if (table.Holds(key)) pool.push_back(std::move(key));
      }
    }
    std::vector<std::string> questions = Questions(random_, pool);
    const bool one_shape = random_.OneIn(3), all_lists = !random_.OneIn(4);
    const size_t length = random_.Pick(pool).size();
    std::shared_ptr<const Snapshot> before;
    const size_t segments = round % 8 == 7 ? random_.Between(14, 20) : random_.Between(1, 8);
    for (size_t i = 0; i < segments; ++i) {
      const size_t only_length = one_shape          ? length
                                 : random_.OneIn(2) ? random_.Pick(pool).size()
                                                    : 0;
      std::vector<WrittenRow> rows;
      const uint64_t one_in = random_.Between(2, 6), dead_one_in = random_.Between(1, 5);
      for (const std::string& key : pool) {
        if (!random_.OneIn(one_in) || (only_length != 0 && key.size() != only_length)) continue;
        rows.push_back({key, RandomDocId(random_, schema),
                        schema.value_kind == ValueKind::kNone ? "" : RandomValue(random_, schema),
                        random_.OneIn(dead_one_in)});
      }
      WriteOptions options;
      const bool lines = only_length != 0 && only_length <= LineKeyBytesMax(schema);
      // Lines of any shape, also of one that a build would not choose.
      options.layout = lines && (one_shape || !random_.OneIn(4)) ? Layout::kLine : Layout::kPointer;
      options.filter_bits = random_.Pick(kFilterBits);
      options.hash_list = all_lists || random_.OneIn(2);
      options.partition_bits = static_cast<uint8_t>(random_.Below(5));
      ASSERT_OK(table.Add(rows, options));

      ASSERT_OK_AND_ASSIGN(auto snapshot, table.Open({}, before.get()));
      // What was extended does not need what it was extended from.
      before.reset();
      ASSERT_NO_FATAL_FAILURE(ExpectMap(*snapshot, {}));
      const size_t batch_keys = random_.Pick(kBatchKeys);
      ASSERT_NO_FATAL_FAILURE(ExpectSameAnswers(*snapshot, table, questions, batch_keys));
      ASSERT_OK_AND_ASSIGN(const auto anew, table.Open({}));
      ASSERT_NO_FATAL_FAILURE(ExpectSameAnswers(*anew, table, questions, batch_keys));
      ASSERT_OK_AND_ASSIGN(const auto unmapped, table.Open({.segment_map_bytes_max = 0}));
      ASSERT_EQ(unmapped->segment_map(), nullptr);
      ASSERT_NO_FATAL_FAILURE(ExpectSameAnswers(*unmapped, table, questions, batch_keys));
      before = std::move(snapshot);
    }
    files_ = MemoryFileSystem();
  }
}

// A tombstone ends the search, for the segments below it only.
TEST_F(LookupPropertyTest, TombstonesHideWhatIsOlder) {
  const LookupResult absent = {};
  for (const Layout layout : {Layout::kLine, Layout::kPointer}) {
    for (const ValueKind values : {ValueKind::kNone, ValueKind::kFixed, ValueKind::kBytes}) {
      for (const uint8_t doc_id_bytes : {4, 8}) {
        TableSchema schema = {.doc_id_bytes = doc_id_bytes, .value_kind = values};
        schema.value_width = values == ValueKind::kFixed ? 3 : 0;
        const auto value = [&](const char* text) {
          return values == ValueKind::kNone ? std::string() : std::string(text);
        };
        WrittenTable table(files_, schema, random_);
        const WriteOptions options = {.layout = layout};
        ASSERT_OK(table.Add({{"deleted", 1, value("old")},
                             {"kept on", 2, value("old")},
                             {"revived", 3, value("old")}},
                            options));
        // One of a key that was never there does no harm; and its doc id and value do not count.
        ASSERT_OK(table.Add({{"deleted", 7, value("xxx"), true},
                             {"revived", 0, "", true},
                             {"never ..", 0, "", true}},
                            {.layout = Layout::kPointer}));
        ASSERT_OK(table.Add({{"revived", schema.DocIdMax(), value("new")}}, options));
        ASSERT_OK(table.Add({}, options));
        for (const SnapshotOptions& snapshot_options : kWithAndWithoutMap) {
          ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open(snapshot_options));
          EXPECT_EQ(snapshot->segments()[2]->header().tombstone_count, 3u);
          EXPECT_EQ(LookupOne(*snapshot, "deleted"), absent);
          EXPECT_EQ(LookupOne(*snapshot, "never .."), absent);
          EXPECT_EQ(LookupOne(*snapshot, "kept on"),
                    (LookupResult{Outcome::kFound, 2, value("old")}));
          EXPECT_EQ(LookupOne(*snapshot, "revived"),
                    (LookupResult{Outcome::kFound, schema.DocIdMax(), value("new")}));
          ASSERT_NO_FATAL_FAILURE(ExpectSameAnswers(
              *snapshot, table, {"deleted", "never ..", "kept on", "revived", "anything"}, 64));
        }
        files_ = MemoryFileSystem();
      }
    }
  }
}

// Keys that another's bytes begin or end, in segments of one line and with a map that names all
// segments for nearly all keys: so they come to that line, and differ in their length only.
TEST_F(LookupPropertyTest, KeysOfOtherLengthsInTheSameLine) {
  for (const size_t key_bytes : {7, 8, 16, 20, 36}) {
    for (int round = 0; round < 20; ++round) {
      WrittenTable table(files_, {}, random_);
      std::vector<std::string> questions;
      for (int i = 0; i < 3; ++i) {
        std::vector<WrittenRow> rows;
        for (std::string& key : DistinctKeys(random_, 2, key_bytes)) {
          // A string's bytes are followed by a zero byte, which is not part of it.
          key.back() = random_.OneIn(2) ? '\0' : 'x';
          for (const size_t length : {size_t{0}, size_t{1}, key_bytes / 2, key_bytes - 1}) {
            questions.push_back(key.substr(0, length));
            questions.push_back(key + random_.Bytes(1 + length));
            questions.push_back(key + std::string(1 + length, '\0'));
          }
          questions.push_back(key);
          rows.push_back({std::move(key), random_.Below(1000), ""});
        }
        ASSERT_OK(table.Add(rows, {.layout = Layout::kLine, .hash_bits = 1}));
      }
      ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open({}));
      for (const auto& segment : snapshot->segments()) {
        ASSERT_EQ(segment->partitions()[0].line_count, 1u);
      }
      ASSERT_NE(snapshot->segment_map(), nullptr);
      ASSERT_NO_FATAL_FAILURE(ExpectSameAnswers(*snapshot, table, questions, 64));
      files_ = MemoryFileSystem();
    }
  }
}

// A map numbers 255 segments. With one more the segments are asked one after the other.
TEST_F(LookupPropertyTest, MoreSegmentsThanAMapTakes) {
  WrittenTable table(files_, {}, random_);
  const std::vector<std::string> pool = DistinctKeys(random_, 1500, 12);
  const std::vector<std::string> questions = Questions(random_, pool);
  std::shared_ptr<const Snapshot> before;
  for (size_t i = 1; i <= kMappedSegmentsMax + 1; ++i) {
    std::vector<WrittenRow> rows;
    for (int j = 0; j < 12; ++j) rows.push_back({pool[(i * 5 + j * 119) % pool.size()], i, ""});
    ASSERT_OK(table.Add(rows, {.layout = Layout::kLine, .filter_bits = 8}));
    if (i < kMappedSegmentsMax) continue;
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open({}, before.get()));
    ASSERT_EQ(snapshot->segments().size(), i);
    ASSERT_NO_FATAL_FAILURE(ExpectMap(*snapshot, {}));
    if (i > kMappedSegmentsMax) {
      EXPECT_FAILS(snapshot->segment_map_status(), kFailedPrecondition, HasSubstr("256"));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectSameAnswers(*snapshot, table, questions, 4096));
    before = snapshot;
  }
}

}  // namespace
}  // namespace latchkey::test
