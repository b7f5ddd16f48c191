#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "core/build/key_deleter.h"
#include "core/build/table_merger.h"
#include "core/lookup/probe_engine.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/change_parts.h"
#include "tests/bench/in_child.h"
#include "tests/bench/suites.h"

namespace latchkey {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMemoryMib = 256;
constexpr uint64_t kDeltaKeys = 10'000;
constexpr int kDeltas = 5;
constexpr uint64_t kDeletedOneIn = 100;
constexpr KeyShape kShape = KeyShape::kUuid16;

class StridedKeys final : public RecordSource {
 public:
  explicit StridedKeys(const KeyRange& range) : left_(range) {}

  absl::StatusOr<bool> Next(InputRow* row) override {
    if (left_.count == 0) return false;
    --left_.count;
    MakeKey(kShape, left_.first, 0, key_);
    *row = {{key_, KeyShapeBytes(kShape)}, {}, left_.first + left_.doc_id_shift};
    left_.first += left_.step;
    return true;
  }
  std::string Position() const override { return "generated"; }
  uint64_t bytes_read() const override { return 0; }
  uint64_t total_bytes() const override { return 0; }

 private:
  KeyRange left_;
  char key_[64];
};

void Merge(const std::string& data_dir) {
  MergeOptions options;
  options.data_dir = data_dir;
  options.table = "bench";
  options.memory_bytes = kMemoryMib << 20;
  if (!OrDie(MergeTable(PosixFileSystem(), options, nullptr)).published) std::exit(3);
}

// Takes the newest generation back, with the segment that it added.
void DropNewest(const std::string& data_dir) {
  const std::string dir = JoinPath(data_dir, "bench");
  const uint64_t newest = OrDie(ListGenerations(PosixFileSystem(), dir)).back();
  std::filesystem::remove(JoinPath(dir, ManifestFileName(newest)));
  std::filesystem::remove(JoinPath(dir, SegmentFileName(newest, 0)));
}

void Delete(const std::string& data_dir, const KeyRange& range) {
  DeleteOptions options;
  options.data_dir = data_dir;
  options.table = "bench";
  StridedKeys source(range);
  const auto result = OrDie(DeleteKeys(PosixFileSystem(), options, source, nullptr));
  if (result.deleted != range.count) FailChange("not all keys were there to be deleted");
}

void MergeFigures(const SuiteOptions& options, Report* report) {
  InChild([&] { BuildBenchTable(options.scratch_dir, kShape, SegmentSizes(options.rows, 15)); });
  std::vector<double> keys_per_s, peaks;
  for (int round = 0; round < std::min(options.rounds, 3); ++round) {
    if (round > 0) DropNewest(options.scratch_dir);
    const ChildCost cost = InChild([&] { Merge(options.scratch_dir); });
    keys_per_s.push_back(static_cast<double>(options.rows) / cost.seconds);
    peaks.push_back(cost.peak_mib);
  }
  const std::string conditions = fmt::format(
      "15 segments of {} uuid16 keys in all become one, --memory {}, one core, page cache warm, "
      "checks of what is read and of what was written and sync included",
      options.rows, kMemoryMib);
  report->AddMedian("change", "change/merge_keys_per_s", "keys/s", keys_per_s, conditions);
  report->AddMedian("change", "change/merge_peak_mib", "MiB", peaks, conditions);
}

// On the table that the merge left.
void DeltaFigures(const SuiteOptions& options, Report* report) {
  const uint64_t keys = std::min(kDeltaKeys, options.rows / 10);
  std::vector<double> append_s, delete_s;
  for (int round = 0; round < options.rounds; ++round) {
    auto begin = Clock::now();
    // Half of them update, half are new.
    BuildKeys(options.scratch_dir, {options.rows - keys / 2, 1, keys}, /*append=*/true);
    append_s.push_back(SecondsSince(begin));
    DropNewest(options.scratch_dir);
    begin = Clock::now();
    Delete(options.scratch_dir, {0, options.rows / keys, keys});
    delete_s.push_back(SecondsSince(begin));
    DropNewest(options.scratch_dir);
  }
  const std::string conditions = fmt::format(
      "{} keys onto one segment of {} uuid16 keys, from the first key read to the generation "
      "published, sync included",
      keys, options.rows);
  report->AddMedian("change", "change/delta_publish_s", "s", append_s, conditions);
  report->AddMedian("change", "change/deletion_publish_s", "s", delete_s, conditions);
}

// Looks batches up, and holds each answer to what it must be.
void CheckAnswers(const SuiteOptions& options, const Snapshot& snapshot, bool deleted) {
  KeyBatchMaker batches(kShape, options.rows, 90, 4096, 7);
  ProbeEngine engine;
  LookupResults results;
  for (int batch = 0; batch < 50; ++batch) {
    batches.Next();
    engine.Lookup(snapshot, batches.keys(), &results);
    for (size_t i = 0; i < results.size(); ++i) {
      const uint64_t number = batches.doc_ids()[i];
      const bool there = number != UINT64_MAX && !(deleted && number % kDeletedOneIn == 7);
      const LookupResult expected =
          there ? LookupResult{Outcome::kFound, number, {}} : LookupResult{};
      if (results.at(i) == expected) continue;
      FailChange(fmt::format("a wrong answer for key {}", i));
    }
  }
}

double LookupSeconds(const SuiteOptions& options, const Snapshot& snapshot, uint64_t seed) {
  KeyBatchMaker batches(kShape, options.rows, 90, 4096, seed);
  ProbeEngine engine;
  LookupResults results;
  double seconds = 0;
  for (int batch = 0; batch < 250; ++batch) {
    batches.Next();
    const auto begin = Clock::now();
    engine.Lookup(snapshot, batches.keys(), &results);
    seconds += SecondsSince(begin);
  }
  return seconds;
}

void LookupFigures(const SuiteOptions& options, Report* report) {
  const uint64_t keys = std::min(kDeltaKeys, options.rows / 10);
  const auto without = OpenBenchTable(options.scratch_dir, {});
  for (int delta = 0; delta < kDeltas; ++delta) {
    BuildKeys(options.scratch_dir, {static_cast<uint64_t>(delta), options.rows / keys, keys},
              /*append=*/true);
  }
  Delete(options.scratch_dir, {7, kDeletedOneIn, options.rows / kDeletedOneIn});
  const auto with = OpenBenchTable(options.scratch_dir, {});
  CheckAnswers(options, *without, false);
  CheckAnswers(options, *with, true);
  std::vector<double> with_s, without_s;
  for (int round = 0; round < options.rounds; ++round) {
    const auto seed = static_cast<uint64_t>(round) + 100;
    without_s.push_back(LookupSeconds(options, *without, seed));
    with_s.push_back(LookupSeconds(options, *with, seed));
  }
  report->AddRatio("change", "change/deltas_vs_none", false, with_s, "none", without_s,
                   fmt::format("time of batches of 4096 keys, 90% there, one segment of {} uuid16 "
                               "keys under {} deltas of {} keys and tombstones for 1%, against the "
                               "segment alone, interleaved",
                               options.rows, kDeltas, keys));
}

}  // namespace

void FailChange(const std::string& why) {
  std::fprintf(stderr, "bench: change: %s\n", why.c_str());
  std::exit(3);
}

void BuildKeys(const std::string& data_dir, const KeyRange& range, bool append) {
  BuildOptions options;
  options.data_dir = data_dir;
  options.table = "bench";
  options.append = append;
  StridedKeys source(range);
  OrDie(BuildTable(PosixFileSystem(), options, source, nullptr));
}

void RunChangeSuite(const SuiteOptions& options, Report* report) {
  MergeFigures(options, report);
  DeltaFigures(options, report);
  LookupFigures(options, report);
  RunSharedOpen(options, report);
  RunReload(options, report);
}

}  // namespace latchkey
