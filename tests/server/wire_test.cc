// Every way of sending keys and every form of answer, against the engine's own answers.
#include "server/wire.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "core/key/key_kind.h"
#include "core/lookup/probe_engine.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::HasSubstr;

constexpr uint64_t kReplyBytesMax = uint64_t{64} << 20;

// How a request carries its keys.
enum class Encoding { kBytes, kText, kWidth, kLengths };
constexpr Encoding kEncodings[] = {Encoding::kBytes, Encoding::kText, Encoding::kWidth,
                                   Encoding::kLengths};

v1::BatchGetRequest MakeRequest(const std::vector<std::string>& keys, KeyKind kind,
                                Encoding encoding) {
  v1::BatchGetRequest request;
  for (const std::string& key : keys) {
    switch (encoding) {
      case Encoding::kBytes:
        request.add_keys(key);
        break;
      case Encoding::kText:
        request.add_text_keys(KeyToText(kind, key));
        break;
      case Encoding::kLengths:
        request.mutable_packed_keys()->add_lengths(static_cast<uint32_t>(key.size()));
        [[fallthrough]];
      case Encoding::kWidth:
        request.mutable_packed_keys()->mutable_data()->append(key);
        break;
    }
  }
  if (encoding == Encoding::kWidth) {
    request.mutable_packed_keys()->set_width(static_cast<uint32_t>(keys[0].size()));
  }
  return request;
}

// A row of either form.
struct AnyRow {
  int outcome = 0, reason = 0;
  uint64_t doc_id = 0;
  std::string value;
  bool operator==(const AnyRow&) const = default;
};

std::vector<AnyRow> RowsOf(const v1::BatchGetResponse& response) {
  std::vector<AnyRow> rows;
  for (const v1::Row& row : response.rows()) {
    rows.push_back({row.outcome(), row.reason(), row.doc_id(),
                    row.has_text_value() ? row.text_value() : row.value()});
  }
  const v1::PackedRows& packed = response.packed_rows();
  size_t at = 0;
  for (int i = 0; i < static_cast<int>(packed.outcomes().size()); ++i) {
    const int outcome = static_cast<uint8_t>(packed.outcomes()[static_cast<size_t>(i)]);
    const size_t value_bytes = packed.value_lengths_size() > 0 ? packed.value_lengths(i) : 0;
    rows.push_back({outcome & 15, outcome >> 4,
                    packed.doc_ids_64_size() > 0 ? packed.doc_ids_64(i) : packed.doc_ids_32(i),
                    packed.values().substr(at, value_bytes)});
    at += value_bytes;
  }
  EXPECT_EQ(at, packed.values().size());
  return rows;
}

class WireTest : public SeededTest {
 protected:
  std::shared_ptr<const Snapshot> MakeTable(const TableSchema& schema, size_t rows) {
    TestTable table(PosixFileSystem(), dir_.Path(std::to_string(tables_++)), random_);
    table.options.schema = schema;
    const std::vector<std::string> keys = DistinctKeys(random_, rows, 16);
    std::vector<Row> built;
    for (size_t i = 0; i < keys.size(); ++i) {
      Row row{keys[i], {}, random_.Below(schema.DocIdMax())};
      if (schema.value_kind == ValueKind::kFixed) row.value = random_.Bytes(schema.value_width);
      // Half of the values are text, half are not.
      if (schema.value_kind == ValueKind::kBytes) {
        row.value = i % 2 == 0 ? "value " + std::to_string(i) : "\xFF" + random_.Bytes(20);
      }
      built.push_back(std::move(row));
    }
    // Every other table has two segments, and so a segment map.
    const bool two = tables_ % 2 == 0;
    if (two) {
      EXPECT_OK(table.Build({built.begin(), built.begin() + static_cast<ptrdiff_t>(rows / 2)}));
    }
    EXPECT_OK(two ? table.Append(built) : table.Build(built));
    auto snapshot = table.Open();
    EXPECT_OK(snapshot);
    EXPECT_EQ((*snapshot)->segment_map() != nullptr, two);
    // Present and absent, and one of them twice.
    keys_ = keys;
    for (size_t i = 0; i < rows; ++i) keys_.push_back(random_.Bytes(16));
    keys_.push_back(keys[0]);
    return *std::move(snapshot);
  }

  // Decodes, looks up and encodes as the service does.
  absl::StatusOr<v1::BatchGetResponse> Answer(const Snapshot& snapshot,
                                              const v1::BatchGetRequest& request,
                                              uint64_t reply_bytes_max = kReplyBytesMax) {
    std::vector<std::string_view> keys;
    std::string decoded;
    const absl::Status status = DecodeKeys(request, snapshot.schema().key_kind, &keys, &decoded);
    if (!status.ok()) return status;
    EXPECT_EQ(keys.size(), CountKeys(request));
    LookupResults results;
    ProbeEngine().Lookup(snapshot, keys, &results);
    v1::BatchGetResponse response;
    EncodeResults(request, snapshot, results, reply_bytes_max, &response);
    return response;
  }

  TempDir dir_;
  int tables_ = 0;
  std::vector<std::string> keys_;
};

TEST_F(WireTest, AllEncodingsAndFormsGiveTheEnginesAnswers) {
  for (const KeyKind kind : {KeyKind::kRaw, KeyKind::kHex, KeyKind::kUuid}) {
    for (const uint8_t doc_id_bytes : {4, 8}) {
      for (const ValueKind values : {ValueKind::kNone, ValueKind::kFixed, ValueKind::kBytes}) {
        TableSchema schema{.key_kind = kind, .doc_id_bytes = doc_id_bytes, .value_kind = values};
        if (values == ValueKind::kFixed) schema.value_width = 7;
        SCOPED_TRACE(schema.ToString());
        const auto snapshot = MakeTable(schema, 300);
        std::vector<AnyRow> expected;
        for (const std::string& key : keys_) {
          const LookupResult result = LookupOne(*snapshot, key);
          const bool found = result.outcome == Outcome::kFound;
          expected.push_back({found ? v1::FOUND : v1::ABSENT, v1::REASON_NONE, result.doc_id,
                              std::string(result.value)});
        }
        for (const Encoding encoding : kEncodings) {
          for (const v1::AnswerForm form : {v1::ROWS, v1::PACKED}) {
            v1::BatchGetRequest request = MakeRequest(keys_, kind, encoding);
            request.set_answer_form(form);
            ASSERT_OK_AND_ASSIGN(const v1::BatchGetResponse response, Answer(*snapshot, request));
            EXPECT_EQ(response.generation(), snapshot->generation());
            EXPECT_TRUE(response.complete());
            EXPECT_EQ(RowsOf(response), expected);
          }
        }
      }
    }
  }
}

TEST_F(WireTest, TextComesAsTextWhenItWasAskedForAndIsText) {
  const auto snapshot = MakeTable({.key_kind = KeyKind::kHex, .value_kind = ValueKind::kBytes}, 10);
  keys_.resize(2);
  for (const bool by_flag : {false, true}) {
    v1::BatchGetRequest request =
        MakeRequest(keys_, KeyKind::kHex, by_flag ? Encoding::kBytes : Encoding::kText);
    request.set_text_values(by_flag);
    ASSERT_OK_AND_ASSIGN(const auto response, Answer(*snapshot, request));
    EXPECT_EQ(response.rows(0).text_value(), "value 0");
    EXPECT_TRUE(response.rows(1).has_value()) << "not valid UTF-8";
  }
  ASSERT_OK_AND_ASSIGN(const auto response,
                       Answer(*snapshot, MakeRequest(keys_, KeyKind::kHex, Encoding::kBytes)));
  EXPECT_EQ(response.rows(0).value(), "value 0");
}

TEST_F(WireTest, RowsBeyondTheReplyBudgetAreNotDone) {
  const auto snapshot = MakeTable({.value_kind = ValueKind::kFixed, .value_width = 10}, 5);
  keys_.resize(5);
  for (const v1::AnswerForm form : {v1::ROWS, v1::PACKED}) {
    v1::BatchGetRequest request = MakeRequest(keys_, KeyKind::kRaw, Encoding::kBytes);
    request.set_answer_form(form);
    request.set_reply_bytes_max(35);
    for (const uint64_t server_max : {kReplyBytesMax, uint64_t{35}}) {
      ASSERT_OK_AND_ASSIGN(const auto response, Answer(*snapshot, request, server_max));
      const std::vector<AnyRow> rows = RowsOf(response);
      ASSERT_EQ(rows.size(), 5u);
      EXPECT_FALSE(response.complete());
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(rows[i].outcome, v1::FOUND);
      for (size_t i = 3; i < 5; ++i) {
        EXPECT_EQ(rows[i], (AnyRow{v1::NOT_DONE, v1::REPLY_BUDGET, 0, ""}));
      }
      request.set_reply_bytes_max(0);  // now the server's limit alone
    }
  }
}

// A row that can't be read is not done, whatever the form, and nothing else is told of it.
TEST_F(WireTest, DamagedRowsAreNotDone) {
  for (const ValueKind values : {ValueKind::kNone, ValueKind::kFixed, ValueKind::kBytes}) {
    TableSchema schema{.value_kind = values};
    if (values == ValueKind::kFixed) schema.value_width = 7;
    const auto whole = MakeTable(schema, 200);
    const Segment& newest = *whole->segments()[0];
    const Section lines = newest.header().section(SectionKind::kLines);
    const std::string path = newest.path();
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(lines.offset));
      file << std::string(lines.size_bytes / 2, '\0');
      ASSERT_TRUE(file.flush().good());
    }
    ASSERT_OK_AND_ASSIGN(const auto snapshot,
                         Snapshot::OpenNewest(PosixFileSystem(), path.substr(0, path.rfind('/'))));
    const auto row_of = [](const LookupResult& result) {
      if (result.outcome == Outcome::kDamaged) {
        return AnyRow{v1::NOT_DONE, v1::DAMAGED_DATA, 0, ""};
      }
      const bool found = result.outcome == Outcome::kFound;
      return AnyRow{found ? v1::FOUND : v1::ABSENT, v1::REASON_NONE, result.doc_id,
                    std::string(result.value)};
    };
    LookupResults results;
    const std::vector<std::string_view> views(keys_.begin(), keys_.end());
    ProbeEngine().Lookup(*snapshot, views, &results);
    std::vector<AnyRow> expected;
    for (size_t i = 0; i < views.size(); ++i) expected.push_back(row_of(results.at(i)));
    const auto damaged =
        std::count(results.outcomes.begin(), results.outcomes.end(), Outcome::kDamaged);
    EXPECT_GT(damaged, 50);
    EXPECT_LT(damaged, 350);
    for (const v1::AnswerForm form : {v1::ROWS, v1::PACKED}) {
      v1::BatchGetRequest request = MakeRequest(keys_, KeyKind::kRaw, Encoding::kWidth);
      request.set_answer_form(form);
      ASSERT_OK_AND_ASSIGN(const auto response, Answer(*snapshot, request));
      EXPECT_FALSE(response.complete());
      EXPECT_TRUE(RowsOf(response) == expected);
    }
    for (const std::string& key : keys_) {
      v1::GetRequest request;
      request.set_key(key);
      v1::GetResponse response;
      const LookupResult result = LookupOne(*snapshot, key);
      EncodeResult(request, *snapshot, result, kReplyBytesMax, &response);
      EXPECT_TRUE((AnyRow{response.outcome(), response.reason(), response.doc_id(),
                          response.value()}) == row_of(result));
      EXPECT_EQ(response.value_size(), result.value.size());
    }
  }
}

TEST_F(WireTest, DescribesTheSnapshot) {
  TestTable table(PosixFileSystem(), dir_.Path("described"), random_);
  table.options.schema = {.key_kind = KeyKind::kHex,
                          .key_bytes = 16,
                          .doc_id_bytes = 8,
                          .value_kind = ValueKind::kFixed,
                          .value_width = 3};
  const auto build = [&](size_t rows, bool append) {
    std::vector<Row> built;
    for (const std::string& key : DistinctKeys(random_, rows, 16)) built.push_back({key, "abc"});
    EXPECT_OK(append ? table.Append(built) : table.Build(built));
  };
  const auto describe = [&](const SnapshotOptions& options) {
    v1::DescribeTableResponse response;
    const auto snapshot = Snapshot::OpenNewest(PosixFileSystem(), table.dir(), options);
    EXPECT_OK(snapshot);
    DescribeSnapshot("name", **snapshot, &response);
    return response;
  };
  build(100, false);
  v1::DescribeTableResponse told = describe({});
  EXPECT_EQ(told.table(), "name");
  EXPECT_EQ(told.generation(), 2u);
  EXPECT_GT(told.created_unix_s(), 0);
  EXPECT_EQ(told.key_kind(), "hex");
  EXPECT_EQ(told.key_bytes(), 16u);
  EXPECT_EQ(told.doc_id_bits(), 64u);
  EXPECT_EQ(told.values(), "fixed");
  EXPECT_EQ(told.value_width(), 3u);
  EXPECT_EQ(told.rows(), 100u);
  EXPECT_EQ(told.memory_mode(), "mmap");
  EXPECT_EQ(told.segment_map_bytes(), 0u) << "one segment needs no map";
  EXPECT_EQ(told.segment_map_missing(), "");
  ASSERT_EQ(told.segments_size(), 1);

  table.options.filter_bits_per_key = 0;
  table.options.layout = LayoutChoice::kPointer;
  build(70'000, true);
  told = describe({});
  EXPECT_EQ(told.rows(), 70'100u);
  EXPECT_GT(told.segment_map_bytes(), 2 * told.rows());
  EXPECT_EQ(told.segment_map_missing(), "");
  ASSERT_EQ(told.segments_size(), 2);
  EXPECT_EQ(told.segments(0).file(), "g00000003-0.segment");
  EXPECT_EQ(told.segments(0).layout(), "pointer");
  EXPECT_EQ(told.segments(0).rows(), 70'000u);
  EXPECT_EQ(told.segments(0).filter_bits_per_key(), 0u);
  EXPECT_GT(told.segments(0).partitions(), 1u);
  EXPECT_EQ(told.segments(1).file(), "g00000002-0.segment");
  EXPECT_EQ(told.segments(1).layout(), "line");
  EXPECT_EQ(told.segments(1).partitions(), 1u);
  for (const v1::SegmentDescription& segment : told.segments()) {
    EXPECT_EQ(segment.key_bytes_min(), 16u);
    EXPECT_EQ(segment.key_bytes_max(), 16u);
    EXPECT_EQ(segment.section_bytes_size(), static_cast<int>(kSectionCount));
    uint64_t sum = 0;
    for (const auto& [name, bytes] : segment.section_bytes()) sum += bytes;
    EXPECT_LT(sum, segment.file_bytes());
    EXPECT_EQ(segment.section_bytes().at("records") > 0, segment.layout() == "pointer");
    EXPECT_GE(segment.section_bytes().at("hashes"), 2 * segment.rows());
  }

  told = describe({.segment_map_bytes_max = 0});
  EXPECT_EQ(told.segment_map_bytes(), 0u);
  EXPECT_THAT(told.segment_map_missing(), HasSubstr("a segment map takes"));
  table.options.hash_list = false;
  build(10, true);
  told = describe({});
  EXPECT_EQ(told.segment_map_bytes(), 0u);
  EXPECT_THAT(told.segment_map_missing(), HasSubstr("g00000004-0.segment: it was built without"));
}

TEST_F(WireTest, GetGivesThePartOfTheValueThatWasAskedFor) {
  TestTable table(PosixFileSystem(), dir_.Path("get"), random_);
  table.options.schema = {.key_kind = KeyKind::kText, .value_kind = ValueKind::kBytes};
  ASSERT_OK(table.Build({{"key", "0123456789", 5}}));
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table.Open());
  const struct {
    uint64_t offset;
    uint32_t limit;
    uint64_t server_max;
    std::string part;
  } cases[] = {{0, 0, 100, "0123456789"}, {3, 0, 100, "3456789"}, {3, 4, 100, "3456"},
               {0, 100, 6, "012345"},     {10, 0, 100, ""},       {99, 5, 100, ""}};
  for (const auto& c : cases) {
    v1::GetRequest request;
    request.set_text_key("key");
    request.set_value_offset(c.offset);
    request.set_value_limit(c.limit);
    std::string_view key;
    std::string decoded;
    ASSERT_OK(DecodeKey(request, KeyKind::kText, &key, &decoded));
    v1::GetResponse response;
    EncodeResult(request, *snapshot, LookupOne(*snapshot, key), c.server_max, &response);
    EXPECT_EQ(response.outcome(), v1::FOUND);
    EXPECT_EQ(response.doc_id(), 5u);
    EXPECT_EQ(response.text_value(), c.part);
    EXPECT_EQ(response.value_size(), 10u);
  }
}

TEST_F(WireTest, BadKeysAreNamed) {
  const auto decode = [](const v1::BatchGetRequest& request, KeyKind kind) {
    std::vector<std::string_view> keys;
    std::string decoded;
    return DecodeKeys(request, kind, &keys, &decoded);
  };
  v1::BatchGetRequest request;
  request.add_keys(std::string(16, 'k'));
  request.add_keys("short");
  EXPECT_OK(decode(request, KeyKind::kRaw));
  EXPECT_FAILS(decode(request, KeyKind::kUuid), kInvalidArgument,
               HasSubstr("keys[1]: key of kind uuid: expected 16 bytes, got 5"));
  request.add_keys("");
  EXPECT_FAILS(decode(request, KeyKind::kRaw), kInvalidArgument, HasSubstr("keys[2]"));
  request.mutable_keys(2)->assign(kKeyBytesMax + 1, 'x');
  EXPECT_FAILS(decode(request, KeyKind::kRaw), kInvalidArgument, HasSubstr("got 32767"));
  request.add_text_keys("ab");
  EXPECT_FAILS(decode(request, KeyKind::kRaw), kInvalidArgument, HasSubstr("one of"));

  request.Clear();
  request.add_text_keys("00ff");
  request.add_text_keys("0x");
  EXPECT_FAILS(decode(request, KeyKind::kHex), kInvalidArgument, HasSubstr("text_keys[1]"));

  request.Clear();
  v1::PackedKeys& packed = *request.mutable_packed_keys();
  packed.set_data(std::string(33, 'd'));
  packed.set_width(16);
  EXPECT_FAILS(decode(request, KeyKind::kUuid), kInvalidArgument,
               HasSubstr("expected a multiple of width 16, got 33 bytes"));
  packed.set_width(11);
  EXPECT_OK(decode(request, KeyKind::kRaw));
  EXPECT_FAILS(decode(request, KeyKind::kUuid), kInvalidArgument,
               HasSubstr("packed_keys.width: key of kind uuid: expected 16 bytes, got 11"));
  packed.add_lengths(33);
  EXPECT_FAILS(decode(request, KeyKind::kRaw), kInvalidArgument, HasSubstr("got both"));
  packed.set_width(0);
  EXPECT_OK(decode(request, KeyKind::kRaw));
  packed.add_lengths(1);
  EXPECT_FAILS(decode(request, KeyKind::kRaw), kInvalidArgument,
               HasSubstr("packed_keys.lengths[1]: the key ends at 34, beyond the data's 33 bytes"));
  packed.set_lengths(1, UINT32_MAX);
  EXPECT_FAILS(decode(request, KeyKind::kRaw), kInvalidArgument,
               HasSubstr("packed_keys.lengths[1]"));
  packed.mutable_lengths()->Truncate(1);
  packed.set_lengths(0, 32);
  EXPECT_FAILS(decode(request, KeyKind::kRaw), kInvalidArgument,
               HasSubstr("expected the 32 bytes of the lengths, got 33"));
}

TEST_F(WireTest, CountsKeysHoweverTheyCome) {
  v1::BatchGetRequest request;
  EXPECT_EQ(CountKeys(request), 0u);
  request.mutable_packed_keys()->set_data(std::string(100, 'x'));
  request.mutable_packed_keys()->set_width(10);
  EXPECT_EQ(CountKeys(request), 10u);
  request.mutable_packed_keys()->add_lengths(0);
  request.add_keys("");
  request.add_text_keys("");
  EXPECT_EQ(CountKeys(request), 13u) << "keys of a request that will be refused count too";
}

}  // namespace
}  // namespace latchkey::test
