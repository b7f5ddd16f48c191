#include "core/table/manifest.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class ManifestTest : public SeededTest {
 protected:
  Manifest RandomManifest(size_t segments) {
    Manifest manifest;
    manifest.generation = random_.Between(1, 1000);
    manifest.identity = RandomIdentity(random_);
    manifest.schema = {KeyKind::kHex, 16, 8, ValueKind::kFixed, 20};
    manifest.shard_bits = 6;
    manifest.shard = 41;
    manifest.created_unix_s = 1'700'000'000;
    for (size_t i = 0; i < segments; ++i) {
      manifest.segments.push_back({SegmentFileName(manifest.generation - i % 2, i),
                                   random_.Between(4096, INT64_MAX), random_.Next(), random_.Next(),
                                   random_.Below(kSegmentRowsMax)});
    }
    return manifest;
  }

  MemoryFileSystem files_;
};

// Puts a body under a checksum that is right.
std::string Sealed(const std::string& body) {
  return fmt::format("{}checksum {:016x}\n", body, Checksum(body.data(), body.size()));
}

std::string BodyOf(const Manifest& manifest) {
  const std::string text = EncodeManifest(manifest);
  return text.substr(0, text.rfind("checksum "));
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST_F(ManifestTest, RoundTrips) {
  for (const size_t segments : {0, 1, 2, 15, 4096}) {
    Manifest manifest = RandomManifest(segments);
    ASSERT_OK_AND_ASSIGN(const Manifest read, DecodeManifest(EncodeManifest(manifest)));
    EXPECT_EQ(read, manifest);
  }
  for (const KeyKind kind :
       {KeyKind::kRaw, KeyKind::kText, KeyKind::kHex, KeyKind::kUuid, KeyKind::kU64}) {
    for (TableSchema schema : {TableSchema{kind, 0, 4, ValueKind::kNone, 0},
                               TableSchema{kind, 0, 8, ValueKind::kBytes, 0},
                               TableSchema{kind, 20, 4, ValueKind::kFixed, 1},
                               TableSchema{kind, 32'766, 8, ValueKind::kFixed, 64}}) {
      if (KeyKindWidth(kind) != 0) schema.key_bytes = 0;
      Manifest manifest = RandomManifest(1);
      manifest.schema = schema;
      manifest.generation = INT64_MAX;
      manifest.identity.seed = UINT64_MAX;
      manifest.created_unix_s = 0;
      ASSERT_OK_AND_ASSIGN(const Manifest read, DecodeManifest(EncodeManifest(manifest)));
      EXPECT_EQ(read, manifest);
      // In the same words as in the segments' headers.
      EXPECT_THAT(EncodeManifest(manifest),
                  HasSubstr("\"schema\": \"" + schema.Descriptor() + "\""));
    }
  }
}

// A table's place among the parts of a larger one; by default it is whole.
TEST_F(ManifestTest, ShardsRoundTrip) {
  EXPECT_EQ(Manifest().shard, 0);
  EXPECT_EQ(Manifest().shard_bits, 0);
  Manifest manifest = RandomManifest(1);
  for (uint8_t bits = 0; bits <= kPartitionBitsMax; ++bits) {
    const auto shards = static_cast<uint16_t>(1 << bits);
    for (const int shard : {0, shards / 2, shards - 1}) {
      manifest.shard_bits = bits;
      manifest.shard = static_cast<uint16_t>(shard);
      const std::string text = EncodeManifest(manifest);
      EXPECT_THAT(text, HasSubstr(fmt::format("\"shard\": {},", shard)));
      EXPECT_THAT(text, HasSubstr(fmt::format("\"shards\": {},", shards)));
      ASSERT_OK_AND_ASSIGN(const Manifest read, DecodeManifest(text));
      EXPECT_EQ(read, manifest);
    }
  }
}

TEST_F(ManifestTest, EveryCutIsRefused) {
  const std::string text = EncodeManifest(RandomManifest(3));
  for (size_t cut = 0; cut < text.size(); ++cut) {
    const std::vector<char> shorter(text.begin(), text.begin() + static_cast<ptrdiff_t>(cut));
    EXPECT_FAILS(DecodeManifest({shorter.data(), shorter.size()}), kDataLoss, testing::_);
  }
  EXPECT_FALSE(DecodeManifest(text + "\n").ok());
  EXPECT_FALSE(DecodeManifest(text + text).ok());
}

TEST_F(ManifestTest, EveryDamagedByteIsRefused) {
  const std::string text = EncodeManifest(RandomManifest(3));
  for (size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    for (int bit = 0; bit < 8; ++bit) {
      damaged[at] = static_cast<char>(text[at] ^ (1 << bit));
      const auto manifest = DecodeManifest(damaged);
      // The checksum's own digits may be of either case.
      const bool same_digit = at > text.size() - 18 && bit == 5 && std::isalpha(text[at]);
      ASSERT_EQ(manifest.ok(), same_digit) << at << ", bit " << bit;
    }
    damaged[at] = '\0';
    ASSERT_FALSE(DecodeManifest(damaged).ok()) << at;
  }
  for (size_t at = 0; at + 64 <= text.size(); at += 64) {
    std::string damaged = text;
    EXPECT_FALSE(DecodeManifest(damaged.replace(at, 64, 64, '\0')).ok());
  }
}

// What was edited by hand is told from what was cut off.
TEST_F(ManifestTest, AnEditedOneSaysSo) {
  Manifest manifest = RandomManifest(1);
  const std::string edited = Replaced(EncodeManifest(manifest), "hex", "raw");
  EXPECT_FAILS(DecodeManifest(edited), kDataLoss, HasSubstr("edited"));
}

TEST_F(ManifestTest, FieldsOutOfRangeAreNamed) {
  Manifest manifest = RandomManifest(2);
  manifest.generation = 77;
  manifest.segments[1].file = "g00000007-1.segment";
  manifest.segments[1].file_bytes = 123'456'789;
  manifest.segments[1].row_count = 987'654;
  const std::string body = BodyOf(manifest);
  ASSERT_OK(DecodeManifest(Sealed(body)));
  const std::string id = TableIdText(manifest.identity.table_id);
  const std::string seed = fmt::format("{:016x}", manifest.identity.seed);
  const std::string segment_id = fmt::format("{:016x}", manifest.segments[1].segment_id);
  struct Case {
    std::string from, to, named;
  };
  for (const Case& edit : std::vector<Case>{
           {"\"generation\": 77", "\"generation\": 0", "'generation'"},
           {"\"generation\": 77", "\"generation\": -1", "'generation'"},
           {"\"generation\": 77", "\"generation\": 7.5", "'generation'"},
           {"\"generation\": 77", "\"generation\": \"77\"", "'generation'"},
           {"\"generation\": 77", "\"generation\": 18446744073709551615", "'generation'"},
           {"\"generation\"", "\"generatio\"", "'generation'"},
           {id, id.substr(1), "'table_id'"},
           {id, id + "00", "'table_id'"},
           {id, "x" + id.substr(1), "'table_id'"},
           {id, "+" + id.substr(1), "'table_id'"},
           {seed, seed.substr(1), "'seed'"},
           {seed, "-" + seed.substr(1), "'seed'"},
           {"1700000000", "-1", "'created_unix_s'"},
           {"\"shards\": 64", "\"shards\": 0", "'shards'"},
           {"\"shards\": 64", "\"shards\": 63", "'shards'"},
           {"\"shards\": 64", "\"shards\": 65", "'shards'"},
           {"\"shards\": 64", "\"shards\": 96", "'shards'"},
           {"\"shards\": 64", "\"shards\": 2048", "'shards'"},
           {"\"shards\": 64", "\"shards\": 65536", "'shards'"},
           {"\"shards\": 64", "\"shards\": 4294967360", "'shards'"},
           {"\"shards\": 64", "\"shards\": \"64\"", "'shards'"},
           {"\"shards\"", "\"shard_count\"", "'shards'"},
           {"\"shards\": 64", "\"shards\": 32", "'shard'"},
           {"\"shards\": 64", "\"shards\": 1", "'shard'"},
           {"\"shard\": 41", "\"shard\": 64", "'shard'"},
           {"\"shard\": 41", "\"shard\": 65577", "'shard'"},
           {"\"shard\": 41", "\"shard\": -1", "'shard'"},
           {"\"shard\": 41", "\"shard\": null", "'shard'"},
           {"\"shard\"", "\"part\"", "'shard'"},
           {"\"schema\"", "\"scheme\"", "'schema'"},
           {"\"key=hex(16)/1 doc_id=64 value=fixed(20)\"", "7", "'schema'"},
           {"\"segments\": [", "\"segments\": 5, \"x\": [", "'segments'"},
           {"\"segments\"", "\"segment\"", "'segments'"},
           {"\"g00000007-1.segment\"", "\"../g00000007-1.segment\"", "'segments[1].file'"},
           {"\"g00000007-1.segment\"", "\"/etc/passwd\"", "'segments[1].file'"},
           {"\"g00000007-1.segment\"", "\"\"", "'segments[1].file'"},
           {"\"g00000007-1.segment\"", "12", "'segments[1].file'"},
           {"\"g00000007-1.segment\"", "\"g00000007-1.segment\\u0000.segment\"",
            "'segments[1].file'"},
           {"\"file_bytes\": 123456789", "\"file_bytes\": 4095", "'segments[1].file_bytes'"},
           {"\"file_bytes\": 123456789", "\"file_bytes\": null", "'segments[1].file_bytes'"},
           {segment_id, segment_id + "0", "'segments[1].segment_id'"},
           {"\"rows\": 987654", "\"rows\": 1099511627777", "'segments[1].rows'"},
           {"\"rows\": 987654", "\"row\": 987654", "'segments[1].rows'"},
       }) {
    EXPECT_FAILS(DecodeManifest(Sealed(Replaced(body, edit.from, edit.to))), kDataLoss,
                 HasSubstr(edit.named));
  }
  for (const char* other : {"[]\n", "5\n", "nonsense\n", "{\n", "{}\n", "\xFF\n", "\n"}) {
    EXPECT_FALSE(DecodeManifest(Sealed(other)).ok()) << other;
  }
  EXPECT_FALSE(DecodeManifest(Sealed(std::string(100'000, '['))).ok());
}

TEST_F(ManifestTest, OtherVersionsAreRefused) {
  const std::string body = BodyOf(RandomManifest(1));
  EXPECT_THAT(body, HasSubstr("\"format\": \"latchkey manifest 1.0\""));
  for (const std::string version :
       {"0.1", "9.1", "1.", "1.00", "1.01", "1.x", "1.0 ", "10.0", ""}) {
    EXPECT_FAILS(DecodeManifest(Sealed(Replaced(body, "manifest 1.0", "manifest " + version))),
                 kFailedPrecondition,
                 AllOf(HasSubstr("version"), HasSubstr("reads 'latchkey manifest 1.0'"),
                       HasSubstr("is 'latchkey manifest " + version + "'")));
  }
  EXPECT_FAILS(DecodeManifest(Sealed(Replaced(body, "latchkey manifest", "another manifest"))),
               kFailedPrecondition, HasSubstr("another manifest 1.0"));
  for (const std::string minor : {"1", "9", "10", "65535"}) {
    EXPECT_OK(DecodeManifest(Sealed(Replaced(body, "manifest 1.0", "manifest 1." + minor))));
  }
}

// No damage, but a table that takes a newer program: that is what it says, and which schema it is.
TEST_F(ManifestTest, UnknownSchemasAreRefused) {
  const std::string known = "key=hex(16)/1 doc_id=64 value=fixed(20)";
  const std::string body = BodyOf(RandomManifest(1));
  for (const std::string schema :
       {"", "hex", "key=hexx/1 doc_id=64 value=fixed(20)",
        "key=hex(16)/2 doc_id=64 value=fixed(20)", "key=hex(0)/1 doc_id=64 value=fixed(20)",
        "key=uuid(16)/1 doc_id=64 value=fixed(20)", "key=hex(16)/1 doc_id=40 value=fixed(20)",
        "key=hex(16)/1 doc_id=64 value=fixed(65)",
        "key=hex(16)/1 doc_id=64 value=fixed(20) value=none",
        "key=hex(16)/1 doc_id=64 value=Fixed(20)"}) {
    EXPECT_FAILS(DecodeManifest(Sealed(Replaced(body, known, schema))), kFailedPrecondition,
                 AllOf(HasSubstr("'schema'"), HasSubstr("does not know"), HasSubstr(schema)));
  }
  // A field that is wrong besides comes first: it may be why the schema is.
  EXPECT_FAILS(
      DecodeManifest(Sealed(Replaced(Replaced(body, known, "x"), "\"generation\"", "\"x\""))),
      kDataLoss, HasSubstr("'generation'"));
}

// Fields that this program has no use for may be there.
TEST_F(ManifestTest, UnknownFieldsAreOverlooked) {
  const Manifest manifest = RandomManifest(2);
  std::string body = Replaced(BodyOf(manifest), "\"shard\"", "\"later\": [1, {}], \"shard\"");
  body = Replaced(body, "\"rows\"", "\"colour\": \"red\", \"rows\"");
  ASSERT_OK_AND_ASSIGN(const Manifest read, DecodeManifest(Sealed(body)));
  EXPECT_EQ(read, manifest);
}

TEST_F(ManifestTest, MoreSegmentsThanAllowedAreRefused) {
  EXPECT_FAILS(DecodeManifest(EncodeManifest(RandomManifest(4097))), kDataLoss,
               HasSubstr("'segments'"));
}

TEST_F(ManifestTest, PublishesAndReadsTheNewest) {
  const TempDir folder;
  for (FileSystem* files : {static_cast<FileSystem*>(&files_), &PosixFileSystem()}) {
    const std::string dir = folder.Path("t");
    ASSERT_OK(files->CreateDirectories(dir));
    EXPECT_FAILS(ReadNewestManifest(*files, dir), kNotFound, HasSubstr(dir));
    Manifest manifest = RandomManifest(2);
    for (const uint64_t generation : {9, 10, 99'999'999, 100'000'000, 2'000'000'000}) {
      manifest.generation = generation;
      manifest.created_unix_s = static_cast<int64_t>(generation);
      ASSERT_OK(PublishManifest(*files, dir, manifest));
      ASSERT_OK_AND_ASSIGN(const Manifest newest, ReadNewestManifest(*files, dir));
      EXPECT_EQ(newest, manifest);
    }
    ASSERT_OK_AND_ASSIGN(const auto generations, ListGenerations(*files, dir));
    EXPECT_THAT(generations, ElementsAre(9, 10, 99'999'999, 100'000'000, 2'000'000'000));
    ASSERT_OK_AND_ASSIGN(const Manifest older, ReadManifest(*files, dir, 10));
    EXPECT_EQ(older.created_unix_s, 10);
    EXPECT_FAILS(ReadManifest(*files, dir, 11), kNotFound, HasSubstr("g00000011.manifest"));
  }
}

TEST_F(ManifestTest, OtherNamesAreNoGenerations) {
  for (const char* name :
       {"g1.manifest", "g00000001.manifest.tmp", "g00000001.segment", "g-0000001.manifest",
        "g0000000x.manifest", "g.manifest", "manifest", "g99999999999999999999.manifest",
        "G00000001.manifest", "g000000001.manifest"}) {
    files_.Put(JoinPath("data/t", name), "");
  }
  ASSERT_OK_AND_ASSIGN(const auto generations, ListGenerations(files_, "data/t"));
  EXPECT_THAT(generations, IsEmpty());
}

TEST_F(ManifestTest, OneOfAnotherGenerationIsRefused) {
  Manifest manifest = RandomManifest(0);
  manifest.generation = 3;
  ASSERT_OK(files_.CreateDirectories("data/t"));
  ASSERT_OK(PublishManifest(files_, "data/t", manifest));
  files_.Put("data/t/g00000004.manifest", files_.Bytes("data/t/g00000003.manifest"));
  EXPECT_FAILS(ReadNewestManifest(files_, "data/t"), kDataLoss,
               AllOf(StartsWith("data/t/g00000004.manifest"), HasSubstr("generation 3")));
  EXPECT_OK(ReadManifest(files_, "data/t", 3));
}

TEST_F(ManifestTest, DamageNamesTheFile) {
  files_.Put("data/t/g00000001.manifest", "");
  EXPECT_FAILS(ReadNewestManifest(files_, "data/t"), kDataLoss,
               StartsWith("data/t/g00000001.manifest"));
}

TEST_F(ManifestTest, TableNames) {
  for (const std::string name : {"t", "files", "A-b_c.9", "0", "a..b"}) {
    EXPECT_OK(ValidateTableName(name)) << name;
  }
  EXPECT_OK(ValidateTableName(std::string(128, 'x')));
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string(".hidden"),
        std::string("a/b"), std::string("a b"), std::string("a\0b", 3), std::string("\xC3\xA9"),
        std::string(129, 'x'), std::string("a\n")}) {
    EXPECT_FAILS(ValidateTableName(name), kInvalidArgument, HasSubstr("table name"));
  }
}

TEST_F(ManifestTest, TablesAreFoldersWithAManifest) {
  for (FileSystem* files : {static_cast<FileSystem*>(&files_), &PosixFileSystem()}) {
    const TempDir folder;
    const std::string data = folder.Path("data");
    EXPECT_FAILS(ListTables(*files, data), kNotFound, HasSubstr(data));
    for (const std::string name : {"b", "a", "empty", ".hidden"}) {
      ASSERT_OK(files->CreateDirectories(JoinPath(data, name)));
      if (name == "empty") continue;
      ASSERT_OK(PublishManifest(*files, JoinPath(data, name), RandomManifest(0)));
    }
    ASSERT_OK(files->Create(JoinPath(data, "plain-file")));
    ASSERT_OK_AND_ASSIGN(const auto tables, ListTables(*files, data));
    EXPECT_THAT(tables, ElementsAre("a", "b"));
  }
}

TEST_F(ManifestTest, RemovesWhatAKilledWriterLeft) {
  Manifest manifest = RandomManifest(0);
  manifest.generation = 6;
  ASSERT_OK(files_.CreateDirectories("data/t"));
  ASSERT_OK(PublishManifest(files_, "data/t", manifest));
  // Older manifests may name segments up to their own generation, even one that can't be read.
  files_.Put("data/t/g00000005.manifest", "damaged");
  for (const char* name :
       {"g00000001-0.segment", "g00000006-0.segment", "g00000007-0.segment", "g00000007-1.segment",
        "g00000123-0.segment", "spill.tmp", "g00000007.manifest.tmp", "lock", "notes.txt",
        "g00000009.txt", "x.segment"}) {
    files_.Put(JoinPath("data/t", name), "x");
  }
  ASSERT_OK(RemoveOrphans(files_, "data/t"));
  ASSERT_OK_AND_ASSIGN(const auto names, files_.List("data/t"));
  EXPECT_THAT(names,
              ElementsAre("g00000001-0.segment", "g00000005.manifest", "g00000006-0.segment",
                          "g00000006.manifest", "g00000009.txt", "lock", "notes.txt", "x.segment"));
}

// Without a manifest there is no generation, and no segment that one could need.
TEST_F(ManifestTest, RemovesAllSegmentsWhereNothingWasPublished) {
  files_.Put("data/t/g00000001-0.segment", "x");
  ASSERT_OK(RemoveOrphans(files_, "data/t"));
  EXPECT_FALSE(files_.Has("data/t/g00000001-0.segment"));
}

}  // namespace
}  // namespace latchkey::test
