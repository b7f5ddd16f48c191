// Tables with a section of more than 4 GiB: built from rows that are made as they are read, and
// every key looked up again. They take some minutes, and 12 GiB of disk.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/hash.h"
#include "core/build/table_builder.h"
#include "core/lookup/probe_engine.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

constexpr uint64_t kFourGib = uint64_t{1} << 32;

// Bytes that are different in each place for each number.
void Fill(uint64_t number, size_t size_bytes, std::string* bytes) {
  bytes->resize(size_bytes);
  uint64_t state = HashBytes(&number, sizeof(number), size_bytes);
  size_t at = 0;
  for (; at + 8 <= size_bytes; at += 8) {
    Store(bytes->data() + at, state);
    state += 0x9E3779B97F4A7C15;
  }
  std::memcpy(bytes->data() + at, &state, size_bytes - at);
}

struct Shape {
  uint64_t rows;
  size_t key_bytes;
  size_t value_bytes_min, value_bytes_max;
  TableSchema schema;
  Layout layout;
  SectionKind large;
  size_t batch_keys;
};

class LargeSectionTest : public SeededTest {
 protected:
  void MakeRow(const Shape& shape, uint64_t ordinal, Row* row) const {
    const uint64_t number = salt_ + ordinal;
    Fill(number, shape.key_bytes, &row->key);
    const size_t spread = shape.value_bytes_max - shape.value_bytes_min + 1;
    // Scattered, so that the sum of the sizes is much the same whatever the seed.
    const uint64_t scattered = HashBytes(&number, sizeof(number), 0);
    Fill(~number, shape.value_bytes_min + scattered % spread, &row->value);
    if (shape.schema.doc_id_bytes == 8) row->doc_id = ordinal << 30;
  }

  void BuildAndLookUpAll(const Shape& shape) {
    const TempDir folder;
    BuildOptions options;
    options.data_dir = folder.path();
    options.table = "t";
    options.schema = shape.schema;
    GeneratorSource source(shape.rows,
                           [&](uint64_t ordinal, Row* row) { MakeRow(shape, ordinal, row); });
    const AllocationMeter meter;
    ASSERT_OK_AND_ASSIGN(const BuildResult built,
                         BuildTable(PosixFileSystem(), options, source, nullptr));
    EXPECT_LT(meter.peak_bytes(), options.memory_bytes * 3 / 2);
    EXPECT_EQ(built.rows_stored, shape.rows);
    EXPECT_EQ(built.header.layout, shape.layout);
    EXPECT_GT(built.header.section(shape.large).size_bytes, kFourGib + (kFourGib >> 6));
    ASSERT_OK_AND_ASSIGN(const auto snapshot,
                         Snapshot::OpenNewest(PosixFileSystem(), folder.Path("t")));
    // As many keys again, which are absent.
    std::vector<Row> rows(shape.batch_keys);
    std::vector<std::string_view> views;
    ProbeEngine engine;
    LookupResults results;
    for (uint64_t begin = 0; begin < 2 * shape.rows; begin += views.size()) {
      views.clear();
      for (size_t i = 0; i < std::min<uint64_t>(shape.batch_keys, 2 * shape.rows - begin); ++i) {
        MakeRow(shape, begin + i, &rows[i]);
        views.push_back(rows[i].key);
      }
      engine.Lookup(*snapshot, views, &results);
      for (size_t i = 0; i < views.size(); ++i) {
        LookupResult expected;
        if (begin + i < shape.rows) {
          expected = {Outcome::kFound, rows[i].doc_id.value_or(begin + i), rows[i].value};
        }
        ASSERT_EQ(results.at(i), expected)
            << "row " << begin + i << ": " << Describe(results.at(i));
      }
      // The one-key path, now and then.
      ASSERT_EQ(LookupOne(*snapshot, views[0]), results.at(0));
    }
  }

  const uint64_t salt_ = random_.Next();
};

TEST_F(LargeSectionTest, Values) {
  BuildAndLookUpAll({.rows = 2800,
                     .key_bytes = 16,
                     .value_bytes_min = 1 << 20,
                     .value_bytes_max = (2 << 20) + (1 << 18),
                     .schema = {.value_kind = ValueKind::kBytes},
                     .layout = Layout::kLine,
                     .large = SectionKind::kValues,
                     .batch_keys = 50});
}

TEST_F(LargeSectionTest, Records) {
  BuildAndLookUpAll({.rows = 130'000,
                     .key_bytes = kKeyBytesMax,
                     .value_bytes_min = 0,
                     .value_bytes_max = 0,
                     .schema = {.doc_id_bytes = 8},
                     .layout = Layout::kPointer,
                     .large = SectionKind::kRecords,
                     .batch_keys = 1000});
}

// The longest rows that lines hold, two to a line.
TEST_F(LargeSectionTest, Lines) {
  BuildAndLookUpAll({.rows = 33'000'000,
                     .key_bytes = kLineRecordBytesMax - 8 - kFixedValueBytesMax,
                     .value_bytes_min = kFixedValueBytesMax,
                     .value_bytes_max = kFixedValueBytesMax,
                     .schema = {.doc_id_bytes = 8,
                                .value_kind = ValueKind::kFixed,
                                .value_width = kFixedValueBytesMax},
                     .layout = Layout::kLine,
                     .large = SectionKind::kLines,
                     .batch_keys = 4096});
}

}  // namespace
}  // namespace latchkey::test
