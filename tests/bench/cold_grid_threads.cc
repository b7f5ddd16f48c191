// Sixteen reads of 16 KiB an operation, on several threads, as michaeljmarshall measured it for
// Lucene (apache/lucene#16145).
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "core/base/checked_math.h"
#include "core/prefetch/advice_policy.h"
#include "tests/bench/cold_hints.h"
#include "tests/bench/cold_parts.h"
#include "tests/bench/memory_group.h"

namespace latchkey {
namespace {

constexpr uint64_t kReadBytes = 16384;
constexpr int kReadsAnOp = 16;
constexpr int kWindowOps = 4;  // of ours; 320 pages
constexpr int kThreadCounts[] = {1, 4, 8, 16};
constexpr int kRoundsMax = 3;

enum class State { kHot, kPressure, kCold };
struct NamedState {
  State state;
  const char* name;
  int ops;  // of all threads together, a cell and round
};
constexpr NamedState kStates[] = {
    {State::kHot, "hot", 6400}, {State::kPressure, "pressure", 96}, {State::kCold, "cold", 96}};

struct Column {
  const char* name;
  bool random;  // MADV_RANDOM
  HintPolicy policy;
  bool reads;  // or hints only
};
constexpr Column kColumns[] = {
    {"mmap", false, HintPolicy::kNone, true},
    {"mmap_batch", false, HintPolicy::kAlways, true},
    {"random", true, HintPolicy::kNone, true},
    {"random_batch", true, HintPolicy::kAlways, true},
    {"ours", false, HintPolicy::kOurs, true},
    {"prefetch_only", false, HintPolicy::kAlways, false},
    {"prefetch_only_ours", false, HintPolicy::kOurs, false},
};
constexpr size_t kSeedColumns = 4;

// The seeds' operations a ms: main and branch, by state, column and threads; n2-custom-16-32768,
// 16 threads of the processor, two local SSDs. Their batches back off, ours always hint.
struct Seed {
  double main, branch;
};
constexpr Seed kSeeds[3][kSeedColumns][4] = {
    {{{44.7, 44.9}, {180.3, 179.0}, {327.4, 332.6}, {336.1, 346.6}},
     {{44.1, 42.5}, {177.4, 177.1}, {328.2, 329.7}, {342.6, 341.6}},
     {{44.8, 44.8}, {181.1, 178.7}, {336.6, 331.6}, {349.0, 345.6}},
     {{44.4, 44.6}, {177.8, 166.4}, {329.5, 288.8}, {341.7, 339.3}}},
    {{{0.8, 0.7}, {3.1, 3.1}, {3.8, 3.8}, {3.8, 3.8}},
     {{1.0, 4.0}, {3.3, 13.4}, {3.8, 19.5}, {3.8, 19.2}},
     {{0.4, 0.4}, {1.6, 1.6}, {2.9, 2.8}, {5.1, 5.0}},
     {{0.4, 3.8}, {1.6, 13.6}, {3.2, 18.6}, {6.3, 19.6}}},
    {{{14.8, 18.1}, {169.2, 176.6}, {311.4, 324.0}, {331.1, 339.5}},
     {{19.2, 23.7}, {170.9, 172.9}, {311.2, 319.3}, {322.1, 336.3}},
     {{0.1, 0.1}, {0.5, 0.6}, {14.4, 45.1}, {205.3, 233.7}},
     {{0.6, 24.2}, {90.9, 171.6}, {281.4, 315.9}, {307.2, 331.3}}},
};

// What the core's advice policy says of a section of which so much is in memory.
int OurAdvice(const MappedRaw& raw) {
  const double share = raw.file().ResidentShare(0, raw.size_bytes());
  const AdviceState state = NextAdvice({}, SectionKind::kLines, raw.size_bytes(), share, 0);
  return state.advice == PageAdvice::kRandom ? MADV_RANDOM : MADV_NORMAL;
}

void RunOps(const MappedRaw& raw, const Column& column, int ops, uint64_t seed,
            std::atomic<uint32_t>* shared) {
  Hinter hinter(raw, column.policy, kWindowOps, shared);
  std::vector<char> to(kReadBytes);
  uint64_t state = seed << 32;
  for (int op = 0; op < ops; ++op) {
    uint64_t offsets[kReadsAnOp];
    for (uint64_t& offset : offsets) {
      offset = MulShift(Mix(++state), (raw.size_bytes() - kReadBytes) / 8, 64) * 8;
      hinter.BeforeRead(offset, kReadBytes);
    }
    for (const uint64_t offset : offsets) {
      if (column.reads) std::memcpy(to.data(), raw.data() + offset, kReadBytes);
    }
    hinter.AfterOperation();
  }
}

// Operations a ms.
double RunCell(const MappedRaw& raw, const NamedState& state, const Column& column, int threads,
               uint64_t seed) {
  if (state.state == State::kCold) raw.file().DropSurely(0, raw.size_bytes());
  const bool ours = column.policy == HintPolicy::kOurs;
  raw.Advise(ours ? OurAdvice(raw) : column.random ? MADV_RANDOM : MADV_NORMAL);
  std::atomic<uint32_t> shared{0};
  const double ms = ThreadsMs(threads, [&](int t) {
    RunOps(raw, column, state.ops / threads, seed * 16 + static_cast<uint64_t>(t), &shared);
  });
  return state.ops / threads * threads / ms;
}

// By threads, column and round.
std::vector<double> RunState(const std::string& raw_file, const NamedState& state, int rounds) {
  const MappedRaw raw(raw_file);
  if (state.state != State::kCold) {
    // In the group it fills what memory there is.
    raw.file().Load(0, raw.size_bytes(), /*single_pages=*/state.state == State::kPressure);
  }
  if (state.state == State::kHot) Populate(raw.data(), raw.size_bytes());
  const size_t columns = std::size(kColumns);
  std::vector<double> values(std::size(kThreadCounts) * columns * static_cast<size_t>(rounds));
  for (size_t t = 0; t < std::size(kThreadCounts); ++t) {
    for (int round = 0; round < rounds; ++round) {
      for (size_t c = 0; c < columns; ++c) {
        const size_t at =
            (t * columns + c) * static_cast<size_t>(rounds) + static_cast<size_t>(round);
        values[at] = RunCell(raw, state, kColumns[c], kThreadCounts[t], at + 1);
      }
    }
  }
  raw.Advise(MADV_NORMAL);
  raw.file().Drop(0, raw.size_bytes());
  return values;
}

Figure FigureOf(size_t state, size_t column, size_t threads, const std::vector<double>& samples,
                const std::string& conditions) {
  Figure figure;
  figure.suite = "cold";
  figure.name = fmt::format("cold/grid_b/{}/t{:02}/{}", kStates[state].name, kThreadCounts[threads],
                            kColumns[column].name);
  figure.value = figure.ours = Median(samples);
  figure.unit = "ops/ms";
  figure.rounds = static_cast<int>(samples.size());
  const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
  figure.spread = (*high - *low) / figure.value;
  figure.conditions = conditions;
  if (column < kSeedColumns) {
    const Seed& seed = kSeeds[state][column][threads];
    figure.peer = fmt::format("seed, main {:.1f}, branch", seed.main);
    figure.theirs = seed.branch;
  }
  return figure;
}

std::string ReportState(size_t state, const std::vector<double>& values, int rounds,
                        const std::string& conditions, Report* report) {
  std::string table;
  auto at = values.begin();
  for (size_t t = 0; t < std::size(kThreadCounts); ++t) {
    table += fmt::format("| {} | {} |", kStates[state].name, kThreadCounts[t]);
    for (size_t c = 0; c < std::size(kColumns); ++c) {
      const std::vector<double> samples(at, at + rounds);
      at += rounds;
      const Figure figure = FigureOf(state, c, t, samples, conditions);
      report->Add(figure);
      table += fmt::format(" {:.3g}", figure.value);
      if (c < kSeedColumns) {
        table += fmt::format(" (seed {:.4g}, {:.4g})", kSeeds[state][c][t].main,
                             kSeeds[state][c][t].branch);
      }
      table += " |";
    }
    table += '\n';
  }
  return table;
}

}  // namespace

void RunThreadsGrid(const std::string& raw_file, const SuiteOptions& options, Report* report) {
  const ReadAhead read_ahead(raw_file);
  const ColdFile file(raw_file);
  const int rounds = std::min(options.rounds, kRoundsMax);
  std::string table;
  for (size_t s = 0; s < std::size(kStates); ++s) {
    const NamedState& state = kStates[s];
    std::string conditions = fmt::format(
        "{:.1f} GiB of random bytes, {} reads of {} bytes an operation, at any offset that 8 "
        "divides, {} operations a cell and round; read_ahead_kb {}",
        static_cast<double>(file.size_bytes()) / (1 << 30), kReadsAnOp, kReadBytes, state.ops,
        read_ahead.kb());
    std::vector<double> values;
    if (state.state == State::kPressure) {
      file.DropSurely(0, file.size_bytes());
      MemoryPressure pressure;
      values = RunInMemoryGroup(
          file.size_bytes() / 2, [&] { return RunState(raw_file, state, rounds); }, &pressure);
      conditions += "; " + pressure.ToString();
    } else {
      values = RunState(raw_file, state, rounds);
    }
    table += ReportState(s, values, rounds, conditions, report);
  }
  fmt::print("\nReads on threads, operations a ms; in brackets the seed's, main and branch.\n");
  fmt::print("| state | threads |");
  for (const Column& column : kColumns) fmt::print(" {} |", column.name);
  fmt::print("\n|---|---|");
  for (size_t c = 0; c < std::size(kColumns); ++c) fmt::print("---|");
  fmt::print("\n{}\n", table);
}

}  // namespace latchkey
