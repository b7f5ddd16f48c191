// Segments with damaged bytes. What must hold, with F the bytes that were damaged:
//
// - Nothing crashes, or reads beyond the file. Both ways to look up give the same answer.
// - A key that was never stored is never found.
// - A stored key is answered right, or "damaged", or:
//   - found with a changed doc id or fixed value, where the bytes that changed are just those of F:
//     they stand beside the key, and only a checksum covers them;
//   - found with another value of bytes, if that happens to have the same check of 16 bits;
//   - "absent".
//   In all three cases VerifySegmentFile names the block of F.
// - If F is a page of zero bytes, as a lost block or a hole reads: right or "damaged", nothing else;
//   but for the check of 16 bits, on which a value depends that begins before the page.
// - The header, the directory and the checksums are read when a segment is opened, which refuses it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/lookup/probe_engine.h"
#include "core/segment/value_locator.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/segment_bytes.h"
#include "tests/support/status_asserts.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

// What is done to each byte of a range.
struct Mutation {
  uint64_t offset = 0;
  uint64_t size_bytes = 1;
  uint8_t flipped_bits = 0;  // 0: the byte is set to `to`
  uint8_t to = 0;

  char Apply(char byte) const {
    return static_cast<char>(flipped_bits != 0 ? static_cast<uint8_t>(byte) ^ flipped_bits : to);
  }
  bool Overlaps(const DamagedBlock& block) const {
    return offset < block.offset + block.size_bytes && block.offset < offset + size_bytes;
  }
};

struct Shape {
  const char* name;
  Layout layout;
  ValueKind values;
  uint8_t filter_bits;
  uint8_t doc_id_bytes;
};
void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

enum class Allowed { kWhatOnlyChecksumsSee, kRightOrDamaged };

class SegmentDamageTest : public SeededTest, public testing::WithParamInterface<Shape> {
 protected:
  // Builds `row_count` rows in `1 << partition_bits` partitions. Of them `large_count` have keys, where
  // the layout allows it, and values, if they may be large, of several pages.
  void BuildRows(size_t row_count, uint8_t partition_bits, size_t value_bytes_max,
                 size_t large_count = 0) {
    const Shape& shape = GetParam();
    table_ = std::make_unique<TestTable>(files_, "data", random_);
    TableSchema& schema = table_->options.schema;
    schema.doc_id_bytes = shape.doc_id_bytes;
    schema.value_kind = shape.values;
    schema.value_width = shape.values == ValueKind::kFixed ? 7 : 0;
    table_->options.filter_bits_per_key = shape.filter_bits;
    table_->options.layout =
        shape.layout == Layout::kInline ? LayoutChoice::kInline : LayoutChoice::kTermOrder;
    const size_t key_bytes = random_.Between(8, 20);
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, row_count, key_bytes)) {
      const bool large = rows.size() < large_count;
      if (shape.layout == Layout::kTermOrder) {
        key += random_.Bytes(large ? random_.Between(3000, 15'000) : random_.Below(12));
      }
      Row row{std::move(key), "", random_.Next() % schema.DocIdMax()};
      if (shape.values == ValueKind::kFixed) row.value = random_.Bytes(7);
      if (shape.values == ValueKind::kBytes) {
        row.value = random_.Bytes(large ? random_.Between(3000, 15'000)
                                        : random_.Between(0, value_bytes_max));
      }
      rows.push_back(std::move(row));
    }
    // Zero bytes are no special key.
    rows[0].key.assign(rows[0].key.size(), '\0');
    ASSERT_OK(table_->AppendPartitioned(rows, partition_bits));
    path_ = table_->Path(SegmentFileName(2, 0));
    pristine_ = files_.Bytes(path_);
    header_ = HeaderOf(pristine_);
    keys_ = table_->reference().Keys();
    stored_count_ = keys_.size();
    for (std::string& stranger : StrangerKeys(random_, keys_, 60)) {
      if (table_->reference().Lookup(stranger).outcome == Outcome::kAbsent) {
        keys_.push_back(std::move(stranger));
      }
    }
    views_.assign(keys_.begin(), keys_.end());
  }

  std::vector<uint64_t> OffsetsOf(SectionKind kind) const {
    std::vector<uint64_t> offsets(header_.section(kind).size_bytes);
    for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = header_.section(kind).offset + i;
    return offsets;
  }

  void Check(const Mutation& mutation, Allowed allowed) {
    std::string& bytes = files_.Bytes(path_);
    bool changed = false;
    const uint64_t end = std::min<uint64_t>(mutation.offset + mutation.size_bytes, bytes.size());
    for (uint64_t at = mutation.offset; at < end; ++at) {
      bytes[at] = mutation.Apply(bytes[at]);
      changed = changed || bytes[at] != pristine_[at];
    }
    if (changed) CheckDamaged(mutation, allowed);
    bytes.replace(mutation.offset, end - mutation.offset, pristine_, mutation.offset,
                  end - mutation.offset);
    if (HasFailure() && !reported_) {
      reported_ = true;
      ADD_FAILURE() << "the first failure is of " << mutation.size_bytes << " bytes at offset "
                    << mutation.offset << " (" << PartOf(header_, mutation.offset) << "), bits "
                    << int{mutation.flipped_bits} << " flipped or set to " << int{mutation.to};
    }
  }

  void CheckDamaged(const Mutation& mutation, Allowed allowed) {
    const auto snapshot = table_->Open();
    const std::string part = PartOf(header_, mutation.offset);
    if (part == "header" || part == "directory" || part == "checksums") {
      EXPECT_FALSE(snapshot.ok());
      EXPECT_THAT(Message(snapshot.status()), testing::StartsWith(path_));
      return;
    }
    ASSERT_OK(snapshot);
    bool must_be_named = false;
    LookupResults results;
    engine_.Lookup(**snapshot, views_, &results);
    for (size_t i = 0; i < views_.size(); ++i) {
      const LookupResult got = LookupOne(**snapshot, views_[i]);
      if (got != results.at(i)) {
        ADD_FAILURE() << "one by one: " << Describe(got) << "; batch: " << Describe(results.at(i));
      }
      if (got.outcome == Outcome::kDamaged) continue;
      const LookupResult right = table_->reference().Lookup(views_[i]);
      if (got == right) continue;
      must_be_named = true;
      absent_count_ += got.outcome == Outcome::kAbsent && part == "records";
      const bool absent_allowed = allowed == Allowed::kWhatOnlyChecksumsSee;
      if (i >= stored_count_ || (got.outcome == Outcome::kAbsent && !absent_allowed) ||
          (got.outcome == Outcome::kFound &&
           !ExplainedBy(mutation, allowed, views_[i], right, got))) {
        ADD_FAILURE() << "key " << QuoteShort(views_[i]) << ": expected " << Describe(right)
                      << "; got " << Describe(got);
      }
    }
    if (must_be_named || mutation.flipped_bits == 1 || mutation.size_bytes > 1) {
      ExpectNamed(mutation, part);
    }
  }

  // True if `got` is `right` with bytes of its own changed, where no check but a checksum sees it.
  bool ExplainedBy(const Mutation& mutation, Allowed allowed, std::string_view key,
                   const LookupResult& right, const LookupResult& got) const {
    const TableSchema& schema = header_.schema;
    if (allowed == Allowed::kRightOrDamaged &&
        (schema.value_kind != ValueKind::kBytes || got.doc_id != right.doc_id ||
         got.value.size() != right.value.size())) {
      return false;
    }
    const uint64_t right_stored = ~right.doc_id, got_stored = ~got.doc_id;
    if (!ExplainedBy(mutation,
                     {reinterpret_cast<const char*>(&right_stored), schema.doc_id_bytes},
                     {reinterpret_cast<const char*>(&got_stored), schema.doc_id_bytes})) {
      return false;
    }
    if (schema.value_kind == ValueKind::kBytes) {
      const Hash128 hash = HashBytes(key.data(), key.size(), header_.identity.seed);
      return got.value == right.value || ValueCheck(got.value, hash) == ValueCheck(right.value, hash);
    }
    return ExplainedBy(mutation, right.value, got.value);
  }
  static bool ExplainedBy(const Mutation& mutation, std::string_view right, std::string_view got) {
    if (right.size() != got.size()) return false;
    uint64_t differing = 0;
    for (size_t i = 0; i < right.size(); ++i) {
      if (right[i] == got[i]) continue;
      ++differing;
      if (got[i] != mutation.Apply(right[i])) return false;
    }
    return differing <= mutation.size_bytes;
  }

  void ExpectNamed(const Mutation& mutation, const std::string& part) {
    std::vector<DamagedBlock> damaged;
    ASSERT_OK(VerifySegmentFile(files_, path_, &damaged));
    ASSERT_EQ(damaged.size(), 1u);
    EXPECT_EQ(damaged[0].section, part);
    EXPECT_TRUE(mutation.Overlaps(damaged[0])) << damaged[0].offset;
    EXPECT_LE(damaged[0].size_bytes, part == "padding" ? SIZE_MAX : kChecksumBlockBytes);
  }

  MemoryFileSystem files_;
  std::unique_ptr<TestTable> table_;
  std::string path_;
  std::string pristine_;
  SegmentHeader header_;
  std::vector<std::string> keys_;  // those that are stored, then strangers
  size_t stored_count_ = 0;
  std::vector<std::string_view> views_;
  ProbeEngine engine_;
  bool reported_ = false;
  size_t absent_count_ = 0;  // wrongly, where a record was damaged
};

TEST_P(SegmentDamageTest, EveryByteFlippedOrZeroed) {
  ASSERT_NO_FATAL_FAILURE(BuildRows(18, /*partition_bits=*/1, /*value_bytes_max=*/24));
  for (size_t kind = 0; kind < kSectionCount; ++kind) {
    for (const uint64_t offset : OffsetsOf(static_cast<SectionKind>(kind))) {
      for (int bit = 0; bit < 8; ++bit) {
        Check({offset, 1, static_cast<uint8_t>(1 << bit)}, Allowed::kWhatOnlyChecksumsSee);
      }
      Check({offset, 1, 0, 0x00}, Allowed::kWhatOnlyChecksumsSee);
      Check({offset, 1, 0, 0xFF}, Allowed::kWhatOnlyChecksumsSee);
      ASSERT_FALSE(HasFailure());
    }
  }
  // A record that is not the wanted one must prove that it belongs where it lies. A damaged one does
  // so by chance, in the inline layout once in some hundred times, in term order hardly ever.
  const uint64_t record_bytes = header_.section(SectionKind::kRecords).size_bytes;
  EXPECT_LE(absent_count_, GetParam().layout == Layout::kInline ? record_bytes / 5 : 2);
  // Every byte of the header is taken in format_test; here it is the whole file that is refused.
  for (uint64_t offset = 0; offset < kHeaderBytes; offset += 1 + offset / 40) {
    Check({offset, 1, 0x10}, Allowed::kWhatOnlyChecksumsSee);
  }
}

TEST_P(SegmentDamageTest, PaddingIsNamed) {
  ASSERT_NO_FATAL_FAILURE(BuildRows(18, 1, 24));
  uint64_t end = kHeaderBytes;
  for (const Section& section : header_.sections) {
    // Both ends, and now and then between them.
    for (uint64_t at = end; at < section.offset; at += at < end + 64 ? 1 : 4999) {
      Check({at, 1, 1}, Allowed::kRightOrDamaged);
      Check({section.offset - 1 - (at - end), 1, 1}, Allowed::kRightOrDamaged);
    }
    end = section.end();
  }
}

TEST_P(SegmentDamageTest, EveryLineZeroed) {
  ASSERT_NO_FATAL_FAILURE(BuildRows(300, 2, 100));
  for (const Section& section : header_.sections) {
    for (uint64_t at = section.offset; at < section.end(); at += 64) {
      Check({at, 64, 0, 0x00}, Allowed::kWhatOnlyChecksumsSee);
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_P(SegmentDamageTest, EveryPageZeroed) {
  for (int round = 0; round < 20; ++round) {
    // From a fraction of a page to many; more and fewer candidates for a chance agreement.
    const size_t row_count = round < 15 ? 20 + 30 * round : 3000;
    ASSERT_NO_FATAL_FAILURE(
        BuildRows(row_count, static_cast<uint8_t>(round % 3), 200, round % 4 == 1 ? 5 : 0));
    for (const Section& section : header_.sections) {
      for (uint64_t at = section.offset; at < section.end(); at += kPageBytes) {
        Check({at, kPageBytes, 0, 0x00}, Allowed::kRightOrDamaged);
        ASSERT_FALSE(HasFailure()) << "round " << round;
      }
    }
    files_ = MemoryFileSystem();
  }
}

TEST_P(SegmentDamageTest, EverySectionZeroed) {
  ASSERT_NO_FATAL_FAILURE(BuildRows(300, 1, 100));
  for (const Section& section : header_.sections) {
    if (section.size_bytes == 0) continue;
    Check({section.offset, section.size_bytes, 0, 0x00}, Allowed::kRightOrDamaged);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, SegmentDamageTest,
    testing::Values(Shape{"InlineNone", Layout::kInline, ValueKind::kNone, 10, 4},
                    Shape{"InlineNoneWide", Layout::kInline, ValueKind::kNone, 0, 8},
                    Shape{"InlineFixed", Layout::kInline, ValueKind::kFixed, 0, 4},
                    Shape{"InlineBytes", Layout::kInline, ValueKind::kBytes, 8, 8},
                    Shape{"TermOrderNone", Layout::kTermOrder, ValueKind::kNone, 0, 8},
                    Shape{"TermOrderFixed", Layout::kTermOrder, ValueKind::kFixed, 12, 4},
                    Shape{"TermOrderBytes", Layout::kTermOrder, ValueKind::kBytes, 0, 4}),
    [](const testing::TestParamInfo<Shape>& shape) { return shape.param.name; });

}  // namespace
}  // namespace latchkey::test
