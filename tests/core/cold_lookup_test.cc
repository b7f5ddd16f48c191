// Lookups of pages that are not in memory: the same answers, how few touches wait for the disk,
// when hints end and begin, and lookups that give up or are stopped. On files of the machine; where
// its file system keeps every page in memory (tmpfs), these tests fail and say so.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/lookup/probe_engine.h"
#include "core/prefetch/advice_policy.h"
#include "core/prefetch/page_cache.h"
#include "core/segment/value_locator.h"
#include "tests/support/cold_file.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

constexpr SnapshotOptions kWithMap = {}, kWithoutMap = {.segment_map_bytes_max = 0};
constexpr PrefetchChoice kChoices[] = {PrefetchChoice::kAuto, PrefetchChoice::kAlways,
                                       PrefetchChoice::kNever};
const LookupLimits kNoWait = {.may_wait = false, .should_stop = {}};

Residency ResidencyOf(const Snapshot& snapshot) {
  Residency sum;
  for (const auto& segment : snapshot.segments()) {
    const MappedFile& file = segment->file();
    const auto residency = MeasureResidency(file, ChooseResidencyProbe(file), 0, file.size_bytes());
    EXPECT_TRUE(residency.has_value());
    if (residency) sum += *residency;
  }
  return sum;
}

void MakeCold(const Snapshot& snapshot) {
  for (const auto& segment : snapshot.segments()) {
    ASSERT_NO_FATAL_FAILURE(test::MakeCold(segment->file()));
  }
}

// Touches the data sections, or all others; by another thread, on whose account it goes.
void Warm(const Snapshot& snapshot, bool data) {
  std::thread([&] {
    for (const auto& segment : snapshot.segments()) {
      for (size_t i = 0; i < kSectionCount; ++i) {
        if (IsDataSection(static_cast<SectionKind>(i)) != data) continue;
        const Section& section = segment->header().sections[i];
        const volatile uint8_t* const bytes = segment->file().data();
        for (uint64_t at = section.offset; at < section.end(); at += 512) (void)bytes[at];
      }
    }
  }).join();
}

// A touch reads its page and no other.
void AdviseRandom(const Snapshot& snapshot) {
  for (const auto& segment : snapshot.segments()) {
    AdvisePages(segment->file(), 0, segment->file().size_bytes(), PageAdvice::kRandom);
  }
}

// All data pages cold, each for itself; what is read at every lookup is warm, as it should be.
void MakeDataCold(const Snapshot& snapshot) {
  ASSERT_NO_FATAL_FAILURE(MakeCold(snapshot));
  AdviseRandom(snapshot);
  Warm(snapshot, /*data=*/false);
}

struct Shape {
  LayoutChoice layout = LayoutChoice::kLine;
  ValueKind values = ValueKind::kNone;
  int segments = 1;
  size_t rows = 4000;  // of each
};

std::string ToString(const Shape& shape) {
  return std::string(shape.layout == LayoutChoice::kLine ? "lines" : "pointers") + ", values " +
         std::to_string(static_cast<int>(shape.values)) + ", segments " +
         std::to_string(shape.segments);
}

std::vector<Shape> AllShapes() {
  std::vector<Shape> shapes;
  for (const LayoutChoice layout : {LayoutChoice::kLine, LayoutChoice::kPointer}) {
    for (const ValueKind values : {ValueKind::kNone, ValueKind::kFixed, ValueKind::kBytes}) {
      for (const int segments : {1, 5}) {
        const size_t rows = values == ValueKind::kBytes ? 1500 : 6000;
        shapes.push_back({layout, values, segments, segments == 1 ? rows : rows / 4});
      }
    }
  }
  return shapes;
}

class ColdTable {
 public:
  ColdTable(const TempDir& dir, const std::string& name, const Shape& shape, Random& random)
      : random_(random), shape_(shape), table_(PosixFileSystem(), dir.Path(name), random) {
    table_.options.layout = shape.layout;
    table_.options.schema.value_kind = shape.values;
    if (shape.values == ValueKind::kFixed) table_.options.schema.value_width = 24;
    for (int i = 0; i < shape.segments; ++i) Add();
    strangers_ = DistinctKeys(random, 500, 16);
    Open(kWithMap);
  }

  // One more segment; some of its keys are in older ones too.
  void Add() {
    std::vector<std::string> keys = DistinctKeys(random_, shape_.rows, 16);
    for (size_t i = 0; i < keys_.size() && i < keys.size() / 10; ++i) keys[i] = keys_[7 * i];
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    std::vector<Row> rows;
    for (const std::string& key : keys) rows.push_back({key, Value(), random_.Below(1 << 30)});
    EXPECT_OK(keys_.empty() ? table_.Build(rows) : table_.Append(rows));
    keys_.insert(keys_.end(), keys.begin(), keys.end());
  }

  // The newest generation, as `options` say. Of two maps of a file, neither can be made cold.
  void Open(const SnapshotOptions& options) {
    snapshot_ = nullptr;
    auto snapshot = Snapshot::OpenNewest(PosixFileSystem(), table_.dir(), options);
    EXPECT_OK(snapshot);
    if (snapshot.ok()) snapshot_ = *std::move(snapshot);
  }

  // Present ones, and in every tenth place one that is not.
  std::vector<std::string_view> Batch(size_t count, bool strangers = true) const {
    std::vector<std::string_view> batch;
    for (size_t i = 0; i < count; ++i) {
      batch.push_back(strangers && i % 10 == 3 ? random_.Pick(strangers_) : random_.Pick(keys_));
    }
    return batch;
  }

  void ExpectRight(std::span<const std::string_view> batch, const LookupResults& results) const {
    ASSERT_EQ(results.size(), batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      const LookupResult expected = table_.reference().Lookup(batch[i]);
      ASSERT_EQ(results.at(i), expected) << "key " << i << ": expected " << Describe(expected)
                                         << "; got " << Describe(results.at(i));
    }
  }

  const Snapshot& snapshot() const { return *snapshot_; }
  const TestTable& table() const { return table_; }
  const std::vector<std::string>& keys() const { return keys_; }

 private:
  std::string Value() {
    if (shape_.values == ValueKind::kNone) return "";
    if (shape_.values == ValueKind::kFixed) return random_.Bytes(24);
    return random_.Bytes(random_.OneIn(50)   ? random_.Below(40 << 10)
                         : random_.OneIn(10) ? 0
                                             : random_.Below(1500));
  }

  Random& random_;
  const Shape shape_;
  TestTable table_;
  std::vector<std::string> keys_, strangers_;
  std::shared_ptr<const Snapshot> snapshot_;
};

class ColdLookupTest : public SeededTest {
 protected:
  std::unique_ptr<ColdTable> Make(const Shape& shape) {
    return std::make_unique<ColdTable>(dir_, "data" + std::to_string(tables_++), shape, random_);
  }

  // Batches until the engine is silent; no more than it takes to judge twice.
  void LookUpUntilSilent(const ColdTable& table, ProbeEngine* engine) {
    LookupResults results;
    uint64_t keys = 0;
    while (engine->mode(table.snapshot()) != FetchMode::kSilent) {
      ASSERT_LE(keys, 2 * kFetchJudgedPlaces + 2000) << "it does not become silent";
      const auto batch = table.Batch(500);
      ASSERT_TRUE(engine->Lookup(table.snapshot(), batch, &results));
      ASSERT_NO_FATAL_FAILURE(table.ExpectRight(batch, results));
      keys += batch.size();
    }
  }

  TempDir dir_;
  int tables_ = 0;
};

// --- Answers ---

TEST_F(ColdLookupTest, AnswersAreTheSame) {
  for (const Shape& shape : AllShapes()) {
    const auto table = Make(shape);
    for (const SnapshotOptions& options : {kWithMap, kWithoutMap}) {
      if (shape.segments == 1 && options.segment_map_bytes_max == 0) continue;
      table->Open(options);
      const Snapshot& snapshot = table->snapshot();
      ASSERT_EQ(snapshot.segment_map() != nullptr,
                shape.segments > 1 && options.segment_map_bytes_max != 0);
      for (const PrefetchChoice choice : kChoices) {
        SCOPED_TRACE(testing::Message()
                     << ToString(shape) << ", choice " << static_cast<int>(choice));
        ASSERT_NO_FATAL_FAILURE(MakeCold(snapshot));
        if (random_.OneIn(2)) AdviseRandom(snapshot);
        ProbeEngine engine({.tile_keys = random_.OneIn(2) ? kTileKeysMax : random_.Between(1, 128),
                            .prefetch = choice});
        LookupResults results;
        // One by one, small batches, a large one: each finds some pages cold.
        for (const size_t count : {1, 1, 1, 7, 60, 3000}) {
          const auto batch = table->Batch(count);
          if (count == 1) {
            LookupResult result;
            ASSERT_TRUE(engine.LookupOne(snapshot, batch[0], &result));
            EXPECT_EQ(result, table->table().reference().Lookup(batch[0]));
          } else {
            ASSERT_TRUE(engine.Lookup(snapshot, batch, &results));
            ASSERT_NO_FATAL_FAILURE(table->ExpectRight(batch, results));
          }
        }
        engine.Settle(snapshot);
        EXPECT_EQ(engine.cost().keys, 3070u);
        EXPECT_EQ(engine.cost().asked > 0, choice != PrefetchChoice::kNever);
        EXPECT_GT(engine.cost().read, 0u);
      }
    }
  }
}

// --- What it costs ---

TEST_F(ColdLookupTest, AskingLeavesFewTouchesToWait) {
  for (const Shape& shape : {Shape{LayoutChoice::kLine, ValueKind::kFixed, 1, 60'000},
                             Shape{LayoutChoice::kPointer, ValueKind::kBytes, 1, 5000},
                             Shape{LayoutChoice::kLine, ValueKind::kBytes, 5, 1000}}) {
    SCOPED_TRACE(ToString(shape));
    const auto table = Make(shape);
    const Snapshot& snapshot = table->snapshot();
    std::map<PrefetchChoice, FetchCost> costs;
    const auto batch = table->Batch(4096);
    for (const PrefetchChoice choice : kChoices) {
      ASSERT_NO_FATAL_FAILURE(MakeDataCold(snapshot));
      const uint64_t resident = ResidencyOf(snapshot).resident;
      ProbeEngine engine({.prefetch = choice});
      LookupResults results;
      ASSERT_TRUE(engine.Lookup(snapshot, batch, &results));
      engine.Settle(snapshot);
      const FetchCost cost = costs[choice] = engine.cost();
      ASSERT_NO_FATAL_FAILURE(table->ExpectRight(batch, results));
      // What came into memory was read for it, page by page, but for holes behind a section.
      const uint64_t came = ResidencyOf(snapshot).resident - resident;
      EXPECT_LE(cost.read, came);
      EXPECT_LE(came, cost.read + 2 * shape.segments);
      EXPECT_GT(cost.read, 300u);
    }
    const FetchCost never = costs[PrefetchChoice::kNever];
    EXPECT_GE(never.faults, never.read / 10 * 9);
    EXPECT_EQ(never.asked, 0u);
    for (const PrefetchChoice choice : {PrefetchChoice::kAuto, PrefetchChoice::kAlways}) {
      EXPECT_LE(costs[choice].faults, costs[choice].read / 10);
      EXPECT_GE(costs[choice].asked + costs[choice].faults, costs[choice].read);
    }
  }
}

TEST_F(ColdLookupTest, CostsAddUp) {
  for (const Shape& shape : AllShapes()) {
    for (const PrefetchChoice choice : kChoices) {
      SCOPED_TRACE(testing::Message()
                   << ToString(shape) << ", choice " << static_cast<int>(choice));
      if (shape.rows < 6000 && choice == PrefetchChoice::kAlways) continue;
      const auto table = Make(shape);
      ProbeEngine engine({.prefetch = choice});
      EXPECT_EQ(engine.cost().keys, 0u);
      LookupResults results;
      uint64_t keys = 0, places = 0;
      FetchCost before;
      for (int round = 0; round < 15; ++round) {
        const auto batch = table->Batch(random_.Below(400), /*strangers=*/false);
        const auto single = table->Batch(random_.Below(5), /*strangers=*/false);
        ASSERT_TRUE(engine.Lookup(table->snapshot(), batch, &results));
        for (const std::string_view key : single) {
          LookupResult result;
          ASSERT_TRUE(engine.LookupOne(table->snapshot(), key, &result));
        }
        engine.Settle(table->snapshot());
        keys += batch.size() + single.size();
        places += (batch.size() + single.size()) * (1 + (shape.layout == LayoutChoice::kPointer) +
                                                    (shape.values == ValueKind::kBytes));
        const FetchCost cost = engine.cost();
        ASSERT_EQ(cost.keys, keys);
        // A line a key; a record and a value each where there are some. Segments that a key is
        // looked for in, by chance, come on top.
        if (shape.segments == 1) {
          ASSERT_EQ(cost.places, places);
        } else {
          ASSERT_GE(cost.places, places);
          ASSERT_LE(cost.places, places + places / 4);
        }
        ASSERT_GE(cost.asked, before.asked);
        ASSERT_GE(cost.read, before.read);
        ASSERT_GE(cost.faults, before.faults);
        before = cost;
      }
    }
  }
}

// What the thread did before its first lookup is none of a lookup's cost.
TEST_F(ColdLookupTest, CostsBeginWithTheFirstLookup) {
  const auto table = Make({.rows = 20'000});
  for (const PrefetchChoice choice : kChoices) {
    for (const bool batches : {false, true}) {
      ASSERT_NO_FATAL_FAILURE(MakeCold(table->snapshot()));
      for (const std::string& key : table->keys()) (void)LookupOne(table->snapshot(), key);
      ASSERT_GT(ThreadFetchCost().read, 0u);
      ProbeEngine engine({.prefetch = choice});
      LookupResult result;
      LookupResults results;
      if (batches) {
        ASSERT_TRUE(engine.Lookup(table->snapshot(), table->Batch(100), &results));
      } else {
        ASSERT_TRUE(engine.LookupOne(table->snapshot(), table->keys()[0], &result));
      }
      engine.Settle(table->snapshot());
      EXPECT_EQ(engine.cost().read, 0u);
      EXPECT_EQ(engine.cost().faults, 0u);
      EXPECT_EQ(engine.cost().keys, batches ? 100u : 1u);
    }
  }
}

// --- Asking and silence ---

TEST_F(ColdLookupTest, SilentWhenWarmAndBackWhenCold) {
  for (const Shape& shape : {Shape{LayoutChoice::kLine, ValueKind::kFixed, 1, 20'000},
                             Shape{LayoutChoice::kPointer, ValueKind::kBytes, 5, 1000}}) {
    SCOPED_TRACE(ToString(shape));
    const auto table = Make(shape);
    const Snapshot& snapshot = table->snapshot();
    ProbeEngine engine;
    LookupResults results;
    for (int round = 0; round < 3; ++round) {
      ASSERT_NO_FATAL_FAILURE(MakeDataCold(snapshot));
      uint64_t asked = engine.cost().asked;
      const auto batch = table->Batch(1000);
      ASSERT_TRUE(engine.Lookup(snapshot, batch, &results));
      ASSERT_NO_FATAL_FAILURE(table->ExpectRight(batch, results));
      EXPECT_EQ(engine.mode(snapshot), FetchMode::kAsking);
      EXPECT_GT(engine.cost().asked, asked + 100);
      Warm(snapshot, /*data=*/true);
      ASSERT_NO_FATAL_FAILURE(LookUpUntilSilent(*table, &engine));
      asked = engine.cost().asked;
      for (int i = 0; i < 20; ++i) {
        const auto warm = table->Batch(i % 2 == 0 ? 1000 : 1);
        ASSERT_TRUE(engine.Lookup(snapshot, warm, &results));
        ASSERT_NO_FATAL_FAILURE(table->ExpectRight(warm, results));
        LookupResult result;
        ASSERT_TRUE(engine.LookupOne(snapshot, warm[0], &result));
        ASSERT_EQ(result, results.at(0));
        ASSERT_EQ(engine.mode(snapshot), FetchMode::kSilent);
        ASSERT_EQ(engine.cost().asked, asked);
      }
    }
  }
}

// Within a batch too: a tile that waited for pages is the last that was not asked for.
TEST_F(ColdLookupTest, ASilentBatchNoticesAfterTwoTiles) {
  const auto table = Make({.rows = 60'000});
  const Snapshot& snapshot = table->snapshot();
  ProbeEngine engine;
  Warm(snapshot, /*data=*/true);
  ASSERT_NO_FATAL_FAILURE(LookUpUntilSilent(*table, &engine));
  ASSERT_NO_FATAL_FAILURE(MakeDataCold(snapshot));
  engine.Settle(snapshot);
  const FetchCost before = engine.cost();
  const auto batch = table->Batch(4096);
  LookupResults results;
  ASSERT_TRUE(engine.Lookup(snapshot, batch, &results));
  ASSERT_NO_FATAL_FAILURE(table->ExpectRight(batch, results));
  const FetchCost cost = engine.cost() - before;
  EXPECT_EQ(engine.mode(snapshot), FetchMode::kAsking);
  EXPECT_GT(cost.asked, 200u);
  EXPECT_LE(cost.faults, 2 * kTileKeysMax + cost.read / 10);
}

TEST_F(ColdLookupTest, SingleLookupsNoticeToo) {
  const auto table = Make({.rows = 60'000});
  const Snapshot& snapshot = table->snapshot();
  ProbeEngine engine;
  LookupResult result;
  const auto look_up = [&] {
    const std::string& key = random_.Pick(table->keys());
    ASSERT_TRUE(engine.LookupOne(snapshot, key, &result));
    ASSERT_EQ(result, table->table().reference().Lookup(key));
  };
  Warm(snapshot, /*data=*/false);
  Warm(snapshot, /*data=*/true);
  for (uint64_t i = 0; i <= 2 * kFetchJudgedPlaces; ++i) ASSERT_NO_FATAL_FAILURE(look_up());
  EXPECT_EQ(engine.mode(snapshot), FetchMode::kSilent);
  const uint64_t asked = engine.cost().asked;
  for (int i = 0; i < 3000; ++i) ASSERT_NO_FATAL_FAILURE(look_up());
  engine.Settle(snapshot);
  EXPECT_EQ(engine.cost().asked, asked);
  EXPECT_EQ(engine.mode(snapshot), FetchMode::kSilent);
  // Now and then is every few hundred lookups.
  ASSERT_NO_FATAL_FAILURE(MakeDataCold(snapshot));
  for (int i = 0; i < 600; ++i) ASSERT_NO_FATAL_FAILURE(look_up());
  EXPECT_EQ(engine.mode(snapshot), FetchMode::kAsking);
  EXPECT_GT(engine.cost().asked, asked);
}

TEST_F(ColdLookupTest, ANewGenerationIsAskedForAgain) {
  const auto table = Make({.rows = 3000});
  const auto other = Make({.rows = 3000});
  ProbeEngine engine;
  for (const auto* each : {table.get(), other.get()}) {
    Warm(each->snapshot(), /*data=*/true);
    ASSERT_NO_FATAL_FAILURE(LookUpUntilSilent(*each, &engine));
  }
  EXPECT_EQ(engine.mode(table->snapshot()), FetchMode::kSilent);
  table->Add();
  table->Open(kWithMap);
  const uint64_t asked = engine.cost().asked;
  const auto batch = table->Batch(100);
  LookupResults results;
  ASSERT_TRUE(engine.Lookup(table->snapshot(), batch, &results));
  ASSERT_NO_FATAL_FAILURE(table->ExpectRight(batch, results));
  EXPECT_EQ(engine.mode(table->snapshot()), FetchMode::kAsking);
  EXPECT_GT(engine.cost().asked, asked);
  EXPECT_EQ(engine.mode(other->snapshot()), FetchMode::kSilent) << "another table's";
}

// A snapshot that lies where one lay that is gone is another, also for single lookups.
TEST_F(ColdLookupTest, ANewGenerationAtTheSameAddress) {
  const auto table = Make({.rows = 500});
  ProbeEngine engine;
  LookupResult result;
  for (int i = 0; i < 20; ++i) {
    ASSERT_NO_FATAL_FAILURE(LookUpUntilSilent(*table, &engine));
    const Snapshot* const before = &table->snapshot();
    ASSERT_TRUE(engine.LookupOne(*before, table->keys()[0], &result));
    table->Add();
    table->Open(kWithMap);
    const uint64_t asked = engine.cost().asked;
    ASSERT_TRUE(engine.LookupOne(table->snapshot(), table->keys()[i], &result));
    EXPECT_EQ(result, table->table().reference().Lookup(table->keys()[i]));
    ASSERT_GT(engine.cost().asked, asked) << "same address: " << (&table->snapshot() == before);
  }
}

// What one table's lookups had to wait for is held against that table, whoever comes next.
TEST_F(ColdLookupTest, EachTableIsJudgedByItsOwn) {
  for (const size_t batch_keys : {10, 1, 0}) {
    SCOPED_TRACE(testing::Message() << "batches of " << batch_keys << ", 0: single lookups");
    const auto cold = Make({.rows = 60'000});
    const auto warm = Make({.rows = 3000});
    ProbeEngine engine;
    for (const auto* each : {cold.get(), warm.get()}) {
      Warm(each->snapshot(), /*data=*/false);
      Warm(each->snapshot(), /*data=*/true);
      ASSERT_NO_FATAL_FAILURE(LookUpUntilSilent(*each, &engine));
    }
    ASSERT_NO_FATAL_FAILURE(MakeDataCold(cold->snapshot()));
    engine.Settle(warm->snapshot());
    ASSERT_EQ(engine.mode(cold->snapshot()), FetchMode::kSilent);
    ASSERT_EQ(engine.mode(warm->snapshot()), FetchMode::kSilent);
    for (int i = 0; i < 100; ++i) {
      for (const auto* each : {cold.get(), warm.get()}) {
        const auto batch = each->Batch(std::max<size_t>(1, batch_keys));
        LookupResults results;
        LookupResult result;
        if (batch_keys == 0) {
          ASSERT_TRUE(engine.LookupOne(each->snapshot(), batch[0], &result));
        } else {
          ASSERT_TRUE(engine.Lookup(each->snapshot(), batch, &results));
        }
      }
      ASSERT_EQ(engine.mode(warm->snapshot()), FetchMode::kSilent) << "after " << i + 1;
    }
    EXPECT_EQ(engine.mode(cold->snapshot()), FetchMode::kAsking);
  }
}

// --- Lookups that may not wait ---

TEST_F(ColdLookupTest, WithoutWaiting) {
  for (const Shape& shape : AllShapes()) {
    const auto table = Make(shape);
    table->Open(random_.OneIn(2) ? kWithMap : kWithoutMap);
    const Snapshot& snapshot = table->snapshot();
    for (const PrefetchChoice choice : {PrefetchChoice::kAuto, PrefetchChoice::kAlways}) {
      SCOPED_TRACE(testing::Message()
                   << ToString(shape) << ", choice " << static_cast<int>(choice));
      ASSERT_NO_FATAL_FAILURE(MakeDataCold(snapshot));
      ProbeEngine engine({.prefetch = choice});
      LookupResults results;
      LookupResult result;
      const auto batch = table->Batch(1000);
      EXPECT_FALSE(engine.Lookup(snapshot, batch, &results, kNoWait));
      EXPECT_EQ(engine.cost().faults, 0u) << "it waited";
      EXPECT_LE(engine.cost().asked, 8 * 32u);
      // Of another key: its page is not under way yet.
      ASSERT_NO_FATAL_FAILURE(MakeDataCold(snapshot));
      EXPECT_FALSE(engine.LookupOne(snapshot, table->keys()[0], &result, kNoWait));
      // With time it is all there.
      ASSERT_TRUE(engine.Lookup(snapshot, batch, &results));
      ASSERT_NO_FATAL_FAILURE(table->ExpectRight(batch, results));
      // And then it need not wait, in either mode.
      Warm(snapshot, /*data=*/true);
      for (int i = 0; i < 8; ++i) {
        ASSERT_TRUE(engine.Lookup(snapshot, batch, &results, kNoWait));
        ASSERT_NO_FATAL_FAILURE(table->ExpectRight(batch, results));
        ASSERT_TRUE(engine.LookupOne(snapshot, batch[i], &result, kNoWait));
        ASSERT_EQ(result, results.at(i));
      }
      EXPECT_EQ(engine.mode(snapshot),
                choice == PrefetchChoice::kAuto ? FetchMode::kSilent : FetchMode::kAsking);
    }
  }
}

// A thread that was silent finds out within a tile, and gives up then.
TEST_F(ColdLookupTest, ASilentThreadGivesUpAfterTwoTiles) {
  const auto table = Make({.rows = 60'000});
  const Snapshot& snapshot = table->snapshot();
  ProbeEngine engine;
  Warm(snapshot, /*data=*/true);
  ASSERT_NO_FATAL_FAILURE(LookUpUntilSilent(*table, &engine));
  ASSERT_NO_FATAL_FAILURE(MakeDataCold(snapshot));
  engine.Settle(snapshot);
  const FetchCost before = engine.cost();
  LookupResults results;
  EXPECT_FALSE(engine.Lookup(snapshot, table->Batch(2000), &results, kNoWait));
  EXPECT_LE((engine.cost() - before).faults, 2 * kTileKeysMax);
  EXPECT_EQ(engine.mode(snapshot), FetchMode::kAsking);
}

// --- Lookups that are stopped ---

// At every call in turn: what is answered is right, and the rest says that it is not.
TEST_F(ColdLookupTest, StoppedAnywhere) {
  for (Shape shape : AllShapes()) {
    shape.rows = 400;
    const auto table = Make(shape);
    for (const SnapshotOptions& options : {kWithMap, kWithoutMap}) {
      if (shape.segments == 1 && options.segment_map_bytes_max == 0) continue;
      SCOPED_TRACE(testing::Message()
                   << ToString(shape) << ", map " << (options.segment_map_bytes_max != 0));
      table->Open(options);
      const Snapshot& snapshot = table->snapshot();
      const auto batch = table->Batch(300);
      ProbeEngine engine({.tile_keys = 32, .prefetch = PrefetchChoice::kAlways});
      LookupResults results;
      size_t done_before = 0, stops = 0;
      for (int stop_at = 0;; ++stop_at) {
        // What an earlier batch left must not show.
        const auto others = table->Batch(300);
        ASSERT_TRUE(engine.Lookup(snapshot, others, &results));
        int calls = 0;
        const LookupLimits limits = {.should_stop = [&] { return calls++ == stop_at; }};
        ASSERT_TRUE(engine.Lookup(snapshot, batch, &results, limits));
        const bool stopped = calls > stop_at;
        EXPECT_EQ(calls, stopped ? stop_at + 1 : calls) << "it went on";
        size_t done = 0;
        ASSERT_EQ(results.size(), batch.size());
        for (size_t i = 0; i < batch.size(); ++i) {
          const LookupResult result = results.at(i);
          if (result.outcome == Outcome::kStopped) {
            ASSERT_EQ(result, (LookupResult{Outcome::kStopped, 0, {}}));
            continue;
          }
          ++done;
          ASSERT_EQ(result, table->table().reference().Lookup(batch[i])) << "stop at " << stop_at;
        }
        EXPECT_TRUE(stop_at > 0 || done == 0) << done;
        // More time, more answers.
        EXPECT_GE(done, done_before);
        done_before = done;
        if (!stopped) {
          EXPECT_EQ(done, batch.size());
          break;
        }
        ++stops;
      }
      // Ten tiles, and at least one wave of each.
      EXPECT_GE(stops, 10u);
    }
  }
}

TEST_F(ColdLookupTest, SingleLookupsAreStopped) {
  const auto table = Make({LayoutChoice::kPointer, ValueKind::kBytes, 1, 500});
  ProbeEngine engine({.prefetch = PrefetchChoice::kAlways});
  const std::string& key = table->keys()[7];
  int stop_at = 0;
  for (bool stopped = true; stopped; ++stop_at) {
    int calls = 0;
    const LookupLimits limits = {.should_stop = [&] { return calls++ == stop_at; }};
    LookupResult result;
    ASSERT_TRUE(engine.LookupOne(table->snapshot(), key, &result, limits));
    stopped = calls > stop_at;
    EXPECT_EQ(result, stopped ? (LookupResult{Outcome::kStopped, 0, {}})
                              : table->table().reference().Lookup(key));
  }
  EXPECT_GT(stop_at, 2);
}

// --- How much of a value to ask for ---

TEST_F(ColdLookupTest, BytesThatValuesTakeUp) {
  const auto table = Make({LayoutChoice::kPointer, ValueKind::kBytes, 1, 0});
  std::vector<Row> rows;
  uint64_t stored_bytes = 0;
  // Where the length field grows, and others.
  for (const size_t size_bytes :
       {0, 1, 2, 125, 126, 127, 128, 129, 500, 16'381, 16'382, 16'383, 16'384, 40 << 10, 3 << 20}) {
    rows.push_back({"key " + std::to_string(size_bytes), random_.Bytes(size_bytes)});
    stored_bytes += StoredValueBytes(size_bytes);
  }
  TestTable values(PosixFileSystem(), dir_.Path("values"), random_);
  values.options.schema.value_kind = ValueKind::kBytes;
  ASSERT_OK(values.Build(rows));
  ASSERT_OK_AND_ASSIGN(const auto snapshot, values.Open());
  const Segment& segment = *snapshot->segments()[0];
  EXPECT_EQ(segment.ValueBytesExpected(), stored_bytes / rows.size());
  for (const Row& row : rows) {
    const LookupResult result = LookupOne(*snapshot, row.key);
    ASSERT_EQ(result.value, row.value);
    const size_t stored = StoredValueBytes(row.value.size());
    const auto* const begin =
        reinterpret_cast<const uint8_t*>(result.value.data()) - (stored - row.value.size());
    ASSERT_EQ(segment.ValueBytesAt(begin), stored) << "a value of " << row.value.size() << " bytes";
  }
}

}  // namespace
}  // namespace latchkey::test
