// Segment files of another size than they should have, and files whose checksums are right but
// whose header or directory is not: refused, whatever opens them.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/lookup/probe_engine.h"
#include "core/table/segment_map.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/segment_bytes.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class SegmentCutTest : public SeededTest {
 protected:
  // A table of one segment, of either layout and with values of bytes. Returns the segment's path.
  std::string BuildSmall(TestTable& table, LayoutChoice layout) {
    table.options.layout = layout;
    table.options.schema.value_kind = ValueKind::kBytes;
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, 50, 9)) {
      rows.push_back({std::move(key), random_.Bytes(random_.Below(40))});
    }
    const auto built = table.Build(rows);
    EXPECT_OK(built);
    return built.ok() ? built->segment_path : "";
  }

  // All lengths around what the header holds and around the ends of sections, and some others.
  std::set<uint64_t> CutsOf(const SegmentHeader& header) {
    std::set<uint64_t> cuts;
    const auto around = [&](uint64_t at) {
      for (uint64_t cut = at - std::min<uint64_t>(at, 70); cut <= at + 70; ++cut) cuts.insert(cut);
    };
    for (uint64_t cut = 0; cut <= 400; ++cut) cuts.insert(cut);
    for (uint64_t cut = 400; cut <= 8192; cut += random_.Between(1, 20)) cuts.insert(cut);
    for (const Section& section : header.sections) {
      around(section.offset);
      around(section.end());
    }
    for (int i = 0; i < 100; ++i) cuts.insert(random_.Below(header.file_bytes()));
    for (uint64_t at = 0; at < header.file_bytes(); at += kPageBytes) cuts.insert(at);
    cuts.erase(header.file_bytes());
    return cuts;
  }

  MemoryFileSystem files_;
};

TEST_F(SegmentCutTest, EveryCutIsRefused) {
  for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
    TestTable table(files_, "data", random_);
    const std::string path = BuildSmall(table, layout);
    const std::string pristine = files_.Bytes(path);
    for (const uint64_t cut : CutsOf(HeaderOf(pristine))) {
      std::string bytes = pristine.substr(0, cut);
      bytes.resize(cut);  // and if it is longer: with zero bytes
      files_.Put(path, std::move(bytes));
      SCOPED_TRACE(testing::Message() << "cut to " << cut);
      EXPECT_FAILS(Segment::Open(files_, path), kDataLoss, StartsWith(path));
      EXPECT_FAILS(table.Open(), kDataLoss, StartsWith(path));
      std::vector<DamagedBlock> damaged;
      EXPECT_FAILS(VerifySegmentFile(files_, path, &damaged), kDataLoss, StartsWith(path));
      ASSERT_FALSE(HasFailure());
    }
    files_ = MemoryFileSystem();
  }
}

// The same with files of the machine, whose maps may end within a page.
TEST_F(SegmentCutTest, CutsOfMappedFiles) {
  const TempDir folder;
  TestTable table(PosixFileSystem(), folder.path(), random_);
  const std::string path = BuildSmall(table, LayoutChoice::kPointer);
  const uint64_t file_bytes = std::filesystem::file_size(path);
  for (uint64_t cut = file_bytes; cut-- > 0; cut -= std::min<uint64_t>(cut, random_.Below(5000))) {
    std::filesystem::resize_file(path, cut);
    EXPECT_FAILS(table.Open(), kDataLoss, StartsWith(path));
  }
}

// A file that was cut and has grown again: zero bytes where something was.
TEST_F(SegmentCutTest, EveryRegrownFileIsRefused) {
  for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
    TestTable table(files_, "data", random_);
    const std::string path = BuildSmall(table, layout);
    const std::string pristine = files_.Bytes(path);
    for (const uint64_t cut : CutsOf(HeaderOf(pristine))) {
      if (cut > pristine.size()) continue;
      std::string bytes = pristine.substr(0, cut);
      bytes.resize(pristine.size());
      if (bytes == pristine) continue;
      files_.Put(path, std::move(bytes));
      // The checksums come last, so whatever is lost takes some of them with it. Where only the
      // magic is left, it looks like a file of another version.
      const absl::Status status = table.Open().status();
      EXPECT_THAT(Message(status), StartsWith(path));
      EXPECT_TRUE(absl::IsDataLoss(status) || (absl::IsFailedPrecondition(status) && cut <= 10))
          << status << ", cut to " << cut;
    }
    files_ = MemoryFileSystem();
  }
}

// A directory under right checksums that is wrong: refused by name of file and entry.
TEST_F(SegmentCutTest, ForgedDirectoriesAreRefused) {
  for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
    TestTable table(files_, "data", random_);
    const std::string path = BuildSmall(table, layout);
    const std::string pristine = files_.Bytes(path);
    const SegmentHeader header = HeaderOf(pristine);
    const Section& directory = header.section(SectionKind::kDirectory);
    const auto entries =
        DecodeDirectory(header, pristine.substr(directory.offset, directory.size_bytes));
    ASSERT_OK(entries);
    const std::vector<std::function<void(PartitionEntry*)>> forgeries = {
        [](auto* e) { ++e->lines_offset; },
        [](auto* e) { e->lines_offset += kPageBytes; },
        [](auto* e) { ++e->first_pilot; },
        [](auto* e) { ++e->filter_first_word; },
        [](auto* e) { ++e->records_offset; },
        [](auto* e) { e->records_offset += kPageBytes; },
        [](auto* e) { ++e->record_bytes; },
        [](auto* e) { --e->record_bytes; },
        [](auto* e) { e->record_bytes += uint64_t{1} << 40; },
        [](auto* e) { e->lines = 0; },
        [](auto* e) { ++e->lines; },
        [](auto* e) { --e->lines; },
        [](auto* e) { e->lines = UINT32_MAX; },
        [](auto* e) { e->groups = 0; },
        [](auto* e) { ++e->groups; },
        [](auto* e) { --e->groups; },
        [](auto* e) { e->groups = UINT32_MAX; },
        [](auto* e) { e->filter_words = 0; },
        [](auto* e) { ++e->filter_words; },
        [](auto* e) { --e->filter_words; },
        [](auto* e) { ++e->row_count; },
        [](auto* e) { --e->row_count; },
        [](auto* e) { e->row_count = UINT32_MAX; },
        [](auto* e) { *e = {}; },
    };
    for (size_t i = 0; i < forgeries.size(); ++i) {
      PartitionEntry entry = (*entries)[0];
      forgeries[i](&entry);
      std::string encoded, bytes = pristine;
      AppendPartitionEntry(entry, &encoded);
      bytes.replace(directory.offset, encoded.size(), encoded);
      SealSegment(header, &bytes);
      files_.Put(path, std::move(bytes));
      SCOPED_TRACE(testing::Message() << "forgery " << i);
      EXPECT_FAILS(Segment::Open(files_, path), kDataLoss,
                   AllOf(StartsWith(path), HasSubstr("directory")));
    }
    files_ = MemoryFileSystem();
  }
}

// Entries that agree with each other and in their sums, but give a partition a place that it can't
// have.
TEST_F(SegmentCutTest, ForgedPartitionsAreRefused) {
  for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
    TestTable table(files_, "data", random_);
    table.options.layout = layout;
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, 50, 9)) rows.push_back({std::move(key), ""});
    ASSERT_OK(table.AppendPartitioned(rows, 1));
    const std::string path = table.Path(SegmentFileName(2, 0));
    const std::string pristine = files_.Bytes(path);
    const SegmentHeader header = HeaderOf(pristine);
    const Section& directory = header.section(SectionKind::kDirectory);
    const auto entries =
        DecodeDirectory(header, pristine.substr(directory.offset, directory.size_bytes));
    ASSERT_OK(entries);
    using Entries = std::vector<PartitionEntry>;
    const std::vector<std::function<void(Entries&)>> forgeries = {
        // The sums depend on the offsets of the last partition only.
        [](Entries& e) { e[0].lines_offset = kPageBytes; },
        [](Entries& e) { e[0].lines_offset = uint64_t{1} << 62; },
        [](Entries& e) { e[0].first_pilot = uint64_t{1} << 62; },
        [](Entries& e) { e[0].filter_first_word = uint64_t{1} << 59; },
        [](Entries& e) { e[0].records_offset = kPageBytes; },
        [](Entries& e) { e[0].records_offset = uint64_t{1} << 62; },
        // One partition has all, and the other one has none.
        [](Entries& e) {
          e[0].groups += e[1].groups;
          e[1].first_pilot += e[1].groups;
          e[1].groups = 0;
        },
        [](Entries& e) {
          e[1].groups += e[0].groups;
          e[1].first_pilot = e[0].groups = 0;
        },
        [](Entries& e) {
          e[0].filter_words += e[1].filter_words;
          e[1].filter_first_word += e[1].filter_words;
          e[1].filter_words = 0;
        },
        [](Entries& e) {
          e[1].lines_offset = 0;
          e[1].lines += static_cast<uint32_t>(kPageBytes / 64);
          e[0].lines = 0;
        },
        // They lie one in the other.
        [](Entries& e) {
          e[1].lines_offset = 0;
          e[1].lines += static_cast<uint32_t>(kPageBytes / 64);
        },
    };
    for (size_t i = 0; i < forgeries.size(); ++i) {
      Entries forged = *entries;
      forgeries[i](forged);
      std::string encoded, bytes = pristine;
      for (const PartitionEntry& entry : forged) AppendPartitionEntry(entry, &encoded);
      bytes.replace(directory.offset, encoded.size(), encoded);
      SealSegment(header, &bytes);
      files_.Put(path, std::move(bytes));
      SCOPED_TRACE(testing::Message() << "forgery " << i);
      EXPECT_FAILS(Segment::Open(files_, path), kDataLoss,
                   AllOf(StartsWith(path), HasSubstr("directory")));
    }
    files_ = MemoryFileSystem();
  }
}

// Hash lists of another number of hashes, or of hashes too large, under right checksums: no map.
TEST_F(SegmentCutTest, ForgedHashListsMakeNoMap) {
  TestTable table(files_, "data", random_);
  const std::string path = BuildSmall(table, LayoutChoice::kLine);
  const std::string pristine = files_.Bytes(path);
  const SegmentHeader header = HeaderOf(pristine);
  const Section& hashes = header.section(SectionKind::kHashes);
  const unsigned width = header.hash_delta_bytes;
  const auto map_of = [&](const std::string& bytes) {
    files_.Put(path, bytes);
    const auto segment = Segment::Open(files_, path);
    EXPECT_OK(segment);
    const Segment* const twice[] = {segment->get(), segment->get()};
    return SegmentMap::Build(twice, 1 << 20).status();
  };
  EXPECT_OK(map_of(pristine));
  for (const uint64_t at : {hashes.offset, hashes.end() - width}) {
    std::string bytes = pristine;
    bytes.replace(at, width, width, '\xFF');  // a step on the way to a hash, and no hash
    SealSegment(header, &bytes);
    EXPECT_FAILS(map_of(bytes), kDataLoss,
                 AllOf(StartsWith(path), HasSubstr("expected 50 hashes")));
  }
  // All steps almost as large as can be.
  std::string bytes = pristine;
  for (uint64_t at = hashes.offset; at < hashes.end(); at += width) {
    bytes.replace(at, width, std::string(width - 1, '\xFF') + '\xFE');
  }
  SealSegment(header, &bytes);
  EXPECT_FAILS(map_of(bytes), kDataLoss, AllOf(StartsWith(path), HasSubstr("expected 50 hashes")));
}

// Header and directory agree on a number of rows that is wrong: that shows when they are read.
TEST_F(SegmentCutTest, ForgedRowCountsShowInBulkReading) {
  for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
    TestTable table(files_, "data", random_);
    const std::string path = BuildSmall(table, layout);
    const std::string pristine = files_.Bytes(path);
    for (const int step : {-1, 0, 1}) {
      std::string bytes = pristine;
      SegmentHeader header = HeaderOf(bytes);
      const uint64_t at = header.section(SectionKind::kDirectory).offset + 52;
      ASSERT_EQ(Load<uint32_t>(bytes.data() + at), 50u);
      const auto rows = static_cast<uint32_t>(50 + step);
      Store(bytes.data() + at, rows);
      header.row_count = rows;
      SealSegment(header, &bytes);
      files_.Put(path, bytes);
      ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, path));
      const absl::Status status =
          segment->ForEachRow([](const StoredRow&) { return absl::OkStatus(); });
      if (step == 0) {
        EXPECT_OK(status);
      } else {
        EXPECT_FAILS(status, kDataLoss,
                     path + ": expected " + std::to_string(rows) + " rows, found 50");
      }
    }
    files_ = MemoryFileSystem();
  }
}

// Any bytes at all under right checksums, in header, directory and all sections: refused, or
// answered without harm.
TEST_F(SegmentCutTest, RandomForgeriesDoNoHarm) {
  for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
    TestTable table(files_, "data", random_);
    const std::string path = BuildSmall(table, layout);
    const std::string pristine = files_.Bytes(path);
    const SegmentHeader header = HeaderOf(pristine);
    std::vector<std::string> questions = table.reference().Keys();
    for (std::string& stranger : StrangerKeys(random_, questions, 50)) {
      questions.push_back(stranger);
    }
    int opened = 0, mapped = 0;
    std::string& bytes = files_.Bytes(path);
    for (int round = 0; round < 3000; ++round) {
      bytes = pristine;
      const Section& directory = header.section(SectionKind::kDirectory);
      if (round % 2 == 0) {
        bytes[random_.Between(directory.offset, directory.end() - 1)] =
            static_cast<char>(random_.Next());
      }
      for (size_t i = 1; i + 1 < kSectionCount; ++i) {
        const Section& section = header.sections[i];
        // Most forged hash lists make no map, and some rounds are to have one.
        const bool hashes = i == static_cast<size_t>(SectionKind::kHashes);
        for (int n = hashes && round % 4 < 2 ? 4 : 0; n < 5 && section.size_bytes > 0; ++n) {
          bytes[random_.Between(section.offset, section.end() - 1)] =
              static_cast<char>(random_.Next());
        }
      }
      SealSegment(header, &bytes);
      if (round % 3 == 0) {
        // From the table id to the end of the schema.
        bytes[random_.Between(16, 300)] = static_cast<char>(random_.Next());
        SealHeader(&bytes);
      }
      const auto segment = Segment::Open(files_, path);
      if (!segment.ok()) continue;
      ++opened;
      const uint64_t seed = (*segment)->header().identity.seed;
      const Segment* const twice[] = {segment->get(), segment->get()};
      const auto map = SegmentMap::Build(twice, 1 << 20);
      mapped += map.ok();
      for (const std::string& key : questions) {
        RowRef row;
        std::string_view value;
        const uint64_t hash = HashBytes(key.data(), key.size(), seed);
        if (ProbeOne(**segment, round % 5 == 0, key, hash, &row) == Held::kRow) {
          (void)(*segment)->ReadValue(row, hash, &value);
        }
        if (map.ok()) {
          EXPECT_LE((*map)->NextSegment((*map)->ProbeFor(hash), UINT32_MAX), 2u);
        }
      }
      (void)(*segment)->ForEachRow([](const StoredRow&) { return absl::OkStatus(); });
    }
    EXPECT_GT(opened, 1000);
    EXPECT_GT(mapped, 100);
    files_ = MemoryFileSystem();
  }
}

}  // namespace
}  // namespace latchkey::test
