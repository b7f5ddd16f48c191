#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "core/base/error.h"
#include "core/lookup/probe_engine.h"
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
double BatchRound(const Snapshot& snapshot, KeyBatchMaker& maker) {
  ProbeEngine engine;
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

void ReportSizes(const std::string& prefix, const Snapshot& snapshot, uint64_t rows,
                 const std::string& conditions, Report* report) {
  uint64_t total = 0;
  for (size_t kind = 0; kind < kSectionCount; ++kind) {
    uint64_t bytes = 0;
    for (const auto& segment : snapshot.segments())
      bytes += segment->header().sections[kind].size_bytes;
    total += bytes;
    if (bytes == 0) continue;
    Figure figure;
    figure.suite = "warm";
    figure.name =
        fmt::format("{}/bytes_per_key/{}", prefix, SectionName(static_cast<SectionKind>(kind)));
    figure.value = static_cast<double>(bytes) / static_cast<double>(rows);
    figure.unit = "B/key";
    figure.conditions = conditions;
    report->Add(figure);
  }
  Figure figure;
  figure.suite = "warm";
  figure.name = prefix + "/bytes_per_key";
  figure.value = static_cast<double>(total + kHeaderBytes * snapshot.segments().size()) /
                 static_cast<double>(rows);
  figure.unit = "B/key";
  figure.conditions = conditions;
  report->Add(figure);
}

void RunTable(const std::string& prefix, KeyShape shape, int segments, uint64_t rows,
              const SuiteOptions& options, Report* report) {
  const auto snapshot =
      BuildBenchTable(options.scratch_dir, shape, SegmentSizes(rows, segments), 10);
  const std::string conditions = fmt::format(
      "{} keys, {} segments, batches of {}, one thread, all in memory, 4 KiB pages unless the "
      "kernel chose "
      "larger, filter 10 bits a key",
      rows, segments, kBatchKeys);
  ReportSizes(prefix, *snapshot, rows, conditions, report);
  std::vector<double> single90, batch90;
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

}  // namespace

void RunWarmSuite(const SuiteOptions& options, Report* report) {
  for (const KeyShape shape : kKeyShapes) {
    for (const int segments : {1, 15}) {
      for (const uint64_t rows : {options.rows / 10, options.rows}) {
        // The names without a count are those of the full size.
        const std::string size = rows == options.rows ? "" : "tenth/";
        RunTable(fmt::format("warm/{}{}/s{}", size, KeyShapeName(shape), segments), shape, segments,
                 rows, options, report);
      }
    }
  }
}

}  // namespace latchkey
