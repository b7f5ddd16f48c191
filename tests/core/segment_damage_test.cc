// Segments with damaged bytes. What must hold, with F the bytes that were damaged:
//
// - Nothing crashes, or reads beyond the file, whichever way a key is looked up.
// - A key that reads nothing of F is answered right. A key reads its filter word, the pilot of its
//   group, its line, in the pointer layout the records with its tag, and its value.
// - If F is zeroed lines or pages, as lost blocks or holes of the file read: right or "damaged",
//   nothing else; but for the check of 16 bits, on which a value depends that begins before F.
// - If F is one byte, it depends on what that is; see Part. Where a lookup can't see it, it is
//   VerifySegmentFile that names the block.
// - The header, the directory and the checksums are read when a segment is opened: it is refused.
// - A damaged hash list makes no segment map, and is not needed without one.
// - Of several segments, the damaged newer one is never passed over for an older one.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/bytes.h"
#include "core/lookup/probe_engine.h"
#include "core/segment/record_pointer.h"
#include "core/segment/segment_writer.h"
#include "core/segment/value_locator.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/segment_bytes.h"
#include "tests/support/status_asserts.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

struct Range {
  uint64_t begin = 0;
  uint64_t size_bytes = 0;
  bool Overlaps(const Range& other) const {
    return begin < other.begin + other.size_bytes && other.begin < begin + size_bytes;
  }
};

// What is done to each byte of a range.
struct Mutation {
  Range range;
  uint8_t flipped_bits = 0;  // 0: the bytes are set to `to`
  uint8_t to = 0;

  char Apply(char byte) const {
    return static_cast<char>(flipped_bits != 0 ? static_cast<uint8_t>(byte) ^ flipped_bits : to);
  }
};

// What a byte is, and so what a lookup that reads it may answer when it is changed, beside the
// right answer.
enum class Part : uint8_t {
  kUnread,         // nothing else
  kFilterWord,     // a stored key: absent
  kPilot,          // zero: damaged; else a stored key: absent
  kMark,           // damaged; a stored key: absent
  kLineKey,        // damaged; the stored key: absent, and what it has become has its row
  kTag,            // damaged; a stored key: absent
  kPointerOffset,  // damaged
  kKeyLength,      // damaged
  kRecordKey,      // damaged
  kDocId,          // a stored key: the changed doc id; a hole: damaged
  kFixedValue,     // a stored key: the changed value
  kLocator,        // damaged, or by chance a value with the same check
  kValue,          // damaged, or by chance a value with the same check
};

struct Shape {
  const char* name;
  Layout layout;
  size_t key_bytes;  // for pointers, the fewest
  ValueKind values;
  uint8_t value_width;
  uint8_t filter_bits;
  uint8_t doc_id_bytes;
  size_t line_bytes;  // that follow from the rest
};
void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

class SegmentDamageTest : public SeededTest, public testing::WithParamInterface<Shape> {
 protected:
  // Where the answer to a key comes from. Offsets are in the file.
  struct Place {
    std::vector<Range> reads;
    uint64_t doc_id_at = 0;  // of a stored key
    uint64_t value_at = 0;   // of a stored key: its fixed value or locator
  };

  // Builds `row_count` rows in `1 << partition_bits` partitions. Of them `large_count` have keys,
  // where the layout allows it, and values, if they may be large, of several pages.
  void BuildRows(size_t row_count, uint8_t partition_bits, size_t value_bytes_max,
                 size_t large_count = 0) {
    const Shape& shape = GetParam();
    files_ = MemoryFileSystem();
    table_ = std::make_unique<TestTable>(files_, "data", random_);
    TableSchema& schema = table_->options.schema;
    schema.doc_id_bytes = shape.doc_id_bytes;
    schema.value_kind = shape.values;
    schema.value_width = shape.value_width;
    table_->options.filter_bits_per_key = shape.filter_bits;
    table_->options.layout =
        shape.layout == Layout::kLine ? LayoutChoice::kLine : LayoutChoice::kPointer;
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, row_count, shape.key_bytes)) {
      const bool large = rows.size() < large_count;
      if (shape.layout == Layout::kPointer) {
        key += random_.Bytes(large ? random_.Between(3000, 15'000) : random_.Below(12));
      }
      Row row{std::move(key), "", random_.Below(schema.DocIdMax() + 1)};
      if (shape.values == ValueKind::kFixed) row.value = random_.Bytes(shape.value_width);
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
    ASSERT_EQ(header_.layout, shape.layout);
    ASSERT_EQ(header_.line_bytes, shape.line_bytes);
    ASSERT_OK_AND_ASSIGN(snapshot_, table_->Open());
    segment_ = snapshot_->segments()[0].get();
    mapping_ = const_cast<uint8_t*>(segment_->partitions()[0].pilots) -
               header_.section(SectionKind::kPilots).offset;
    ASSERT_EQ(0, std::memcmp(mapping_, pristine_.data(), pristine_.size()));

    keys_ = table_->reference().Keys();
    stored_count_ = keys_.size();
    for (std::string& stranger : StrangerKeys(random_, keys_, 30)) {
      if (table_->reference().Lookup(stranger).outcome == Outcome::kAbsent) {
        keys_.push_back(std::move(stranger));
      }
    }
    views_.assign(keys_.begin(), keys_.end());
    places_.clear();
    rights_.clear();
    for (const std::string& key : keys_) {
      places_.push_back(PlaceOf(key));
      rights_.push_back(table_->reference().Lookup(key));
    }
  }

  uint64_t OffsetOf(const void* in_mapping) const {
    return static_cast<uint64_t>(static_cast<const uint8_t*>(in_mapping) - mapping_);
  }

  Place PlaceOf(std::string_view key) const {
    Place place;
    const uint64_t hash = HashBytes(key.data(), key.size(), header_.identity.seed);
    const Partition& partition = segment_->PartitionFor(hash);
    const LineShape& shape = segment_->shape();
    if (segment_->has_filter()) place.reads.push_back({OffsetOf(partition.FilterAddress(hash)), 8});
    const uint8_t* const pilot = partition.PilotAddress(hash);
    place.reads.push_back({OffsetOf(pilot), 1});
    const uint8_t* const line = partition.LineAddress(hash, *pilot);
    place.reads.push_back({OffsetOf(line), shape.line_bytes()});
    for (int i = 0; i < shape.MarkAfter(line) - kMarkBit; ++i) {
      const uint8_t* const entry = shape.Entry(line, i);
      if (header_.layout == Layout::kLine) {
        if (shape.KeyAt(entry) != key) continue;
        place.doc_id_at = OffsetOf(entry);
        place.value_at = OffsetOf(entry + shape.value_offset());
        continue;
      }
      const auto pointer = Load<uint64_t>(entry);
      if (TagOfPointer(pointer) != TagOf(hash)) continue;
      PointedRecord record{};
      EXPECT_TRUE(ReadPointedRecord(header_.schema, partition.records, partition.record_bytes,
                                    OffsetOfPointer(pointer), &record));
      place.reads.push_back(
          {OffsetOf(record.doc_id), PointedRecordBytes(header_.schema, record.key.size())});
      if (record.key != key) continue;
      place.doc_id_at = OffsetOf(record.doc_id);
      place.value_at = OffsetOf(record.value);
    }
    if (header_.schema.value_kind == ValueKind::kBytes && place.value_at != 0) {
      const uint8_t* const value =
          segment_->ValueAddress(Load<uint64_t>(mapping_ + place.value_at));
      place.reads.push_back(
          {OffsetOf(value), StoredValueBytes(table_->reference().Lookup(key).value.size())});
    }
    return place;
  }

  // The part that every byte of the file is of, from a walk through all lines.
  std::vector<Part> PartsOfBytes() const {
    std::vector<Part> parts(pristine_.size(), Part::kUnread);
    const auto mark = [&](uint64_t begin, uint64_t size_bytes, Part part) {
      std::fill_n(parts.begin() + static_cast<ptrdiff_t>(begin), size_bytes, part);
    };
    const auto mark_section = [&](SectionKind kind, Part part) {
      mark(header_.section(kind).offset, header_.section(kind).size_bytes, part);
    };
    mark_section(SectionKind::kFilter, Part::kFilterWord);
    mark_section(SectionKind::kPilots, Part::kPilot);
    mark_section(SectionKind::kValues, Part::kValue);
    const LineShape& shape = segment_->shape();
    const TableSchema& schema = header_.schema;
    const Part value_part =
        schema.value_kind == ValueKind::kBytes ? Part::kLocator : Part::kFixedValue;
    for (const Partition& partition : segment_->partitions()) {
      for (uint32_t i = 0; i < partition.line_count; ++i) {
        const uint8_t* const line = partition.lines + uint64_t{i} * shape.line_bytes();
        mark(OffsetOf(line) + shape.line_bytes() - 1, 1, Part::kMark);
        for (int e = 0; e < shape.MarkAfter(line) - kMarkBit; ++e) {
          const uint8_t* const entry = shape.Entry(line, e);
          uint64_t at = OffsetOf(entry);
          if (header_.layout == Layout::kPointer) {
            mark(at, 3, Part::kTag);
            mark(at + 3, 5, Part::kPointerOffset);
            PointedRecord record{};
            EXPECT_TRUE(ReadPointedRecord(schema, partition.records, partition.record_bytes,
                                          OffsetOfPointer(Load<uint64_t>(entry)), &record));
            mark(OffsetOf(record.key.data()), record.key.size(), Part::kRecordKey);
            const size_t length_bytes = VarintSize(record.key.size());
            mark(OffsetOf(record.key.data()) - length_bytes, length_bytes, Part::kKeyLength);
            at = OffsetOf(record.doc_id);
          } else {
            mark(at + shape.key_offset(), shape.key_bytes(), Part::kLineKey);
          }
          mark(at, schema.doc_id_bytes, Part::kDocId);
          mark(at + schema.doc_id_bytes, schema.InlineValueBytes(), value_part);
        }
      }
    }
    return parts;
  }

  // Damages one byte.
  void CheckByte(const Mutation& mutation, Part part) {
    Check(mutation, [&](size_t i, const LookupResult& right, const LookupResult& got) {
      return MayAnswer(mutation, part, i, right, got);
    });
  }
  // Zeroes all of what a lookup can lose at once.
  void CheckHole(uint64_t offset, uint64_t size_bytes) {
    const Mutation mutation{{offset, std::min(size_bytes, pristine_.size() - offset)}};
    Check(mutation, [&](size_t i, const LookupResult& right, const LookupResult& got) {
      return Reads(i, mutation) &&
             (got.outcome == Outcome::kDamaged ||
              (got.doc_id == right.doc_id && got.value.size() == right.value.size() &&
               HasSameCheck(i, right, got)));
    });
  }

  // Zeroes a piece that may begin and end anywhere.
  void CheckPiece(uint64_t offset, uint64_t size_bytes) {
    const Mutation mutation{{offset, size_bytes}};
    const bool absent_allowed = header_.section(SectionKind::kLines).offset <= offset &&
                                offset < header_.section(SectionKind::kLines).end();
    Check(mutation, [&](size_t i, const LookupResult& right, const LookupResult& got) {
      return Reads(i, mutation) && (got.outcome == Outcome::kDamaged ||
                                    (got.outcome == Outcome::kAbsent && absent_allowed) ||
                                    IsRowAsItIs(i, right, got) || IsRowOfChangedKey(i, got));
    });
  }

  // Damages the file and what is mapped of it, and asks for every key. `may_answer(i, right, got)`
  // tells whether got, which is not right, may be the answer to key i.
  template <typename MayAnswer>
  void Check(const Mutation& mutation, MayAnswer may_answer) {
    std::string& bytes = files_.Bytes(path_);
    const Range& range = mutation.range;
    bool changed = false;
    for (uint64_t at = range.begin; at < range.begin + range.size_bytes; ++at) {
      bytes[at] = mutation.Apply(bytes[at]);
      mapping_[at] = static_cast<uint8_t>(bytes[at]);
      changed = changed || bytes[at] != pristine_[at];
    }
    if (changed) CheckDamaged(mutation, may_answer);
    bytes.replace(range.begin, range.size_bytes, pristine_, range.begin, range.size_bytes);
    std::memcpy(mapping_ + range.begin, pristine_.data() + range.begin, range.size_bytes);
    if (HasFailure() && !reported_) {
      reported_ = true;
      ADD_FAILURE() << "the first failure is of " << range.size_bytes << " bytes at offset "
                    << range.begin << " (" << PartOf(header_, range.begin) << "), bits "
                    << int{mutation.flipped_bits} << " flipped or set to " << int{mutation.to};
    }
  }

  template <typename MayAnswer>
  void CheckDamaged(const Mutation& mutation, MayAnswer may_answer) {
    const std::string part = PartOf(header_, mutation.range.begin);
    if (part == "header" || part == "directory" || part == "checksums") {
      const auto refused = table_->Open();
      EXPECT_FALSE(refused.ok());
      EXPECT_THAT(Message(refused.status()), StartsWith(path_));
      return;
    }
    bool unseen = false;
    const auto check = [&](std::string_view way, size_t i, const LookupResult& got) {
      const LookupResult& right = rights_[i];
      if (got == right) return;
      unseen = unseen || got.outcome != Outcome::kDamaged;
      if (!may_answer(i, right, got)) {
        ADD_FAILURE() << way << ", key " << QuoteShort(views_[i]) << ": expected "
                      << Describe(right) << "; got " << Describe(got);
      }
    };
    LookupResults results;
    ProbeEngine engine;
    engine.Lookup(*snapshot_, views_, &results);
    for (size_t i = 0; i < views_.size(); ++i) {
      const LookupResult one = LookupOne(*snapshot_, views_[i]);
      check("one by one", i, one);
      check("batch", i, results.at(i));
      // A stranger may be excluded by its first bytes before the damage is met, which only one of
      // the ways looks at.
      if (i < stored_count_) {
        EXPECT_EQ(one, results.at(i)) << i;
      }
    }
    if (segment_->has_filter()) {
      // After a batch of absent keys the engine asks the filter of one segment too.
      ProbeEngine filtering;
      filtering.Lookup(*snapshot_, {&views_.back(), 1}, &results);
      filtering.Lookup(*snapshot_, views_, &results);
      for (size_t i = 0; i < views_.size(); ++i) check("batch with filter", i, results.at(i));
    }
    if (mutation.range.size_bytes > 1 || part == "padding" || random_.OneIn(unseen ? 20 : 50)) {
      ExpectNamed(mutation, part);
    }
  }

  bool Reads(size_t i, const Mutation& mutation) const {
    return std::any_of(places_[i].reads.begin(), places_[i].reads.end(),
                       [&](const Range& read) { return read.Overlaps(mutation.range); });
  }

  bool MayAnswer(const Mutation& mutation, Part part, size_t i, const LookupResult& right,
                 const LookupResult& got) const {
    if (!Reads(i, mutation)) return false;
    const bool stored = i < stored_count_;
    const bool damaged = got.outcome == Outcome::kDamaged;
    const bool absent = got.outcome == Outcome::kAbsent;
    switch (part) {
      case Part::kUnread:
        return false;
      case Part::kFilterWord:
        return absent;
      case Part::kPilot:
        return mapping_[mutation.range.begin] == 0 ? damaged : absent;
      case Part::kMark:
      case Part::kTag:
        return damaged || absent;
      case Part::kLineKey:
        return damaged || absent || IsRowOfChangedKey(i, got);
      case Part::kPointerOffset:
      case Part::kKeyLength:
      case Part::kRecordKey:
        return damaged;
      case Part::kDocId:
      case Part::kFixedValue:
        return IsRowAsItIs(i, right, got);
      case Part::kLocator:
      case Part::kValue:
        return stored && (damaged || (got.doc_id == right.doc_id && HasSameCheck(i, right, got)));
    }
    return false;
  }

  // Whether the answer to a stored key is its doc id and value just as they are now.
  bool IsRowAsItIs(size_t i, const LookupResult& right, const LookupResult& got) const {
    if (i >= stored_count_) return false;
    const TableSchema& schema = header_.schema;
    const uint64_t field = LoadDocIdField(mapping_ + places_[i].doc_id_at, schema.doc_id_bytes);
    if (field == 0) return got.outcome == Outcome::kDamaged;
    if (field == 1) return got.outcome == Outcome::kAbsent;  // it says that it was deleted
    const uint64_t mask = schema.doc_id_bytes == 4 ? UINT32_MAX : UINT64_MAX;
    if (got.outcome != Outcome::kFound || got.doc_id != (~field & mask)) return false;
    if (schema.value_kind == ValueKind::kBytes) return HasSameCheck(i, right, got);
    const auto* const value = reinterpret_cast<const char*>(mapping_ + places_[i].value_at);
    return got.value == std::string_view(value, schema.value_width);
  }

  // A line's key is compared, and nothing else: a stored key that is damaged into another one
  // answers for it.
  bool IsRowOfChangedKey(size_t asked, const LookupResult& got) const {
    for (size_t i = 0; i < stored_count_ && header_.layout == Layout::kLine; ++i) {
      const auto* const key = reinterpret_cast<const char*>(mapping_ + places_[i].value_at +
                                                            header_.schema.InlineValueBytes());
      if (keys_[asked] == std::string_view(key, keys_[i].size()) &&
          IsRowAsItIs(i, rights_[i], got)) {
        return true;
      }
    }
    return false;
  }

  // Whether a value of bytes is another one that the check of 16 bits takes for it.
  bool HasSameCheck(size_t i, const LookupResult& right, const LookupResult& got) const {
    if (got.outcome != Outcome::kFound || right.outcome != Outcome::kFound) return false;
    const uint64_t hash = HashBytes(keys_[i].data(), keys_[i].size(), header_.identity.seed);
    return header_.schema.value_kind == ValueKind::kBytes &&
           ValueCheck(got.value, hash) == ValueCheck(right.value, hash);
  }

  void ExpectNamed(const Mutation& mutation, const std::string& part) {
    std::vector<DamagedBlock> damaged;
    ASSERT_OK(VerifySegmentFile(files_, path_, &damaged));
    ASSERT_EQ(damaged.size(), 1u);
    EXPECT_EQ(damaged[0].section, part);
    EXPECT_TRUE(mutation.range.Overlaps({damaged[0].offset, damaged[0].size_bytes}))
        << damaged[0].offset;
    EXPECT_LE(damaged[0].size_bytes, part == "padding" ? SIZE_MAX : kChecksumBlockBytes);
  }

  MemoryFileSystem files_;
  std::unique_ptr<TestTable> table_;
  std::string path_;
  std::string pristine_;
  SegmentHeader header_;
  std::shared_ptr<const Snapshot> snapshot_;
  const Segment* segment_ = nullptr;
  uint8_t* mapping_ = nullptr;     // the segment's; the memory below it may be written
  std::vector<std::string> keys_;  // those that are stored, then strangers
  size_t stored_count_ = 0;
  std::vector<std::string_view> views_;
  std::vector<Place> places_;         // of each key
  std::vector<LookupResult> rights_;  // the right answer to each key
  bool reported_ = false;
};

TEST_P(SegmentDamageTest, EveryByteFlippedOrZeroed) {
  // Few where rows are long: every bit of every byte is taken.
  const size_t row_count = GetParam().line_bytes > 64 ? 12 : 18;
  ASSERT_NO_FATAL_FAILURE(BuildRows(row_count, /*partition_bits=*/1, /*value_bytes_max=*/24));
  const std::vector<Part> parts = PartsOfBytes();
  std::set<Part> seen;
  for (const Section& section : header_.sections) {
    for (uint64_t offset = section.offset; offset < section.end(); ++offset) {
      const Part part = parts[offset];
      const std::string name = PartOf(header_, offset);
      // Between the lines of partitions, and behind their entries, is much that nothing reads.
      const bool opens = name == "directory" || name == "checksums" || name == "hashes";
      if (part == Part::kUnread && !opens && !random_.OneIn(50)) continue;
      seen.insert(part);
      for (int bit = 0; bit < 8; ++bit) {
        CheckByte({{offset, 1}, static_cast<uint8_t>(1 << bit)}, part);
      }
      CheckByte({{offset, 1}, 0, 0x00}, part);
      CheckByte({{offset, 1}, 0, 0xFF}, part);
      ASSERT_FALSE(HasFailure()) << "part " << static_cast<int>(part);
    }
  }
  std::set<Part> expected = {Part::kUnread, Part::kPilot, Part::kMark, Part::kDocId};
  if (GetParam().filter_bits > 0) expected.insert(Part::kFilterWord);
  if (GetParam().values == ValueKind::kFixed) expected.insert(Part::kFixedValue);
  if (GetParam().values == ValueKind::kBytes) expected.insert({Part::kLocator, Part::kValue});
  if (GetParam().layout == Layout::kLine) expected.insert(Part::kLineKey);
  if (GetParam().layout == Layout::kPointer) {
    expected.insert({Part::kTag, Part::kPointerOffset, Part::kKeyLength, Part::kRecordKey});
  }
  EXPECT_EQ(seen, expected);
  // Every byte of the header is taken in format_test; here it is the whole file that is refused.
  for (uint64_t offset = 0; offset < kHeaderBytes; offset += 1 + offset / 40) {
    CheckByte({{offset, 1}, 0x10}, Part::kUnread);
  }
}

TEST_P(SegmentDamageTest, PaddingIsNamed) {
  ASSERT_NO_FATAL_FAILURE(BuildRows(18, 1, 24));
  uint64_t end = kHeaderBytes;
  for (const Section& section : header_.sections) {
    // Both ends, and now and then between them.
    for (uint64_t at = end; at < section.offset; at += at < end + 4 ? 1 : 9973) {
      CheckByte({{at, 1}, 1}, Part::kUnread);
      CheckByte({{section.offset - 1 - (at - end), 1}, 1}, Part::kUnread);
      ASSERT_FALSE(HasFailure());
    }
    end = section.end();
  }
}

// Lines are lost whole, and so are pilots and filter words.
TEST_P(SegmentDamageTest, EveryLineZeroed) {
  ASSERT_NO_FATAL_FAILURE(BuildRows(300, 2, 100));
  for (const SectionKind kind :
       {SectionKind::kFilter, SectionKind::kPilots, SectionKind::kLines, SectionKind::kHashes}) {
    const Section& section = header_.section(kind);
    const uint64_t step = kind == SectionKind::kLines ? header_.line_bytes : 64;
    for (uint64_t at = section.offset; at < section.end(); at += step) {
      CheckHole(at, std::min(step, section.end() - at));
      ASSERT_FALSE(HasFailure());
    }
  }
}

// No block of a disk is that small; what a lookup says is still what is there, or that it is
// damaged.
TEST_P(SegmentDamageTest, Every64BytesOfRowsZeroed) {
  ASSERT_NO_FATAL_FAILURE(BuildRows(300, 2, 100));
  for (const SectionKind kind :
       {SectionKind::kLines, SectionKind::kRecords, SectionKind::kValues}) {
    const Section& section = header_.section(kind);
    for (uint64_t at = section.offset; at < section.end(); at += 64) {
      CheckPiece(at, std::min<uint64_t>(64, section.end() - at));
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_P(SegmentDamageTest, EveryPageAndBlockZeroed) {
  for (int round = 0; round < 16; ++round) {
    // From a fraction of a page to many; more and fewer candidates for a chance agreement.
    const size_t row_count = round < 15 ? 20 + 30 * static_cast<size_t>(round) : 3000;
    ASSERT_NO_FATAL_FAILURE(
        BuildRows(row_count, static_cast<uint8_t>(round % 3), 200, round % 4 == 1 ? 5 : 0));
    for (const Section& section : header_.sections) {
      for (const uint64_t step : {kPageBytes, kChecksumBlockBytes}) {
        for (uint64_t at = section.offset; at < section.end(); at += step) {
          CheckHole(at, std::min(step, section.end() - at));
          ASSERT_FALSE(HasFailure()) << "round " << round;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, SegmentDamageTest,
    testing::Values(Shape{"LineNone", Layout::kLine, 16, ValueKind::kNone, 0, 10, 4, 64},
                    Shape{"LineNoneWide", Layout::kLine, 20, ValueKind::kNone, 0, 0, 8, 64},
                    Shape{"LineFixed", Layout::kLine, 12, ValueKind::kFixed, 8, 0, 4, 128},
                    Shape{"LineFixedLarge", Layout::kLine, 33, ValueKind::kFixed, 64, 5, 8, 256},
                    Shape{"LineBytes", Layout::kLine, 16, ValueKind::kBytes, 0, 8, 8, 128},
                    Shape{"PointerNone", Layout::kPointer, 8, ValueKind::kNone, 0, 0, 8, 64},
                    Shape{"PointerFixed", Layout::kPointer, 19, ValueKind::kFixed, 7, 12, 4, 64},
                    Shape{"PointerBytes", Layout::kPointer, 11, ValueKind::kBytes, 0, 0, 4, 64}),
    [](const testing::TestParamInfo<Shape>& shape) { return shape.param.name; });

// A generation of three segments that have keys in common, the newest of which deletes some, with a
// segment map and without one.
class GenerationDamageTest : public SeededTest, public testing::WithParamInterface<bool> {
 protected:
  GenerationDamageTest() {
    if (!GetParam()) options_.segment_map_bytes_max = 0;
  }

  std::vector<Row> SomeRows(const std::vector<std::string>& keys) {
    std::vector<Row> rows;
    for (const std::string& key : keys) {
      if (random_.OneIn(2))
        rows.push_back({key, random_.Bytes(random_.Below(80)), random_.Next() >> 40});
    }
    return rows;
  }

  // The newest segment has a row for every `step`th key.
  void BuildGeneration(size_t step = 3) {
    files_ = MemoryFileSystem();
    table_ = std::make_unique<TestTable>(files_, "data", random_);
    table_->options.schema.value_kind = ValueKind::kBytes;
    expected_.clear();
    views_.clear();
    std::vector<std::string> keys = DistinctKeys(random_, 600, 14);
    table_->options.layout = LayoutChoice::kLine;
    ASSERT_OK(table_->AppendPartitioned(SomeRows(keys), 1));
    table_->options.layout = LayoutChoice::kPointer;
    ASSERT_OK(table_->AppendPartitioned(SomeRows(keys), 0));
    for (const std::string& key : keys) expected_[key] = table_->reference().Lookup(key);
    ASSERT_NO_FATAL_FAILURE(AppendTombstones(keys, step));
    for (const std::string& stranger : StrangerKeys(random_, keys, 200)) {
      expected_.try_emplace(stranger, LookupResult{});
    }
    for (const auto& [key, result] : expected_) views_.push_back(key);
  }

  // A segment that deletes every `step`th key, but for a third of them, which have a new row.
  void AppendTombstones(const std::vector<std::string>& keys, size_t step) {
    ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadNewestManifest(files_, table_->dir()));
    ++manifest.generation;
    SegmentPlan plan;
    plan.identity = manifest.identity;
    plan.schema = manifest.schema;
    plan.segment_id = 99;
    plan.key_bytes_min = plan.key_bytes_max = 14;
    std::vector<SegmentRow> rows;
    for (size_t i = 0; i < keys.size(); i += step) {
      const uint64_t hash = HashBytes(keys[i].data(), keys[i].size(), plan.identity.seed);
      rows.push_back({hash, i, keys[i], "newest", /*tombstone=*/i % (3 * step) != 0});
      expected_[keys[i]] =
          i % (3 * step) != 0 ? LookupResult{} : LookupResult{Outcome::kFound, i, "newest"};
    }
    std::sort(rows.begin(), rows.end(),
              [](const SegmentRow& a, const SegmentRow& b) { return a.hash < b.hash; });
    plan.partitions = {{rows.size(), rows.size() * 14}};
    plan.value_bytes = rows.size() * 7;
    plan.hash_list = HashListShape::For(rows.size(), 1000);
    const std::string file = SegmentFileName(manifest.generation, 0);
    ASSERT_OK_AND_ASSIGN(const auto writer,
                         SegmentWriter::Create(files_, table_->Path(file), plan));
    ASSERT_OK(writer->AddPartition(rows));
    ASSERT_OK_AND_ASSIGN(const SegmentHeader header, writer->Finish());
    manifest.segments.insert(manifest.segments.begin(),
                             {file, header.file_bytes(), header.segment_id,
                              HeaderChecksum(EncodeHeader(header)), header.row_count});
    ASSERT_OK(PublishManifest(files_, table_->dir(), manifest));
  }

  absl::StatusOr<std::shared_ptr<const Snapshot>> Open() {
    return Snapshot::OpenNewest(files_, table_->dir(), options_);
  }

  // Asks for every key in every way. `damaged_allowed`: that answer may be given as well.
  void CheckAnswers(const Snapshot& snapshot, bool damaged_allowed) {
    LookupResults results;
    ProbeEngine engine;
    engine.Lookup(snapshot, views_, &results);
    for (size_t i = 0; i < views_.size(); ++i) {
      const LookupResult& right = expected_.find(std::string(views_[i]))->second;
      for (const LookupResult& got : {results.at(i), LookupOne(snapshot, views_[i])}) {
        if (got == right || (damaged_allowed && got.outcome == Outcome::kDamaged)) continue;
        ADD_FAILURE() << "key " << QuoteShort(views_[i]) << ": expected " << Describe(right)
                      << "; got " << Describe(got);
      }
    }
  }

  // Calls `check(path, header, begin, end)` for every such step of the segments' sections.
  template <typename Check>
  void ForEachStep(SectionKind kind, uint64_t step, Check check) {
    ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadNewestManifest(files_, table_->dir()));
    for (const SegmentRef& ref : manifest.segments) {
      const std::string path = table_->Path(ref.file);
      const Section section = HeaderOf(files_.Bytes(path)).section(kind);
      for (uint64_t at = section.offset; at < section.end(); at += step) {
        check(path, at, std::min(at + step, section.end()));
        ASSERT_FALSE(HasFailure()) << path << ", " << SectionName(kind) << ", offset " << at;
      }
    }
  }

  MemoryFileSystem files_;
  std::unique_ptr<TestTable> table_;
  SnapshotOptions options_;
  std::map<std::string, LookupResult> expected_;
  std::vector<std::string_view> views_;
};

TEST_P(GenerationDamageTest, EveryPageZeroed) {
  ASSERT_NO_FATAL_FAILURE(BuildGeneration());
  {
    ASSERT_OK_AND_ASSIGN(const auto whole, Open());
    ASSERT_EQ(whole->segments().size(), 3u);
    ASSERT_EQ(whole->segment_map() != nullptr, GetParam());
    CheckAnswers(*whole, false);
  }
  for (const SectionKind kind : {SectionKind::kFilter, SectionKind::kPilots, SectionKind::kLines,
                                 SectionKind::kRecords, SectionKind::kValues}) {
    int holes = 0;
    ForEachStep(kind, kPageBytes, [&](const std::string& path, uint64_t begin, uint64_t end) {
      std::string& bytes = files_.Bytes(path);
      const std::string pristine = bytes.substr(begin, end - begin);
      bytes.replace(begin, end - begin, end - begin, '\0');
      ASSERT_OK_AND_ASSIGN(const auto snapshot, Open());
      EXPECT_EQ(snapshot->segment_map() != nullptr, GetParam());
      // A filter's hole lets every key through.
      CheckAnswers(*snapshot, kind != SectionKind::kFilter);
      bytes.replace(begin, end - begin, pristine);
      ++holes;
    });
    EXPECT_GE(holes, kind == SectionKind::kRecords ? 1 : 3);
  }
}

TEST_P(GenerationDamageTest, DamagedHashListsMakeNoMap) {
  ASSERT_NO_FATAL_FAILURE(BuildGeneration());
  const auto check = [&](const std::string& path) {
    ASSERT_OK_AND_ASSIGN(const auto snapshot, Open());
    EXPECT_EQ(snapshot->segment_map(), nullptr);
    EXPECT_EQ(snapshot->segment_map_bytes(), 0u);
    if (GetParam()) {
      EXPECT_FAILS(snapshot->segment_map_status(), kDataLoss,
                   AllOf(StartsWith(path), HasSubstr("'hashes'")));
    } else {
      EXPECT_TRUE(absl::IsResourceExhausted(snapshot->segment_map_status()));
    }
    CheckAnswers(*snapshot, false);
    std::vector<DamagedBlock> damaged;
    ASSERT_OK(VerifySegmentFile(files_, path, &damaged));
    ASSERT_EQ(damaged.size(), 1u);
    EXPECT_EQ(damaged[0].section, "hashes");
  };
  ForEachStep(SectionKind::kHashes, 1, [&](const std::string& path, uint64_t begin, uint64_t end) {
    const Section section = HeaderOf(files_.Bytes(path)).section(SectionKind::kHashes);
    if (begin != section.offset && end != section.end() && !random_.OneIn(8)) return;
    char& byte = files_.Bytes(path)[begin];
    const char pristine = byte;
    byte = static_cast<char>(byte ^ (1 << random_.Below(8)));
    check(path);
    byte = pristine;
  });
  ForEachStep(SectionKind::kHashes, kPageBytes,
              [&](const std::string& path, uint64_t begin, uint64_t end) {
                std::string& bytes = files_.Bytes(path);
                const std::string pristine = bytes.substr(begin, end - begin);
                bytes.replace(begin, end - begin, end - begin, '\0');
                check(path);
                bytes.replace(begin, end - begin, pristine);
              });
}

// Segments that the generation before has open are shared with it, so whether its map is extended
// or, having become too small, made anew: of what lies on the disk only the new hash list is read.
TEST_P(GenerationDamageTest, TheNextGenerationReadsTheNewHashListOnly) {
  for (const bool extends : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(BuildGeneration(extends ? 45 : 3));
    ASSERT_OK_AND_ASSIGN(const Manifest newest, ReadNewestManifest(files_, table_->dir()));
    ASSERT_OK_AND_ASSIGN(const Manifest before,
                         ReadManifest(files_, table_->dir(), newest.generation - 1));
    ASSERT_OK_AND_ASSIGN(const auto previous,
                         Snapshot::Open(files_, table_->dir(), before, options_));
    for (const SegmentRef& ref : newest.segments) {
      const std::string path = table_->Path(ref.file);
      std::string& bytes = files_.Bytes(path);
      const uint64_t at = HeaderOf(bytes).section(SectionKind::kHashes).offset;
      bytes[at] = static_cast<char>(bytes[at] ^ 4);
      ASSERT_OK_AND_ASSIGN(const auto snapshot,
                           Snapshot::Open(files_, table_->dir(), newest, options_, previous.get()));
      const bool is_new = &ref == &newest.segments[0];
      EXPECT_EQ(snapshot->segment_map() != nullptr, GetParam() && !is_new) << path;
      if (GetParam() && snapshot->segment_map() == nullptr) {
        EXPECT_FAILS(snapshot->segment_map_status(), kDataLoss, StartsWith(path));
      }
      CheckAnswers(*snapshot, false);
      bytes[at] = static_cast<char>(bytes[at] ^ 4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(SegmentMap, GenerationDamageTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& map) {
                           return map.param ? "WithMap" : "WithoutMap";
                         });

}  // namespace
}  // namespace latchkey::test
