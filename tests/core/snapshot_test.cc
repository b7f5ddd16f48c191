// A generation opens as a whole or not at all: every segment is the very file that its manifest
// means. Its segment map, though, is only for speed: without one all is answered the same.
#include "core/table/snapshot.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/hash.h"
#include "core/key/key_hash.h"
#include "core/lookup/probe_engine.h"
#include "core/segment/bloom_filter.h"
#include "core/segment/segment_writer.h"
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

class SnapshotTest : public SeededTest {
 protected:
  SnapshotTest() : table_(files_, "data", random_) {
    table_.options.schema.value_kind = ValueKind::kBytes;
    EXPECT_OK(table_.Build({{"a", "1"}, {"b", "1"}}));
    EXPECT_OK(table_.Append({{"b", "2"}, {"c", "2"}}));
    EXPECT_OK(table_.Append({{"c", "3"}}));
  }

  // Opens the newest manifest with something changed in it.
  absl::Status OpenChanged(const std::function<void(Manifest*)>& change) {
    auto manifest = ReadNewestManifest(files_, table_.dir());
    EXPECT_OK(manifest);
    change(&*manifest);
    return Snapshot::Open(files_, table_.dir(), *manifest).status();
  }

  MemoryFileSystem files_;
  TestTable table_;
};

TEST_F(SnapshotTest, OpensTheNewestAndAnyOlderGeneration) {
  ASSERT_OK_AND_ASSIGN(const auto newest, table_.Open());
  EXPECT_EQ(newest->generation(), 4u);
  EXPECT_EQ(newest->segments().size(), 3u);
  EXPECT_EQ(newest->row_count(), 5u);
  EXPECT_EQ(newest->schema(), table_.options.schema);
  EXPECT_EQ(newest->segments()[0]->path(), table_.Path("g00000004-0.segment"));
  EXPECT_EQ(LookupOne(*newest, "c").value, "3");
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadManifest(files_, table_.dir(), 3));
  ASSERT_OK_AND_ASSIGN(const auto older, Snapshot::Open(files_, table_.dir(), manifest));
  EXPECT_EQ(older->manifest(), manifest);
  EXPECT_EQ(LookupOne(*older, "c").value, "2");
  EXPECT_EQ(LookupOne(*older, "b").value, "2");
  EXPECT_EQ(LookupOne(*older, "a").value, "1");
}

// Known from the manifest, before any file is opened; the figures are in the message.
TEST_F(SnapshotTest, TheMemoryThatItTakesIsKnownBefore) {
  ASSERT_OK_AND_ASSIGN(const auto previous, table_.Open());
  ASSERT_OK(table_.Append({{"d", "4"}}));
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadNewestManifest(files_, table_.dir()));
  constexpr uint64_t kTebibyte = uint64_t{1} << 40;
  manifest.segments[0].file_bytes = 3 * kTebibyte;  // and the others less than 1 MiB each
  manifest.segments[0].row_count = kTebibyte;
  manifest.segments[0].file = "none";
  const auto open = [&](MemoryMode mode, uint64_t map_bytes_max, const Snapshot* beside) {
    return Snapshot::Open(files_, table_.dir(), manifest,
                          {.memory_mode = mode, .segment_map_bytes_max = map_bytes_max}, beside)
        .status();
  };
  const std::string map_mib =
      std::to_string(SegmentMap::SizeBytes(std::vector<uint64_t>{2, 2, 1, kTebibyte}) >> 20);
  // Beside another: its segments count where they are to be in memory, and the segment map.
  EXPECT_FAILS(open(MemoryMode::kMmap, UINT64_MAX, previous.get()), kResourceExhausted,
               AllOf(StartsWith("data/t: generation 5 beside generation 4: 0 MiB of segments and " +
                                map_mib + " MiB of segment map: it takes " + map_mib + " MiB"),
                     HasSubstr("MiB left")));
  EXPECT_FAILS(open(MemoryMode::kHuge, 0, previous.get()), kResourceExhausted,
               AllOf(HasSubstr(": 3145729 MiB of segments and 0 MiB of segment map"),
                     HasSubstr("MiB left")));
  // Alone, it is opened without a map rather than not at all.
  EXPECT_FAILS(open(MemoryMode::kLocked, UINT64_MAX, nullptr), kResourceExhausted,
               StartsWith("data/t: generation 5: 3145729 MiB of segments and 0 MiB"));
  EXPECT_FAILS(open(MemoryMode::kMmap, UINT64_MAX, nullptr), kNotFound, HasSubstr("none"));
  // Nor does a map count that may not be made.
  EXPECT_FAILS(open(MemoryMode::kMmap, 1 << 20, previous.get()), kNotFound, HasSubstr("none"));
}

TEST_F(SnapshotTest, AMissingSegmentIsNamed) {
  const std::string path = table_.Path("g00000003-0.segment");
  ASSERT_OK(files_.Remove(path));
  EXPECT_FAILS(table_.Open(), kNotFound, HasSubstr(path));
}

TEST_F(SnapshotTest, ASegmentOfAnotherTableIsRefused) {
  TestTable other(files_, "elsewhere", random_);
  other.options.schema = table_.options.schema;
  ASSERT_OK(other.Build({{"a", "theirs"}}));
  const std::string path = table_.Path("g00000003-0.segment");
  files_.Put(path, files_.Bytes(other.Path("g00000002-0.segment")));
  EXPECT_FAILS(table_.Open(), kDataLoss, AllOf(StartsWith(path), HasSubstr("another table")));
}

TEST_F(SnapshotTest, SegmentsThatChangedPlacesAreRefused) {
  const std::string a = table_.Path("g00000002-0.segment"), b = table_.Path("g00000003-0.segment");
  std::swap(files_.Bytes(a), files_.Bytes(b));
  EXPECT_FAILS(table_.Open(), kDataLoss,
               AllOf(StartsWith(b), HasSubstr("not the file that the manifest means")));
}

// A segment of the same table, the same name, and even the same rows, that another build wrote.
TEST_F(SnapshotTest, ASegmentOfAnotherBuildIsRefused) {
  const std::string path = table_.Path("g00000004-0.segment");
  const std::string first = files_.Bytes(path);
  ASSERT_OK(files_.Remove(table_.Path("g00000004.manifest")));
  ASSERT_OK(table_.Append({{"c", "3"}}));
  ASSERT_NE(files_.Bytes(path), first);
  files_.Put(path, first);
  EXPECT_FAILS(table_.Open(), kDataLoss,
               AllOf(StartsWith(path), HasSubstr("not the file that the manifest means")));
}

// The header's checksum in the manifest covers all of the file, by way of its checksums section.
TEST_F(SnapshotTest, AForgedSegmentIsRefused) {
  const std::string path = table_.Path("g00000004-0.segment");
  std::string& bytes = files_.Bytes(path);
  const SegmentHeader header = HeaderOf(bytes);
  bytes[header.section(SectionKind::kValues).offset + 1] ^= 1;
  SealSegment(header, &bytes);
  ASSERT_OK(Segment::Open(files_, path));
  EXPECT_FAILS(table_.Open(), kDataLoss, StartsWith(path));
}

TEST_F(SnapshotTest, ManifestsThatContradictTheirSegmentsAreRefused) {
  const std::string newest = table_.Path("g00000004-0.segment");
  EXPECT_OK(OpenChanged([](Manifest*) {}));
  EXPECT_FAILS(OpenChanged([](Manifest* m) { m->identity.table_id[3] ^= 1; }), kDataLoss,
               AllOf(StartsWith(newest), HasSubstr("another table")));
  EXPECT_FAILS(OpenChanged([](Manifest* m) { m->identity.seed ^= 1; }), kDataLoss,
               AllOf(StartsWith(newest), HasSubstr("seed")));
  EXPECT_FAILS(OpenChanged([](Manifest* m) { m->schema.doc_id_bytes = 8; }), kDataLoss,
               AllOf(StartsWith(newest), HasSubstr("schema"), HasSubstr("64-bit")));
  EXPECT_FAILS(OpenChanged([](Manifest* m) { m->schema.key_kind = KeyKind::kHex; }), kDataLoss,
               AllOf(StartsWith(newest), HasSubstr("schema"), HasSubstr("hex")));
  EXPECT_FAILS(OpenChanged([](Manifest* m) { m->schema.key_bytes = 1; }), kDataLoss,
               AllOf(StartsWith(newest), HasSubstr("schema"), HasSubstr("raw(1)")));
  EXPECT_FAILS(OpenChanged([](Manifest* m) { m->shard_bits = 1; }), kDataLoss,
               AllOf(StartsWith(newest), HasSubstr("shard"), HasSubstr("expected 0 of 2"),
                     HasSubstr("got 0 of 1")));
  for (const auto& change : std::vector<std::function<void(SegmentRef*)>>{
           [](auto* ref) { ++ref->segment_id; }, [](auto* ref) { ++ref->header_checksum; },
           [](auto* ref) { ++ref->file_bytes; }, [](auto* ref) { ++ref->row_count; }}) {
    EXPECT_FAILS(OpenChanged([&](Manifest* m) { change(&m->segments[1]); }), kDataLoss,
                 StartsWith(table_.Path("g00000003-0.segment")));
  }
  EXPECT_FAILS(
      OpenChanged([](Manifest* m) { std::swap(m->segments[0].file, m->segments[1].file); }),
      kDataLoss, HasSubstr("not the file"));
}

TEST_F(SnapshotTest, AnEditedManifestIsRefused) {
  const std::string path = table_.Path("g00000004.manifest");
  std::string& text = files_.Bytes(path);
  // Somebody takes the newest segment out, by hand.
  const size_t begin = text.find('{', text.find("\"segments\""));
  text.erase(begin, text.find('}', begin) + 2 - begin);
  EXPECT_FAILS(table_.Open(), kDataLoss, AllOf(StartsWith(path), HasSubstr("edited")));
}

TEST_F(SnapshotTest, AManifestOfAnotherGenerationIsRefused) {
  const std::string path = table_.Path("g00000005.manifest");
  files_.Put(path, files_.Bytes(table_.Path("g00000003.manifest")));
  EXPECT_FAILS(table_.Open(), kDataLoss, AllOf(StartsWith(path), HasSubstr("generation 3")));
}

TEST_F(SnapshotTest, AManifestOfAnotherTableIsRefused) {
  TestTable other(files_, "elsewhere", random_);
  other.options.schema = table_.options.schema;
  ASSERT_OK(other.Build({{"a", "1"}}));
  ASSERT_OK(other.Append({{"a", "1"}}));
  ASSERT_OK(other.Append({{"a", "1"}}));
  files_.Put(table_.Path("g00000004.manifest"), files_.Bytes(other.Path("g00000004.manifest")));
  EXPECT_FAILS(table_.Open(), kDataLoss,
               AllOf(StartsWith(table_.dir()), HasSubstr(".segment"), HasSubstr("another table")));
}

TEST_F(SnapshotTest, AFolderWithoutATableIsNamed) {
  EXPECT_FAILS(Snapshot::OpenNewest(files_, "data/none"), kNotFound, HasSubstr("data/none"));
  ASSERT_OK(files_.CreateDirectories("data/empty"));
  EXPECT_FAILS(Snapshot::OpenNewest(files_, "data/empty"), kNotFound, HasSubstr("data/empty"));
}

// A table of several segments whose rows are partly the same keys.
class SegmentMapOfSnapshotTest : public SeededTest {
 protected:
  SegmentMapOfSnapshotTest() : table_(files_, "data", random_) {
    table_.options.schema.value_kind = ValueKind::kFixed;
    table_.options.schema.value_width = 4;
  }

  // New keys, and some that the table has already.
  std::vector<Row> RandomRows(size_t fresh, size_t again = 0) {
    std::vector<Row> rows;
    std::vector<std::string> keys = table_.reference().Keys();
    std::shuffle(keys.begin(), keys.end(), bits_);
    keys.resize(std::min(again, keys.size()));
    for (std::string& key : DistinctKeys(random_, fresh, 16)) keys.push_back(std::move(key));
    for (std::string& key : keys)
      rows.push_back({std::move(key), random_.Bytes(4), random_.Below(1000)});
    return rows;
  }
  // Three segments, in generations 2 to 4.
  void BuildThree() {
    ASSERT_OK(table_.Build(RandomRows(2500)));
    ASSERT_OK(table_.Append(RandomRows(1500, 500)));
    ASSERT_OK(table_.Append(RandomRows(1500, 700)));
  }
  absl::StatusOr<std::shared_ptr<const Snapshot>> Open(uint64_t generation,
                                                       const SnapshotOptions& options = {},
                                                       const Snapshot* previous = nullptr) {
    auto manifest = ReadManifest(files_, table_.dir(), generation);
    if (!manifest.ok()) return manifest.status();
    return Snapshot::Open(files_, table_.dir(), *manifest, options, previous);
  }
  // Holds a snapshot of the newest generation to the reference.
  void ExpectRightAnswers(const Snapshot& snapshot) {
    std::vector<std::string> keys = table_.reference().Keys();
    for (std::string& key : StrangerKeys(random_, keys, keys.size() + 200)) {
      keys.push_back(std::move(key));
    }
    ExpectSameAnswers(snapshot, table_.reference(), keys, 700);
  }
  std::string& FileOf(uint64_t generation) {
    return files_.Bytes(table_.Path(SegmentFileName(generation, 0)));
  }
  void DamageHashes(uint64_t generation) {
    std::string& bytes = FileOf(generation);
    const Section section = HeaderOf(bytes).section(SectionKind::kHashes);
    bytes[section.offset + random_.Below(section.size_bytes)] ^= 0x10;
  }

  MemoryFileSystem files_;
  TestTable table_;
  std::mt19937_64 bits_{random_.Next()};
};

TEST_F(SegmentMapOfSnapshotTest, IsMadeForTwoSegmentsAndMore) {
  // No segments, and one: none is needed, and that is no error.
  for (int segments = 0; segments < 5; ++segments) {
    if (segments == 1) {
      ASSERT_OK(table_.Build(RandomRows(2000)));
    } else if (segments > 1) {
      ASSERT_OK(table_.Append(RandomRows(500, 300)));
    }
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
    ASSERT_EQ(snapshot->segments().size(), static_cast<size_t>(segments));
    EXPECT_OK(snapshot->segment_map_status());
    ASSERT_EQ(snapshot->segment_map() != nullptr, segments >= 2);
    if (segments >= 2) {
      EXPECT_EQ(snapshot->segment_map_bytes(), snapshot->segment_map()->size_bytes());
      EXPECT_GT(snapshot->segment_map_bytes(), snapshot->row_count() * 2);
      // Numbered from 1, the oldest first, and as this snapshot has them open.
      const auto& mapped = snapshot->segment_map()->segments();
      ASSERT_EQ(mapped.size(), snapshot->segments().size() + 1);
      for (size_t i = 0; i < snapshot->segments().size(); ++i) {
        EXPECT_EQ(mapped[mapped.size() - 1 - i], snapshot->segments()[i].get());
      }
    } else {
      EXPECT_EQ(snapshot->segment_map_bytes(), 0u);
    }
    ExpectRightAnswers(*snapshot);
  }
}

TEST_F(SegmentMapOfSnapshotTest, IsNotMadeWithoutAHashList) {
  for (const int without : {0, 1, 2}) {
    for (int segment = 0; segment < 3; ++segment) {
      table_.options.hash_list = segment != without;
      const std::vector<Row> rows = RandomRows(1000, 400);
      ASSERT_OK(segment == 0 ? table_.Build(rows) : table_.Append(rows));
    }
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
    EXPECT_EQ(snapshot->segment_map(), nullptr);
    EXPECT_EQ(snapshot->segment_map_bytes(), 0u);
    EXPECT_FAILS(snapshot->segment_map_status(), kFailedPrecondition,
                 AllOf(HasSubstr(snapshot->segments()[2 - without]->path()),
                       HasSubstr("without a hash list")));
    ExpectRightAnswers(*snapshot);
  }
}

TEST_F(SegmentMapOfSnapshotTest, IsNotMadeWhenItWouldTakeTooMuch) {
  BuildThree();
  ASSERT_OK_AND_ASSIGN(const auto with, table_.Open());
  const uint64_t bytes = with->segment_map_bytes();
  ASSERT_GT(bytes, 0u);
  for (const uint64_t max : {uint64_t{0}, uint64_t{1}, bytes / 2, bytes - 1}) {
    ASSERT_OK_AND_ASSIGN(const auto without, Open(4, {.segment_map_bytes_max = max}));
    EXPECT_EQ(without->segment_map(), nullptr);
    EXPECT_EQ(without->segment_map_bytes(), 0u);
    EXPECT_FAILS(without->segment_map_status(), kResourceExhausted, HasSubstr("segment map"));
    ExpectRightAnswers(*without);
    // That an older generation had one does not make room.
    ASSERT_OK_AND_ASSIGN(const auto again, Open(4, {.segment_map_bytes_max = max}, with.get()));
    EXPECT_EQ(again->segment_map(), nullptr);
    EXPECT_FAILS(again->segment_map_status(), kResourceExhausted, HasSubstr("segment map"));
  }
  ASSERT_OK_AND_ASSIGN(const auto exactly, Open(4, {.segment_map_bytes_max = bytes}));
  EXPECT_NE(exactly->segment_map(), nullptr);
  EXPECT_OK(exactly->segment_map_status());
  ExpectRightAnswers(*exactly);
}

// Whatever is damaged in a hash list: it costs the map, and no answer.
TEST_F(SegmentMapOfSnapshotTest, IsNotMadeOfADamagedHashList) {
  BuildThree();
  for (const uint64_t generation : {2, 3, 4}) {
    const std::string pristine = FileOf(generation);
    for (int i = 0; i < 3; ++i) {
      DamageHashes(generation);
      ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
      EXPECT_EQ(snapshot->segment_map(), nullptr);
      EXPECT_FAILS(
          snapshot->segment_map_status(), kDataLoss,
          AllOf(StartsWith(table_.Path(SegmentFileName(generation, 0))), HasSubstr("'hashes'")));
      ExpectRightAnswers(*snapshot);
      FileOf(generation) = pristine;
    }
  }
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
  EXPECT_OK(snapshot->segment_map_status());
}

// A server that takes up generation after generation reads of each only what is new.
TEST_F(SegmentMapOfSnapshotTest, IsExtendedFromTheGenerationBefore) {
  ASSERT_OK(table_.Build(RandomRows(5000)));
  ASSERT_OK(table_.Append(RandomRows(2000, 500)));
  ASSERT_OK_AND_ASSIGN(auto previous, table_.Open());
  ASSERT_OK(table_.Append(RandomRows(100, 100)));
  ASSERT_OK(table_.Append(RandomRows(50, 150)));
  ASSERT_OK_AND_ASSIGN(const auto fresh, Open(5));
  ASSERT_OK(fresh->segment_map_status());
  // The older hash lists are not needed again: nobody sees that they are damaged by now.
  DamageHashes(2);
  DamageHashes(3);
  ASSERT_OK_AND_ASSIGN(const auto damaged, Open(5));
  EXPECT_FAILS(damaged->segment_map_status(), kDataLoss, HasSubstr("'hashes'"));
  ASSERT_OK_AND_ASSIGN(const auto extended, Open(5, {}, previous.get()));
  EXPECT_OK(extended->segment_map_status());
  ASSERT_NE(extended->segment_map(), nullptr);
  EXPECT_EQ(extended->segment_map_bytes(), previous->segment_map_bytes());
  // Nothing of the older snapshot is used any more, and it answers as before until it goes.
  EXPECT_EQ(previous->segment_map()->segments().size(), 3u);
  previous.reset();
  const auto& mapped = extended->segment_map()->segments();
  ASSERT_EQ(mapped.size(), 5u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(mapped[4 - i], extended->segments()[i].get());
  ExpectRightAnswers(*extended);
  ExpectRightAnswers(*fresh);
  std::vector<std::string> keys = table_.reference().Keys();
  for (std::string& key : StrangerKeys(random_, keys, 5000)) keys.push_back(std::move(key));
  for (const std::string& key : keys) {
    const LookupResult one = LookupOne(*extended, key), other = LookupOne(*fresh, key);
    ASSERT_EQ(Describe(one), Describe(other));
    ASSERT_EQ(one.value, other.value);
  }
}

// The newest give way to another, as when they are merged: what both generations have is not read
// again.
TEST_F(SegmentMapOfSnapshotTest, IsExtendedWhereTheNewestAreReplaced) {
  BuildThree();
  for (const size_t rows : {80, 90}) ASSERT_OK(table_.Append(RandomRows(rows, rows)));
  ASSERT_OK_AND_ASSIGN(auto previous, table_.Open());
  for (const uint64_t generation : {5, 6}) {
    ASSERT_OK(files_.Remove(table_.Path(ManifestFileName(generation))));
  }
  ASSERT_OK(table_.Append(RandomRows(100, 300)));
  ASSERT_OK_AND_ASSIGN(const auto fresh, Open(5));
  for (const uint64_t generation : {2, 3, 4}) DamageHashes(generation);
  ASSERT_OK_AND_ASSIGN(const auto extended, Open(5, {}, previous.get()));
  EXPECT_OK(extended->segment_map_status());
  ASSERT_NE(extended->segment_map(), nullptr);
  EXPECT_EQ(extended->segment_map()->segments().size(), 5u);
  EXPECT_EQ(extended->segment_map_bytes(), previous->segment_map_bytes());
  previous.reset();
  // The reference has the rows that are gone too: their keys are asked for, and are strangers now.
  for (const std::string& key : table_.reference().Keys()) {
    const LookupResult one = LookupOne(*extended, key), other = LookupOne(*fresh, key);
    ASSERT_EQ(Describe(one), Describe(other));
    ASSERT_EQ(one.value, other.value);
  }
}

TEST_F(SegmentMapOfSnapshotTest, IsExtendedByNothingForTheSameSegments) {
  BuildThree();
  ASSERT_OK_AND_ASSIGN(auto previous, table_.Open());
  for (const uint64_t generation : {2, 3, 4}) DamageHashes(generation);
  ASSERT_OK_AND_ASSIGN(const auto same, Open(4, {}, previous.get()));
  EXPECT_OK(same->segment_map_status());
  previous.reset();
  ASSERT_NE(same->segment_map(), nullptr);
  ExpectRightAnswers(*same);
}

// An extended map grows full; one that outgrows its memory, or its segments' numbers, is made anew.
TEST_F(SegmentMapOfSnapshotTest, IsMadeAnewWhenItHasBecomeTooSmall) {
  ASSERT_OK(table_.Build(RandomRows(500)));
  ASSERT_OK(table_.Append(RandomRows(500)));
  std::shared_ptr<const Snapshot> newest;
  std::vector<uint64_t> sizes;
  for (int segments = 3; segments <= 40; ++segments) {
    // One large one, then many small ones.
    ASSERT_OK(table_.Append(segments == 6 ? RandomRows(3000, 500) : RandomRows(10, 5)));
    ASSERT_OK_AND_ASSIGN(newest, Open(static_cast<uint64_t>(segments) + 1, {}, newest.get()));
    EXPECT_OK(newest->segment_map_status());
    ASSERT_NE(newest->segment_map(), nullptr);
    ASSERT_EQ(newest->segment_map()->segments().size(), static_cast<size_t>(segments) + 1);
    EXPECT_GE(newest->segment_map()->segment_mask(), segments);
    sizes.push_back(newest->segment_map_bytes());
    if (segments % 6 == 0) ExpectRightAnswers(*newest);
  }
  EXPECT_EQ(sizes[1], sizes[0]);
  EXPECT_GT(sizes[3], sizes[2] + 3000 / 24 * kBucketBytes);
  ExpectRightAnswers(*newest);
}

// A large segment under small ones is asked last, and its hash list is not read, whatever comes.
TEST_F(SegmentMapOfSnapshotTest, ABaseUnderSmallerSegments) {
  ASSERT_OK(table_.Build(RandomRows(6000)));
  DamageHashes(2);
  std::shared_ptr<const Snapshot> newest;
  for (uint64_t generation = 3; generation <= 20; ++generation) {
    // Updates of the base's rows and of each other's, new rows, and none.
    ASSERT_OK(table_.Append(generation == 7 ? std::vector<Row>() : RandomRows(30, 60)));
    ASSERT_OK_AND_ASSIGN(newest, Open(generation, {}, newest.get()));
    EXPECT_OK(newest->segment_map_status());
    ASSERT_NE(newest->segment_map(), nullptr);
    ASSERT_EQ(newest->segment_map()->base(), newest->segments().back().get());
    ASSERT_NO_FATAL_FAILURE(ExpectRightAnswers(*newest));
  }
  ASSERT_OK_AND_ASSIGN(const auto fresh, Open(20));
  ASSERT_NO_FATAL_FAILURE(ExpectRightAnswers(*fresh));
  // When the others have grown, it is one of them: then its list is missed.
  ASSERT_OK(table_.Append(RandomRows(2000)));
  ASSERT_OK_AND_ASSIGN(const auto without, Open(21, {}, newest.get()));
  EXPECT_FAILS(without->segment_map_status(), kDataLoss, HasSubstr("'hashes'"));
  ASSERT_NO_FATAL_FAILURE(ExpectRightAnswers(*without));
}

// What is no older generation of these very segments is of no use, and does no harm.
TEST_F(SegmentMapOfSnapshotTest, IsMadeAnewAfterAnotherHistory) {
  BuildThree();
  ASSERT_OK_AND_ASSIGN(const auto three, table_.Open());
  // An older generation than the one before.
  ASSERT_OK_AND_ASSIGN(const auto older, Open(3, {}, three.get()));
  EXPECT_OK(older->segment_map_status());
  ASSERT_NE(older->segment_map(), nullptr);
  EXPECT_EQ(older->segment_map()->segments().size(), 3u);
  // Another segment under the same name.
  ASSERT_OK(files_.Remove(table_.Path(ManifestFileName(4))));
  ASSERT_OK_AND_ASSIGN(const auto two, table_.Open());
  ASSERT_EQ(two->segments().size(), 2u);
  const std::vector<Row> other = RandomRows(900, 300);
  ASSERT_OK(table_.Append(other));
  ASSERT_OK_AND_ASSIGN(const auto again, Open(4, {}, three.get()));
  EXPECT_OK(again->segment_map_status());
  for (const Row& row : other) {
    const LookupResult result = LookupOne(*again, row.key);
    ASSERT_EQ(result.outcome, Outcome::kFound);
    ASSERT_EQ(result.value, row.value);
  }
  // All of them replaced.
  const std::vector<Row> base = RandomRows(1000, 1000);
  ASSERT_OK(table_.Build(base));
  ASSERT_OK_AND_ASSIGN(const auto one, Open(5, {}, again.get()));
  EXPECT_EQ(one->segment_map(), nullptr);
  EXPECT_OK(one->segment_map_status());
  ASSERT_OK(table_.Append(RandomRows(500, 500)));
  ASSERT_OK_AND_ASSIGN(const auto replaced, Open(6, {}, again.get()));
  ASSERT_NE(replaced->segment_map(), nullptr);
  ExpectRightAnswers(*replaced);
  // From one that has no map, be it for want of need or of memory.
  for (const auto& previous : {one, *Open(6, {.segment_map_bytes_max = 0})}) {
    ASSERT_OK_AND_ASSIGN(const auto fresh, Open(6, {}, previous.get()));
    ASSERT_NE(fresh->segment_map(), nullptr);
    ExpectRightAnswers(*fresh);
  }
  // Another table's.
  TestTable stranger(files_, "elsewhere", random_);
  stranger.options.schema = table_.options.schema;
  const std::vector<Row> theirs = RandomRows(1000);
  ASSERT_OK(stranger.Build(theirs));
  ASSERT_OK(stranger.Append(theirs));
  ASSERT_OK_AND_ASSIGN(const auto their_snapshot, stranger.Open());
  ASSERT_NE(their_snapshot->segment_map(), nullptr);
  ASSERT_OK_AND_ASSIGN(const auto ours, Open(6, {}, their_snapshot.get()));
  ASSERT_NE(ours->segment_map(), nullptr);
  ExpectRightAnswers(*ours);
}

TEST_F(SegmentMapOfSnapshotTest, SegmentsAreSharedWithTheGenerationBefore) {
  BuildThree();
  ASSERT_OK_AND_ASSIGN(auto previous, table_.Open());
  ASSERT_OK(table_.Append(RandomRows(50, 50)));
  ASSERT_OK_AND_ASSIGN(const auto next, Open(5, {}, previous.get()));
  ASSERT_EQ(next->segments().size(), 4u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(next->segments()[i + 1].get(), previous->segments()[i].get()) << i;
  }
  // They outlive the generation that opened them.
  previous.reset();
  ExpectRightAnswers(*next);
  // Not where they shall lie in memory otherwise.
  const SnapshotOptions huge{.memory_mode = MemoryMode::kHuge};
  ASSERT_OK_AND_ASSIGN(const auto other, Open(5, huge, next.get()));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NE(other->segments()[i].get(), next->segments()[i].get()) << i;
  }
  ExpectRightAnswers(*other);
}

// What is new may be what can't be mapped.
TEST_F(SegmentMapOfSnapshotTest, IsNotExtendedByASegmentThatHasNoneOrADamagedHashList) {
  BuildThree();
  ASSERT_OK_AND_ASSIGN(const auto previous, table_.Open());
  ASSERT_OK(table_.Append(RandomRows(50, 50)));
  const std::string pristine = FileOf(5);
  DamageHashes(5);
  ASSERT_OK_AND_ASSIGN(const auto damaged, Open(5, {}, previous.get()));
  EXPECT_EQ(damaged->segment_map(), nullptr);
  EXPECT_FAILS(damaged->segment_map_status(), kDataLoss,
               StartsWith(table_.Path(SegmentFileName(5, 0))));
  ExpectRightAnswers(*damaged);
  FileOf(5) = pristine;
  table_.options.hash_list = false;
  ASSERT_OK(table_.Append(RandomRows(50, 50)));
  ASSERT_OK_AND_ASSIGN(const auto without, Open(6, {}, previous.get()));
  EXPECT_EQ(without->segment_map(), nullptr);
  EXPECT_FAILS(without->segment_map_status(), kFailedPrecondition,
               HasSubstr(table_.Path(SegmentFileName(6, 0))));
  ExpectRightAnswers(*without);
}

// A part of a table that was split by its keys' hashes, written segment by segment. Its keys all
// have their top bits in common.
class ShardSnapshotTest : public SeededTest {
 protected:
  static constexpr uint8_t kShardBits = 4;

  ShardSnapshotTest() {
    manifest_.identity = RandomIdentity(random_);
    manifest_.shard_bits = kShardBits;
    manifest_.shard = static_cast<uint16_t>(random_.Below(1 << kShardBits));
    EXPECT_OK(files_.CreateDirectories("data/t"));
  }
  uint64_t HashOf(const std::string& key) const {
    return HashBytes(key.data(), key.size(), manifest_.identity.seed);
  }
  std::vector<std::string> KeysOfThisShard(size_t count) {
    std::vector<std::string> keys;
    for (const std::string& key : DistinctKeys(random_, count << kShardBits, 16)) {
      if (TopBits(HashOf(key), kShardBits) == manifest_.shard) keys.push_back(key);
    }
    return keys;
  }
  // Adds a segment with a row, or a tombstone, for each key; the next generation names it.
  void Append(const std::vector<std::string>& keys, Layout layout, uint8_t partition_bits) {
    ++manifest_.generation;
    SegmentPlan plan;
    plan.identity = manifest_.identity;
    plan.segment_id = manifest_.generation;
    plan.shard_bits = kShardBits;
    plan.shard = manifest_.shard;
    plan.layout = layout;
    plan.hash_list = HashListShape::For(keys.size(), 3 * keys.size());
    plan.partition_bits = partition_bits;
    plan.key_bytes_min = plan.key_bytes_max = 16;
    plan.partitions.resize(size_t{1} << partition_bits);
    std::vector<SegmentRow> rows;
    for (const std::string& key : keys) {
      SegmentRow row = {HashOf(key), random_.Below(1000), key, "", random_.OneIn(4)};
      expected_[key] = row.tombstone ? std::nullopt : std::optional(row.doc_id);
      auto& bound = plan.partitions[PartitionOf(row.hash, kShardBits, partition_bits)];
      ++bound.rows;
      bound.key_bytes += key.size();
      rows.push_back(row);
    }
    std::sort(rows.begin(), rows.end(),
              [](const SegmentRow& a, const SegmentRow& b) { return a.hash < b.hash; });
    const std::string file = SegmentFileName(manifest_.generation, 0);
    ASSERT_OK_AND_ASSIGN(const auto writer,
                         SegmentWriter::Create(files_, JoinPath("data/t", file), plan));
    std::span<const SegmentRow> rest = rows;
    for (const SegmentPlan::Bound& bound : plan.partitions) {
      ASSERT_OK(writer->AddPartition(rest.first(bound.rows)));
      rest = rest.subspan(bound.rows);
    }
    ASSERT_OK_AND_ASSIGN(const SegmentHeader header, writer->Finish());
    manifest_.segments.insert(manifest_.segments.begin(),
                              {file, header.file_bytes(), header.segment_id,
                               HeaderChecksum(EncodeHeader(header)), header.row_count});
    ASSERT_OK(PublishManifest(files_, "data/t", manifest_));
  }
  void ExpectRightAnswers(const Snapshot& snapshot) {
    std::vector<std::string> keys;
    for (const auto& [key, doc_id] : expected_) keys.push_back(key);
    for (std::string& key : StrangerKeys(random_, keys, keys.size())) keys.push_back(key);
    for (std::string& key : KeysOfThisShard(500)) keys.push_back(key);
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    ProbeEngine engine;
    LookupResults results;
    engine.Lookup(snapshot, views, &results);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto found = expected_.find(keys[i]);
      LookupResult expected;
      if (found != expected_.end() && found->second) {
        expected = {Outcome::kFound, *found->second, {}};
      }
      ASSERT_EQ(Describe(results.at(i)), Describe(expected));
      ASSERT_EQ(Describe(LookupOne(snapshot, keys[i])), Describe(expected));
    }
  }

  MemoryFileSystem files_;
  Manifest manifest_;
  std::map<std::string, std::optional<uint64_t>> expected_;  // nothing for a tombstone
};

// Tombstones hide what older segments have, with and without a map.
TEST_F(ShardSnapshotTest, AnswersAsAWholeTableDoes) {
  for (const Layout layout : {Layout::kLine, Layout::kPointer}) {
    for (const uint8_t partition_bits : {0, 3}) {
      manifest_.segments.clear();
      expected_.clear();
      std::vector<std::string> keys = KeysOfThisShard(1500);
      std::shared_ptr<const Snapshot> previous;
      for (int segments = 1; segments <= 4; ++segments) {
        Append(keys, layout, partition_bits);
        for (const uint64_t map_bytes_max : {uint64_t{0}, uint64_t{1} << 30}) {
          ASSERT_OK_AND_ASSIGN(
              const auto snapshot,
              Snapshot::OpenNewest(files_, "data/t", {.segment_map_bytes_max = map_bytes_max}));
          EXPECT_EQ(snapshot->segment_map() != nullptr, segments > 1 && map_bytes_max > 0);
          ExpectRightAnswers(*snapshot);
        }
        ASSERT_OK_AND_ASSIGN(previous,
                             Snapshot::Open(files_, "data/t", manifest_, {}, previous.get()));
        ExpectRightAnswers(*previous);
        // The next one has some of these keys, and some new ones.
        keys.resize(keys.size() / 2);
        for (std::string& key : KeysOfThisShard(300)) keys.push_back(std::move(key));
      }
    }
  }
}

TEST_F(ShardSnapshotTest, SegmentsOfAnotherShardAreRefused) {
  Append(KeysOfThisShard(50), Layout::kLine, 0);
  Append(KeysOfThisShard(50), Layout::kLine, 1);
  ASSERT_OK(Snapshot::OpenNewest(files_, "data/t"));
  for (const int by : {1, 2, 15}) {
    Manifest other = manifest_;
    other.shard = static_cast<uint16_t>((manifest_.shard + by) % 16);
    EXPECT_FAILS(Snapshot::Open(files_, "data/t", other), kDataLoss,
                 AllOf(StartsWith("data/t/g00000002-0.segment"),
                       HasSubstr(fmt::format("shard: expected {} of 16, got {} of 16", other.shard,
                                             manifest_.shard))));
  }
  Manifest whole = manifest_;
  whole.shard = whole.shard_bits = 0;
  EXPECT_FAILS(Snapshot::Open(files_, "data/t", whole), kDataLoss, HasSubstr("expected 0 of 1"));
  Manifest finer = manifest_;
  finer.shard_bits = 5;
  EXPECT_FAILS(Snapshot::Open(files_, "data/t", finer), kDataLoss, HasSubstr("of 32"));
}

// Lookups find what is there, though the filter's bytes would exclude every key if they were read
// as those of the kind that is known.
TEST_F(SnapshotTest, UnknownFilterKindsFilterNothing) {
  for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
    MemoryFileSystem files;
    TestTable table(files, "data", random_);
    table.options.layout = layout;
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, 1000, 16)) rows.push_back({std::move(key), ""});
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table.Build(rows));
    std::string& bytes = files.Bytes(built.segment_path);
    SegmentHeader header = HeaderOf(bytes);
    const Section& filter = header.section(SectionKind::kFilter);
    for (uint64_t at = filter.offset; at < filter.end(); at += 8) {
      Store(bytes.data() + at, kEmptyFilterWord);
    }
    const auto count_found = [&]() -> size_t {
      SealSegment(header, &bytes);
      const auto segment = Segment::Open(files, built.segment_path);
      EXPECT_OK(segment);
      if (!segment.ok()) return 0;
      EXPECT_EQ((*segment)->has_filter(), header.filter_kind == FilterKind::kRegisterBlocked);
      size_t found = 0;
      for (const Row& row : rows) {
        const uint64_t hash = HashBytes(row.key.data(), row.key.size(), header.identity.seed);
        RowRef ref;
        found += ProbeOne(**segment, /*use_filter=*/true, row.key, hash, &ref) == Held::kRow;
      }
      return found;
    };
    EXPECT_EQ(count_found(), 0u);
    header.filter_kind = static_cast<FilterKind>(2);
    EXPECT_EQ(count_found(), rows.size());
    // Two segments, so that filters would be used, in batches.
    header.filter_hashes = 200;
    EXPECT_EQ(count_found(), rows.size());
    Manifest manifest;
    manifest.generation = 9;
    manifest.identity = header.identity;
    const SegmentRef ref = {SegmentFileName(2, 0), header.file_bytes(), header.segment_id,
                            HeaderChecksum(bytes), header.row_count};
    manifest.segments = {ref, ref};
    ASSERT_OK(PublishManifest(files, table.dir(), manifest));
    ASSERT_OK_AND_ASSIGN(const auto snapshot, Snapshot::Open(files, table.dir(), manifest,
                                                             {.segment_map_bytes_max = 0}));
    ASSERT_EQ(snapshot->segment_map(), nullptr);
    std::vector<std::string> keys = table.reference().Keys();
    for (std::string& key : StrangerKeys(random_, keys, 1000)) keys.push_back(std::move(key));
    ExpectSameAnswers(*snapshot, table.reference(), keys, 500);
  }
}

}  // namespace
}  // namespace latchkey::test
