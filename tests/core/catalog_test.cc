#include "core/table/catalog.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "core/lookup/probe_engine.h"
#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

class CatalogTest : public SeededTest {
 protected:
  std::shared_ptr<const Snapshot> MakeGeneration(TestTable& table, uint64_t doc_id) {
    EXPECT_OK(table.Build({{"key", "", doc_id}}));
    auto snapshot = table.Open();
    EXPECT_OK(snapshot);
    return *std::move(snapshot);
  }
  TempDir dir_;
};

TEST_F(CatalogTest, GivesTheSnapshotPublishedLast) {
  TestTable table(PosixFileSystem(), dir_.path(), random_);
  Catalog catalog;
  EXPECT_EQ(catalog.Acquire("t"), nullptr);
  const auto first = MakeGeneration(table, 1);
  const auto second = MakeGeneration(table, 2);
  catalog.Publish("t", first);
  EXPECT_EQ(catalog.Acquire("t"), first);
  catalog.Publish("t", second);
  EXPECT_EQ(catalog.Acquire("t"), second);
  EXPECT_EQ(LookupOne(*first, "key").doc_id, 1u) << "the old one serves whoever holds it";
  catalog.Publish("a", first);
  EXPECT_THAT(catalog.Names(), testing::ElementsAre("a", "t"));
}

TEST_F(CatalogTest, LetsGoOfASnapshotThatNobodyHolds) {
  TestTable table(PosixFileSystem(), dir_.path(), random_);
  Catalog catalog;
  std::weak_ptr<const Snapshot> first;
  {
    auto snapshot = MakeGeneration(table, 1);
    first = snapshot;
    catalog.Publish("t", std::move(snapshot));
  }
  auto held = catalog.Acquire("t");
  catalog.Publish("t", MakeGeneration(table, 2));
  EXPECT_FALSE(first.expired());
  held.reset();
  EXPECT_TRUE(first.expired());
}

TEST_F(CatalogTest, LookupsAndPublishingMayMeet) {
  TestTable table(PosixFileSystem(), dir_.path(), random_);
  const std::shared_ptr<const Snapshot> snapshots[] = {MakeGeneration(table, 1),
                                                       MakeGeneration(table, 2)};
  Catalog catalog;
  catalog.Publish("t", snapshots[0]);
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      ProbeEngine engine;
      LookupResults results;
      const std::string_view keys[] = {"key", "none", "key"};
      while (!stop) {
        const auto snapshot = catalog.Acquire("t");
        const uint64_t expected = snapshot == snapshots[0] ? 1 : 2;
        engine.Lookup(*snapshot, keys, &results);
        wrong += results.doc_ids[0] != expected || results.doc_ids[2] != expected ||
                 results.outcomes[1] != Outcome::kAbsent ||
                 LookupOne(*snapshot, "key").doc_id != expected;
      }
    });
  }
  for (size_t i = 0; i < 2000; ++i) catalog.Publish("t", snapshots[i % 2]);
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace latchkey::test
