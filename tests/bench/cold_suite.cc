#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "core/lookup/probe_engine.h"
#include "core/prefetch/prefetch_scheduler.h"
#include "tests/bench/cold_parts.h"
#include "tests/bench/device_limit.h"
#include "tests/bench/memory_group.h"

namespace latchkey {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGib = 1 << 30;
constexpr double kSparedGib = 20;  // of the disk, for others
constexpr int kFastRounds = 41;    // of those that take a fraction of a second
constexpr int kSlowRounds = 9;
constexpr int kOverheadPairs = 41;
constexpr uint64_t kOverheadBatches = 200;
constexpr int kAskedBatches = 50;  // after which silence is believed

double Seconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

std::string Machine(uint64_t read_ahead_kb) {
  struct utsname name = {};
  ::uname(&name);
  return fmt::format("Linux {}, read_ahead_kb {}", name.release, read_ahead_kb);
}

KeyBatchMaker PresentKeys(const ColdTable& table, uint64_t seed) {
  return KeyBatchMaker(KeyShape::kUuid16, table.rows(), 100, kColdBatchKeys, seed);
}

// ms of one batch, all of whose lines are cold.
double ColdBatchMs(const ColdTable& table, ProbeEngine* engine, const Snapshot& snapshot,
                   KeyBatchMaker* maker) {
  table.DropLines();
  maker->Next();
  return BatchMs(engine, snapshot, *maker);
}

std::string ColdConditions(const ColdTable& table, const ReadAhead& read_ahead) {
  return fmt::format(
      "{}, one thread, all lines cold before each batch (cachestat: under 1% in memory); {}; size "
      "by --cold-gib, 4 by default so that the suite ends within 12 minutes",
      table.Conditions(), Machine(read_ahead.kb()));
}

void RunAllCold(const ColdTable& table, const SuiteOptions& options, const ReadAhead& read_ahead,
                Report* report) {
  KeyBatchMaker maker = PresentKeys(table, uint64_t{100} << 32);
  ProbeEngine engine, never({.prefetch = PrefetchChoice::kNever});
  DeviceLimit device(table.file().path());
  uint64_t state = 9;
  std::vector<double> ours, device_ms, random, ours_beside_normal, normal;
  const int slow_rounds = std::max(options.rounds, kSlowRounds);
  for (int round = -1; round < std::max(slow_rounds, kFastRounds); ++round) {
    double our_ms = 0;
    const auto measure_ours = [&] { our_ms = ColdBatchMs(table, &engine, table.ours(), &maker); };
    // We and the device come first by turns.
    if (round % 2 == 0) measure_ours();
    table.DropLines();
    const double round_device_ms = device.ReadMs(table.RandomPages(kColdBatchKeys, &state));
    if (round % 2 != 0) measure_ours();
    const double random_ms = ColdBatchMs(table, &never, table.random(), &maker);
    if (round < 0) continue;  // in which everybody's memory is allocated
    ours.push_back(our_ms);
    device_ms.push_back(round_device_ms);
    random.push_back(random_ms);
    if (round >= slow_rounds) continue;
    ours_beside_normal.push_back(our_ms);
    normal.push_back(ColdBatchMs(table, &never, table.normal(), &maker));
  }
  const std::string conditions = ColdConditions(table, read_ahead);
  AddColdRatio("batch_vs_device", ours,
               fmt::format("io_uring, O_DIRECT, {} random pages of the same file, depth {}",
                           kColdBatchKeys, kDeviceDepth),
               device_ms, conditions + "; ms; mark: at least 0.9", report);
  AddColdRatio("batch_vs_mmap_normal", ours_beside_normal, "no hints, MADV_NORMAL", normal,
               conditions + "; ms; mark: at least 10", report);
  AddColdRatio("batch_vs_random", ours, "no hints, MADV_RANDOM", random,
               conditions + "; ms; mark: at least 5", report);
}

// With the read-ahead that most machines have. Files take it over when they are opened.
void RunReadAhead128(const std::string& data_dir, const SuiteOptions& options,
                     ReadAhead* read_ahead, Report* report) {
  const std::string name = "batch_vs_mmap_normal_ra128";
  std::string reason;
  if (!read_ahead->Set(128, &reason)) {
    AddColdFigure(name, 0, "n/a", "not to be had: " + reason, report);
    return;
  }
  const ColdTable table(data_dir);
  table.LoadIndex();
  KeyBatchMaker maker = PresentKeys(table, uint64_t{200} << 32);
  ProbeEngine engine, never({.prefetch = PrefetchChoice::kNever});
  std::vector<double> ours, normal;
  for (int round = 0; round < std::max(options.rounds, kSlowRounds); ++round) {
    ours.push_back(ColdBatchMs(table, &engine, table.ours(), &maker));
    normal.push_back(ColdBatchMs(table, &never, table.normal(), &maker));
  }
  AddColdRatio(name, ours, "no hints, MADV_NORMAL", normal,
               ColdConditions(table, *read_ahead) + "; ms; mark: at least 10", report);
}

// Without read-ahead, what becomes resident is what was touched.
void RunPagesTouched(const ColdTable& table, const SuiteOptions& options, Report* report) {
  KeyBatchMaker maker = PresentKeys(table, uint64_t{300} << 32);
  ProbeEngine never({.prefetch = PrefetchChoice::kNever});
  const Section& lines = table.lines();
  std::vector<double> pages;
  for (int round = 0; round < options.rounds; ++round) {
    table.DropLines();
    const uint64_t before = table.file().ResidentPages(lines.offset, lines.end());
    maker.Next();
    BatchMs(&never, table.random(), maker);
    const uint64_t after = table.file().ResidentPages(lines.offset, lines.end());
    pages.push_back(static_cast<double>(after - before) / kColdBatchKeys);
  }
  const std::string conditions =
      table.Conditions() +
      ", one thread, all lines cold, no hints, MADV_RANDOM; pages that a batch brings into memory, "
      "by "
      "cachestat, per key; two keys of a batch share a page now and then";
  report->AddMedian("cold", "cold/pages_per_lookup", "pages", pages, conditions);
}

// Batches made beforehand: so many that their lines do not stay in the processor's caches.
std::vector<KeyBatchMaker> MakeBatches(const ColdTable& table) {
  std::vector<KeyBatchMaker> batches;
  batches.reserve(kOverheadBatches);
  for (uint64_t b = 0; b < kOverheadBatches; ++b) {
    batches.push_back(PresentKeys(table, (400 + b) << 32));
    batches.back().Next();
  }
  return batches;
}

double SinglesMs(ProbeEngine* engine, const Snapshot& snapshot, const KeyBatchMaker& maker) {
  LookupResult result;
  const auto begin = Clock::now();
  for (size_t i = 0; i < maker.keys().size(); ++i) {
    engine->LookupOne(snapshot, maker.keys()[i], &result);
    if (result.doc_id != maker.doc_ids()[i]) FailCold("wrong answer of a single lookup");
  }
  return 1000 * Seconds(begin, Clock::now());
}

// The sides of a pair take turns batch by batch, so that what else the machine does falls on both.
// Each has the same batches, half a round apart.
template <typename BatchTime>
void RunOverheadOf(const std::string& name, const ColdTable& table,
                   const std::vector<KeyBatchMaker>& batches, BatchTime batch_ms, Report* report) {
  ProbeEngine engine, never({.prefetch = PrefetchChoice::kNever});
  std::vector<double> ours, theirs, ratios;
  for (int pair = -1; pair < kOverheadPairs; ++pair) {
    double our_ms = 0, their_ms = 0;
    for (size_t b = 0; b < batches.size(); ++b) {
      const auto measure_ours = [&] { our_ms += batch_ms(&engine, table.ours(), batches[b]); };
      if (b % 2 == 0) measure_ours();
      their_ms +=
          batch_ms(&never, table.ours(), batches[(b + batches.size() / 2) % batches.size()]);
      if (b % 2 != 0) measure_ours();
    }
    if (pair < 0) continue;  // after which the engine is silent
    ours.push_back(our_ms);
    theirs.push_back(their_ms);
    ratios.push_back(our_ms / their_ms);
  }
  if (engine.mode(table.ours()) != FetchMode::kSilent) FailCold(name + ": not silent when warm");
  const MedianInterval interval = IntervalOfMedian(ratios);
  const std::string conditions = fmt::format(
      "{}, one thread, lines in memory and mapped, {} batches a round, sides by turns after each "
      "batch; ms; "
      "median of {} ratios, its 95% interval {:.4f} to {:.4f}; mark: at most 1.02",
      table.Conditions(), batches.size(), kOverheadPairs, interval.low, interval.high);
  report->AddRatio("cold", "cold/" + name, false, ours, "no hints and no account of faults", theirs,
                   conditions);
  fmt::print("    {}\n", conditions);
}

void RunWarmOverhead(const ColdTable& table, Report* report) {
  table.DropLines();
  table.LoadLines(/*single_pages=*/false);
  const std::vector<KeyBatchMaker> batches = MakeBatches(table);
  RunOverheadOf("warm_overhead", table, batches, BatchMs, report);
  RunOverheadOf("warm_overhead_single", table, batches, SinglesMs, report);
}

// Batches of random keys until every page is in memory.
class SettleRun {
 public:
  explicit SettleRun(const ColdTable& table)
      : table_(table), maker_(PresentKeys(table, uint64_t{500} << 32)) {}

  void Run() {
    table_.DropLines();
    PrefetchScheduler scheduler({});  // as a server has it: it advises the kernel on our map
    scheduler.Watch("bench", table_.ours_ptr());
    begin_ = last_read_ = silent_ = Clock::now();
    for (uint64_t b = 1;; ++b) {
      Batch();
      if (b % 64 == 0 && table_.LinesResident() >= 1) break;
      if (Seconds(begin_, Clock::now()) > 300) FailCold("settle: not all in memory after 300 s");
    }
    const Clock::time_point all_in_memory = Clock::now();
    while (engine_.mode(table_.ours()) != FetchMode::kSilent) {
      Batch();
      if (Seconds(all_in_memory, Clock::now()) > 60) FailCold("settle: asking for 60 s when warm");
    }
    const uint64_t asked = engine_.cost().asked;
    for (int b = 0; b < kAskedBatches; ++b) Batch();
    asked_after_ = engine_.cost().asked - asked;
  }
  // From the last page that was read to the silence that lasts; 0 if silence came before it.
  double settle_s() const { return std::max(0.0, Seconds(last_read_, silent_)); }
  double silent_s() const { return Seconds(begin_, silent_); }
  double last_read_s() const { return Seconds(begin_, last_read_); }
  uint64_t asked_after() const { return asked_after_; }

 private:
  void Batch() {
    maker_.Next();
    const FetchCost before = engine_.cost();
    const bool was_silent = engine_.mode(table_.ours()) == FetchMode::kSilent;
    BatchMs(&engine_, table_.ours(), maker_);
    const FetchCost cost = engine_.cost() - before;
    const Clock::time_point now = Clock::now();
    if (cost.read + cost.faults > 0) last_read_ = now;
    const bool is_silent = engine_.mode(table_.ours()) == FetchMode::kSilent;
    if (is_silent && !was_silent) silent_ = now;
  }

  const ColdTable& table_;
  KeyBatchMaker maker_;
  ProbeEngine engine_;
  Clock::time_point begin_, last_read_, silent_;
  uint64_t asked_after_ = 0;
};

// The other way into memory: somebody reads the file. ms from then until silence.
double SettleLoadedMs(const ColdTable& table) {
  KeyBatchMaker maker = PresentKeys(table, uint64_t{501} << 32);
  ProbeEngine engine;
  for (int b = 0; b < 4; ++b) ColdBatchMs(table, &engine, table.ours(), &maker);
  if (engine.mode(table.ours()) != FetchMode::kAsking) FailCold("settle: silent when cold");
  table.LoadLines(/*single_pages=*/true);
  const Clock::time_point begin = Clock::now();
  while (engine.mode(table.ours()) != FetchMode::kSilent) {
    maker.Next();
    BatchMs(&engine, table.ours(), maker);
  }
  return 1000 * Seconds(begin, Clock::now());
}

void RunSettle(const ColdTable& table, Report* report) {
  AddColdFigure("settle_loaded_ms", SettleLoadedMs(table), "ms",
                table.Conditions() +
                    ", one thread; from when all lines are in memory, of which none were before, "
                    "to silence",
                report);
  SettleRun run(table);
  run.Run();
  const std::string conditions = fmt::format(
      "{}, one thread, from all lines cold to all in memory; the last page was read after {:.2f} "
      "s, silence "
      "began after {:.2f} s",
      table.Conditions(), run.last_read_s(), run.silent_s());
  AddColdFigure("settle_s", run.settle_s(), "s",
                conditions + "; from the last page read to silence, 0 if that came first", report);
  AddColdFigure("settle_asked", static_cast<double>(run.asked_after()), "pages",
                fmt::format("{}; pages asked for in the {} batches after; mark: 0", conditions,
                            kAskedBatches),
                report);
}

// As much as was asked for, unless the disk has less to spare; building takes thrice as much.
uint64_t IndexBytes(const SuiteOptions& options) {
  const std::filesystem::path folder = std::filesystem::absolute(options.scratch_dir).parent_path();
  const auto free_bytes = static_cast<double>(std::filesystem::space(folder).available);
  const double gib = std::min(options.cold_gib, (free_bytes / kGib - kSparedGib) / 3);
  if (gib <= 0) FailCold(fmt::format("{} has less than {} GiB free", folder.string(), kSparedGib));
  return static_cast<uint64_t>(gib * kGib);
}

// Random bytes, as incompressible as the seeds'.
void WriteRawFile(const std::string& path, uint64_t bytes) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) FailCold("cannot create " + path);
  std::vector<uint64_t> block(1 << 17);
  uint64_t state = 0;
  for (uint64_t at = 0; at < bytes; at += block.size() * 8) {
    for (uint64_t& word : block) word = Mix(++state);
    if (std::fwrite(block.data(), 8, block.size(), file) != block.size()) {
      FailCold("cannot write " + path);
    }
  }
  // Pages that are not on the disk yet can't be dropped.
  if (std::fflush(file) != 0 || ::fdatasync(::fileno(file)) != 0 || std::fclose(file) != 0) {
    FailCold("cannot write " + path);
  }
}

void RunGrids(const SuiteOptions& options, uint64_t bytes, Report* report) {
  const std::string raw_file = options.scratch_dir + ".raw";
  WriteRawFile(raw_file, bytes);
  RunOneReadGrid(raw_file, options, report);
  RunThreadsGrid(raw_file, options, report);
  std::filesystem::remove(raw_file);
  RunValuesGrid(options.scratch_dir, bytes / 2, options, report);
}

}  // namespace

void AddColdRatio(const std::string& name, std::vector<double> ours, const std::string& peer,
                  std::vector<double> theirs, const std::string& conditions, Report* report) {
  report->AddRatio("cold", "cold/" + name, true, std::move(ours), peer, std::move(theirs),
                   conditions);
  fmt::print("    {}\n", conditions);
}

void AddColdFigure(const std::string& name, double value, const std::string& unit,
                   const std::string& conditions, Report* report) {
  Figure figure;
  figure.suite = "cold";
  figure.name = "cold/" + name;
  figure.value = value;
  figure.unit = unit;
  figure.conditions = conditions;
  report->Add(std::move(figure));
  fmt::print("    {}\n", conditions);
}

void RunColdSuite(const SuiteOptions& options, Report* report) {
  CheckMemoryGroups();
  const uint64_t bytes = IndexBytes(options);
  const std::string data_dir =
      options.cold_table.empty() ? options.scratch_dir : options.cold_table;
  if (options.cold_table.empty()) BuildColdTable(data_dir, bytes);
  uint64_t rows = 0;
  {
    const ColdTable table(data_dir);
    ReadAhead read_ahead(table.file().path());
    table.LoadIndex();
    RunAllCold(table, options, read_ahead, report);
    RunPagesTouched(table, options, report);
    RunColdMixed(table, options, report);
    RunWarmOverhead(table, report);
    RunSettle(table, report);
    RunColdTimeline(table);
    rows = table.rows();
    table.file().DropSurely(0, table.file().size_bytes());
    RunReadAhead128(data_dir, options, &read_ahead, report);
  }
  RunWarmBesideCold(data_dir, rows, options, report);
  RunColdPressure(data_dir, options, report);
  if (options.cold_table.empty()) std::filesystem::remove_all(data_dir);
  if (options.grids) RunGrids(options, bytes, report);
}

}  // namespace latchkey
