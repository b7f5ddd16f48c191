// Twice as much data as memory, in a memory cgroup.
#include <fmt/format.h>

#include <algorithm>

#include "core/lookup/probe_engine.h"
#include "core/prefetch/prefetch_scheduler.h"
#include "tests/bench/cold_parts.h"
#include "tests/bench/device_limit.h"
#include "tests/bench/memory_group.h"

namespace latchkey {
namespace {

constexpr int kThreads = 8;
constexpr int kBatchesAThread = 3;

// ms that `kThreads` threads take for kBatchesAThread batches each.
double LookupMs(const Snapshot& snapshot, uint64_t rows, PrefetchChoice prefetch, uint64_t seed) {
  return ThreadsMs(kThreads, [&](int t) {
    // What a thread costs is counted from its own first lookup on.
    ProbeEngine engine({.prefetch = prefetch});
    KeyBatchMaker maker(KeyShape::kUuid16, rows, 100, kColdBatchKeys,
                        (seed * kThreads + static_cast<uint64_t>(t)) << 32);
    for (int b = 0; b < kBatchesAThread; ++b) {
      maker.Next();
      BatchMs(&engine, snapshot, maker);
    }
  });
}

// In the group: four numbers a round: ms of ours, theirs and the device alone, and the share of
// lines in memory.
std::vector<double> PressureRounds(const std::string& data_dir, int rounds) {
  const ColdTable table(data_dir);
  table.LoadIndex();
  PrefetchScheduler scheduler({});  // as a server has it: it advises the kernel on our map
  // Fills the group's memory, with pages that can be given up one by one.
  table.file().Load(table.lines().offset, table.lines().end(), /*single_pages=*/true);
  scheduler.Watch("bench", table.ours_ptr());
  DeviceLimit device(table.file().path());
  uint64_t state = 0;
  std::vector<double> values;
  for (int round = -1; round < rounds; ++round) {
    // No two of them ever look the same keys up.
    const auto seed = static_cast<uint64_t>(2 * (round + 2));
    double ours = 0, theirs = 0;
    const double resident = table.LinesResident();
    const auto measure_ours = [&] {
      ours = LookupMs(table.ours(), table.rows(), PrefetchChoice::kAuto, seed);
    };
    if (round % 2 == 0) measure_ours();
    theirs = LookupMs(table.random(), table.rows(), PrefetchChoice::kNever, seed + 1);
    if (round % 2 != 0) measure_ours();
    // As many pages as were not in memory, read by nobody but the device.
    const auto cold =
        static_cast<size_t>((1 - resident) * kThreads * kBatchesAThread * kColdBatchKeys);
    const double device_ms = device.ReadMs(table.RandomPages(cold, &state));
    if (round >= 0) values.insert(values.end(), {ours, theirs, device_ms, resident});
  }
  return values;
}

}  // namespace

void RunColdPressure(const std::string& data_dir, const SuiteOptions& options, Report* report) {
  std::string conditions;
  uint64_t limit_bytes = 0;
  {
    // Pages that are in memory already would not count as the group's.
    const ColdTable table(data_dir);
    table.file().DropSurely(0, table.file().size_bytes());
    conditions = table.Conditions();
    limit_bytes = table.file().size_bytes() / 2;
  }
  MemoryPressure pressure;
  const std::vector<double> values = RunInMemoryGroup(
      limit_bytes, [&] { return PressureRounds(data_dir, std::max(options.rounds, 7)); },
      &pressure);
  std::vector<double> ours, theirs, device, resident;
  for (size_t i = 0; i + 3 < values.size(); i += 4) {
    ours.push_back(values[i]);
    theirs.push_back(values[i + 1]);
    device.push_back(values[i + 2]);
    resident.push_back(values[i + 3]);
  }
  AddColdRatio(
      "pressure_t8_vs_random", ours, "no hints, MADV_RANDOM", theirs,
      fmt::format("{}; {} threads, {} batches each a round; {}; {:.0f}% of the lines in "
                  "memory; ms a round; the device alone, by io_uring, takes {:.0f} ms for as "
                  "many pages as are not in memory; mark: at least 4",
                  conditions, kThreads, kBatchesAThread, pressure.ToString(),
                  100 * Median(resident), Median(device)),
      report);
}

}  // namespace latchkey
