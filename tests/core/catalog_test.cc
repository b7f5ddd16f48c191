#include "core/table/catalog.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/lookup/probe_engine.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/status_asserts.h"
#include "tests/support/test_table.h"

namespace latchkey::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// More threads than the catalog tells apart, so that some share what they have.
constexpr int kManyThreads = 80;

class CatalogTest : public SeededTest {
 protected:
  CatalogTest() : table_(files_, "data", random_) {}

  // The row of "key" has that doc id. Of one segment, or of two, whose map is part of a snapshot.
  std::shared_ptr<const Snapshot> MakeGeneration(uint64_t doc_id, bool with_map = false) {
    if (with_map) {
      EXPECT_OK(table_.Build({{"key", "", 77}, {"old", "", 88}}));
      EXPECT_OK(table_.Append({{"key", "", doc_id}}));
    } else {
      EXPECT_OK(table_.Build({{"key", "", doc_id}}));
    }
    auto snapshot = table_.Open();
    EXPECT_OK(snapshot);
    EXPECT_EQ((*snapshot)->segment_map() != nullptr, with_map);
    return *std::move(snapshot);
  }

  // Runs it in `count` threads, all of them alive at once.
  static void InThreads(int count, const std::function<void()>& run) {
    std::atomic<int> begun = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&] {
        run();
        ++begun;
        while (begun < count) std::this_thread::yield();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  MemoryFileSystem files_;
  TestTable table_;
};

TEST_F(CatalogTest, GivesTheSnapshotPublishedLast) {
  Catalog catalog;
  EXPECT_EQ(catalog.Acquire("t"), nullptr);
  EXPECT_THAT(catalog.Names(), IsEmpty());
  const auto first = MakeGeneration(1);
  const auto second = MakeGeneration(2, /*with_map=*/true);
  catalog.Publish("t", first);
  EXPECT_EQ(catalog.Acquire("t").get(), first.get());
  catalog.Publish("t", second);
  EXPECT_EQ(catalog.Acquire("t").get(), second.get());
  EXPECT_EQ(LookupOne(*first, "key").doc_id, 1u) << "the old one serves whoever holds it";
  EXPECT_EQ(LookupOne(*catalog.Acquire("t"), "key").doc_id, 2u);
  catalog.Publish("a", first);
  EXPECT_THAT(catalog.Names(), ElementsAre("a", "t"));
  EXPECT_EQ(catalog.Acquire("a").get(), first.get());
  EXPECT_EQ(catalog.Acquire("b"), nullptr);
}

TEST_F(CatalogTest, GivesItToEveryThread) {
  Catalog catalog;
  const auto first = MakeGeneration(1), second = MakeGeneration(2, /*with_map=*/true);
  std::atomic<int> wrong = 0;
  catalog.Publish("t", first);
  InThreads(kManyThreads, [&] {
    wrong += catalog.Acquire("t").get() != first.get() || catalog.Acquire("a") != nullptr;
  });
  catalog.Publish("t", second);
  catalog.Publish("a", first);
  InThreads(kManyThreads, [&] {
    wrong += catalog.Acquire("t").get() != second.get() ||
             catalog.Acquire("a").get() != first.get() ||
             catalog.Names() != std::vector<std::string>{"a", "t"};
  });
  EXPECT_EQ(wrong, 0);
}

TEST_F(CatalogTest, LetsGoOfASnapshotThatNobodyHolds) {
  Catalog catalog;
  std::weak_ptr<const Snapshot> first;
  {
    auto snapshot = MakeGeneration(1);
    first = snapshot;
    catalog.Publish("t", std::move(snapshot));
  }
  auto held = catalog.Acquire("t");
  catalog.Publish("t", MakeGeneration(2));
  EXPECT_FALSE(first.expired());
  EXPECT_EQ(LookupOne(*held, "key").doc_id, 1u);
  held.reset();
  EXPECT_TRUE(first.expired());
}

// Whatever threads took it, and in whatever order they let go.
TEST_F(CatalogTest, LetsGoWhenTheLastHolderDoes) {
  for (const bool catalog_goes_first : {false, true}) {
    auto catalog = std::make_unique<Catalog>();
    std::weak_ptr<const Snapshot> watched;
    {
      auto snapshot = MakeGeneration(1, /*with_map=*/true);
      watched = snapshot;
      catalog->Publish("t", std::move(snapshot));
    }
    std::vector<std::shared_ptr<const Snapshot>> held(kManyThreads);
    std::atomic<size_t> next = 0;
    InThreads(kManyThreads, [&] { held[next++] = catalog->Acquire("t"); });
    if (catalog_goes_first) {
      catalog.reset();
    } else {
      catalog->Publish("t", MakeGeneration(2));
    }
    while (!held.empty()) {
      ASSERT_FALSE(watched.expired());
      const size_t one = random_.Below(held.size());
      ASSERT_EQ(LookupOne(*held[one], "key").doc_id, 1u);
      ASSERT_EQ(LookupOne(*held[one], "old").doc_id, 88u);
      std::swap(held[one], held.back());
      held.pop_back();
    }
    EXPECT_TRUE(watched.expired());
  }
}

TEST_F(CatalogTest, ARemovedTableIsGoneForEveryThread) {
  Catalog catalog;
  std::weak_ptr<const Snapshot> last;
  {
    auto snapshot = MakeGeneration(1);
    last = snapshot;
    catalog.Publish("t", std::move(snapshot));
  }
  catalog.Publish("a", MakeGeneration(2));
  auto held = catalog.Acquire("t");
  catalog.Remove("t");
  catalog.Remove("none");
  std::atomic<int> wrong = 0;
  InThreads(kManyThreads, [&] {
    wrong += catalog.Acquire("t") != nullptr || catalog.Names() != std::vector<std::string>{"a"};
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(LookupOne(*held, "key").doc_id, 1u) << "whoever holds it may go on";
  EXPECT_FALSE(last.expired());
  held = nullptr;
  EXPECT_TRUE(last.expired());
  // It may come back.
  catalog.Publish("t", MakeGeneration(3));
  EXPECT_EQ(LookupOne(*catalog.Acquire("t"), "key").doc_id, 3u);
}

TEST_F(CatalogTest, LookupsAndPublishingMayMeet) {
  const std::shared_ptr<const Snapshot> snapshots[] = {MakeGeneration(1),
                                                       MakeGeneration(2, /*with_map=*/true)};
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
        const uint64_t expected = snapshot.get() == snapshots[0].get() ? 1 : 2;
        engine.Lookup(*snapshot, keys, &results);
        wrong += results.doc_ids[0] != expected || results.doc_ids[2] != expected ||
                 results.outcomes[1] != Outcome::kAbsent ||
                 LookupOne(*snapshot, "key").doc_id != expected;
      }
    });
  }
  for (size_t i = 0; i < 1000; ++i) catalog.Publish("t", snapshots[i % 2]);
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

// Other threads may get the old one or the new one while it is published, but none goes back.
TEST_F(CatalogTest, NoThreadSeesAnOlderGenerationAgain) {
  std::vector<std::shared_ptr<const Snapshot>> snapshots;
  for (uint64_t i = 0; i < 20; ++i) snapshots.push_back(MakeGeneration(i, i % 5 == 0));
  for (int round = 0; round < 5; ++round) {
    Catalog catalog;
    std::atomic<bool> stop = false;
    std::atomic<int> wrong = 0;
    std::vector<std::thread> readers;
    for (int i = 0; i < 3; ++i) {
      readers.emplace_back([&] {
        uint64_t last = 0;
        while (!stop) {
          const auto snapshot = catalog.Acquire("t");
          const uint64_t generation = snapshot == nullptr ? 0 : snapshot->generation();
          wrong += generation < last;
          last = generation;
          std::this_thread::yield();  // the publisher wants the lock too
        }
        // What was published before is what it gets now.
        wrong += catalog.Acquire("t").get() != snapshots.back().get();
      });
    }
    for (const auto& snapshot : snapshots) {
      catalog.Publish("t", snapshot);
      std::this_thread::yield();
    }
    stop = true;
    for (std::thread& reader : readers) reader.join();
    ASSERT_EQ(wrong, 0);
  }
}

// Of two that publish at once, one is last, for all threads.
TEST_F(CatalogTest, PublishersMayMeet) {
  const std::shared_ptr<const Snapshot> snapshots[] = {MakeGeneration(1), MakeGeneration(2)};
  for (int round = 0; round < 40; ++round) {
    Catalog catalog;
    std::atomic<int> next = 0;
    InThreads(2, [&] {
      const auto& mine = snapshots[next++];
      while (next < 2) std::this_thread::yield();
      for (int i = 0; i < 5; ++i) catalog.Publish("t", mine);
    });
    std::mutex mutex;
    std::set<const Snapshot*> seen;
    InThreads(kManyThreads, [&] {
      const auto snapshot = catalog.Acquire("t");
      const std::lock_guard<std::mutex> lock(mutex);
      seen.insert(snapshot.get());
    });
    ASSERT_EQ(seen.size(), 1u);
    ASSERT_TRUE(seen.contains(snapshots[0].get()) || seen.contains(snapshots[1].get()));
  }
}

}  // namespace
}  // namespace latchkey::test
