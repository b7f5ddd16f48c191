// The sizes and encodings of lines, records, pointers and locators.
#include "core/segment/line_shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/key/limits.h"
#include "core/segment/record_pointer.h"
#include "core/segment/value_locator.h"
#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

class LineShapeTest : public SeededTest {};

std::vector<TableSchema> AllWidths() {
  std::vector<TableSchema> schemas;
  for (const uint8_t doc_id_bytes : {4, 8}) {
    schemas.push_back({.doc_id_bytes = doc_id_bytes});
    schemas.push_back({.doc_id_bytes = doc_id_bytes, .value_kind = ValueKind::kBytes});
    for (uint8_t width = 1; width <= kFixedValueBytesMax; ++width) {
      schemas.push_back(
          {.doc_id_bytes = doc_id_bytes, .value_kind = ValueKind::kFixed, .value_width = width});
    }
  }
  return schemas;
}

// What a line of the line layout has beside the key.
size_t FixedBytes(const TableSchema& schema) {
  return schema.doc_id_bytes + (schema.value_kind == ValueKind::kBytes ? 8 : schema.value_width);
}

// A line of random bytes whose entries have the keys of `keys`, and that mark.
std::vector<uint8_t> LineOfKeys(Random& random, const LineShape& shape,
                                const std::vector<std::string>& keys, uint8_t mark) {
  std::vector<uint8_t> line(shape.line_bytes());
  for (uint8_t& byte : line) byte = static_cast<uint8_t>(random.Next());
  for (size_t i = 0; i < keys.size(); ++i) {
    std::copy(keys[i].begin(), keys[i].end(),
              line.begin() + static_cast<ptrdiff_t>(i * shape.entry_bytes() + shape.key_offset()));
  }
  line.back() = mark;
  return line;
}

// The line is the smallest of 64 bytes filled to 85%, 128 or 256 filled to 75%, with two entries at
// least; 256 when none is. As many entries as fit it, and the mark behind them.
TEST_F(LineShapeTest, RowsFillTheSmallestLineThatWastesLittle) {
  size_t unsuited = 0;
  for (const TableSchema& schema : AllWidths()) {
    for (size_t key_bytes = 0; FixedBytes(schema) + key_bytes <= kLineRecordBytesMax; ++key_bytes) {
      const LineShape shape = LineShape::OfRows(schema, key_bytes);
      const size_t entry_bytes = FixedBytes(schema) + key_bytes;
      size_t line_bytes = 256;
      bool suits = false;
      for (const size_t size : {256, 128, 64}) {
        const size_t filled = (size - 1) / entry_bytes * entry_bytes;
        if (filled < 2 * entry_bytes || 100 * filled < (size == 64 ? 85 : 75) * size) continue;
        line_bytes = size;
        suits = true;
      }
      SCOPED_TRACE(testing::Message() << schema.ToString() << ", keys of " << key_bytes);
      ASSERT_EQ(shape.line_bytes(), line_bytes);
      ASSERT_EQ(size_t{1} << shape.line_shift(), line_bytes);
      ASSERT_EQ(shape.entry_bytes(), entry_bytes);
      ASSERT_EQ(shape.key_bytes(), key_bytes);
      ASSERT_EQ(shape.key_offset(), FixedBytes(schema));
      ASSERT_EQ(shape.value_offset(), schema.doc_id_bytes);
      ASSERT_EQ(shape.doc_id_bytes(), schema.doc_id_bytes);
      ASSERT_LT(shape.entries() * entry_bytes, line_bytes);
      ASSERT_GE((shape.entries() + 1) * entry_bytes, line_bytes);
      ASSERT_GE(shape.entries(), 2u);
      // A mask of 32 bits has one for each.
      ASSERT_LT(shape.entries(), 32u);
      ASSERT_EQ(kPageBytes % line_bytes, 0u) << "lines straddle pages";
      ASSERT_EQ(LineShape::SuitsRows(schema, key_bytes), suits);
      unsuited += !suits;
    }
    // What is too long for lines is not for them, however well it would fill some.
    for (size_t beyond = 1; beyond < 300; ++beyond) {
      ASSERT_FALSE(LineShape::SuitsRows(schema, kLineRecordBytesMax - FixedBytes(schema) + beyond));
    }
    ASSERT_FALSE(LineShape::SuitsRows(schema, kKeyBytesMax));
  }
  EXPECT_GT(unsuited, 0u);
}

TEST_F(LineShapeTest, ShapesOfCommonRows) {
  struct Case {
    size_t key_bytes;
    uint8_t doc_id_bytes;
    uint8_t value_width;
    size_t line_bytes;
    uint32_t entries;
  };
  for (const Case& c : {Case{8, 4, 0, 64, 5}, Case{8, 8, 0, 128, 7}, Case{16, 4, 0, 64, 3},
                        Case{16, 8, 0, 128, 5}, Case{20, 4, 0, 128, 5}, Case{20, 8, 0, 64, 2},
                        Case{32, 4, 0, 128, 3}, Case{36, 4, 0, 128, 3}, Case{36, 8, 20, 256, 3},
                        Case{1, 4, 0, 64, 12}, Case{123, 4, 0, 256, 2}, Case{59, 4, 64, 256, 2}}) {
    const TableSchema schema = {
        .doc_id_bytes = c.doc_id_bytes,
        .value_kind = c.value_width == 0 ? ValueKind::kNone : ValueKind::kFixed,
        .value_width = c.value_width};
    const LineShape shape = LineShape::OfRows(schema, c.key_bytes);
    EXPECT_EQ(shape.line_bytes(), c.line_bytes) << c.key_bytes;
    EXPECT_EQ(shape.entries(), c.entries) << c.key_bytes;
    EXPECT_TRUE(LineShape::SuitsRows(schema, c.key_bytes)) << c.key_bytes;
  }
  // Two entries of 90 bytes leave a third of the longest line empty.
  EXPECT_FALSE(LineShape::SuitsRows({}, 86));
}

TEST_F(LineShapeTest, SevenPointersFillALine) {
  for (const TableSchema& schema : AllWidths()) {
    const LineShape shape = LineShape::OfPointers(schema);
    ASSERT_EQ(shape.line_bytes(), 64u);
    ASSERT_EQ(shape.entries(), 7u);
    ASSERT_EQ(shape.entry_bytes(), 8u);
    ASSERT_EQ(shape.key_bytes(), 0u);
    ASSERT_EQ(shape.doc_id_bytes(), schema.doc_id_bytes);
  }
}

// Shapes are equal when lines can be read alike; a segment map relies on it.
TEST_F(LineShapeTest, ShapesThatDifferInAnythingAreUnequal) {
  const TableSchema plain = {};
  EXPECT_EQ(LineShape::OfRows(plain, 16), LineShape::OfRows(plain, 16));
  EXPECT_NE(LineShape::OfRows(plain, 16), LineShape::OfRows(plain, 17));
  EXPECT_NE(LineShape::OfRows(plain, 16), LineShape::OfPointers(plain));
  // 28 bytes each, which are divided in other ways.
  const TableSchema wide = {.doc_id_bytes = 8};
  const TableSchema valued = {.value_kind = ValueKind::kFixed, .value_width = 4};
  EXPECT_NE(LineShape::OfRows(plain, 24), LineShape::OfRows(wide, 20));
  EXPECT_NE(LineShape::OfRows(plain, 24), LineShape::OfRows(valued, 20));
  EXPECT_NE(LineShape::OfRows(wide, 20), LineShape::OfRows(valued, 20));
}

TEST_F(LineShapeTest, MarksAreTheBitAndANumberOfEntriesThatFits) {
  std::vector<LineShape> shapes = {LineShape::OfPointers({})};
  for (const size_t key_bytes : {1, 8, 16, 20, 36, 100}) {
    shapes.push_back(LineShape::OfRows({}, key_bytes));
  }
  for (const LineShape& shape : shapes) {
    std::vector<uint8_t> line(shape.line_bytes(), 0x55);
    for (unsigned byte = 0; byte < 256; ++byte) {
      const auto mark = static_cast<uint8_t>(byte);
      line.back() = mark;
      ASSERT_EQ(shape.MarkAfter(line.data()), mark);
      const bool expected = byte >= 0x80 && byte - 0x80 <= shape.entries();
      ASSERT_EQ(shape.IsMark(mark), expected) << byte;
      if (!expected) continue;
      uint32_t mask = 0;
      for (unsigned i = 0; i < byte - 0x80; ++i) mask |= 1u << i;
      ASSERT_EQ(EntriesMask(mark), mask) << byte;
    }
  }
}

TEST_F(LineShapeTest, DocIdsAreNeverHolesOrTombstones) {
  for (const uint8_t doc_id_bytes : {4, 8}) {
    const uint64_t largest = TableSchema{.doc_id_bytes = doc_id_bytes}.DocIdMax();
    EXPECT_EQ(largest, doc_id_bytes == 4 ? 4'294'967'293u : 18'446'744'073'709'551'613u);
    std::vector<uint64_t> doc_ids = {0, 1, largest - 1, largest};
    for (int i = 0; i < 1000; ++i) doc_ids.push_back(random_.Next() % largest);
    for (const uint64_t doc_id : doc_ids) {
      std::vector<uint8_t> bytes(9, 0x77);
      StoreDocIdField(bytes.data(), FieldOfDocId(doc_id, doc_id_bytes), doc_id_bytes);
      EXPECT_EQ(bytes[doc_id_bytes], 0x77) << "wrote beyond the field";
      const uint64_t field = LoadDocIdField(bytes.data(), doc_id_bytes);
      EXPECT_NE(field, kDocIdHole) << doc_id;
      EXPECT_NE(field, kDocIdTombstone) << doc_id;
      EXPECT_EQ(DocIdOfField(field, doc_id_bytes), doc_id);
    }
    // The two that are no doc ids are just above, and zero bytes are a hole.
    EXPECT_EQ(FieldOfDocId(largest + 1, doc_id_bytes), kDocIdTombstone);
    EXPECT_EQ(FieldOfDocId(largest + 2, doc_id_bytes), kDocIdHole);
    const std::vector<uint8_t> hole(doc_id_bytes, 0);
    EXPECT_EQ(LoadDocIdField(hole.data(), doc_id_bytes), kDocIdHole);
  }
}

TEST_F(LineShapeTest, SameBytesLooksAtEveryByteAndNoOther) {
  for (size_t size = 0; size <= kLineRecordBytesMax; ++size) {
    // Vectors of just that size, so that a sanitizer sees what is read beyond.
    const std::string bytes = random_.Bytes(size);
    const std::vector<char> a(bytes.begin(), bytes.end());
    std::vector<char> b = a;
    b.reserve(1);
    ASSERT_TRUE(SameBytes(bytes.data(), b.data(), size)) << size;
    for (size_t at = 0; at < size; ++at) {
      for (unsigned bit = 0; bit < 8; ++bit) {
        b[at] = static_cast<char>(a[at] ^ (1 << bit));
        ASSERT_FALSE(SameBytes(a.data(), b.data(), size)) << size << ", byte " << at;
        ASSERT_FALSE(SameBytes(b.data(), a.data(), size)) << size << ", byte " << at;
      }
      b[at] = a[at];
    }
    // Differences that take each other out if they were added up.
    for (size_t at = 0; at + 8 < size; ++at) {
      b[at] ^= 0x10;
      b[at + 8] ^= 0x10;
      ASSERT_FALSE(SameBytes(a.data(), b.data(), size)) << size << ", byte " << at;
      b[at] = a[at];
      b[at + 8] = a[at + 8];
    }
  }
}

TEST_F(LineShapeTest, MatchKeysFindsTheEntriesThatHaveTheKey) {
  for (const TableSchema& schema :
       {TableSchema{}, TableSchema{.doc_id_bytes = 8},
        TableSchema{.value_kind = ValueKind::kFixed, .value_width = 5},
        TableSchema{.doc_id_bytes = 8, .value_kind = ValueKind::kBytes}}) {
    for (size_t key_bytes = 1; FixedBytes(schema) + key_bytes <= kLineRecordBytesMax; ++key_bytes) {
      const LineShape shape = LineShape::OfRows(schema, key_bytes);
      for (int round = 0; round < 4; ++round) {
        // Keys that differ from the wanted one in nothing, one bit, or all.
        const std::string wanted = random_.Bytes(key_bytes);
        std::vector<std::string> keys(shape.entries());
        uint32_t expected = 0;
        for (uint32_t i = 0; i < shape.entries(); ++i) {
          keys[i] = random_.OneIn(3) ? random_.Bytes(key_bytes) : wanted;
          if (random_.OneIn(2)) keys[i][random_.Below(key_bytes)] ^= 1 << random_.Below(8);
          if (keys[i] == wanted) expected |= 1u << i;
        }
        const auto count = static_cast<uint8_t>(random_.Below(shape.entries() + 1));
        const std::vector<uint8_t> line =
            LineOfKeys(random_, shape, keys, static_cast<uint8_t>(kMarkBit | count));
        // Entries that the mark does not count as well, as they lie there.
        ASSERT_EQ(MatchKeys(shape, line.data(), wanted.data()), expected);
        for (uint32_t i = 0; i < shape.entries(); ++i) {
          ASSERT_EQ(shape.KeyAt(shape.Entry(line.data(), i)), keys[i]);
        }
      }
    }
  }
}

TEST_F(LineShapeTest, Pointers) {
  constexpr uint64_t kLastOffset = kPartitionRecordBytesMax - 2;
  constexpr uint32_t kLastTag = (uint32_t{1} << kTagBits) - 1;
  std::vector<uint64_t> offsets = {0, 1, UINT32_MAX, uint64_t{UINT32_MAX} + 1, kLastOffset};
  for (int i = 0; i < 100; ++i) offsets.push_back(random_.Below(kLastOffset));
  for (const uint64_t offset : offsets) {
    for (const uint32_t tag :
         {0u, 1u, 0x800'000u, kLastTag, static_cast<uint32_t>(random_.Below(kLastTag))}) {
      const uint64_t pointer = MakePointer(offset, tag);
      EXPECT_NE(pointer >> kTagBits, 0u);
      EXPECT_EQ(OffsetOfPointer(pointer), offset);
      EXPECT_EQ(TagOfPointer(pointer), tag);
    }
  }
  // Holes, whatever the tag: no partition has a record there.
  EXPECT_EQ(OffsetOfPointer(0), UINT64_MAX);
  EXPECT_EQ(OffsetOfPointer(kLastTag), UINT64_MAX);
}

TEST_F(LineShapeTest, RecordsDoNotStraddlePagesUnlessTheyMust) {
  for (int round = 0; round < 200; ++round) {
    uint64_t end = 0;
    for (int i = 0; i < 100; ++i) {
      const size_t size_bytes =
          random_.OneIn(5) ? random_.Between(1, 10'000) : random_.Between(1, 200);
      const uint64_t offset = PlacePointedRecord(end, size_bytes);
      ASSERT_GE(offset, end);
      ASSERT_LT(offset - end, kPageBytes);
      const bool one_page = offset / kPageBytes == (offset + size_bytes - 1) / kPageBytes;
      ASSERT_TRUE(one_page || (size_bytes > kPageBytes && offset % kPageBytes == 0));
      // No room is left where the record would have fitted.
      ASSERT_TRUE(offset == end || end % kPageBytes + size_bytes > kPageBytes);
      end = offset + size_bytes;
    }
  }
  EXPECT_EQ(PlacePointedRecord(0, kPageBytes), 0u);
  EXPECT_EQ(PlacePointedRecord(kPageBytes - 10, 10), kPageBytes - 10);
  EXPECT_EQ(PlacePointedRecord(kPageBytes - 10, 11), kPageBytes);
}

TEST_F(LineShapeTest, RecordsAreReadWithinTheirBounds) {
  for (const TableSchema& schema :
       {TableSchema{}, TableSchema{.doc_id_bytes = 8, .value_kind = ValueKind::kBytes},
        TableSchema{.value_kind = ValueKind::kFixed, .value_width = 64}}) {
    for (const size_t key_bytes : {size_t{1}, size_t{127}, size_t{128}, kKeyBytesMax}) {
      std::vector<uint8_t> bytes(PointedRecordBytes(schema, key_bytes), 0x11);
      uint8_t* const key = StoreVarint(bytes.data() + FixedBytes(schema), key_bytes);
      ASSERT_EQ(key + key_bytes, bytes.data() + bytes.size());
      PointedRecord record;
      ASSERT_TRUE(ReadPointedRecord(schema, bytes.data(), bytes.size(), 0, &record));
      EXPECT_EQ(record.doc_id, bytes.data());
      EXPECT_EQ(record.value, bytes.data() + schema.doc_id_bytes);
      EXPECT_EQ(record.key.size(), key_bytes);
      EXPECT_EQ(record.key.data(), reinterpret_cast<const char*>(key));
      // Cut anywhere, or begun anywhere beyond.
      for (size_t cut = 0; cut < bytes.size(); cut += 1 + cut / 100) {
        const std::vector<uint8_t> shorter(bytes.begin(),
                                           bytes.begin() + static_cast<ptrdiff_t>(cut));
        EXPECT_FALSE(ReadPointedRecord(schema, shorter.data(), shorter.size(), 0, &record)) << cut;
      }
      for (const uint64_t offset : {bytes.size(), bytes.size() + 1, size_t{1} << 40, SIZE_MAX}) {
        EXPECT_FALSE(ReadPointedRecord(schema, bytes.data(), bytes.size(), offset, &record));
      }
      // A length that is more than there is, by one or as much as can be said.
      for (const uint64_t length : {uint64_t{key_bytes} + 1, uint64_t{1} << 40, UINT64_MAX}) {
        std::vector<uint8_t> longer = bytes;
        if (VarintSize(length) > VarintSize(key_bytes) + key_bytes) longer.resize(200, 0x11);
        StoreVarint(longer.data() + FixedBytes(schema), length);
        EXPECT_FALSE(ReadPointedRecord(schema, longer.data(), longer.size(), 0, &record)) << length;
      }
    }
  }
}

TEST_F(LineShapeTest, Locators) {
  constexpr uint64_t kLastOffset = (uint64_t{1} << 48) - 2;
  for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{UINT32_MAX} + 1, kLastOffset}) {
    for (const uint16_t check : {0, 1, 0xFFFF}) {
      const uint64_t locator = MakeLocator(offset, check);
      EXPECT_GE(locator, uint64_t{1} << 16);
      EXPECT_EQ(LocatorOffset(locator), offset);
      EXPECT_EQ(LocatorCheck(locator), check);
    }
  }
  // Holes, whatever the check.
  EXPECT_EQ(LocatorOffset(0), UINT64_MAX);
  EXPECT_EQ(LocatorOffset(0xFFFF), UINT64_MAX);
}

TEST_F(LineShapeTest, AValuesCheckDependsOnValueAndKey) {
  int same_value = 0, same_key = 0, same_length = 0;
  for (int i = 0; i < 10'000; ++i) {
    const std::string value = random_.Bytes(random_.Between(1, 40));
    const uint64_t hash = random_.Next();
    std::string other = value;
    other[random_.Below(other.size())] ^= 1;
    same_value += ValueCheck(value, hash) == ValueCheck(other, hash);
    same_key +=
        ValueCheck(value, hash) == ValueCheck(value, hash ^ (uint64_t{1} << random_.Below(64)));
    same_length += ValueCheck(value, hash) ==
                   ValueCheck(std::string_view(value).substr(0, value.size() - 1), hash);
    ASSERT_EQ(ValueCheck(value, hash), ValueCheck(std::string(value), hash));
  }
  // Chance lets one in 65,536 be the same.
  EXPECT_LT(same_value, 8);
  EXPECT_LT(same_key, 8);
  EXPECT_LT(same_length, 8);
}

TEST_F(LineShapeTest, StoredValuesHaveALengthThatIsNotZero) {
  EXPECT_EQ(StoredValueBytes(0), 1u);
  EXPECT_EQ(StoredValueBytes(126), 127u);
  EXPECT_EQ(StoredValueBytes(127), 129u);
  EXPECT_EQ(StoredValueBytes(kValueBytesMax), kValueBytesMax + 4);
}

}  // namespace
}  // namespace latchkey::test
