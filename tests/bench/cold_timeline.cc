// How one thread's hit rate and mode go over time: from all cold to all in memory, and again after
// the pages are dropped. Printed as text.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "core/lookup/probe_engine.h"
#include "tests/bench/cold_parts.h"

namespace latchkey {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kColumns = 100;
constexpr int kQuietBatches = 200;  // at the end of each half

struct Moment {
  double seconds = 0;
  FetchCost cost;  // of one batch
  bool asking = false;
};

// Batches until one in memory, and some more; appends what each of them cost.
void RunUntilQuiet(const ColdTable& table, Clock::time_point start, ProbeEngine* engine,
                   KeyBatchMaker* maker, std::vector<Moment>* moments) {
  for (int quiet = 0; quiet < kQuietBatches;) {
    maker->Next();
    const FetchCost before = engine->cost();
    BatchMs(engine, table.ours(), *maker);
    const Moment moment{std::chrono::duration<double>(Clock::now() - start).count(),
                        engine->cost() - before, engine->mode(table.ours()) == FetchMode::kAsking};
    quiet = moment.asking ? 0 : quiet + 1;
    moments->push_back(moment);
  }
}

}  // namespace

void RunColdTimeline(const ColdTable& table) {
  table.LoadIndex();
  table.DropLines();
  ProbeEngine engine;
  KeyBatchMaker maker(KeyShape::kUuid16, table.rows(), 100, kColdBatchKeys, 99);
  std::vector<Moment> moments;
  const auto start = Clock::now();
  RunUntilQuiet(table, start, &engine, &maker, &moments);
  const double dropped = std::chrono::duration<double>(Clock::now() - start).count();
  table.DropLines();
  RunUntilQuiet(table, start, &engine, &maker, &moments);

  // One column for as much time as any other.
  const double column_s = moments.back().seconds / kColumns;
  std::string hits, modes;
  size_t next = 0;
  double share = 0;
  bool asking = false;
  for (size_t column = 1; column <= kColumns; ++column) {
    FetchCost sum;
    for (; next < moments.size() &&
           moments[next].seconds <= static_cast<double>(column) * column_s * 1.000001;
         ++next) {
      sum += moments[next].cost;
      asking = moments[next].asking;
    }
    if (sum.places > 0) {
      const uint64_t cold = std::min(sum.places, std::max(sum.read, sum.faults));
      share = static_cast<double>(sum.places - cold) / static_cast<double>(sum.places);
    }
    static constexpr const char* kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    hits += kBars[static_cast<size_t>(share * 7.999)];
    modes += asking ? "a" : "·";
  }
  std::printf(
      "Hit rate (▁ 0%% to █ 100%%) and mode (a: asks for pages, ·: silent) of a thread that sends "
      "batches of\n%zu keys all over a table of %.1f GiB, cold at first and again after %.1f s; "
      "one "
      "column is %.2f s\n  %s\n  %s\n",
      kColdBatchKeys, static_cast<double>(table.file().size_bytes()) / (1 << 30), dropped, column_s,
      hits.c_str(), modes.c_str());
  std::fflush(stdout);
}

}  // namespace latchkey
