#include "core/build/table_builder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "core/lookup/probe_engine.h"
#include "core/segment/hash_list.h"
#include "core/segment/line_shape.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<Row> kNoRows;

class TableBuilderTest : public SeededTest {
 protected:
  TableBuilderTest() : table_(files_, "data", random_) {}

  // The build fails, and leaves the table's files as they were.
  void ExpectRefused(const std::vector<Row>& rows, absl::StatusCode code,
                     const testing::Matcher<std::string>& message, bool append = false) {
    const auto before = files_.Files();
    const auto built = append ? table_.Append(rows) : table_.Build(rows);
    EXPECT_EQ(built.status().code(), code) << built.status();
    EXPECT_THAT(Message(built.status()), message);
    auto after = files_.Files();
    if (!before.contains(table_.Path("lock"))) after.erase(table_.Path("lock"));
    EXPECT_EQ(after, before);
  }

  std::vector<Row> RandomRows(size_t count, size_t key_bytes, size_t value_bytes) {
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, count, key_bytes)) {
      rows.push_back({std::move(key), random_.Bytes(value_bytes)});
    }
    return rows;
  }

  MemoryFileSystem files_;
  TestTable table_;
};

TEST_F(TableBuilderTest, FirstBuildOfATable) {
  BuildOptions options = table_.options;
  options.data_dir = "new/data";
  options.table = "fresh";
  const std::vector<Row> rows = RandomRows(100, 16, 0);
  VectorSource source(rows);
  ASSERT_OK_AND_ASSIGN(const BuildResult built, BuildTable(files_, options, source, nullptr));
  EXPECT_EQ(built.generation, 1u);
  EXPECT_EQ(built.rows_read, 100u);
  EXPECT_EQ(built.rows_stored, 100u);
  EXPECT_EQ(built.duplicates_dropped, 0u);
  EXPECT_EQ(built.spilled_bytes, 0u);
  EXPECT_EQ(built.segment_path, "new/data/fresh/g00000001-0.segment");
  ASSERT_OK_AND_ASSIGN(const auto names, files_.List("new/data/fresh"));
  EXPECT_THAT(names, ElementsAre("g00000001-0.segment", "g00000001.manifest", "lock"));
  ASSERT_OK_AND_ASSIGN(const auto first, Snapshot::OpenNewest(files_, "new/data/fresh"));
  EXPECT_EQ(first->segments()[0]->header(), built.header);
  // A table's identity is drawn once; another table has another.
  VectorSource again(rows);
  ASSERT_OK(BuildTable(files_, options, again, nullptr));
  ASSERT_OK_AND_ASSIGN(const auto second, Snapshot::OpenNewest(files_, "new/data/fresh"));
  EXPECT_EQ(second->generation(), 2u);
  EXPECT_EQ(second->manifest().identity, first->manifest().identity);
  options.table = "other";
  VectorSource other_source(rows);
  ASSERT_OK(BuildTable(files_, options, other_source, nullptr));
  ASSERT_OK_AND_ASSIGN(const auto other, Snapshot::OpenNewest(files_, "new/data/other"));
  EXPECT_NE(other->manifest().identity.table_id, first->manifest().identity.table_id);
  EXPECT_NE(other->seed(), first->seed());
}

TEST_F(TableBuilderTest, DuplicatesAreRejectedWithCountsAndTheFirstOfThem) {
  ExpectRefused({{"b", ""}, {"a", ""}, {"c", ""}, {"a", ""}, {"b", ""}, {"a", ""}},
                absl::StatusCode::kInvalidArgument,
                "3 rows repeat a key; the first is row 4 of the input, with the key 'a' of row 2 "
                "(rows are counted from 1); keep one with --duplicates first or last");
  // A third row of a key: the message tells of its second.
  ExpectRefused({{"a", ""}, {"a", ""}, {"a", ""}}, absl::StatusCode::kInvalidArgument,
                HasSubstr("2 rows repeat a key; the first is row 2 of the input, with the key 'a' "
                          "of row 1"));
  table_.options.schema.key_kind = KeyKind::kHex;
  ExpectRefused({{"\x01\xFF", ""}, {"\x01\xFF", ""}}, absl::StatusCode::kInvalidArgument,
                HasSubstr("1 rows repeat a key; the first is row 2 of the input, with the key "
                          "'01ff' of row 1"));
  ExpectRefused({{std::string(5000, 'x'), ""}, {std::string(5000, 'x'), ""}},
                absl::StatusCode::kInvalidArgument, HasSubstr("..."));
}

TEST_F(TableBuilderTest, DuplicatesAreDroppedWithCounts) {
  const std::vector<Row> rows = {{"a", "1"}, {"b", "2"}, {"a", "3"},
                                 {"a", "4"}, {"b", "5"}, {"c", "6"}};
  table_.options.schema.value_kind = ValueKind::kBytes;
  for (const DuplicateRule rule : {DuplicateRule::kFirst, DuplicateRule::kLast}) {
    table_.options.duplicates = rule;
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table_.Build(rows));
    EXPECT_EQ(built.rows_read, 6u);
    EXPECT_EQ(built.rows_stored, 3u);
    EXPECT_EQ(built.duplicates_dropped, 3u);
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
    EXPECT_EQ(snapshot->row_count(), 3u);
    const bool first = rule == DuplicateRule::kFirst;
    EXPECT_EQ(LookupOne(*snapshot, "a"),
              (LookupResult{Outcome::kFound, first ? 0u : 3u, first ? "1" : "4"}));
    EXPECT_EQ(LookupOne(*snapshot, "b"),
              (LookupResult{Outcome::kFound, first ? 1u : 4u, first ? "2" : "5"}));
    EXPECT_EQ(LookupOne(*snapshot, "c"), (LookupResult{Outcome::kFound, 5, "6"}));
  }
  // Over several partitions, and with rows of one key that are spilled at different times.
  table_.options.memory_bytes = kBuildMemoryBytesMin;
  std::vector<Row> many = RandomRows(30'000, 10, 900);
  for (int i = 0; i < 7'000; ++i) {
    many.push_back(many[random_.Below(30'000)]);
    many.back().value = random_.Bytes(900);
  }
  for (const DuplicateRule rule : {DuplicateRule::kFirst, DuplicateRule::kLast}) {
    table_.options.duplicates = rule;
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table_.Build(many));
    EXPECT_GT(built.spilled_bytes, 24u << 20);  // twice what the builder keeps
    EXPECT_GT(built.header.partition_bits, 0);
    EXPECT_EQ(built.rows_stored, 30'000u);
    EXPECT_EQ(built.duplicates_dropped, 7'000u);
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
    ExpectSameAnswers(*snapshot, table_.reference(), table_.reference().Keys(), 4096);
  }
  table_.options.duplicates = DuplicateRule::kReject;
  const size_t first_row = 30'001, of_row = [&] {
    size_t row = 0;
    while (many[row].key != many[30'000].key) ++row;
    return row + 1;
  }();
  ExpectRefused(
      many, absl::StatusCode::kInvalidArgument,
      AllOf(HasSubstr("7000 rows repeat a key; the first is row " + std::to_string(first_row)),
            HasSubstr("of row " + std::to_string(of_row))));
}

// The same rows, with much memory and with little.
TEST_F(TableBuilderTest, SpillingChangesNothing) {
  for (const LayoutChoice layout : {LayoutChoice::kAuto, LayoutChoice::kPointer}) {
    table_.options.layout = layout;
    table_.options.schema = {.doc_id_bytes = 8, .value_kind = ValueKind::kBytes};
    std::vector<Row> rows = RandomRows(30'000, 16, 0);
    for (Row& row : rows) {
      row.value = random_.Bytes(random_.Below(900));
      if (random_.OneIn(2)) row.doc_id = random_.Next() >> 1;
    }
    std::vector<std::string> questions;
    for (const Row& row : rows) questions.push_back(row.key);
    for (std::string& stranger : StrangerKeys(random_, questions, 10'000)) {
      questions.push_back(std::move(stranger));
    }
    std::map<std::string, std::pair<uint64_t, std::string>> contents[2];
    for (const bool little : {false, true}) {
      table_.options.memory_bytes = little ? kBuildMemoryBytesMin : uint64_t{1} << 30;
      ASSERT_OK_AND_ASSIGN(const BuildResult built, table_.Build(rows));
      EXPECT_EQ(built.spilled_bytes > 0, little);
      EXPECT_FALSE(files_.Has(table_.Path("spill.tmp")));
      ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
      ExpectSameAnswers(*snapshot, table_.reference(), questions, 4096);
      ASSERT_OK(snapshot->segments()[0]->ForEachRow([&](const StoredRow& row) {
        contents[little].try_emplace(std::string(row.key), row.doc_id, row.value);
        return absl::OkStatus();
      }));
    }
    EXPECT_EQ(contents[0].size(), rows.size());
    EXPECT_TRUE(contents[0] == contents[1]);
  }
}

// 50 MB of rows with the least memory: what is allocated stays near it.
TEST_F(TableBuilderTest, MemoryIsBounded) {
  struct Case {
    uint64_t rows;
    size_t key_bytes, value_bytes;
  };
  for (const Case& input :
       {Case{450'000, 16, 84}, Case{1'600'000, 24, 0}, Case{500, 40, 100'000}}) {
    for (const LayoutChoice layout : {LayoutChoice::kAuto, LayoutChoice::kPointer}) {
      const TempDir folder;
      BuildOptions options = table_.options;
      options.data_dir = folder.path();
      options.layout = layout;
      options.memory_bytes = kBuildMemoryBytesMin;
      options.schema.value_kind = input.value_bytes > 0 ? ValueKind::kBytes : ValueKind::kNone;
      GeneratorSource source(input.rows, [&](uint64_t ordinal, Row* row) {
        row->key.assign(input.key_bytes, 'k');
        std::memcpy(row->key.data(), &ordinal, sizeof(ordinal));
        row->value.assign(input.value_bytes, 'v');
      });
      const AllocationMeter meter;
      ASSERT_OK_AND_ASSIGN(const BuildResult built,
                           BuildTable(PosixFileSystem(), options, source, nullptr));
      EXPECT_GT(built.spilled_bytes, uint64_t{30} << 20);
      EXPECT_LT(meter.peak_bytes(), kBuildMemoryBytesMin + (8 << 20))
          << input.rows << " rows, layout " << static_cast<int>(layout);
    }
  }
}

TEST_F(TableBuilderTest, EmptyInput) {
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table_.Build({}));
  EXPECT_EQ(built.rows_read, 0u);
  EXPECT_EQ(built.rows_stored, 0u);
  EXPECT_EQ(built.header.row_count, 0u);
  EXPECT_EQ(built.header.key_bytes_min, 0);
  EXPECT_EQ(built.header.key_bytes_max, 0);
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
  EXPECT_EQ(snapshot->segments().size(), 1u);
  EXPECT_EQ(LookupOne(*snapshot, "a").outcome, Outcome::kAbsent);
}

TEST_F(TableBuilderTest, ReplacingAndAppending) {
  ASSERT_OK(table_.Build({{"a", ""}}));
  ASSERT_OK(table_.Append({{"b", ""}}));
  ASSERT_OK(table_.Append({{"c", ""}}));
  ASSERT_OK_AND_ASSIGN(const auto three, table_.Open());
  EXPECT_EQ(three->segments().size(), 3u);
  EXPECT_EQ(three->segments()[0]->path(), table_.Path("g00000004-0.segment"));
  // A build that replaces may change the schema; one that appends may not.
  table_.options.schema.doc_id_bytes = 8;
  ExpectRefused({{"d", ""}}, absl::StatusCode::kFailedPrecondition,
                AllOf(HasSubstr("32-bit doc ids"), HasSubstr("64-bit doc ids")), true);
  ASSERT_OK(table_.Build({{"d", "", uint64_t{1} << 60}}));
  ASSERT_OK_AND_ASSIGN(const auto one, table_.Open());
  EXPECT_EQ(one->segments().size(), 1u);
  EXPECT_EQ(one->schema(), table_.options.schema);
  EXPECT_EQ(LookupOne(*one, "a").outcome, Outcome::kAbsent);
  EXPECT_EQ(LookupOne(*one, "d").doc_id, uint64_t{1} << 60);
  // The old generations still open.
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadManifest(files_, table_.dir(), 4));
  EXPECT_OK(Snapshot::Open(files_, table_.dir(), manifest));
}

TEST_F(TableBuilderTest, AppendingNeedsATable) {
  BuildOptions options = table_.options;
  options.table = "none";
  options.append = true;
  VectorSource source(kNoRows);
  EXPECT_FAILS(BuildTable(files_, options, source, nullptr), kNotFound, HasSubstr("data/none"));
}

TEST_F(TableBuilderTest, AGenerationIsNotOlderThanTheOneBefore) {
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadNewestManifest(files_, table_.dir()));
  manifest.generation = 2;
  manifest.created_unix_s = std::time(nullptr) + 1'000'000;  // the clock was ahead then
  ASSERT_OK(PublishManifest(files_, table_.dir(), manifest));
  for (const bool append : {true, false}) {
    ASSERT_OK(append ? table_.Append(RandomRows(10, 8, 0)) : table_.Build(RandomRows(10, 8, 0)));
    ASSERT_OK_AND_ASSIGN(const Manifest next, ReadNewestManifest(files_, table_.dir()));
    EXPECT_EQ(next.created_unix_s, manifest.created_unix_s);
  }
}

TEST_F(TableBuilderTest, TooManySegments) {
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadNewestManifest(files_, table_.dir()));
  manifest.generation = 2;
  manifest.segments.resize(kSegmentsPerGenerationMax, {"x.segment", 4096, 1, 1, 1});
  ASSERT_OK(PublishManifest(files_, table_.dir(), manifest));
  ExpectRefused({}, absl::StatusCode::kFailedPrecondition, HasSubstr("4096 segments"), true);
  EXPECT_OK(table_.Build({}));
}

TEST_F(TableBuilderTest, RowsThatDoNotFitTheSchema) {
  ASSERT_OK(table_.Build({{"a", ""}}));
  ExpectRefused({{"a", ""}, {"b", "", 4'294'967'294}}, absl::StatusCode::kInvalidArgument,
                "row 2: doc id: expected at most 4294967293 for 32-bit doc ids, got 4294967294");
  table_.options.schema.doc_id_bytes = 8;
  ExpectRefused({{"b", "", UINT64_MAX - 1}}, absl::StatusCode::kInvalidArgument,
                "row 1: doc id: expected at most 18446744073709551613 for 64-bit doc ids, got "
                "18446744073709551614");
  table_.options.schema = {.value_kind = ValueKind::kFixed, .value_width = 5};
  for (const std::string value : {"", "1234", "123456"}) {
    ExpectRefused({{"a", "12345"}, {"b", value}}, absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr("row 2: value: expected 5 bytes"),
                        HasSubstr("got " + std::to_string(value.size()))));
  }
}

TEST_F(TableBuilderTest, DocIdsUpToTheLimit) {
  for (const uint8_t doc_id_bytes : {4, 8}) {
    for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
      table_.options.layout = layout;
      table_.options.schema.doc_id_bytes = doc_id_bytes;
      const uint64_t most = (doc_id_bytes == 4 ? uint64_t{UINT32_MAX} : UINT64_MAX) - 2;
      ASSERT_OK_AND_ASSIGN(const BuildResult built,
                           table_.Build({{"a", "", most}, {"b", "", most - 1}, {"c", "", 0}}));
      EXPECT_EQ(built.header.tombstone_count, 0u);
      ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
      EXPECT_EQ(LookupOne(*snapshot, "a"), (LookupResult{Outcome::kFound, most, ""}));
      EXPECT_EQ(LookupOne(*snapshot, "b"), (LookupResult{Outcome::kFound, most - 1, ""}));
      EXPECT_EQ(LookupOne(*snapshot, "c"), (LookupResult{Outcome::kFound, 0, ""}));
    }
  }
}

// A schema may say the length of all keys; then a key of another length is named by its place.
TEST_F(TableBuilderTest, KeysOfAnotherLengthThanTheSchemas) {
  for (const KeyKind kind : {KeyKind::kRaw, KeyKind::kText, KeyKind::kHex}) {
    table_.options.schema = {.key_kind = kind, .key_bytes = 3};
    ASSERT_OK(table_.Build({{"abc", ""}, {"def", ""}}));
    ExpectRefused({{"ab", ""}}, absl::StatusCode::kInvalidArgument,
                  "row 1: key: expected 3 bytes, got 2");
    ExpectRefused({{"abc", ""}, {"def", ""}, {"ghij", ""}, {"k", ""}},
                  absl::StatusCode::kInvalidArgument, "row 3: key: expected 3 bytes, got 4");
    ExpectRefused({{"ghi", ""}, {"", ""}}, absl::StatusCode::kInvalidArgument,
                  "row 2: key: expected 3 bytes, got 0", true);
    ASSERT_OK(table_.Append({{"ghi", ""}}));
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
    ExpectSameAnswers(*snapshot, table_.reference(), {"abc", "ghi", "ab", "abcd", "x"}, 64);
    // Whoever appends must know of it.
    table_.options.schema.key_bytes = 0;
    const std::string name(KeyKindName(kind));
    ExpectRefused({{"jkl", ""}}, absl::StatusCode::kFailedPrecondition,
                  AllOf(HasSubstr("the table has key kind " + name + "(3)"),
                        HasSubstr("the rows have key kind " + name + ",")),
                  true);
  }
  // Of other kinds all keys have one length anyway.
  table_.options.schema = {.key_kind = KeyKind::kUuid, .key_bytes = 16};
  ExpectRefused({}, absl::StatusCode::kInvalidArgument, HasSubstr("schema: key kind uuid"));
  table_.options.schema = {.key_bytes = kKeyBytesMax + 1};
  ExpectRefused({}, absl::StatusCode::kInvalidArgument, HasSubstr("32767 bytes"));
}

// The rule of FORMAT.md, written again: the smallest line that rows fill to 85%, or to 75% if it is
// not the smallest there is; two rows at least, of 127 bytes at most.
size_t LineBytesFor(size_t row_bytes) {
  for (const size_t line_bytes : {64, 128, 256}) {
    const size_t rows = (line_bytes - 1) / row_bytes;
    const size_t percent = line_bytes == 64 ? 85 : 75;
    if (row_bytes <= 127 && rows >= 2 && rows * row_bytes * 100 >= line_bytes * percent) {
      return line_bytes;
    }
  }
  return 0;
}

TEST_F(TableBuilderTest, AutoLayoutFollowsFromTheBytesOfARow) {
  struct Values {
    ValueKind kind;
    uint8_t width;
    size_t row_bytes;
  };
  int lines = 0, pointers = 0;
  for (const Values& values : {Values{ValueKind::kNone, 0, 0}, Values{ValueKind::kFixed, 1, 1},
                               Values{ValueKind::kFixed, 20, 20}, Values{ValueKind::kFixed, 64, 64},
                               Values{ValueKind::kBytes, 0, 8}}) {
    for (const uint8_t doc_id_bytes : {4, 8}) {
      for (size_t key_bytes = 1; key_bytes <= 130; ++key_bytes) {
        MemoryFileSystem files;
        BuildOptions options;
        options.data_dir = "data";
        options.table = "t";
        options.schema = {
            .doc_id_bytes = doc_id_bytes, .value_kind = values.kind, .value_width = values.width};
        const std::string value(values.width, 'v');
        const std::vector<Row> rows = {{std::string(key_bytes, 'a'), value},
                                       {std::string(key_bytes, 'b'), value}};
        VectorSource source(rows);
        ASSERT_OK_AND_ASSIGN(const BuildResult built, BuildTable(files, options, source, nullptr));
        const size_t line_bytes = LineBytesFor(doc_id_bytes + values.row_bytes + key_bytes);
        const auto what = testing::Message()
                          << "keys of " << key_bytes << " bytes, values of " << values.row_bytes
                          << ", doc ids of " << int{doc_id_bytes};
        ASSERT_EQ(built.header.layout, line_bytes > 0 ? Layout::kLine : Layout::kPointer) << what;
        ASSERT_EQ(built.header.line_bytes, line_bytes > 0 ? line_bytes : 64) << what;
        ASSERT_EQ(LineShape::SuitsRows(options.schema, key_bytes), line_bytes > 0) << what;
        ++(line_bytes > 0 ? lines : pointers);
      }
    }
  }
  EXPECT_GT(lines, 400);
  EXPECT_GT(pointers, 300);
}

TEST_F(TableBuilderTest, AutoLayoutTakesPointersForKeysOfSeveralLengths) {
  std::vector<Row> rows = RandomRows(100, 16, 0);
  for (const size_t odd : {0, 57, 99}) {
    std::vector<Row> mixed = rows;
    mixed[odd].key += 'x';
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table_.Build(mixed));
    EXPECT_EQ(built.header.layout, Layout::kPointer);
    EXPECT_EQ(built.header.key_bytes_min, 16);
    EXPECT_EQ(built.header.key_bytes_max, 17);
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
    ExpectSameAnswers(*snapshot, table_.reference(), table_.reference().Keys(), 64);
  }
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table_.Build(rows));
  EXPECT_EQ(built.header.layout, Layout::kLine);
}

TEST_F(TableBuilderTest, LayoutLineNeedsShortKeysOfOneLength) {
  table_.options.layout = LayoutChoice::kLine;
  ExpectRefused(
      {{"ab", ""}, {"cd", ""}, {"abc", ""}, {"x", ""}}, absl::StatusCode::kInvalidArgument,
      AllOf(HasSubstr("layout line"), HasSubstr("row 3: a key of 3 bytes after one of 2")));
  struct Case {
    TableSchema schema;
    size_t longest;
  };
  for (const Case& c :
       {Case{{}, 123}, Case{{.doc_id_bytes = 8}, 119}, Case{{.value_kind = ValueKind::kBytes}, 115},
        Case{{.doc_id_bytes = 8, .value_kind = ValueKind::kFixed, .value_width = 64}, 55}}) {
    table_.options.schema = c.schema;
    const std::string value(c.schema.value_width, 'v');
    ExpectRefused({{std::string(c.longest + 1, 'x'), value}}, absl::StatusCode::kInvalidArgument,
                  "layout line: expected keys of one length, at most " + std::to_string(c.longest) +
                      " bytes beside such values; got keys of " + std::to_string(c.longest + 1) +
                      " bytes");
    ASSERT_OK_AND_ASSIGN(
        const BuildResult built,
        table_.Build({{std::string(c.longest, 'x'), value}, {std::string(c.longest, 'y'), value}}));
    EXPECT_EQ(built.header.layout, Layout::kLine);
    EXPECT_EQ(built.header.line_bytes, 256);
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
    ExpectSameAnswers(*snapshot, table_.reference(), table_.reference().Keys(), 64);
  }
}

// What is wasteful to keep in lines is kept there if that is asked for.
TEST_F(TableBuilderTest, LayoutLineOfWastefulRows) {
  table_.options.layout = LayoutChoice::kLine;
  const std::vector<Row> rows = RandomRows(2000, 88, 0);
  ASSERT_FALSE(LineShape::SuitsRows(table_.options.schema, 88));
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table_.Build(rows));
  EXPECT_EQ(built.header.layout, Layout::kLine);
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
  std::vector<std::string> keys = table_.reference().Keys();
  for (std::string& stranger : StrangerKeys(random_, keys, 500)) keys.push_back(stranger);
  ExpectSameAnswers(*snapshot, table_.reference(), keys, 1000);
}

// Hashes that are short in one list are short for the whole map. So a small segment, which may be
// the first of a large table, has long ones.
TEST_F(TableBuilderTest, HashListsHaveBitsForTheWholeTable) {
  ASSERT_OK_AND_ASSIGN(const BuildResult alone, table_.Build({{"a", ""}}));
  const std::vector<Row> rows = RandomRows(70'000, 8, 0);
  ASSERT_OK_AND_ASSIGN(const BuildResult large, table_.Build(rows));
  ASSERT_OK_AND_ASSIGN(const BuildResult small, table_.Append({{"a", "", 7}, {"b", "", 8}}));
  EXPECT_GE(alone.header.hash_bits, 40);
  EXPECT_GE(small.header.hash_bits, 40);
  // 17 bits number the table's rows, and a map wants 9 more.
  EXPECT_GE(large.header.hash_bits, 17 + 9);
  // Two bytes a row, where that is enough.
  EXPECT_EQ(large.header.hash_delta_bytes, 2);
  EXPECT_GE(large.header.section(SectionKind::kHashes).size_bytes, 2 * rows.size());
  EXPECT_LE(large.header.section(SectionKind::kHashes).size_bytes, 2 * rows.size() + 1000);
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
  ASSERT_NE(snapshot->segment_map(), nullptr) << snapshot->segment_map_status();
  std::vector<std::string> keys = {"a", "b", "c"};
  for (size_t i = 0; i < rows.size(); i += 7) keys.push_back(rows[i].key);
  ExpectSameAnswers(*snapshot, table_.reference(), keys, 4096);

  EXPECT_GE(HashListShape::For(rows.size(), uint64_t{3} << 34).hash_bits, 36 + 9);
  ASSERT_OK_AND_ASSIGN(const BuildResult replacing, table_.Build(rows));
  EXPECT_EQ(replacing.header.hash_bits, large.header.hash_bits)
      << "what was replaced counts no more";
}

// What is published opens: older segments are looked at before anything is read or written.
TEST_F(TableBuilderTest, NothingIsAppendedToATableThatLacksASegment) {
  ASSERT_OK_AND_ASSIGN(const BuildResult first, table_.Build(RandomRows(100, 8, 0)));
  ASSERT_OK(table_.Append(RandomRows(10, 8, 0)));
  const std::string whole = files_.Bytes(first.segment_path);
  const std::vector<Row> rows = RandomRows(10, 8, 0);
  ASSERT_OK(files_.Remove(first.segment_path));
  EXPECT_FAILS(table_.Append(rows), kNotFound, HasSubstr(first.segment_path));
  files_.Put(first.segment_path, whole.substr(0, whole.size() - 1));
  EXPECT_FAILS(table_.Append(rows), kDataLoss, HasSubstr(first.segment_path));
  ASSERT_OK_AND_ASSIGN(const auto generations, ListGenerations(files_, table_.dir()));
  EXPECT_EQ(generations.back(), 3u);
  // To replace all of them needs none.
  EXPECT_OK(table_.Build(rows));
}

TEST_F(TableBuilderTest, WithoutAHashListThereIsNoMap) {
  ASSERT_OK_AND_ASSIGN(const BuildResult with, table_.Build(RandomRows(100, 16, 0)));
  EXPECT_GT(with.header.section(SectionKind::kHashes).size_bytes, 0u);
  table_.options.hash_list = false;
  ASSERT_OK_AND_ASSIGN(const BuildResult without, table_.Append(RandomRows(100, 16, 0)));
  EXPECT_EQ(without.header.hash_bits, 0);
  EXPECT_EQ(without.header.hash_delta_bytes, 0);
  EXPECT_EQ(without.header.section(SectionKind::kHashes).size_bytes, 0u);
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
  EXPECT_EQ(snapshot->segment_map(), nullptr);
  EXPECT_FAILS(snapshot->segment_map_status(), kFailedPrecondition,
               AllOf(HasSubstr(without.segment_path), HasSubstr("without a hash list")));
  ExpectSameAnswers(*snapshot, table_.reference(), table_.reference().Keys(), 64);
}

TEST_F(TableBuilderTest, OneOfSeveralShardsIsOnlyRead) {
  ASSERT_OK(table_.Build({{"a", ""}}));
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadNewestManifest(files_, table_.dir()));
  ++manifest.generation;
  manifest.shard_bits = 2;
  manifest.shard = 3;
  ASSERT_OK(PublishManifest(files_, table_.dir(), manifest));
  for (const bool append : {false, true}) {
    ExpectRefused({{"b", ""}}, absl::StatusCode::kFailedPrecondition,
                  AllOf(HasSubstr("data/t: "), HasSubstr("one of 4 shards")), append);
  }
}

TEST_F(TableBuilderTest, OptionsOutOfRange) {
  table_.options.filter_bits_per_key = 33;
  ExpectRefused({}, absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("32"), HasSubstr("33")));
  table_.options.filter_bits_per_key = 10;
  table_.options.memory_bytes = kBuildMemoryBytesMin - 1;
  ExpectRefused({}, absl::StatusCode::kInvalidArgument,
                AllOf(HasSubstr("memory"), HasSubstr("16 MiB")));
  table_.options.memory_bytes = kBuildMemoryBytesMin;
  table_.options.schema.doc_id_bytes = 5;
  ExpectRefused({}, absl::StatusCode::kInvalidArgument, HasSubstr("schema"));
  table_.options.schema.doc_id_bytes = 4;
  for (const std::string name : {"", "..", "a/b", ".x"}) {
    table_.options.table = name;
    ExpectRefused({}, absl::StatusCode::kInvalidArgument, HasSubstr("table name"));
  }
}

TEST_F(TableBuilderTest, ADataDirectoryThatIsAFile) {
  const TempDir folder;
  ASSERT_OK(PosixFileSystem().Create(folder.Path("file")));
  BuildOptions options = table_.options;
  options.data_dir = folder.Path("file");
  VectorSource source(kNoRows);
  EXPECT_FAILS(BuildTable(PosixFileSystem(), options, source, nullptr), kNotFound,
               HasSubstr(folder.Path("file")));
}

// Calls a function with each row that it gives.
class WatchedSource final : public RecordSource {
 public:
  explicit WatchedSource(std::function<absl::StatusOr<bool>(uint64_t, InputRow*)> next)
      : next_(std::move(next)) {}
  absl::StatusOr<bool> Next(InputRow* row) override { return next_(ordinal_++, row); }
  std::string Position() const override { return "row " + std::to_string(ordinal_); }
  uint64_t bytes_read() const override { return ordinal_; }
  uint64_t total_bytes() const override { return 0; }

 private:
  std::function<absl::StatusOr<bool>(uint64_t, InputRow*)> next_;
  uint64_t ordinal_ = 0;
};

TEST_F(TableBuilderTest, TwoWritersDoNotMeet) {
  for (FileSystem* files : {static_cast<FileSystem*>(&files_), &PosixFileSystem()}) {
    const TempDir folder;
    BuildOptions options = table_.options;
    options.data_dir = folder.path();
    absl::Status of_the_second;
    WatchedSource first([&](uint64_t ordinal, InputRow* row) -> absl::StatusOr<bool> {
      if (ordinal == 1) {
        VectorSource second(kNoRows);
        of_the_second = BuildTable(*files, options, second, nullptr).status();
      }
      *row = {"key", "", std::nullopt};
      return ordinal < 1;
    });
    ASSERT_OK_AND_ASSIGN(const BuildResult built, BuildTable(*files, options, first, nullptr));
    EXPECT_EQ(built.generation, 1u);
    EXPECT_FAILS(of_the_second, kFailedPrecondition,
                 AllOf(HasSubstr(folder.Path("t/lock")), HasSubstr("locked")));
    VectorSource third(kNoRows);
    EXPECT_OK(BuildTable(*files, options, third, nullptr));
  }
}

TEST_F(TableBuilderTest, ASourceThatFails) {
  ASSERT_OK(table_.Build({{"a", ""}}));
  const auto before = files_.Files();
  const std::string value(1 << 20, 'v');
  table_.options.schema.value_kind = ValueKind::kBytes;
  table_.options.memory_bytes = kBuildMemoryBytesMin;
  // Before and after something was spilled.
  for (const uint64_t good_rows : {0, 1, 30}) {
    std::string key;
    bool spilled = false;
    WatchedSource source([&](uint64_t ordinal, InputRow* row) -> absl::StatusOr<bool> {
      spilled = spilled || files_.Has(table_.Path("spill.tmp"));
      if (ordinal == good_rows) return absl::InvalidArgumentError("input.csv:7: not a row");
      key = std::to_string(ordinal);
      *row = {key, value, std::nullopt};
      return true;
    });
    EXPECT_FAILS(BuildTable(files_, table_.options, source, nullptr), kInvalidArgument,
                 "input.csv:7: not a row");
    EXPECT_EQ(spilled, good_rows == 30);
    EXPECT_EQ(files_.Files(), before);
  }
}

TEST_F(TableBuilderTest, WhatAKilledWriterLeftIsRemoved) {
  ASSERT_OK(table_.Build({{"a", ""}}));
  for (const char* name : {"g00000003-0.segment", "g00000003.manifest.tmp", "spill.tmp"}) {
    files_.Put(table_.Path(name), "left over");
  }
  ASSERT_OK(table_.Append({{"b", ""}}));
  ASSERT_OK_AND_ASSIGN(const auto names, files_.List(table_.dir()));
  EXPECT_THAT(names, ElementsAre("g00000001.manifest", "g00000002-0.segment", "g00000002.manifest",
                                 "g00000003-0.segment", "g00000003.manifest", "lock"));
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
  ExpectSameAnswers(*snapshot, table_.reference(), {"a", "b", "c"}, 64);
}

TEST_F(TableBuilderTest, ADamagedManifestStopsTheBuildAndIsNamed) {
  ASSERT_OK(table_.Build({{"a", ""}}));
  files_.Bytes(table_.Path("g00000002.manifest"))[20] ^= 1;
  ExpectRefused({{"b", ""}}, absl::StatusCode::kDataLoss, HasSubstr("g00000002.manifest"));
  ExpectRefused({{"b", ""}}, absl::StatusCode::kDataLoss, HasSubstr("g00000002.manifest"), true);
}

TEST_F(TableBuilderTest, TellsOfItsProgress) {
  const std::vector<Row> rows = RandomRows(200'000, 8, 0);
  VectorSource source(rows);
  std::vector<BuildProgress> told;
  ASSERT_OK(BuildTable(files_, table_.options, source,
                       [&](const BuildProgress& progress) { told.push_back(progress); }));
  using Phase = BuildProgress::Phase;
  for (const Phase phase : {Phase::kRead, Phase::kWrite, Phase::kCheck}) {
    std::vector<BuildProgress> in_phase;
    for (const BuildProgress& progress : told) {
      if (progress.phase == phase) in_phase.push_back(progress);
    }
    ASSERT_GE(in_phase.size(), 2u);
    for (size_t i = 1; i < in_phase.size(); ++i) {
      EXPECT_LE(in_phase[i - 1].rows, in_phase[i].rows);
    }
    EXPECT_EQ(in_phase.back().rows, rows.size());
    EXPECT_EQ(in_phase.back().rows_total, rows.size());
  }
  for (size_t i = 1; i < told.size(); ++i) EXPECT_LE(told[i - 1].phase, told[i].phase);
  EXPECT_EQ(told.back().bytes_total, rows.size());
}

}  // namespace
}  // namespace latchkey::test
