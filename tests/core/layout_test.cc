// The sizes and encodings of records, slot words and locators.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/key/limits.h"
#include "core/segment/inline_layout.h"
#include "core/segment/term_order_layout.h"
#include "core/segment/value_locator.h"
#include "tests/support/test_random.h"

namespace latchkey::test {
namespace {

class LayoutTest : public SeededTest {};

std::vector<TableSchema> AllWidths() {
  std::vector<TableSchema> schemas;
  for (const uint8_t doc_id_bytes : {4, 8}) {
    schemas.push_back({.doc_id_bytes = doc_id_bytes});
    schemas.push_back({.doc_id_bytes = doc_id_bytes, .value_kind = ValueKind::kBytes});
    for (uint8_t width = 1; width <= kFixedValueBytesMax; ++width) {
      schemas.push_back({.doc_id_bytes = doc_id_bytes,
                         .value_kind = ValueKind::kFixed,
                         .value_width = width});
    }
  }
  return schemas;
}

TEST_F(LayoutTest, InlineRecordsFillPagesAndDoNotStraddleThem) {
  for (const TableSchema& schema : AllWidths()) {
    for (size_t key_bytes = 1; key_bytes <= kInlineKeyBytesMax; ++key_bytes) {
      const InlineShape shape(schema, key_bytes);
      const size_t record_bytes = schema.doc_id_bytes + schema.InlineValueBytes() + key_bytes;
      ASSERT_EQ(shape.record_bytes(), record_bytes);
      ASSERT_EQ(shape.key_offset() + key_bytes, record_bytes);
      const uint64_t a_page = kPageBytes / record_bytes;
      const auto expected = [&](uint64_t slot) {
        return slot / a_page * kPageBytes + slot % a_page * record_bytes;
      };
      ASSERT_EQ(shape.RecordBytes(0), 0u);
      const auto check = [&](uint64_t slot) {
        ASSERT_EQ(shape.RecordOffset(static_cast<uint32_t>(slot)), expected(slot)) << slot;
        ASSERT_EQ(shape.RecordBytes(static_cast<uint32_t>(slot)),
                  slot == 0 ? 0 : expected(slot - 1) + record_bytes);
      };
      for (uint64_t slot = 0; slot < 3 * a_page; ++slot) check(slot);
      // Divisions are exact up to the last slot that there can be, which is beyond 2^31.
      for (const uint64_t near : {uint64_t{1} << 31, uint64_t{UINT32_MAX} - 17,
                                  (uint64_t{1} << 31) / a_page * a_page,
                                  uint64_t{UINT32_MAX} / a_page * a_page - a_page}) {
        for (uint64_t slot = near - 3; slot <= near + 3; ++slot) check(slot);
      }
      for (int i = 0; i < 50; ++i) check(random_.Below(UINT32_MAX));
    }
  }
}

TEST_F(LayoutTest, DocIdsAreNeverStoredAsZeros) {
  for (const unsigned doc_id_bytes : {4u, 8u}) {
    const uint64_t largest = TableSchema{.doc_id_bytes = static_cast<uint8_t>(doc_id_bytes)}.DocIdMax();
    std::vector<uint64_t> doc_ids = {0, 1, largest - 1, largest};
    for (int i = 0; i < 1000; ++i) doc_ids.push_back(random_.Next() % largest);
    for (const uint64_t doc_id : doc_ids) {
      std::vector<uint8_t> bytes(doc_id_bytes, 0x77);
      StoreDocId(bytes.data(), doc_id, doc_id_bytes);
      EXPECT_FALSE(IsDocIdHole(bytes.data(), doc_id_bytes)) << doc_id;
      EXPECT_EQ(LoadDocId(bytes.data(), doc_id_bytes), doc_id);
    }
    EXPECT_TRUE(IsDocIdHole(std::vector<uint8_t>(doc_id_bytes, 0).data(), doc_id_bytes));
  }
}

TEST_F(LayoutTest, SlotWords) {
  constexpr uint64_t kLastOffset = kPartitionRecordBytesMax - 2;
  for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{UINT32_MAX},
                                uint64_t{UINT32_MAX} + 1, kLastOffset}) {
    for (const uint32_t displacement : {0u, 1u, 254u, 255u, 256u, 1'000'000u}) {
      for (const uint16_t tag : {0, 1, 0xFFFF}) {
        const uint64_t word = MakeSlotWord(offset, displacement, tag);
        EXPECT_NE(word >> kPointerShift, 0u);
        EXPECT_EQ(PointerOf(word), offset);
        EXPECT_EQ(MarkOf(word), SlotWordMark(displacement, tag));
        EXPECT_EQ(MarkOf(word) & 0xFFFF, tag);
        EXPECT_EQ(MarkOf(word) >> 16, std::min(displacement, kDisplacementMax));
      }
    }
  }
  EXPECT_EQ(PointerOf(0), UINT64_MAX);
  EXPECT_EQ(PointerOf(0xFFFFFF), UINT64_MAX);
}

TEST_F(LayoutTest, TermRecordsDoNotStraddlePagesUnlessTheyMust) {
  for (int round = 0; round < 200; ++round) {
    uint64_t end = 0;
    for (int i = 0; i < 100; ++i) {
      const size_t size_bytes = random_.OneIn(5) ? random_.Between(1, 10'000) : random_.Between(1, 200);
      const uint64_t offset = PlaceTermRecord(end, size_bytes);
      ASSERT_GE(offset, end);
      ASSERT_LT(offset - end, kPageBytes);
      const bool one_page = offset / kPageBytes == (offset + size_bytes - 1) / kPageBytes;
      ASSERT_TRUE(one_page || (size_bytes > kPageBytes && offset % kPageBytes == 0));
      // No room is left where the record would have fitted.
      ASSERT_TRUE(offset == end || end % kPageBytes + size_bytes > kPageBytes);
      end = offset + size_bytes;
    }
  }
}

TEST_F(LayoutTest, TermRecordsAreReadWithinTheirBounds) {
  for (const TableSchema& schema :
       {TableSchema{}, TableSchema{.doc_id_bytes = 8, .value_kind = ValueKind::kBytes},
        TableSchema{.value_kind = ValueKind::kFixed, .value_width = 64}}) {
    for (const size_t key_bytes : {size_t{1}, size_t{127}, size_t{128}, kKeyBytesMax}) {
      const size_t fixed_bytes = schema.doc_id_bytes + schema.InlineValueBytes();
      std::vector<uint8_t> bytes(TermRecordBytes(schema, key_bytes), 0x11);
      uint8_t* const key = StoreVarint(bytes.data() + fixed_bytes, key_bytes);
      ASSERT_EQ(key + key_bytes, bytes.data() + bytes.size());
      TermRecord record;
      ASSERT_TRUE(ReadTermRecord(schema, bytes.data(), bytes.size(), 0, &record));
      EXPECT_EQ(record.doc_id, bytes.data());
      EXPECT_EQ(record.value, bytes.data() + schema.doc_id_bytes);
      EXPECT_EQ(record.key.size(), key_bytes);
      EXPECT_EQ(record.key.data(), reinterpret_cast<const char*>(key));
      // Cut anywhere, or begun anywhere beyond.
      for (size_t cut = 0; cut < bytes.size(); cut += 1 + cut / 100) {
        const std::vector<uint8_t> shorter(bytes.begin(), bytes.begin() + cut);
        EXPECT_FALSE(ReadTermRecord(schema, shorter.data(), shorter.size(), 0, &record)) << cut;
      }
      for (const uint64_t offset : {bytes.size(), bytes.size() + 1, size_t{1} << 40, SIZE_MAX}) {
        EXPECT_FALSE(ReadTermRecord(schema, bytes.data(), bytes.size(), offset, &record));
      }
    }
  }
}

TEST_F(LayoutTest, Locators) {
  constexpr uint64_t kLastOffset = (uint64_t{1} << 48) - 2;
  for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{UINT32_MAX} + 1, kLastOffset}) {
    for (const uint16_t check : {0, 1, 0xFFFF}) {
      const uint64_t locator = MakeLocator(offset, check);
      EXPECT_GE(locator, uint64_t{1} << 16);
      EXPECT_EQ(LocatorOffset(locator), offset);
      EXPECT_EQ(LocatorCheck(locator), check);
    }
  }
  EXPECT_EQ(LocatorOffset(0), UINT64_MAX);
}

TEST_F(LayoutTest, AValuesCheckDependsOnValueAndKey) {
  int same = 0;
  for (int i = 0; i < 10'000; ++i) {
    const std::string value = random_.Bytes(random_.Between(1, 40));
    const Hash128 hash{random_.Next(), random_.Next()};
    std::string other = value;
    other[random_.Below(other.size())] ^= 1;
    same += ValueCheck(value, hash) == ValueCheck(other, hash);
    same += ValueCheck(value, hash) == ValueCheck(value, {hash.low ^ 1, hash.high});
  }
  EXPECT_LT(same, 20);
}

TEST_F(LayoutTest, StoredValuesHaveALengthThatIsNotZero) {
  EXPECT_EQ(StoredValueBytes(0), 1u);
  EXPECT_EQ(StoredValueBytes(126), 127u);
  EXPECT_EQ(StoredValueBytes(127), 129u);
  EXPECT_EQ(StoredValueBytes(kValueBytesMax), kValueBytesMax + 4);
}

}  // namespace
}  // namespace latchkey::test
