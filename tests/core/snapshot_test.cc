// A generation opens as a whole or not at all: every segment is the very file that its manifest means.
#include "core/table/snapshot.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/lookup/probe_engine.h"
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
  for (const auto& change : std::vector<std::function<void(SegmentRef*)>>{
           [](auto* ref) { ++ref->segment_id; }, [](auto* ref) { ++ref->header_checksum; },
           [](auto* ref) { ++ref->file_bytes; }, [](auto* ref) { ++ref->row_count; }}) {
    EXPECT_FAILS(OpenChanged([&](Manifest* m) { change(&m->segments[1]); }), kDataLoss,
                 StartsWith(table_.Path("g00000003-0.segment")));
  }
  EXPECT_FAILS(OpenChanged([](Manifest* m) { std::swap(m->segments[0].file, m->segments[1].file); }),
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

}  // namespace
}  // namespace latchkey::test
