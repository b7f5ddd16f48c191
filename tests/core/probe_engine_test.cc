// Corners of a probe that random tables seldom reach.
#include "core/lookup/probe_engine.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/key/key_hash.h"
#include "core/segment/group.h"
#include "core/segment/segment_writer.h"
#include "core/segment/value_locator.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/status_asserts.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

class ProbeEngineTest : public SeededTest {
 protected:
  ProbeEngineTest() : table_(files_, "data", random_) {
    const auto snapshot = table_.Open();
    seed_ = snapshot.value()->seed();
  }

  Hash128 HashOf(std::string_view key) const { return HashBytes(key.data(), key.size(), seed_); }

  // A random key of 8 bytes whose hash is as wanted.
  std::string KeyWhere(const std::function<bool(const Hash128&)>& wanted) {
    for (;;) {
      std::string key = random_.Bytes(8);
      if (wanted(HashOf(key))) return key;
    }
  }

  MemoryFileSystem files_;
  TestTable table_;
  uint64_t seed_ = 0;
};

// A chain that fills the last groups up to the last slot ends behind it, with an empty slot.
TEST_F(ProbeEngineTest, ChainUpToTheLastSlot) {
  for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
    for (const size_t chain_groups : {1, 2, 3}) {
      for (const int beyond : {0, 1, 5}) {
        SCOPED_TRACE(testing::Message() << "layout " << static_cast<int>(layout) << ", "
                                        << chain_groups << " groups, and " << beyond);
        // 16 slots a group, all full from `home` on, of 4/3 as many as there are rows.
        const uint64_t row_count = 48 * chain_groups;
        const uint64_t home_slots = HomeSlotsFor(row_count);
        const uint64_t home = home_slots - kGroupSlots * chain_groups;
        const auto home_of = [&](const Hash128& hash) { return HomeSlotOf(hash.low, 0, home_slots); };
        std::vector<Row> rows;
        while (rows.size() < kGroupSlots * chain_groups + beyond) {
          rows.push_back({KeyWhere([&](const Hash128& hash) { return home_of(hash) == home; }), ""});
        }
        while (rows.size() < row_count) {
          // Spread over what is before the chain, without reaching it.
          const uint64_t at = rows.size() % (home / 2);
          rows.push_back({KeyWhere([&](const Hash128& hash) { return home_of(hash) == at; }), ""});
        }
        table_.options.layout = layout;
        table_.options.filter_bits_per_key = 0;
        ASSERT_OK_AND_ASSIGN(const BuildResult built, table_.Build(rows));
        ASSERT_EQ(built.header.slot_count, home_slots + beyond);
        ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
        std::vector<std::string> questions = table_.reference().Keys();
        for (uint64_t at = home; at < home_slots; ++at) {
          questions.push_back(KeyWhere([&](const Hash128& hash) { return home_of(hash) == at; }));
        }
        ExpectSameAnswers(*snapshot, table_.reference(), questions, 64);
      }
    }
  }
}

// Many keys of one chain and one control byte: each is compared with several others' records.
TEST_F(ProbeEngineTest, ManyCandidates) {
  for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
    std::vector<Row> rows;
    std::vector<std::string> questions;
    for (int i = 0; i < 60; ++i) {
      const std::string key = KeyWhere([](const Hash128& hash) {
        return ControlOf(hash.low) == 0x85 && hash.low >> 60 == 3;
      });
      questions.push_back(key);
      if (i < 40) rows.push_back({key, "", random_.Below(1000)});
    }
    table_.options.layout = layout;
    table_.options.filter_bits_per_key = 0;
    ASSERT_OK(table_.Build(rows));
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
    EXPECT_GT(snapshot->segments()[0]->header().displacement_max, 16u);
    ExpectSameAnswers(*snapshot, table_.reference(), questions, 64);
  }
}

// Chains longer than the displacement that a slot word can say.
TEST_F(ProbeEngineTest, ChainsLongerThanADisplacement) {
  for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
    std::vector<Row> rows;
    std::vector<std::string> questions;
    for (int i = 0; i < 800; ++i) {
      const std::string key = KeyWhere([](const Hash128& hash) { return hash.low >> 58 == 1; });
      questions.push_back(key);
      if (i < 500) rows.push_back({key, "", random_.Below(1000)});
    }
    table_.options.layout = layout;
    table_.options.filter_bits_per_key = 0;
    ASSERT_OK(table_.Build(rows));
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
    EXPECT_GT(snapshot->segments()[0]->header().displacement_max, 300u);
    ExpectSameAnswers(*snapshot, table_.reference(), questions, 64);
  }
}

// An empty value is written with bytes that are not zero: a hole is not taken for one, although its
// check happens to agree.
TEST_F(ProbeEngineTest, AHoleIsNoEmptyValue) {
  for (const LayoutChoice layout : {LayoutChoice::kInline, LayoutChoice::kTermOrder}) {
    const std::string value = "value";
    const std::string key = KeyWhere([&](const Hash128& hash) {
      return ValueCheck(value, hash) == ValueCheck("", hash);
    });
    table_.options.schema.value_kind = ValueKind::kBytes;
    table_.options.layout = layout;
    ASSERT_OK_AND_ASSIGN(const BuildResult built, table_.Build({{key, value}, {"anything", "else"}}));
    const Section& values = built.header.section(SectionKind::kValues);
    files_.Bytes(built.segment_path).replace(values.offset, values.size_bytes, values.size_bytes, 0);
    ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
    EXPECT_EQ(LookupOne(*snapshot, key).outcome, Outcome::kDamaged);
  }
}

// A key's newest row hides those below it, even when it is damaged.
TEST_F(ProbeEngineTest, DamageIsNotPassedOver) {
  table_.options.schema.value_kind = ValueKind::kBytes;
  ASSERT_OK(table_.Build({{"key", "old"}, {"other", "old"}}));
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table_.Append({{"key", "new"}}));
  const Section& records = built.header.section(SectionKind::kRecords);
  files_.Bytes(built.segment_path).replace(records.offset, records.size_bytes, records.size_bytes, 0);
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
  const std::vector<std::string_view> keys = {"other", "key", "absent"};
  ProbeEngine engine;
  LookupResults results;
  engine.Lookup(*snapshot, keys, &results);
  EXPECT_EQ(results.at(0), (LookupResult{Outcome::kFound, 1, "old"}));
  EXPECT_EQ(results.at(1), (LookupResult{Outcome::kDamaged, 0, ""}));
  EXPECT_EQ(results.at(2), LookupResult{});
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(LookupOne(*snapshot, keys[i]), results.at(i));
}

// A filter of zero bytes excludes nothing.
TEST_F(ProbeEngineTest, AFilterOfZerosSaysMaybe) {
  std::vector<Row> rows;
  for (std::string& key : DistinctKeys(random_, 500, 12)) rows.push_back({std::move(key), ""});
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table_.Build(rows));
  const Section& filter = built.header.section(SectionKind::kFilter);
  ASSERT_GT(filter.size_bytes, 0u);
  files_.Bytes(built.segment_path).replace(filter.offset, filter.size_bytes, filter.size_bytes, 0);
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
  std::vector<std::string> questions = table_.reference().Keys();
  for (std::string& stranger : StrangerKeys(random_, questions, 1000)) questions.push_back(stranger);
  ExpectSameAnswers(*snapshot, table_.reference(), questions, 64);
}

// Answers are views into the snapshot, which outlives its files' names.
TEST_F(ProbeEngineTest, ResultsLiveAsLongAsTheSnapshot) {
  table_.options.schema.value_kind = ValueKind::kBytes;
  ASSERT_OK_AND_ASSIGN(const BuildResult built, table_.Build({{"key", "value"}}));
  ASSERT_OK_AND_ASSIGN(const auto snapshot, table_.Open());
  const LookupResult before = LookupOne(*snapshot, "key");
  ASSERT_OK(files_.Remove(built.segment_path));
  EXPECT_EQ(before.value, "value");
  EXPECT_EQ(LookupOne(*snapshot, "key"), before);
}

}  // namespace
}  // namespace latchkey::test
