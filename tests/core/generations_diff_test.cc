// Reading whole generations: the rows that count, and what differs between two of them, held to
// plain maps, with rows that hide others and tombstones, whichever segments the two share.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/key/key_hash.h"
#include "core/lookup/visible_rows.h"
#include "core/segment/segment_writer.h"
#include "core/table/snapshot.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/segment_bytes.h"
#include "tests/support/status_asserts.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::HasSubstr;

using DocIdAndValue = std::pair<uint64_t, std::string>;
using Content = std::map<std::string, DocIdAndValue>;
// Nothing for a tombstone.
using SegmentContent = std::map<std::string, std::optional<DocIdAndValue>>;

constexpr const char* kDir = "data/t";

struct Written {
  SegmentRef ref;
  SegmentContent rows;
};

struct Opened {
  std::shared_ptr<const Snapshot> snapshot;
  Content content;
};

class GenerationsDiffTest : public SeededTest {
 protected:
  GenerationsDiffTest() {
    manifest_.identity = RandomIdentity(random_);
    manifest_.schema.value_kind = ValueKind::kBytes;
  }

  void Write(const SegmentContent& rows, Layout layout, Written* written) {
    SegmentPlan plan;
    plan.identity = manifest_.identity;
    plan.schema = manifest_.schema;
    plan.segment_id = ++last_segment_;
    plan.layout = layout;
    plan.filter_bits_per_key = random_.OneIn(3) ? 0 : 10;
    if (random_.OneIn(2)) plan.hash_list = HashListShape::For(rows.size(), 10 * rows.size());
    plan.partitions.resize(1);
    std::vector<SegmentRow> part;
    for (const auto& [key, row] : rows) {
      const uint64_t hash = HashBytes(key.data(), key.size(), plan.identity.seed);
      part.push_back({hash, row ? row->first : 0, key,
                      row ? std::string_view(row->second) : std::string_view(), !row});
      ++plan.partitions[0].rows;
      plan.partitions[0].key_bytes += key.size();
      plan.value_bytes += kVarintBytesMax + (row ? row->second.size() : 0);
      const auto key_bytes = static_cast<uint16_t>(key.size());
      plan.key_bytes_min = part.size() == 1 ? key_bytes : std::min(plan.key_bytes_min, key_bytes);
      plan.key_bytes_max = std::max(plan.key_bytes_max, key_bytes);
    }
    std::sort(part.begin(), part.end(),
              [](const SegmentRow& a, const SegmentRow& b) { return a.hash < b.hash; });
    const std::string file = SegmentFileName(1, last_segment_);
    ASSERT_OK(files_.CreateDirectories(kDir));
    ASSERT_OK_AND_ASSIGN(const auto writer,
                         SegmentWriter::Create(files_, JoinPath(kDir, file), plan));
    ASSERT_OK(writer->AddPartition(part));
    ASSERT_OK_AND_ASSIGN(const SegmentHeader header, writer->Finish());
    written->ref = {file, header.file_bytes(), header.segment_id,
                    HeaderChecksum(EncodeHeader(header)), header.row_count};
    written->rows = rows;
  }

  // Rows of some of the keys, and tombstones.
  void WriteSome(const std::vector<std::string>& keys, Written* written) {
    SegmentContent rows;
    const uint64_t every = random_.Between(1, 6);
    for (const std::string& key : keys) {
      if (!random_.OneIn(every)) continue;
      auto& row = rows[key];
      // Few different ones, so that newer rows often say the same as those they hide.
      if (!random_.OneIn(4)) {
        row = {random_.Below(3), std::string(random_.Below(3), 'v')};
      }
    }
    Write(rows, random_.OneIn(2) ? Layout::kLine : Layout::kPointer, written);
  }

  // `segments`: the newest first.
  void Open(const std::vector<const Written*>& segments, Opened* opened) {
    ++manifest_.generation;
    manifest_.segments.clear();
    for (const Written* segment : segments) manifest_.segments.push_back(segment->ref);
    ASSERT_OK(PublishManifest(files_, kDir, manifest_));
    ASSERT_OK_AND_ASSIGN(
        opened->snapshot,
        Snapshot::Open(files_, kDir, manifest_, {.segment_map_bytes_max = random_.Below(2) << 30}));
    opened->content.clear();
    for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
      for (const auto& [key, row] : (*segment)->rows) {
        if (row) {
          opened->content[key] = *row;
        } else {
          opened->content.erase(key);
        }
      }
    }
  }

  void ExpectRows(const Opened& opened) {
    Content seen;
    ASSERT_OK(ForEachVisibleRow(*opened.snapshot, [&](const StoredRow& row) {
      EXPECT_FALSE(row.tombstone);
      EXPECT_TRUE(seen.emplace(row.key, DocIdAndValue(row.doc_id, row.value)).second);
      return absl::OkStatus();
    }));
    EXPECT_EQ(seen, opened.content);
  }

  static std::string Text(const Content& content, const std::string& key) {
    const auto found = content.find(key);
    if (found == content.end()) return "absent";
    return Describe({Outcome::kFound, found->second.first, found->second.second});
  }

  void ExpectDifferences(const Opened& before, const Opened& after) {
    using Texts = std::map<std::string, std::pair<std::string, std::string>>;
    Texts expected;
    DifferenceCounts expected_counts;
    Content all = before.content;
    all.insert(after.content.begin(), after.content.end());
    for (const auto& [key, row] : all) {
      const bool was = before.content.contains(key), is = after.content.contains(key);
      if (was && is && before.content.at(key) == after.content.at(key)) continue;
      ++(was && is ? expected_counts.changed
         : is      ? expected_counts.added
                   : expected_counts.removed);
      expected[key] = {Text(before.content, key), Text(after.content, key)};
    }
    Texts seen;
    const auto text_of = [](const LookupResult& result) {
      return result.outcome == Outcome::kFound ? Describe(result) : "absent";
    };
    ASSERT_OK_AND_ASSIGN(
        const DifferenceCounts counts,
        CompareGenerations(*before.snapshot, *after.snapshot, [&](const Difference& difference) {
          const bool is_new = seen.emplace(difference.key, std::pair(text_of(difference.before),
                                                                     text_of(difference.after)))
                                  .second;
          EXPECT_TRUE(is_new) << "told twice";
          return absl::OkStatus();
        }));
    EXPECT_EQ(seen, expected);
    EXPECT_EQ(counts, expected_counts);
    EXPECT_EQ(counts.all(), expected.size());
    ASSERT_OK_AND_ASSIGN(const DifferenceCounts only_counts,
                         CompareGenerations(*before.snapshot, *after.snapshot, nullptr));
    EXPECT_EQ(only_counts, counts);
  }

  MemoryFileSystem files_;
  Manifest manifest_;
  uint64_t last_segment_ = 0;
};

TEST_F(GenerationsDiffTest, AddedRemovedChanged) {
  Written old, newer;
  ASSERT_NO_FATAL_FAILURE(Write({{"changed-value", {{1, "a"}}},
                                 {"changed-id", {{2, "b"}}},
                                 {"deleted", {{3, "c"}}},
                                 {"rewritten", {{4, "d"}}},
                                 {"untouched", {{5, "e"}}},
                                 {"never", std::nullopt}},
                                Layout::kPointer, &old));
  ASSERT_NO_FATAL_FAILURE(Write({{"changed-value", {{1, "A"}}},
                                 {"changed-id", {{20, "b"}}},
                                 {"deleted", std::nullopt},
                                 {"rewritten", {{4, "d"}}},
                                 {"added", {{6, "f"}}},
                                 {"never", std::nullopt},
                                 {"nowhere", std::nullopt}},
                                Layout::kPointer, &newer));
  Opened before, after;
  ASSERT_NO_FATAL_FAILURE(Open({&old}, &before));
  ASSERT_NO_FATAL_FAILURE(Open({&newer, &old}, &after));
  ASSERT_OK_AND_ASSIGN(const DifferenceCounts counts,
                       CompareGenerations(*before.snapshot, *after.snapshot, nullptr));
  EXPECT_EQ(counts, (DifferenceCounts{.added = 1, .removed = 1, .changed = 2}));
  ASSERT_OK_AND_ASSIGN(const DifferenceCounts back,
                       CompareGenerations(*after.snapshot, *before.snapshot, nullptr));
  EXPECT_EQ(back, (DifferenceCounts{.added = 1, .removed = 1, .changed = 2}));
  ASSERT_OK_AND_ASSIGN(const DifferenceCounts none,
                       CompareGenerations(*after.snapshot, *after.snapshot, nullptr));
  EXPECT_EQ(none, DifferenceCounts());
  ExpectDifferences(before, after);
  ExpectRows(before);
  ExpectRows(after);
}

// A row that was hidden comes to light again, and the segment that hid it is gone.
TEST_F(GenerationsDiffTest, WhatANewerSegmentHidComesToLight) {
  Written old, hides, other;
  ASSERT_NO_FATAL_FAILURE(Write({{"a", {{1, "old"}}}, {"b", {{2, "old"}}}, {"c", {{3, "old"}}}},
                                Layout::kPointer, &old));
  ASSERT_NO_FATAL_FAILURE(Write({{"a", {{1, "new"}}}, {"b", std::nullopt}}, Layout::kLine, &hides));
  ASSERT_NO_FATAL_FAILURE(Write({{"c", std::nullopt}}, Layout::kLine, &other));
  Opened before, after;
  ASSERT_NO_FATAL_FAILURE(Open({&hides, &old}, &before));
  ASSERT_NO_FATAL_FAILURE(Open({&other, &old}, &after));
  ASSERT_OK_AND_ASSIGN(const DifferenceCounts counts,
                       CompareGenerations(*before.snapshot, *after.snapshot, nullptr));
  EXPECT_EQ(counts, (DifferenceCounts{.added = 1, .removed = 1, .changed = 1}));
  ExpectDifferences(before, after);
}

TEST_F(GenerationsDiffTest, AgreesWithPlainMaps) {
  size_t shared_some = 0, shared_none = 0;
  for (int round = 0; round < 150; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const std::vector<std::string> keys =
        DistinctKeys(random_, random_.Between(1, 150), random_.OneIn(3) ? 1 : 8);
    std::vector<Written> written(random_.Between(1, 8));
    for (Written& segment : written) ASSERT_NO_FATAL_FAILURE(WriteSome(keys, &segment));
    // Newest first: own segments, in any order, above what both share; or anything at all.
    const size_t shared = random_.Below(written.size() + 1);
    const auto some_segments = [&] {
      std::vector<const Written*> segments;
      for (size_t i = 0; i < written.size(); ++i) {
        if (i < written.size() - shared ? random_.OneIn(2) : !random_.OneIn(20)) {
          segments.push_back(&written[i]);
        }
      }
      if (segments.size() > 1 && random_.OneIn(3)) std::swap(segments[0], segments.back());
      return segments;
    };
    const auto first = some_segments(), second = some_segments();
    const bool shares = !first.empty() && !second.empty() && first.back() == second.back();
    if (first != second) ++(shares ? shared_some : shared_none);
    Opened before, after;
    ASSERT_NO_FATAL_FAILURE(Open(first, &before));
    ASSERT_NO_FATAL_FAILURE(Open(second, &after));
    for (const Opened* opened : {&before, &after}) ASSERT_NO_FATAL_FAILURE(ExpectRows(*opened));
    ASSERT_NO_FATAL_FAILURE(ExpectDifferences(before, after));
    ASSERT_NO_FATAL_FAILURE(ExpectDifferences(after, before));
    ASSERT_NO_FATAL_FAILURE(ExpectDifferences(after, after));
  }
  EXPECT_GT(shared_some, 5u);
  EXPECT_GT(shared_none, 5u);
}

// Nothing but keys, doc ids and values is compared.
TEST_F(GenerationsDiffTest, GenerationsOfOtherSchemasAndSeeds) {
  Written ours, theirs;
  ASSERT_NO_FATAL_FAILURE(Write({{"same", {{1, ""}}}, {"value", {{2, "x"}}}, {"gone", {{3, ""}}}},
                                Layout::kPointer, &ours));
  Opened before, after;
  ASSERT_NO_FATAL_FAILURE(Open({&ours}, &before));
  manifest_.identity = RandomIdentity(random_);
  manifest_.schema = {.key_kind = KeyKind::kText, .doc_id_bytes = 8};
  manifest_.schema.value_kind = ValueKind::kNone;
  ASSERT_NO_FATAL_FAILURE(
      Write({{"same", {{1, ""}}}, {"value", {{2, ""}}}, {"new", {{uint64_t{1} << 40, ""}}}},
            Layout::kPointer, &theirs));
  ASSERT_NO_FATAL_FAILURE(Open({&theirs}, &after));
  ASSERT_OK_AND_ASSIGN(const DifferenceCounts counts,
                       CompareGenerations(*before.snapshot, *after.snapshot, nullptr));
  EXPECT_EQ(counts, (DifferenceCounts{.added = 1, .removed = 1, .changed = 1}));
  ExpectDifferences(before, after);
  ExpectDifferences(after, before);
}

TEST_F(GenerationsDiffTest, AVisitorsErrorEndsIt) {
  Written old, newer;
  ASSERT_NO_FATAL_FAILURE(
      Write({{"a", {{1, ""}}}, {"b", {{2, ""}}}, {"c", {{3, ""}}}}, Layout::kPointer, &old));
  ASSERT_NO_FATAL_FAILURE(Write({{"d", {{1, ""}}}, {"a", {{9, ""}}}}, Layout::kPointer, &newer));
  Opened before, after;
  ASSERT_NO_FATAL_FAILURE(Open({&old}, &before));
  ASSERT_NO_FATAL_FAILURE(Open({&newer, &old}, &after));
  int calls = 0;
  const auto fails = [&](const auto&) {
    ++calls;
    return absl::CancelledError("enough");
  };
  EXPECT_FAILS(CompareGenerations(*before.snapshot, *after.snapshot, fails), kCancelled, "enough");
  EXPECT_EQ(calls, 1);
  EXPECT_FAILS(ForEachVisibleRow(*after.snapshot, fails), kCancelled, "enough");
  EXPECT_EQ(calls, 2);
}

// What can't be read is neither equal nor different.
TEST_F(GenerationsDiffTest, DamageIsNoDifference) {
  const std::vector<std::string> keys = DistinctKeys(random_, 200, 8);
  SegmentContent rows;
  for (const std::string& key : keys) rows[key] = {random_.Below(9), "value"};
  Written old, newer;
  ASSERT_NO_FATAL_FAILURE(Write(rows, Layout::kLine, &old));
  rows.erase(keys[0]);
  ASSERT_NO_FATAL_FAILURE(Write(rows, Layout::kLine, &newer));
  const std::string path = JoinPath(kDir, old.ref.file);
  const SegmentHeader header = HeaderOf(files_.Bytes(path));
  const Section& lines = header.section(SectionKind::kLines);
  std::fill_n(files_.Bytes(path).begin() + static_cast<ptrdiff_t>(lines.offset), lines.size_bytes,
              '\0');
  Opened before, after;
  ASSERT_NO_FATAL_FAILURE(Open({&old}, &before));
  ASSERT_NO_FATAL_FAILURE(Open({&newer}, &after));
  EXPECT_FAILS(CompareGenerations(*before.snapshot, *after.snapshot, nullptr), kDataLoss,
               HasSubstr(path));
  EXPECT_FAILS(CompareGenerations(*after.snapshot, *before.snapshot, nullptr), kDataLoss,
               HasSubstr("can't be read"));
  EXPECT_FAILS(ForEachVisibleRow(*before.snapshot, [](const auto&) { return absl::OkStatus(); }),
               kDataLoss, HasSubstr(path));
}

}  // namespace
}  // namespace latchkey::test
