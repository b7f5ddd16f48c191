#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "core/base/error.h"
#include "core/lookup/probe_engine.h"
#include "core/table/catalog.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/suites.h"

namespace latchkey {
namespace {

constexpr size_t kBatchKeys = 4000;
constexpr int kBatchesARound = 100;

using Clock = std::chrono::steady_clock;

void Check(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "bench: wrong answer: %s\n", what);
  std::exit(3);
}

bool Agrees(Outcome outcome, uint64_t doc_id, uint64_t expected) {
  return expected == UINT64_MAX ? outcome == Outcome::kAbsent
                                : outcome == Outcome::kFound && doc_id == expected;
}

// ns a key, one by one. Every answer is checked, outside the time.
double SingleRound(const Snapshot& snapshot, KeyBatchMaker& maker) {
  std::vector<LookupResult> results(kBatchKeys);
  Clock::duration elapsed{};
  for (int b = 0; b < kBatchesARound; ++b) {
    maker.Next();
    const auto begin = Clock::now();
    for (size_t i = 0; i < kBatchKeys; ++i) results[i] = LookupOne(snapshot, maker.keys()[i]);
    elapsed += Clock::now() - begin;
    for (size_t i = 0; i < kBatchKeys; ++i) {
      Check(Agrees(results[i].outcome, results[i].doc_id, maker.doc_ids()[i]), "single");
    }
  }
  return std::chrono::duration<double, std::nano>(elapsed).count() / kBatchesARound / kBatchKeys;
}

// ns a key, in batches.
double BatchRound(const Snapshot& snapshot, KeyBatchMaker& maker,
                  const ProbeEngineOptions& engine_options = {}) {
  ProbeEngine engine(engine_options);
  LookupResults results;
  Clock::duration elapsed{};
  for (int b = 0; b < kBatchesARound; ++b) {
    maker.Next();
    const auto begin = Clock::now();
    engine.Lookup(snapshot, maker.keys(), &results);
    elapsed += Clock::now() - begin;
    for (size_t i = 0; i < kBatchKeys; ++i) {
      Check(Agrees(results.outcomes[i], results.doc_ids[i], maker.doc_ids()[i]), "batch");
    }
  }
  return std::chrono::duration<double, std::nano>(elapsed).count() / kBatchesARound / kBatchKeys;
}

Figure SizeFigure(const std::string& name, uint64_t bytes, uint64_t rows,
                  const std::string& conditions) {
  Figure figure;
  figure.suite = "warm";
  figure.name = name;
  figure.value = static_cast<double>(bytes) / static_cast<double>(rows);
  figure.unit = "B/key";
  figure.conditions = conditions;
  return figure;
}

void ReportSizes(const std::string& prefix, const Snapshot& snapshot, uint64_t rows,
                 const std::string& conditions, Report* report) {
  const auto add = [&](std::string_view part, uint64_t bytes) {
    const std::string name = fmt::format("{}/bytes_per_key{}", prefix, part);
    if (bytes > 0) report->Add(SizeFigure(name, bytes, rows, conditions));
  };
  for (size_t kind = 0; kind < kSectionCount; ++kind) {
    uint64_t bytes = 0;
    for (const auto& segment : snapshot.segments()) {
      bytes += segment->header().sections[kind].size_bytes;
    }
    add(fmt::format("/{}", SectionName(static_cast<SectionKind>(kind))), bytes);
  }
  add("/segment_map", snapshot.segment_map_bytes());
  add("", BytesOf(snapshot));
}

void RunTable(const std::string& prefix, KeyShape shape, int segments, uint64_t rows,
              const SuiteOptions& options, Report* report) {
  const auto snapshot = BuildBenchTable(options.scratch_dir, shape, SegmentSizes(rows, segments));
  const std::string conditions = fmt::format(
      "{} keys, {} segments, batches of {}, one thread, all in memory, pages as the kernel chose "
      "them for a file just written, filter 10 bits a key, segment map {:.1f} MiB",
      rows, segments, kBatchKeys, static_cast<double>(snapshot->segment_map_bytes()) / (1 << 20));
  ReportSizes(prefix, *snapshot, rows, conditions, report);
  for (const int hit_percent : {100, 90, 10}) {
    KeyBatchMaker maker(shape, rows, hit_percent, kBatchKeys, 1000 + hit_percent);
    BatchRound(*snapshot, maker);  // touches every page that will be used
    std::vector<double> single, batch;
    for (int round = 0; round < options.rounds; ++round) {
      single.push_back(SingleRound(*snapshot, maker));
      batch.push_back(BatchRound(*snapshot, maker));
    }
    report->AddMedian("warm", fmt::format("{}/single/hit{}", prefix, hit_percent), "ns/key", single,
                      conditions);
    report->AddMedian("warm", fmt::format("{}/batch/hit{}", prefix, hit_percent), "ns/key", batch,
                      conditions);
    report->AddRatio("warm", fmt::format("{}/batch_vs_single/hit{}", prefix, hit_percent), true,
                     batch, "one by one", single, conditions);
  }
}

// The smallest table that a build makes, and the fastest; with filters.
void RunSizes(const SuiteOptions& options, Report* report) {
  for (const bool dense : {true, false}) {
    for (const int segments : {15, 1}) {
      const auto snapshot =
          BuildBenchTable(options.scratch_dir, KeyShape::kUuid16,
                          SegmentSizes(options.rows, segments), {.hash_list = !dense});
      report->Add(SizeFigure(
          fmt::format("warm/uuid16/{}bytes_per_key_{}", segments == 1 ? "s1/" : "",
                      dense ? "dense" : "fast"),
          BytesOf(*snapshot), options.rows,
          fmt::format("{} keys, {} segments, filter 10 bits a key, hash list {}, segment map {}",
                      options.rows, segments, dense ? "none" : "included",
                      snapshot->segment_map_bytes() > 0 ? "included" : "none")));
    }
  }
}

// What filters are worth where there is no segment map, as in the seeds' format.
void RunFilters(const SuiteOptions& options, Report* report) {
  const std::vector<uint64_t> sizes = SegmentSizes(options.rows, 15);
  const auto on =
      BuildBenchTable(options.scratch_dir + ".on", KeyShape::kUuid16, sizes, {.hash_list = false});
  const auto off = BuildBenchTable(options.scratch_dir + ".off", KeyShape::kUuid16, sizes,
                                   {.filter_bits_per_key = 0, .hash_list = false});
  for (const int hit_percent : {90, 10}) {
    KeyBatchMaker maker(KeyShape::kUuid16, options.rows, hit_percent, kBatchKeys, 3000);
    BatchRound(*on, maker);
    BatchRound(*off, maker);
    std::vector<double> with, without;
    for (int round = 0; round < options.rounds; ++round) {
      with.push_back(BatchRound(*on, maker));
      without.push_back(BatchRound(*off, maker));
    }
    report->AddRatio(
        "warm",
        fmt::format("warm/uuid16/s15/filter_on_vs_off{}", hit_percent == 90 ? "" : "_hit10"), true,
        with, "without filters", without,
        fmt::format("{} keys, 15 segments, {}% present, batches of {}, no segment map, filter 10 "
                    "bits a key; times as fast",
                    options.rows, hit_percent, kBatchKeys));
  }
  std::filesystem::remove_all(options.scratch_dir + ".on");
  std::filesystem::remove_all(options.scratch_dir + ".off");
}

// What the width of tiles and the SIMD level are worth, against the ones in use.
void RunEngineOptions(const SuiteOptions& options, Report* report) {
  const auto snapshot =
      BuildBenchTable(options.scratch_dir, KeyShape::kUuid16, SegmentSizes(options.rows, 15));
  KeyBatchMaker maker(KeyShape::kUuid16, options.rows, 90, kBatchKeys, 4000);
  BatchRound(*snapshot, maker);
  const auto compare = [&](const std::string& name, const ProbeEngineOptions& other) {
    std::vector<double> ours, theirs;
    for (int round = 0; round < options.rounds; ++round) {
      ours.push_back(BatchRound(*snapshot, maker));
      theirs.push_back(BatchRound(*snapshot, maker, other));
    }
    report->AddRatio("warm", "warm/uuid16/s15/engine_vs_" + name, true, ours, name, theirs,
                     fmt::format("{} keys, 15 segments, 90% present, batches of {}; times as fast",
                                 options.rows, kBatchKeys));
  };
  for (const size_t tile_keys : {8, 16, 32, 64}) {
    compare(fmt::format("tile{}", tile_keys), {.tile_keys = tile_keys});
  }
  const auto levels = MatchBucketsLevels();
  for (const MatchBucketsLevel& level : levels.first(levels.size() - 1)) {
    compare(level.name, {.match_buckets = level.match});
  }
}

// Keys a second of `threads` threads at once, each taking the snapshot anew for every batch.
double ThreadsRound(const Catalog& catalog, uint64_t rows, int threads) {
  std::vector<std::thread> running;
  std::atomic<int> ready{0};
  std::atomic<uint64_t> wrong{0};
  Clock::time_point begin;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      KeyBatchMaker maker(KeyShape::kUuid16, rows, 90, kBatchKeys, 5000 + t);
      maker.Next();
      ProbeEngine engine;
      LookupResults results;
      engine.Lookup(*catalog.Acquire("bench"), maker.keys(), &results);
      if (++ready == threads) begin = Clock::now();
      while (ready < threads) std::this_thread::yield();
      for (int b = 0; b < 10 * kBatchesARound; ++b) {
        if (b % 10 == 0) maker.Next();
        const auto snapshot = catalog.Acquire("bench");
        engine.Lookup(*snapshot, maker.keys(), &results);
        wrong += !Agrees(results.outcomes[0], results.doc_ids[0], maker.doc_ids()[0]);
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  Check(wrong == 0, "threads");
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return threads * 10.0 * kBatchesARound * kBatchKeys / seconds;
}

void RunThreads(const SuiteOptions& options, Report* report) {
  const unsigned cores = std::thread::hardware_concurrency();
  if (cores < 2) return;
  Catalog catalog;
  catalog.Publish("bench", BuildBenchTable(options.scratch_dir, KeyShape::kUuid16, {options.rows}));
  std::vector<double> one, all;
  for (int round = 0; round < options.rounds; ++round) {
    one.push_back(1e9 / ThreadsRound(catalog, options.rows, 1));
    all.push_back(1e9 / ThreadsRound(catalog, options.rows, static_cast<int>(cores)));
  }
  report->AddRatio("warm", "warm/uuid16/s1/threads", true, all, "one thread", one,
                   fmt::format("{} keys, 90% present, batches of {} on {} threads, making the keys "
                               "of every tenth batch included; times as many keys a second",
                               options.rows, kBatchKeys, cores));
}

}  // namespace

void RunWarmSuite(const SuiteOptions& options, Report* report) {
  for (const KeyShape shape : options.shapes) {
    for (const int segments : {1, 15}) {
      for (const uint64_t rows : {options.rows / 10, options.rows}) {
        // The names without a count are those of the full size.
        const std::string size = rows == options.rows ? "" : "tenth/";
        RunTable(fmt::format("warm/{}{}/s{}", size, KeyShapeName(shape), segments), shape, segments,
                 rows, options, report);
      }
    }
    if (shape != KeyShape::kUuid16) continue;
    RunSizes(options, report);
    RunFilters(options, report);
    RunEngineOptions(options, report);
    RunThreads(options, report);
    RunTable("warm/tenfold/uuid16/s1", shape, 1, 10 * options.rows, options, report);
  }
}

}  // namespace latchkey
