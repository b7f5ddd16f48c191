#include "server/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "tests/support/memory_file_system.h"
#include "tests/support/test_table.h"

namespace latchkey {
namespace {

TEST(Executor, RunsEveryJobOnItsOwnThreads) {
  std::atomic<int> done = 0;
  std::atomic<int> here = 0;
  const std::thread::id caller = std::this_thread::get_id();
  {
    Executor executor(3, 1000);
    for (int i = 0; i < 500; ++i) {
      ASSERT_TRUE(executor.Submit([&](Worker&) {
        ++done;
        here += std::this_thread::get_id() == caller;
      }));
    }
  }  // runs what is queued
  EXPECT_EQ(done, 500);
  EXPECT_EQ(here, 0);
}

TEST(Executor, RefusesWhatItsQueueCannotHold) {
  std::promise<void> started, release;
  std::shared_future<void> released = release.get_future().share();
  std::atomic<int> done = 0;
  {
    Executor executor(1, 2);
    ASSERT_TRUE(executor.Submit([&](Worker&) {
      started.set_value();
      released.wait();
      ++done;
    }));
    started.get_future().wait();
    // The only thread is busy: two jobs may wait, a third may not.
    EXPECT_TRUE(executor.Submit([&](Worker&) { ++done; }));
    EXPECT_TRUE(executor.Submit([&](Worker&) { ++done; }));
    EXPECT_FALSE(executor.Submit([&](Worker&) { ++done; }));
    release.set_value();
  }
  EXPECT_EQ(done, 3);
}

TEST(Executor, DropsARefusedJobAtOnce) {
  std::promise<void> started, release;
  std::shared_future<void> released = release.get_future().share();
  Executor executor(1, 1);
  ASSERT_TRUE(executor.Submit([&](Worker&) {
    started.set_value();
    released.wait();
  }));
  started.get_future().wait();
  ASSERT_TRUE(executor.Submit([](Worker&) {}));
  auto held = std::make_shared<int>(1);
  EXPECT_FALSE(executor.Submit([held](Worker&) {}));
  EXPECT_EQ(held.use_count(), 1);
  release.set_value();
}

TEST(Executor, SumsCountsOverItsThreadsByTable) {
  test::MemoryFileSystem files;
  test::Random random(1);
  test::TestTable table(files, "data", random);
  ASSERT_TRUE(table.Build({{"key", "", 7}}).ok());
  const auto snapshot = table.Open();
  ASSERT_TRUE(snapshot.ok());
  Executor executor(4, 1000);
  std::atomic<int> left = 200;
  std::promise<void> done;
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(executor.Submit([&, i](Worker& worker) {
      const std::string_view keys[] = {"key", "key"};
      ASSERT_TRUE(worker.engine.Lookup(**snapshot, keys, &worker.results));
      TableCounts counts;
      counts.keys = 10;
      counts.found = 7;
      counts.damaged = 1;
      worker.Count(i % 2 == 0 ? "even" : "odd", **snapshot, counts);
      if (--left == 0) done.set_value();
    }));
    executor.CountsOf("even");  // read while they are written
  }
  done.get_future().wait();
  for (const char* name : {"even", "odd"}) {
    const TableCounts counts = executor.CountsOf(name);
    EXPECT_EQ(counts.keys, 1000u) << name;
    EXPECT_EQ(counts.found, 700u) << name;
    EXPECT_EQ(counts.damaged, 100u) << name;
    // Each key came to one line.
    EXPECT_EQ(counts.cost.keys, 200u) << name;
    EXPECT_EQ(counts.cost.places, 200u) << name;
  }
  EXPECT_EQ(executor.CountsOf("none").keys, 0u);
}

}  // namespace
}  // namespace latchkey
