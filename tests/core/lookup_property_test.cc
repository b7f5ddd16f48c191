// The probe engine, the one-key path and a plain map answer alike, whatever the table looks like.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "core/key/limits.h"
#include "core/lookup/probe_engine.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/reference_engine.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

constexpr std::array<uint8_t, 8> kFilterBits = {0, 1, 4, 8, 10, 12, 16, 32};
constexpr std::array<size_t, 9> kBatchKeys = {
    1, 7, 63, 64, 65, kTileKeys - 1, kTileKeys, kTileKeys + 1, 4096};
constexpr std::array<KeyKind, 5> kKeyKinds = {KeyKind::kRaw, KeyKind::kText, KeyKind::kHex,
                                              KeyKind::kUuid, KeyKind::kU64};

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

void ExpectHolds(const TestTable& table, Random& random, size_t batch_keys) {
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
  const std::vector<std::string> keys = table.reference().Keys();
  for (const std::string& key : keys) {
    ASSERT_EQ(table.reference().Lookup(key).outcome, Outcome::kFound);
  }
  ExpectSameAnswers(*snapshot, table.reference(), Questions(random, keys), batch_keys);
}

class LookupPropertyTest : public SeededTest {
 protected:
  MemoryFileSystem files_;
};

// One segment for each of layout x doc id width x value kind x filter size.
TEST_F(LookupPropertyTest, EveryShapeOfSegment) {
  int round = 0;
  for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
    for (const uint8_t doc_id_bytes : {4, 8}) {
      for (const ValueKind values : {ValueKind::kNone, ValueKind::kFixed, ValueKind::kBytes}) {
        for (const uint8_t filter_bits : kFilterBits) {
          SCOPED_TRACE(testing::Message()
                       << "layout " << static_cast<int>(layout) << ", doc id bytes "
                       << int{doc_id_bytes} << ", values " << ValueKindName(values)
                       << ", filter bits " << int{filter_bits});
          TestTable table(files_, "data" + std::to_string(round), random_);
          table.options.layout = layout;
          table.options.filter_bits_per_key = filter_bits;
          TableSchema& schema = table.options.schema;
          schema.doc_id_bytes = doc_id_bytes;
          schema.value_kind = values;
          // Every width comes up: 16 rounds of fixed values a layout and doc id width, 4 widths each.
          for (int i = 0; i < (values == ValueKind::kFixed ? 4 : 1); ++i, ++round) {
            schema.value_width =
                values == ValueKind::kFixed ? static_cast<uint8_t>(1 + round % 64) : 0;
            std::vector<Row> rows;
            for (std::string& key : DistinctKeys(random_, 400, 1 + round % 31)) {
              rows.push_back(RowOf(random_, schema, std::move(key)));
            }
            ASSERT_OK(table.Build(rows));
            ASSERT_NO_FATAL_FAILURE(
                ExpectHolds(table, random_, kBatchKeys[round % kBatchKeys.size()]));
          }
        }
      }
    }
  }
}

TEST_F(LookupPropertyTest, EveryWidthOfFixedValues) {
  for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
    for (uint8_t width = 1; width <= kFixedValueBytesMax; ++width) {
      SCOPED_TRACE(testing::Message() << "width " << int{width});
      TestTable table(files_, "data", random_);
      table.options.layout = layout;
      table.options.schema.value_kind = ValueKind::kFixed;
      table.options.schema.value_width = width;
      std::vector<Row> rows;
      for (std::string& key : DistinctKeys(random_, 150, random_.Between(1, 31))) {
        rows.push_back(RowOf(random_, table.options.schema, std::move(key)));
      }
      ASSERT_OK(table.Build(rows));
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, random_, 64));
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
    table.options.schema = RandomSchema(random_);
    table.options.layout = length <= 31 && random_.OneIn(3) ? LayoutChoice::kTermOrder
                                                            : LayoutChoice::kAuto;
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, length > 300 ? 12 : 40, length)) {
      rows.push_back(RowOf(random_, table.options.schema, std::move(key)));
    }
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(rows));
    if (table.options.layout == LayoutChoice::kAuto) {
      EXPECT_EQ(built.header.layout, length <= 31 ? Layout::kInline : Layout::kTermOrder);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, random_, 64));
    files_ = MemoryFileSystem();
  }
}

TEST_F(LookupPropertyTest, AllLengthsOfKeysInOneSegment) {
  TestTable table(files_, "data", random_);
  table.options.schema = {.value_kind = ValueKind::kBytes};
  std::vector<Row> rows;
  for (size_t length = 1; length <= kKeyBytesMax; length += 1 + length / 20) {
    for (std::string& key : DistinctKeys(random_, 3, length)) {
      rows.push_back(RowOf(random_, table.options.schema, std::move(key)));
    }
  }
  rows.push_back({random_.Bytes(kKeyBytesMax), "longest"});
  // Keys that are a prefix of one another.
  for (size_t length = 1; length < 200; ++length) rows.push_back({std::string(length, 'x'), "x"});
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(rows));
  EXPECT_EQ(built.header.layout, Layout::kTermOrder);
  EXPECT_EQ(built.header.key_bytes_min, 1);
  EXPECT_EQ(built.header.key_bytes_max, kKeyBytesMax);
  ExpectHolds(table, random_, 65);
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
    ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, random_, 4096));
  }
}

TEST_F(LookupPropertyTest, ManySegmentsWithOverlappingKeys) {
  for (int round = 0; round < 24; ++round) {
    TestTable table(files_, "data" + std::to_string(round), random_);
    const TableSchema schema = table.options.schema = RandomSchema(random_);
    const size_t segments = round < 20 ? round + 1 : random_.Between(1, 20);
    // Segments of several lengths and layouts stand beside each other.
    std::vector<std::string> pool;
    for (int i = 0; i < 4; ++i) {
      for (std::string& key : DistinctKeys(random_, 80, random_.Between(1, 40))) {
        pool.push_back(std::move(key));
      }
    }
    for (size_t i = 0; i < segments; ++i) {
      const size_t only_length = random_.OneIn(2) ? random_.Pick(pool).size() : 0;
      std::vector<Row> rows;
      for (const std::string& key : pool) {
        if (random_.OneIn(3) || (only_length != 0 && key.size() != only_length)) continue;
        rows.push_back(RowOf(random_, schema, key));
      }
      table.options.filter_bits_per_key = random_.Pick(kFilterBits);
      table.options.layout =
          random_.OneIn(2) ? LayoutChoice::kAuto : LayoutChoice::kTermOrder;
      table.options.duplicates = DuplicateRule::kLast;
      ASSERT_OK(i == 0 ? table.Build(rows) : table.Append(rows));
    }
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
    ASSERT_EQ(snapshot->segments().size(), segments);
    for (const size_t batch_keys : kBatchKeys) {
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, random_, batch_keys));
    }
  }
}

TEST_F(LookupPropertyTest, DuplicatesCountByTheirRule) {
  for (const DuplicateRule rule : {DuplicateRule::kFirst, DuplicateRule::kLast}) {
    for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
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
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, random_, 64));
      files_ = MemoryFileSystem();
    }
  }
}

TEST_F(LookupPropertyTest, ExtremeDocIds) {
  for (const uint8_t doc_id_bytes : {4, 8}) {
    for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
      TestTable table(files_, "data", random_);
      table.options.schema.doc_id_bytes = doc_id_bytes;
      table.options.layout = layout;
      const uint64_t largest =
          doc_id_bytes == 4 ? uint64_t{4'294'967'294} : uint64_t{18'446'744'073'709'551'614u};
      ASSERT_EQ(table.options.schema.DocIdMax(), largest);
      std::vector<Row> rows = {{"a", "", 0}, {"b", "", 1}, {"c", "", largest - 1},
                               {"d", "", largest}, {"e", ""}};
      ASSERT_OK(table.Build(rows));
      ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
      EXPECT_EQ(LookupOne(*snapshot, "a"), (LookupResult{Outcome::kFound, 0, ""}));
      EXPECT_EQ(LookupOne(*snapshot, "b"), (LookupResult{Outcome::kFound, 1, ""}));
      EXPECT_EQ(LookupOne(*snapshot, "c"), (LookupResult{Outcome::kFound, largest - 1, ""}));
      EXPECT_EQ(LookupOne(*snapshot, "d"), (LookupResult{Outcome::kFound, largest, ""}));
      EXPECT_EQ(LookupOne(*snapshot, "e"), (LookupResult{Outcome::kFound, 4, ""}));
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, random_, 64));
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
  ExpectHolds(table, random_, 64);
}

TEST_F(LookupPropertyTest, TablesWithoutRows) {
  TestTable table(files_, "data", random_);
  const std::vector<std::string> questions = {"", "a", std::string(16, '\0'),
                                              std::string(kKeyBytesMax, 'x')};
  ASSERT_OK_AND_ASSIGN(const auto no_segments, table.Open());
  ASSERT_TRUE(no_segments->segments().empty());
  ExpectSameAnswers(*no_segments, table.reference(), questions, 64);
  for (const uint8_t filter_bits : kFilterBits) {
    for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
      table.options.filter_bits_per_key = filter_bits;
      table.options.layout = layout;
      ASSERT_OK(table.Build({}));
      ASSERT_OK(table.Append({}));
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, random_, 64));
    }
  }
  ASSERT_OK(table.Append({{"a", ""}}));
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
  ExpectSameAnswers(*snapshot, table.reference(), questions, 64);
}

TEST_F(LookupPropertyTest, BatchesOfNoKeysAndKeysThatNoTableHolds) {
  TestTable table(files_, "data", random_);
  ASSERT_OK(table.Build({{"a", ""}, {"bc", ""}}));
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
  ProbeEngine engine;
  LookupResults results;
  engine.Lookup(*snapshot, std::vector<std::string_view>{"a", "x"}, &results);
  EXPECT_EQ(results.size(), 2u);
  engine.Lookup(*snapshot, {}, &results);
  EXPECT_EQ(results.size(), 0u);
  EXPECT_TRUE(results.doc_ids.empty());
  EXPECT_TRUE(results.values.empty());
  ExpectSameAnswers(*snapshot, table.reference(),
                    {"", std::string(kKeyBytesMax + 1, 'a'), std::string(1 << 20, 'a')}, 64);
}

TEST_F(LookupPropertyTest, EveryNumberOfPartitions) {
  for (uint8_t bits = 0; bits <= kPartitionBitsMax; ++bits) {
    for (const LayoutChoice layout : {LayoutChoice::kAuto, LayoutChoice::kTermOrder}) {
      SCOPED_TRACE(testing::Message() << "partition bits " << int{bits});
      TestTable table(files_, "data", random_);
      table.options.schema = RandomSchema(random_);
      table.options.layout = layout;
      // With few rows most partitions have none or one; with many all have some.
      for (const size_t row_count : {0, 1, 2, 50, 5000}) {
        table.options.filter_bits_per_key = random_.Pick(kFilterBits);
        std::vector<Row> rows;
        for (std::string& key : DistinctKeys(random_, row_count, random_.Between(3, 31))) {
          rows.push_back(RowOf(random_, table.options.schema, std::move(key)));
        }
        ASSERT_OK(table.AppendPartitioned(rows, bits));
      }
      ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
      EXPECT_EQ(snapshot->segments()[0]->partitions().size(), size_t{1} << bits);
      EXPECT_EQ(snapshot->segments()[0]->header().layout,
                layout == LayoutChoice::kAuto ? Layout::kInline : Layout::kTermOrder);
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, random_, 4096));
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
  for (const Case& expected : {Case{49'152, 0}, Case{49'153, 1}, Case{98'305, 1},
                               Case{98'306, 2}, Case{200'000, 3}}) {
    for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
      TestTable table(files_, "data", random_);
      table.options.layout = layout;
      std::vector<Row> rows;
      std::vector<std::string> questions;
      for (uint64_t i = 0; i < 2 * expected.row_count; ++i) {
        questions.push_back("k" + std::to_string(i + 1'000'000));
        if (i % 2 == 0) rows.push_back({questions.back(), ""});
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
  for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
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
    ASSERT_NO_FATAL_FAILURE(ExpectHolds(table, random_, 64));
  }
}

}  // namespace
}  // namespace latchkey::test
