// Segments with more slots, filter bits and bytes than 32 bits can count. They are files with holes,
// written by hand: only what the probes of some keys read is there.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/hash.h"
#include "core/key/key_hash.h"
#include "core/lookup/probe_engine.h"
#include "core/segment/bloom_filter.h"
#include "core/segment/group.h"
#include "core/segment/inline_layout.h"
#include "core/segment/segment_writer.h"
#include "core/segment/term_order_layout.h"
#include "core/segment/value_locator.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

constexpr uint64_t kHomeSlots = kPartitionSlotsMax;
constexpr uint64_t kSlots = kHomeSlots + (uint64_t{1} << 25);
constexpr uint64_t kRows = kHomeSlots / 4 * 3;
constexpr uint64_t kRecordBytes = uint64_t{1} << 37;  // of term order
constexpr uint64_t kValueBytes = uint64_t{1} << 36;
constexpr uint32_t kDisplaced = 300;

class SparseSegmentTest : public SeededTest, public testing::WithParamInterface<Layout> {
 protected:
  SparseSegmentTest() {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0644);
    EXPECT_GE(fd_, 0);
    manifest_.generation = 1;
    manifest_.identity = RandomIdentity(random_);
    manifest_.schema = {.doc_id_bytes = 8, .value_kind = ValueKind::kBytes};
    DescribeSegment();
  }
  ~SparseSegmentTest() override { ::close(fd_); }

  const Section& section(SectionKind kind) const { return header_.section(kind); }
  bool is_inline() const { return GetParam() == Layout::kInline; }

  void DescribeSegment() {
    header_.identity = manifest_.identity;
    header_.schema = manifest_.schema;
    header_.segment_id = 7;
    header_.layout = GetParam();
    header_.filter_kind = FilterKind::kRegisterBlocked;
    header_.filter_bits_per_key = 32;
    header_.filter_hashes = kFilterHashesMax;
    header_.key_bytes_min = 16;
    header_.key_bytes_max = is_inline() ? 16 : 40;
    header_.displacement_max = kDisplaced;
    header_.row_count = kRows;
    header_.slot_count = kSlots;
    shape_ = InlineShape(header_.schema, 16);
    entry_.home_slots = kHomeSlots;
    entry_.slots = kSlots;
    entry_.filter_words = static_cast<uint32_t>(FilterWordsFor(kRows, 32));
    entry_.row_count = kRows;
    entry_.record_bytes = is_inline() ? shape_.RecordBytes(kSlots) : kRecordBytes;
    const std::array<uint64_t, kSectionCount - 1> sizes = {
        kPartitionEntryBytes, uint64_t{entry_.filter_words} * 8, kSlots + kGroupSlots,
        is_inline() ? 0 : kSlots * 8, entry_.record_bytes, kValueBytes};
    uint64_t end = kHeaderBytes, blocks = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const uint64_t alignment = i == 0 ? kPageBytes : SectionAlignment(sizes[i]);
      header_.sections[i] = {RoundUp(end, alignment), sizes[i]};
      end = header_.sections[i].end();
      blocks += ChecksumBlocks(sizes[i]);
    }
    header_.sections.back() = {RoundUp(end, SectionAlignment(blocks * 8)), blocks * 8};
  }

  void Write(uint64_t offset, std::string_view bytes) {
    ASSERT_EQ(::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
  }
  template <typename T>
  void WriteNumber(uint64_t offset, T number) {
    Write(offset, {reinterpret_cast<const char*>(&number), sizeof(T)});
  }

  // Header, directory, and checksums: of the directory alone, which is all that is read at Open.
  void WriteHeader() {
    ASSERT_EQ(::ftruncate(fd_, static_cast<off_t>(header_.file_bytes())), 0);
    std::string directory;
    AppendPartitionEntry(entry_, &directory);
    Write(section(SectionKind::kDirectory).offset, directory);
    std::string checksums(section(SectionKind::kChecksums).size_bytes, '\0');
    Store(checksums.data(), Checksum(directory.data(), directory.size()));
    WriteNumber(section(SectionKind::kChecksums).offset, Load<uint64_t>(checksums.data()));
    header_.checksums_checksum = Checksum(checksums.data(), checksums.size());
    const std::string header = EncodeHeader(header_);
    Write(0, header);
    manifest_.segments = {{"sparse.segment", header_.file_bytes(), header_.segment_id,
                           HeaderChecksum(header), kRows}};
  }

  Hash128 HashOf(std::string_view key) const {
    return HashBytes(key.data(), key.size(), manifest_.identity.seed);
  }
  uint64_t HomeOf(const Hash128& hash) const { return HomeSlotOf(hash.low, 0, kHomeSlots); }

  // A new key far from the others' slots, with a filter word of its own; if `displaced`, so that its
  // slot may be beyond the home slots.
  std::string NewKey(bool displaced) {
    std::string key = random_.Bytes(is_inline() ? 16 : random_.Between(16, 40));
    for (;;) {
      Store(key.data(), random_.Next());
      const Hash128 hash = HashOf(key);
      const uint64_t home = HomeOf(hash);
      if (displaced && home + kDisplaced < kHomeSlots) continue;
      const auto near = taken_.lower_bound(home - std::min<uint64_t>(home, 1000));
      if (near != taken_.end() && *near < home + 1000) continue;
      if (!filter_words_.insert(FilterWordOf(hash.high, entry_.filter_words)).second) continue;
      taken_.insert(home);
      return key;
    }
  }

  // Puts a row `displacement` slots behind its home, and other full slots before it.
  void Place(const std::string& key, uint64_t doc_id, const std::string& value,
             uint32_t displacement) {
    const Hash128 hash = HashOf(key);
    const uint64_t home = HomeOf(hash), slot = home + displacement;
    const uint64_t word = FilterWordOf(hash.high, entry_.filter_words);
    WriteNumber(section(SectionKind::kFilter).offset + word * 8,
                FilterMask(hash.high, header_.filter_hashes));
    std::string control(displacement, static_cast<char>(ControlOf(hash.low) ^ 1));
    control += static_cast<char>(ControlOf(hash.low));
    Write(section(SectionKind::kControl).offset + home, control);
    // A place of its own for the value, and for the record, spread over the whole sections.
    const uint64_t value_at = next_ * (kValueBytes / 1000) + random_.Below(1 << 20);
    std::string stored(kVarintBytesMax, '\0');
    stored.resize(static_cast<size_t>(
        StoreVarint(reinterpret_cast<uint8_t*>(stored.data()), value.size() + 1) -
        reinterpret_cast<uint8_t*>(stored.data())));
    Write(section(SectionKind::kValues).offset + value_at, stored + value);
    std::string record(16, '\0');
    StoreDocId(reinterpret_cast<uint8_t*>(record.data()), doc_id, 8);
    Store(record.data() + 8, MakeLocator(value_at, ValueCheck(value, hash)));
    uint64_t record_at = shape_.RecordOffset(static_cast<uint32_t>(slot));
    if (!is_inline()) {
      record_at = next_ * (kRecordBytes / 1000) / kPageBytes * kPageBytes + random_.Below(3000);
      record += static_cast<char>(key.size());
      WriteNumber(section(SectionKind::kSlotWords).offset + slot * 8,
                  MakeSlotWord(record_at, displacement, TagOf(hash.low)));
    }
    Write(section(SectionKind::kRecords).offset + record_at, record + key);
    ++next_;
  }

  const TempDir folder_;
  const std::string path_ = folder_.Path("sparse.segment");
  int fd_ = -1;
  Manifest manifest_;
  SegmentHeader header_;
  PartitionEntry entry_;
  InlineShape shape_;
  std::set<uint64_t> taken_, filter_words_;  // by keys
  uint64_t next_ = 0;
};

TEST_P(SparseSegmentTest, FindsRowsBeyond32Bits) {
  ASSERT_GT(header_.slot_count, uint64_t{1} << 31);
  ASSERT_GT(section(SectionKind::kFilter).size_bytes * 8, uint64_t{1} << 35);
  ASSERT_NO_FATAL_FAILURE(WriteHeader());
  std::vector<std::string> keys;
  std::vector<LookupResult> expected;
  std::vector<std::string> values;
  const auto add = [&](std::string key, uint32_t displacement) {
    const uint64_t doc_id = random_.Next() >> 1;
    values.push_back(random_.Bytes(random_.Below(300)));
    Place(key, doc_id, values.back(), displacement);
    keys.push_back(std::move(key));
    expected.push_back({Outcome::kFound, doc_id, {}});
  };
  for (int i = 0; i < 900; ++i) {
    add(NewKey(false), i % 3 == 0 ? static_cast<uint32_t>(random_.Below(kDisplaced + 1)) : 0);
  }
  // One whose home is among the last, and whose slot is beyond them.
  const std::string last = NewKey(true);
  ASSERT_GE(HomeOf(HashOf(last)) + kDisplaced, uint64_t{1} << 31);
  add(last, kDisplaced);
  // Absent ones: an empty slot at home, or a filter word that says no.
  for (int i = 0; i < 100; ++i) {
    keys.push_back(NewKey(false));
    const Hash128 hash = HashOf(keys.back());
    if (i % 2 == 0) {
      WriteNumber(section(SectionKind::kControl).offset + HomeOf(hash), kControlEmpty);
    } else {
      WriteNumber(section(SectionKind::kFilter).offset +
                      8 * FilterWordOf(hash.high, entry_.filter_words),
                  ~FilterMask(hash.high, 1));
    }
    expected.push_back({Outcome::kAbsent, 0, {}});
  }
  // And those about which nothing was written.
  for (int i = 0; i < 100; ++i) {
    keys.push_back(NewKey(false));
    expected.push_back({Outcome::kDamaged, 0, {}});
  }
  for (size_t i = 0; i < values.size(); ++i) expected[i].value = values[i];

  ASSERT_OK_AND_ASSIGN(const auto snapshot, Snapshot::Open(PosixFileSystem(), folder_.path(), manifest_));
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  ProbeEngine engine;
  LookupResults results;
  engine.Lookup(*snapshot, views, &results);
  for (size_t i = 0; i < views.size(); ++i) {
    EXPECT_EQ(results.at(i), expected[i])
        << i << ": expected " << Describe(expected[i]) << "; got " << Describe(results.at(i));
    EXPECT_EQ(LookupOne(*snapshot, views[i]), expected[i]) << i;
    if (HasFailure()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, SparseSegmentTest,
                         testing::Values(Layout::kInline, Layout::kTermOrder),
                         [](const testing::TestParamInfo<Layout>& layout) {
                           return layout.param == Layout::kInline ? "Inline" : "TermOrder";
                         });

}  // namespace
}  // namespace latchkey::test
