// Corners of a probe that random tables seldom reach, and damage of every kind.
#include "core/lookup/probe_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/key/key_hash.h"
#include "core/key/limits.h"
#include "core/segment/record_pointer.h"
#include "core/segment/value_locator.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/segment_bytes.h"
#include "tests/support/status_asserts.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

constexpr SnapshotOptions kWithoutMap = {.segment_map_bytes_max = 0};
const LookupResult kDamagedResult = {Outcome::kDamaged, 0, {}};

std::vector<LookupResult> AskBatch(ProbeEngine* engine, const Snapshot& snapshot,
                                   const std::vector<std::string>& keys) {
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  LookupResults results;
  engine->Lookup(snapshot, views, &results);
  std::vector<LookupResult> answers;
  for (size_t i = 0; i < results.size(); ++i) answers.push_back(results.at(i));
  return answers;
}

size_t Count(const std::vector<LookupResult>& answers, Outcome outcome) {
  return static_cast<size_t>(
      std::count_if(answers.begin(), answers.end(),
                    [&](const LookupResult& answer) { return answer.outcome == outcome; }));
}

// Where a key of a segment of one partition lies: offsets in the file.
struct Place {
  uint64_t pilot = 0, line = 0, mark = 0, entry = 0;
  uint64_t record = 0;   // of pointers
  uint64_t doc_id = 0;   // in the entry or the record
  uint64_t locator = 0;  // or the value
  uint64_t key = 0;
};

class ProbeEngineTest : public SeededTest {
 protected:
  ProbeEngineTest() { Renew(); }

  // An empty table in an empty file system.
  void Renew() {
    files_ = MemoryFileSystem();
    table_ = std::make_unique<TestTable>(files_, "data", random_);
    seed_ = table_->Open().value()->seed();
  }

  uint64_t HashOf(std::string_view key) const { return HashBytes(key.data(), key.size(), seed_); }

  // A random key of 8 bytes whose hash is as wanted.
  std::string KeyWhere(const std::function<bool(uint64_t)>& wanted) {
    for (;;) {
      std::string key = random_.Bytes(8);
      if (wanted(HashOf(key))) return key;
    }
  }

  std::shared_ptr<const Snapshot> Open(const SnapshotOptions& options = {}) {
    auto snapshot = Snapshot::OpenNewest(files_, table_->dir(), options);
    EXPECT_OK(snapshot);
    return *snapshot;
  }

  const uint8_t* LineOfKey(const Segment& segment, std::string_view key) const {
    const Partition& partition = segment.PartitionFor(HashOf(key));
    return partition.LineAddress(HashOf(key), *partition.PilotAddress(HashOf(key)));
  }

  Place PlaceOf(const Segment& segment, const std::string& key) const {
    const SegmentHeader& header = segment.header();
    const Partition& partition = segment.partitions()[0];
    const LineShape& shape = segment.shape();
    const uint8_t* const line = LineOfKey(segment, key);
    Place place;
    place.pilot = header.section(SectionKind::kPilots).offset +
                  static_cast<uint64_t>(partition.PilotAddress(HashOf(key)) - partition.pilots);
    place.line =
        header.section(SectionKind::kLines).offset + static_cast<uint64_t>(line - partition.lines);
    place.mark = place.line + shape.line_bytes() - 1;
    for (uint32_t i = 0; i < shape.MarkAfter(line) - uint32_t{kMarkBit}; ++i) {
      const uint8_t* const entry = shape.Entry(line, i);
      place.entry = place.line + static_cast<uint64_t>(entry - line);
      place.doc_id = place.entry;
      place.key = place.entry + shape.key_offset();
      std::string_view stored;
      if (header.layout == Layout::kPointer) {
        PointedRecord record = {};
        const uint64_t offset = OffsetOfPointer(Load<uint64_t>(entry));
        EXPECT_TRUE(ReadPointedRecord(header.schema, partition.records, partition.record_bytes,
                                      offset, &record));
        place.doc_id = place.record = header.section(SectionKind::kRecords).offset + offset;
        stored = record.key;
        place.key =
            place.record +
            static_cast<uint64_t>(stored.data() - reinterpret_cast<const char*>(record.doc_id));
      } else {
        stored = shape.KeyAt(entry);
      }
      place.locator = place.doc_id + header.schema.doc_id_bytes;
      if (stored == key) return place;
    }
    ADD_FAILURE() << "the key is not where it should be";
    return place;
  }

  MemoryFileSystem files_;
  std::unique_ptr<TestTable> table_;
  uint64_t seed_ = 0;
};

// --- Damage ---

// Which keys a damage keeps from being told: the key itself, or all that come to the same line, or
// to the same pilot.
enum class Reach { kKey, kLine, kGroup };

struct Damage {
  const char* name;
  Reach reach;
  // Damages the file of `segment`; false when there is no such thing in it.
  std::function<bool(const Segment& segment, const Place& place, const Place& other,
                     std::string* file)>
      apply;
};

void Zero(std::string* file, uint64_t at, size_t size_bytes) {
  file->replace(at, size_bytes, size_bytes, '\0');
}

bool IsPointers(const Segment& segment) { return segment.header().layout == Layout::kPointer; }
bool HasLocators(const Segment& segment) {
  return segment.header().schema.value_kind == ValueKind::kBytes;
}

bool SetMark(const Place& place, unsigned mark, std::string* file) {
  (*file)[place.mark] = static_cast<char>(mark);
  return true;
}

bool SetPointer(const Segment& segment, const Place& place,
                const std::function<uint64_t(uint64_t)>& change, std::string* file) {
  if (!IsPointers(segment)) return false;
  char* const at = file->data() + place.entry;
  Store(at, change(Load<uint64_t>(at)));
  return true;
}

std::vector<Damage> AllDamages() {
  constexpr uint64_t kTagMask = (uint64_t{1} << kTagBits) - 1;
  using S = const Segment&;
  using P = const Place&;
  return {
      {"a pilot that was never written", Reach::kGroup,
       [](S, P place, P, std::string* file) {
         (*file)[place.pilot] = 0;
         return true;
       }},
      {"a line that was never written", Reach::kLine,
       [](S segment, P place, P, std::string* file) {
         Zero(file, place.line, segment.shape().line_bytes());
         return true;
       }},
      {"a mark of zero", Reach::kLine,
       [](S, P place, P, std::string* file) { return SetMark(place, 0, file); }},
      {"a mark without its bit", Reach::kLine,
       [](S, P place, P, std::string* file) {
         return SetMark(place, (*file)[place.mark] & 0x7F, file);
       }},
      {"a mark of one entry too many", Reach::kLine,
       [](S segment, P place, P, std::string* file) {
         return SetMark(place, kMarkBit | (segment.shape().entries() + 1), file);
       }},
      {"a mark of 127 entries", Reach::kLine,
       [](S, P place, P, std::string* file) { return SetMark(place, 0xFF, file); }},
      {"a doc id that was never written", Reach::kKey,
       [](S segment, P place, P, std::string* file) {
         Zero(file, place.doc_id, segment.header().schema.doc_id_bytes);
         return true;
       }},
      {"a pointer that was never written, with a tag", Reach::kKey,
       [](S segment, P place, P, std::string* file) {
         return SetPointer(
             segment, place, [](uint64_t old) { return old & kTagMask; }, file);
       }},
      {"a pointer just behind the records", Reach::kKey,
       [](S segment, P place, P, std::string* file) {
         const uint64_t end = segment.partitions()[0].record_bytes;
         return SetPointer(
             segment, place, [&](uint64_t old) { return MakePointer(end, TagOfPointer(old)); },
             file);
       }},
      {"a pointer far behind the records", Reach::kKey,
       [](S segment, P place, P, std::string* file) {
         return SetPointer(
             segment, place, [](uint64_t old) { return old | ~kTagMask; }, file);
       }},
      {"a pointer to another record", Reach::kKey,
       [](S segment, P place, P other, std::string* file) {
         const uint64_t there =
             other.record - segment.header().section(SectionKind::kRecords).offset;
         return SetPointer(
             segment, place, [&](uint64_t old) { return MakePointer(there, TagOfPointer(old)); },
             file);
       }},
      {"a pointer into its record", Reach::kKey,
       [](S segment, P place, P, std::string* file) {
         return SetPointer(
             segment, place, [&](uint64_t old) { return old + (uint64_t{1} << kTagBits); }, file);
       }},
      {"a key's length of zero", Reach::kKey,
       [](S segment, P place, P, std::string* file) {
         if (!IsPointers(segment)) return false;
         (*file)[place.key - 1] = 0;
         return true;
       }},
      {"a key's length beyond the records", Reach::kKey,
       [](S segment, P place, P, std::string* file) {
         if (!IsPointers(segment)) return false;
         file->replace(place.key - 1, 4, "\xFF\xFF\xFF\x7F");
         return true;
       }},
      {"a bit of the key behind a pointer", Reach::kKey,
       [](S segment, P place, P, std::string* file) {
         if (!IsPointers(segment)) return false;
         (*file)[place.key + 2] ^= 0x20;
         return true;
       }},
      {"a locator that was never written", Reach::kKey,
       [](S segment, P place, P, std::string* file) {
         if (!HasLocators(segment)) return false;
         Zero(file, place.locator, 8);
         return true;
       }},
      {"a locator behind the values", Reach::kKey,
       [](S segment, P place, P, std::string* file) {
         if (!HasLocators(segment)) return false;
         file->replace(place.locator + 2, 6, 6, '\xFF');
         return true;
       }},
      {"a value that was never written", Reach::kKey,
       [](S segment, P place, P, std::string* file) {
         if (!HasLocators(segment)) return false;
         const auto locator = Load<uint64_t>(file->data() + place.locator);
         (*file)[segment.header().section(SectionKind::kValues).offset + LocatorOffset(locator)] =
             0;
         return true;
       }},
      {"a value's length beyond the values", Reach::kKey,
       [](S segment, P place, P, std::string* file) {
         if (!HasLocators(segment)) return false;
         const auto locator = Load<uint64_t>(file->data() + place.locator);
         file->replace(
             segment.header().section(SectionKind::kValues).offset + LocatorOffset(locator), 4,
             "\xFF\xFF\xFF\x07");
         return true;
       }},
  };
}

struct TableCase {
  LayoutChoice layout;
  size_t key_bytes;
  uint8_t doc_id_bytes;
  ValueKind values;
};

// Those that the engine has code of their own for, others of every size of line, and pointers.
const std::vector<TableCase>& TableCases() {
  static const std::vector<TableCase> cases = {
      {LayoutChoice::kLine, 8, 4, ValueKind::kNone},
      {LayoutChoice::kLine, 8, 8, ValueKind::kBytes},
      {LayoutChoice::kLine, 16, 4, ValueKind::kNone},
      {LayoutChoice::kLine, 16, 8, ValueKind::kFixed},
      {LayoutChoice::kLine, 20, 4, ValueKind::kFixed},
      {LayoutChoice::kLine, 36, 8, ValueKind::kBytes},
      {LayoutChoice::kLine, 5, 4, ValueKind::kNone},
      {LayoutChoice::kLine, 60, 4, ValueKind::kBytes},
      {LayoutChoice::kPointer, 8, 4, ValueKind::kNone},
      {LayoutChoice::kPointer, 16, 8, ValueKind::kBytes},
      {LayoutChoice::kPointer, 60, 4, ValueKind::kFixed},
  };
  return cases;
}

void SetOptions(const TableCase& c, BuildOptions* options) {
  options->layout = c.layout;
  options->schema = {.doc_id_bytes = c.doc_id_bytes,
                     .value_kind = c.values,
                     .value_width = static_cast<uint8_t>(c.values == ValueKind::kFixed ? 6 : 0)};
}

Row RowOf(Random& random, const TableCase& c, const std::string& key) {
  const size_t value_bytes = c.values == ValueKind::kNone    ? 0
                             : c.values == ValueKind::kFixed ? 6
                                                             : random.Between(4, 30);
  return {key, random.Bytes(value_bytes), random.Below(1'000'000)};
}

// What a segment holds for a key can't be told when it is damaged there. The answer is "damaged":
// never another row, never "absent", and never the older row that it hides. Other keys have their
// right answers.
TEST_F(ProbeEngineTest, DamageOfEveryKindIsTold) {
  for (const TableCase& c : TableCases()) {
    Renew();
    SetOptions(c, &table_->options);
    table_->options.filter_bits_per_key = random_.OneIn(2) ? 10 : 0;
    const std::vector<std::string> keys = DistinctKeys(random_, 90, c.key_bytes);
    std::vector<Row> older, newer;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i < 60) older.push_back(RowOf(random_, c, keys[i]));
      if (i >= 30) newer.push_back(RowOf(random_, c, keys[i]));
    }
    ASSERT_OK(table_->Build(older));
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table_->Append(newer));
    ReferenceEngine only_newer;
    only_newer.AddSegment(newer, DuplicateRule::kReject, table_->options.schema);
    ASSERT_OK_AND_ASSIGN(const auto segment, Segment::Open(files_, built.segment_path));
    ASSERT_EQ(segment->partitions().size(), 1u);
    ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadNewestManifest(files_, table_->dir()));
    Manifest newest_only = manifest;
    newest_only.segments.resize(1);

    std::vector<std::string> questions = keys;
    for (std::string& stranger : DistinctKeys(random_, 300, c.key_bytes)) {
      questions.push_back(std::move(stranger));
    }
    const std::string whole = files_.Bytes(built.segment_path);
    for (const Damage& damage : AllDamages()) {
      const std::string& victim = keys[random_.Between(30, 59)];
      const std::string& other = keys[random_.Between(60, 89)];
      std::string damaged_file = whole;
      if (!damage.apply(*segment, PlaceOf(*segment, victim), PlaceOf(*segment, other),
                        &damaged_file)) {
        continue;
      }
      ASSERT_NE(damaged_file, whole) << damage.name;
      files_.Bytes(built.segment_path) = damaged_file;
      const auto reaches = [&](const std::string& key) {
        switch (damage.reach) {
          case Reach::kKey:
            return key == victim;
          case Reach::kLine:
            return LineOfKey(*segment, key) == LineOfKey(*segment, victim);
          case Reach::kGroup:
            return segment->partitions()[0].PilotAddress(HashOf(key)) ==
                   segment->partitions()[0].PilotAddress(HashOf(victim));
        }
        return false;
      };
      for (const bool older_too : {true, false}) {
        for (const SnapshotOptions& options : {SnapshotOptions{}, kWithoutMap}) {
          SCOPED_TRACE(testing::Message()
                       << damage.name << "; layout " << static_cast<int>(c.layout) << ", keys of "
                       << c.key_bytes << (older_too ? ", and an older segment" : ", alone")
                       << (options.segment_map_bytes_max == 0 ? ", without a map" : ""));
          ASSERT_OK_AND_ASSIGN(
              const auto snapshot,
              Snapshot::Open(files_, table_->dir(), older_too ? manifest : newest_only, options));
          const ReferenceEngine& reference = older_too ? table_->reference() : only_newer;
          ProbeEngine engine;
          const std::vector<LookupResult> answers = AskBatch(&engine, *snapshot, questions);
          ASSERT_EQ(answers.size(), questions.size());
          for (size_t i = 0; i < questions.size(); ++i) {
            const std::string& key = questions[i];
            const bool in_newer = only_newer.Lookup(key).outcome == Outcome::kFound;
            const LookupResult right = reference.Lookup(key);
            for (const LookupResult& got : {answers[i], LookupOne(*snapshot, key)}) {
              if (!reaches(key)) {
                ASSERT_EQ(got, right) << i << ": " << Describe(got);
              } else if (in_newer) {
                ASSERT_EQ(got, kDamagedResult) << i << ": " << Describe(got);
              } else {
                // Who is not in the damaged segment may come across the damage, or may not.
                ASSERT_TRUE(got == right || got == kDamagedResult) << i << ": " << Describe(got);
              }
            }
          }
        }
      }
    }
  }
}

// A value whose bytes changed is not given out, unless its check of 16 bits agrees by chance.
TEST_F(ProbeEngineTest, AChangedValueIsDamaged) {
  for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
    Renew();
    table_->options.schema.value_kind = ValueKind::kBytes;
    table_->options.layout = layout;
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table_->Build({{"key", "value"}}));
    const std::string whole = files_.Bytes(built.segment_path);
    const size_t at = whole.find("value", built.header.section(SectionKind::kValues).offset);
    ASSERT_NE(at, std::string::npos);
    for (size_t byte = 0; byte < 5; ++byte) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string& file = files_.Bytes(built.segment_path) = whole;
        file[at + byte] = static_cast<char>(file[at + byte] ^ (1 << bit));
        if (ValueCheck(file.substr(at, 5), HashOf("key")) == ValueCheck("value", HashOf("key"))) {
          continue;
        }
        const auto snapshot = Open();
        ProbeEngine engine;
        EXPECT_EQ(LookupOne(*snapshot, "key"), kDamagedResult);
        EXPECT_EQ(AskBatch(&engine, *snapshot, {"key"})[0], kDamagedResult);
      }
    }
  }
}

// An empty value is written with bytes that are not zero: a hole is not taken for one, although its
// check happens to agree.
TEST_F(ProbeEngineTest, AHoleIsNoEmptyValue) {
  for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
    Renew();
    const std::string value = "value";
    const std::string key =
        KeyWhere([&](uint64_t hash) { return ValueCheck(value, hash) == ValueCheck("", hash); });
    table_->options.schema.value_kind = ValueKind::kBytes;
    table_->options.layout = layout;
    ASSERT_OK_AND_ASSIGN(const BuildResult built,
                         table_->Build({{key, value}, {"anything", "else"}}));
    const Section& values = built.header.section(SectionKind::kValues);
    Zero(&files_.Bytes(built.segment_path), values.offset, values.size_bytes);
    const auto snapshot = Open();
    ProbeEngine engine;
    EXPECT_EQ(LookupOne(*snapshot, key), kDamagedResult);
    EXPECT_EQ(AskBatch(&engine, *snapshot, {key})[0], kDamagedResult);
  }
}

// A doc id of 32 bits is not a hole because its neighbour's bytes are zero, nor the other way
// round.
TEST_F(ProbeEngineTest, DocIdsThatLookLikeHoles) {
  for (const uint8_t doc_id_bytes : {4, 8}) {
    for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
      Renew();
      table_->options.layout = layout;
      table_->options.schema = {
          .doc_id_bytes = doc_id_bytes, .value_kind = ValueKind::kFixed, .value_width = 8};
      // As stored: a few bits set at either end, and zero bytes beside.
      std::vector<Row> rows;
      const uint64_t largest = table_->options.schema.DocIdMax();
      for (unsigned bit = 0; bit < 8u * doc_id_bytes; ++bit) {
        const uint64_t doc_id = (largest + 2) ^ (uint64_t{1} << bit);
        if (doc_id > largest) continue;
        rows.push_back({random_.Bytes(12), std::string(8, '\0'), doc_id});
      }
      ASSERT_OK(table_->Build(rows));
      ExpectSameAnswers(*Open(), table_->reference(), table_->reference().Keys(), 64);
    }
  }
}

// --- Candidates ---

// Keys whose tags are the same, of one line: the record tells them apart, and proves that it is
// another's.
TEST_F(ProbeEngineTest, KeysOfEqualTags) {
  std::map<uint32_t, std::vector<std::string>> by_tag;
  for (int i = 0; i < 150'000; ++i) {
    std::string key = random_.Bytes(random_.Between(7, 12));
    by_tag[TagOf(HashOf(key))].push_back(std::move(key));
  }
  std::erase_if(by_tag, [](const auto& entry) { return entry.second.size() < 2; });
  ASSERT_GE(by_tag.size(), 100u);
  table_->options.layout = LayoutChoice::kPointer;
  table_->options.filter_bits_per_key = 0;
  int rounds = 0, told = 0;
  for (auto entry = by_tag.begin(); entry != by_tag.end() && rounds < 60; ++rounds) {
    // Few enough for one line. Of the first two pairs both are there, of the third one is.
    std::vector<Row> rows;
    std::vector<std::string> questions;
    for (int pair = 0; pair < 3 && entry != by_tag.end(); ++pair, ++entry) {
      const auto& keys = entry->second;
      rows.push_back({keys[0], "", random_.Below(1000)});
      if (pair < 2) rows.push_back({keys[1], "", random_.Below(1000)});
      questions.insert(questions.end(), keys.begin(), keys.end());
    }
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table_->Build(rows));
    const auto snapshot = Open();
    const Segment& segment = *snapshot->segments()[0];
    ASSERT_EQ(segment.partitions()[0].line_count, 1u);
    ASSERT_NO_FATAL_FAILURE(ExpectSameAnswers(*snapshot, table_->reference(), questions, 64));
    // With the first key damaged, neither it nor its twin behind it can be told, as the one may be
    // the other.
    const Place place = PlaceOf(segment, rows[0].key);
    files_.Bytes(built.segment_path)[place.key] ^= 1;
    const auto damaged = Open();
    EXPECT_EQ(LookupOne(*damaged, rows[0].key), kDamagedResult);
    told += LookupOne(*damaged, rows[1].key) == kDamagedResult;
    EXPECT_NE(LookupOne(*damaged, rows[1].key).outcome, Outcome::kAbsent);
  }
  EXPECT_GT(told, 0) << "no twin lay behind the damaged key";
}

// Entries beyond those that a mark counts are not there, whatever lies there.
TEST_F(ProbeEngineTest, EntriesThatTheMarkDoesNotCount) {
  for (const TableCase& c : TableCases()) {
    Renew();
    SetOptions(c, &table_->options);
    table_->options.filter_bits_per_key = 0;
    const std::vector<std::string> keys = DistinctKeys(random_, 40, c.key_bytes);
    std::vector<Row> rows;
    for (const std::string& key : keys) rows.push_back(RowOf(random_, c, key));
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table_->Build(rows));
    const auto whole = Open();
    const Segment& segment = *whole->segments()[0];
    const Place place = PlaceOf(segment, keys[0]);
    files_.Bytes(built.segment_path)[place.mark] = static_cast<char>(kMarkBit);
    const auto snapshot = Open();
    ProbeEngine engine;
    const std::vector<LookupResult> answers = AskBatch(&engine, *snapshot, keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      const LookupResult expected = LineOfKey(segment, keys[i]) == LineOfKey(segment, keys[0])
                                        ? LookupResult{}
                                        : table_->reference().Lookup(keys[i]);
      EXPECT_EQ(answers[i], expected);
      EXPECT_EQ(LookupOne(*snapshot, keys[i]), expected);
    }
  }
}

// --- Tiles ---

// Batches of every size up to more than two tiles, with all, none, or some of the keys there, one
// engine and one set of results for all.
TEST_F(ProbeEngineTest, TilesOfEveryFill) {
  for (const bool one_shape : {true, false}) {
    Renew();
    table_->options.schema.value_kind = one_shape ? ValueKind::kNone : ValueKind::kBytes;
    std::vector<std::string> present;
    for (int i = 0; i < 3; ++i) {
      std::vector<Row> rows;
      const size_t key_bytes = one_shape ? 16 : 14 + 9 * i;
      for (std::string& key : DistinctKeys(random_, 120, key_bytes)) {
        rows.push_back({key, one_shape ? "" : key.substr(3)});
        present.push_back(std::move(key));
      }
      table_->options.layout = one_shape || i > 0 ? LayoutChoice::kLine : LayoutChoice::kPointer;
      ASSERT_OK(i == 0 ? table_->Build(rows) : table_->Append(rows));
    }
    const std::vector<std::string> strangers = StrangerKeys(random_, present, 400);
    std::vector<std::shared_ptr<const Snapshot>> snapshots = {Open(), Open(kWithoutMap)};
    Manifest newest = snapshots[0]->manifest();
    newest.segments.resize(1);
    ASSERT_OK_AND_ASSIGN(snapshots.emplace_back(), Snapshot::Open(files_, table_->dir(), newest));
    ProbeEngine engine;
    LookupResults results;
    for (size_t count = 0; count <= 2 * kTileKeysMax + 3; ++count) {
      for (size_t kind = 0; kind < 5; ++kind) {
        std::vector<std::string_view> keys;
        for (size_t i = 0; i < count; ++i) {
          const bool there = kind == 0   ? true
                             : kind == 1 ? false
                             : kind == 2 ? i + 1 == count
                             : kind == 3 ? i == 0
                                         : random_.OneIn(2);
          keys.push_back(there ? present[random_.Below(present.size())]
                               : strangers[random_.Below(strangers.size())]);
        }
        for (size_t s = 0; s < snapshots.size(); ++s) {
          engine.Lookup(*snapshots[s], keys, &results);
          ASSERT_EQ(results.size(), count);
          for (size_t i = 0; i < count; ++i) {
            // The newest segment alone holds the last keys that were built.
            const bool held =
                s < 2 || std::find(present.begin() + 240, present.end(), keys[i]) != present.end();
            const LookupResult expected =
                held ? table_->reference().Lookup(keys[i]) : LookupResult{};
            ASSERT_EQ(results.at(i), expected)
                << count << " keys of kind " << kind << ", snapshot " << s << ", key " << i;
          }
        }
      }
    }
  }
}

// What an engine keeps from one table does not show in another: values, their absence, segments.
TEST_F(ProbeEngineTest, OneEngineForManyTables) {
  ProbeEngine engine;
  LookupResults results;
  std::vector<std::unique_ptr<TestTable>> tables;
  std::vector<std::shared_ptr<const Snapshot>> snapshots;
  std::vector<std::vector<std::string>> questions;
  for (const TableCase& c : TableCases()) {
    auto& table = tables.emplace_back(
        std::make_unique<TestTable>(files_, "data" + std::to_string(tables.size()), random_));
    SetOptions(c, &table->options);
    std::vector<Row> rows;
    for (const std::string& key : DistinctKeys(random_, 200, c.key_bytes)) {
      rows.push_back(RowOf(random_, c, key));
    }
    ASSERT_OK(table->Build(rows));
    questions.push_back(table->reference().Keys());
    for (std::string& key : StrangerKeys(random_, questions.back(), 200)) {
      questions.back().push_back(std::move(key));
    }
    ASSERT_OK_AND_ASSIGN(snapshots.emplace_back(), table->Open());
  }
  for (int round = 0; round < 300; ++round) {
    const size_t t = random_.Below(tables.size());
    std::vector<std::string_view> keys(random_.Below(300));
    for (auto& key : keys) key = random_.Pick(questions[t]);
    engine.Lookup(*snapshots[t], keys, &results);
    ASSERT_EQ(results.size(), keys.size());
    ASSERT_EQ(results.values.empty(), keys.empty() || TableCases()[t].values == ValueKind::kNone);
    for (size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(results.at(i), tables[t]->reference().Lookup(keys[i]));
    }
  }
}

// --- Filters and the segment map ---

// The filter of a lone segment is asked when few of the last batch's keys were found. Whether it is
// must not show.
TEST_F(ProbeEngineTest, WhetherTheFilterIsAskedDoesNotShow) {
  for (const TableCase& c : TableCases()) {
    Renew();
    SetOptions(c, &table_->options);
    const std::vector<std::string> keys = DistinctKeys(random_, 500, c.key_bytes);
    std::vector<Row> rows;
    for (const std::string& key : keys) rows.push_back(RowOf(random_, c, key));
    ASSERT_OK(table_->Build(rows));
    const std::vector<std::string> strangers = StrangerKeys(random_, keys, 500);
    const auto snapshot = Open();
    ProbeEngine engine;
    for (int round = 0; round < 60; ++round) {
      const uint64_t found_percent =
          random_.OneIn(3) ? random_.Between(25, 35) : random_.Below(101);
      std::vector<std::string> batch;
      for (uint64_t i = random_.Below(200); i > 0; --i) {
        batch.push_back(random_.Pick(random_.Below(100) < found_percent ? keys : strangers));
      }
      const std::vector<LookupResult> answers = AskBatch(&engine, *snapshot, batch);
      for (size_t i = 0; i < batch.size(); ++i) {
        ASSERT_EQ(answers[i], table_->reference().Lookup(batch[i]));
      }
    }
  }
}

// Seen by damage: with all marks gone, who comes to a line is told so, and who is held back by the
// filter is absent.
TEST_F(ProbeEngineTest, TheFilterIsAskedAfterABatchOfWhichFewWereFound) {
  std::vector<Row> rows;
  const std::vector<std::string> keys = DistinctKeys(random_, 1000, 16);
  for (const std::string& key : keys) rows.push_back({key, ""});
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table_->Build(rows));
  const std::vector<std::string> strangers = DistinctKeys(random_, 1000, 16);
  const auto whole = Open();
  const Section& lines = built.header.section(SectionKind::kLines);
  Zero(&files_.Bytes(built.segment_path), lines.offset, lines.size_bytes);
  const auto damaged = Open();
  ProbeEngine engine;
  // Asked how? Few of a batch of whole answers; then of the damaged ones.
  const auto asks_filter = [&](size_t found, size_t absent) {
    std::vector<std::string> batch(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(found));
    batch.insert(batch.end(), strangers.begin(),
                 strangers.begin() + static_cast<ptrdiff_t>(absent));
    EXPECT_EQ(Count(AskBatch(&engine, *whole, batch), Outcome::kFound), found);
    const size_t held_back = Count(AskBatch(&engine, *damaged, strangers), Outcome::kAbsent);
    EXPECT_TRUE(held_back == 0 || held_back > 900) << held_back;
    return held_back > 0;
  };
  EXPECT_FALSE(asks_filter(100, 0));
  EXPECT_TRUE(asks_filter(0, 100));
  EXPECT_FALSE(asks_filter(50, 50));
  EXPECT_TRUE(asks_filter(29, 71));
  EXPECT_FALSE(asks_filter(30, 70));
  EXPECT_TRUE(asks_filter(1, 500));
  EXPECT_FALSE(asks_filter(0, 0));
  // Whoever is in the table comes to its line either way.
  EXPECT_EQ(Count(AskBatch(&engine, *damaged, keys), Outcome::kDamaged), keys.size());
  EXPECT_EQ(Count(AskBatch(&engine, *damaged, keys), Outcome::kDamaged), keys.size());
}

// A filter of zero bytes excludes nothing, nor does one of a kind that is not known.
TEST_F(ProbeEngineTest, FiltersThatSayMaybe) {
  for (const bool unknown_kind : {false, true}) {
    Renew();
    std::vector<BuildResult> built;
    for (int i = 0; i < 3; ++i) {
      std::vector<Row> rows;
      for (std::string& key : DistinctKeys(random_, 300, 12)) rows.push_back({std::move(key), ""});
      ASSERT_OK_AND_ASSIGN(built.emplace_back(),
                           i == 0 ? table_->Build(rows) : table_->Append(rows));
    }
    ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadNewestManifest(files_, table_->dir()));
    for (size_t i = 0; i < built.size(); ++i) {
      std::string& file = files_.Bytes(built[i].segment_path);
      const Section& filter = built[i].header.section(SectionKind::kFilter);
      ASSERT_GT(filter.size_bytes, 0u);
      Zero(&file, filter.offset, filter.size_bytes);
      if (!unknown_kind) continue;
      // Words that exclude nearly all, if they were taken for what they are not.
      for (uint64_t at = 0; at < filter.size_bytes; at += 8) file[filter.offset + at] = 1;
      SegmentHeader header = built[i].header;
      header.filter_kind = static_cast<FilterKind>(77);
      SealSegment(header, &file);
      manifest.segments[built.size() - 1 - i].header_checksum = HeaderChecksum(file);
    }
    std::vector<std::string> questions = table_->reference().Keys();
    for (std::string& key : StrangerKeys(random_, questions, 1000)) {
      questions.push_back(std::move(key));
    }
    for (const SnapshotOptions& options : {SnapshotOptions{}, kWithoutMap}) {
      ASSERT_OK_AND_ASSIGN(const auto snapshot,
                           Snapshot::Open(files_, table_->dir(), manifest, options));
      EXPECT_NE(snapshot->segments()[0]->has_filter(), unknown_kind);
      ExpectSameAnswers(*snapshot, table_->reference(), questions, 64);
    }
  }
}

// Filters are asked where there is no map, and only there: seen by filters that exclude all.
TEST_F(ProbeEngineTest, AMapNeedsNoFilter) {
  std::vector<std::string> keys;
  for (int i = 0; i < 2; ++i) {
    std::vector<Row> rows;
    for (std::string& key : DistinctKeys(random_, 300, 12)) {
      keys.push_back(key);
      rows.push_back({std::move(key), ""});
    }
    ASSERT_OK_AND_ASSIGN(const BuildResult built,
                         i == 0 ? table_->Build(rows) : table_->Append(rows));
    const Section& filter = built.header.section(SectionKind::kFilter);
    std::string& file = files_.Bytes(built.segment_path);
    Zero(&file, filter.offset, filter.size_bytes);
    for (uint64_t at = 0; at < filter.size_bytes; at += 8) file[filter.offset + at] = 1;
  }
  ExpectSameAnswers(*Open(), table_->reference(), keys, 64);
  ProbeEngine engine;
  const auto without = Open(kWithoutMap);
  EXPECT_EQ(Count(AskBatch(&engine, *without, keys), Outcome::kFound), 0u);
  EXPECT_EQ(LookupOne(*without, keys[0]), LookupResult{});
}

// The same keys in many segments fill many buckets for each; the newest row counts all the same,
// and one that is damaged is not passed over for any of those below.
TEST_F(ProbeEngineTest, BucketsThatOverflow) {
  for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
    Renew();
    table_->options.layout = layout;
    const std::vector<std::string> keys = DistinctKeys(random_, 100, 16);
    std::string newest_path;
    for (uint64_t i = 0; i < 50; ++i) {
      std::vector<Row> rows;
      for (size_t k = 0; k < keys.size(); ++k) {
        // The last keys are in the older segments only.
        if (i < 40 || k < 70) rows.push_back({keys[k], "", 1000 * i + k});
      }
      ASSERT_OK_AND_ASSIGN(const BuildResult built,
                           i == 0 ? table_->Build(rows) : table_->Append(rows));
      newest_path = built.segment_path;
    }
    const auto snapshot = Open();
    ASSERT_NE(snapshot->segment_map(), nullptr);
    size_t overflowing = 0;
    for (const std::string& key : keys) {
      overflowing += snapshot->segment_map()->ProbeFor(HashOf(key)).bucket[kBucketOverflow];
    }
    EXPECT_GT(overflowing, keys.size() / 2);
    std::vector<std::string> questions = keys;
    for (std::string& key : DistinctKeys(random_, 1000, 16)) questions.push_back(std::move(key));
    for (const size_t batch_keys : {1, 64, 129}) {
      ASSERT_NO_FATAL_FAILURE(
          ExpectSameAnswers(*snapshot, table_->reference(), questions, batch_keys));
    }
    const Section pilots = snapshot->segments()[0]->header().section(SectionKind::kPilots);
    Zero(&files_.Bytes(newest_path), pilots.offset, pilots.size_bytes);
    for (const SnapshotOptions& options : {SnapshotOptions{}, kWithoutMap}) {
      const auto damaged = Open(options);
      ProbeEngine engine;
      const std::vector<LookupResult> answers = AskBatch(&engine, *damaged, keys);
      for (size_t k = 0; k < 70; ++k) {
        EXPECT_EQ(answers[k], kDamagedResult);
        EXPECT_EQ(LookupOne(*damaged, keys[k]), kDamagedResult);
      }
      for (size_t k = 70; k < keys.size(); ++k) {
        const LookupResult right = {Outcome::kFound, 39'000 + k, ""};
        EXPECT_TRUE(answers[k] == right || answers[k] == kDamagedResult);
      }
    }
  }
}

// Answers are views into the snapshot, which outlives its files' names.
TEST_F(ProbeEngineTest, ResultsLiveAsLongAsTheSnapshot) {
  table_->options.schema.value_kind = ValueKind::kBytes;
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table_->Build({{"key", "value"}}));
  const auto snapshot = Open();
  const LookupResult before = LookupOne(*snapshot, "key");
  ASSERT_OK(files_.Remove(built.segment_path));
  EXPECT_EQ(before.value, "value");
  EXPECT_EQ(LookupOne(*snapshot, "key"), before);
}

}  // namespace
}  // namespace latchkey::test
