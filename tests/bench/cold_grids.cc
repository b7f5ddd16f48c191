// One read after its own hint, as neoremind measured it for Lucene (apache/lucene#16145).
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/base/checked_math.h"
#include "tests/bench/cold_hints.h"
#include "tests/bench/cold_parts.h"

namespace latchkey {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kHotBytes = uint64_t{16} << 20;
constexpr int kColdOps = 600, kWarmOps = 20'000;  // a cell and round
constexpr int kRoundsMax = 3;
constexpr int kWindowOps = 64;  // of ours
constexpr int kSizes[] = {4096, 8192, 16384};
constexpr int kPercents[] = {10, 50, 90};
constexpr HintPolicy kPolicies[] = {HintPolicy::kNone, HintPolicy::kBackOffShared,
                                    HintPolicy::kBackOffOwn, HintPolicy::kAlways,
                                    HintPolicy::kOurs};
struct NamedAdvice {
  const char* name;
  int advice;
};
constexpr NamedAdvice kAdvices[] = {
    {"normal", MADV_NORMAL}, {"sequential", MADV_SEQUENTIAL}, {"random", MADV_RANDOM}};

// The seeds' us a read, by percent cold and by size; m5.2xlarge, 8 GiB of file, 16 GiB of memory.
struct SeedColumn {
  const char* advice;
  HintPolicy policy;
  const char* name;
  double cold[3][3];
  double warm[3][3];
};
constexpr SeedColumn kSeeds[] = {
    {"normal",
     HintPolicy::kNone,
     "seed noPrefetch",
     {{80.8, 80.7, 82.3}, {399.6, 408.6, 405.3}, {734.4, 734.2, 739.2}},
     {{0.286, 0.463, 0.832}, {0.472, 0.733, 1.286}, {0.600, 0.948, 1.654}}},
    {"normal",
     HintPolicy::kBackOffShared,
     "seed Normal",
     {{82.1, 85.9, 85.5}, {334.3, 347.2, 373.2}, {348.7, 382.6, 423.5}},
     {{0.296, 0.468, 0.851}, {0.471, 0.758, 1.325}, {0.612, 0.951, 1.643}}},
    {"sequential",
     HintPolicy::kBackOffShared,
     "seed Sequential",
     {{86.2, 84.7, 84.9}, {327.9, 338.8, 354.6}, {345.3, 370.6, 429.4}},
     {{0.295, 0.490, 0.839}, {0.484, 0.746, 1.286}, {0.608, 0.945, 1.654}}},
    {"random",
     HintPolicy::kBackOffShared,
     "seed Random, without PR",
     {{66.2, 98.3, 164.2}, {270.4, 368.7, 643.2}, {360.7, 394.2, 446.5}},
     {}},
    {"random",
     HintPolicy::kAlways,
     "seed Random, with PR",
     {{39.9, 43.7, 50.7}, {188.2, 207.5, 236.6}, {348.3, 368.1, 431.1}},
     {{1.366, 1.560, 1.967}, {1.541, 1.815, 2.424}, {1.641, 1.986, 2.699}}},
};

struct Cell {
  bool warm;
  size_t percent, size;  // indices
  NamedAdvice advice;
  HintPolicy policy;
};

// us a read.
double RunCell(const MappedRaw& raw, const Cell& cell, uint64_t seed) {
  if (!cell.warm) {
    raw.file().DropSurely(0, raw.size_bytes());
    raw.file().Load(0, kHotBytes, /*single_pages=*/true);
  }
  raw.Advise(cell.advice.advice);
  Populate(raw.data(), kHotBytes);
  const auto bytes = static_cast<uint64_t>(kSizes[cell.size]);
  std::vector<char> to(bytes);
  std::atomic<uint32_t> shared{0};
  Hinter hinter(raw, cell.policy, kWindowOps, &shared);
  uint64_t state = seed << 32;
  const int ops = cell.warm ? kWarmOps : kColdOps;
  const auto begin = Clock::now();
  for (int op = 0; op < ops; ++op) {
    const bool cold = Mix(++state) % 100 < static_cast<uint64_t>(kPercents[cell.percent]);
    // Any offset that eight divides, so that reads lie across pages as the seeds' do.
    const uint64_t from = cold ? kHotBytes : 0;
    const uint64_t span = (cold ? raw.size_bytes() - kHotBytes : kHotBytes) - bytes;
    const uint64_t offset = from + MulShift(Mix(++state), span / 8, 64) * 8;
    hinter.BeforeRead(offset, bytes);
    std::memcpy(to.data(), raw.data() + offset, bytes);
    hinter.AfterOperation();
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / ops;
}

const SeedColumn* SeedOf(const Cell& cell) {
  for (const SeedColumn& seed : kSeeds) {
    if (seed.policy == cell.policy && std::string_view(seed.advice) == cell.advice.name) {
      return &seed;
    }
  }
  return nullptr;
}

double SeedValue(const Cell& cell) {
  const SeedColumn* const seed = SeedOf(cell);
  if (seed == nullptr) return 0;
  return (cell.warm ? seed->warm : seed->cold)[cell.percent][cell.size];
}

Figure FigureOf(const Cell& cell, const std::vector<double>& samples,
                const std::string& conditions) {
  Figure figure;
  figure.suite = "cold";
  figure.name = fmt::format("cold/grid_a/{}/{}pct/{}k/{}/{}", cell.warm ? "warm" : "cold",
                            kPercents[cell.percent], kSizes[cell.size] / 1024, cell.advice.name,
                            HintPolicyName(cell.policy));
  figure.value = figure.ours = Median(samples);
  figure.unit = "us/read";
  figure.rounds = static_cast<int>(samples.size());
  const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
  figure.spread = (*high - *low) / figure.value;
  figure.conditions = conditions;
  if (SeedValue(cell) > 0) {
    figure.peer = SeedOf(cell)->name;
    figure.theirs = SeedValue(cell);
  }
  return figure;
}

std::string Row(const Cell& first, const std::vector<Figure>& figures) {
  std::string row =
      fmt::format("| {}{}% | {} KiB | {} |", first.warm ? "warm, " : "", kPercents[first.percent],
                  kSizes[first.size] / 1024, first.advice.name);
  for (const Figure& figure : figures) {
    row += figure.value < 10 ? fmt::format(" {:.2f}", figure.value)
                             : fmt::format(" {:.0f}", figure.value);
    if (figure.theirs > 0) row += fmt::format(" (seed {:.4g})", figure.theirs);
    row += " |";
  }
  return row;
}

// All policies of one point, in turn, round by round.
std::string RunPoint(const MappedRaw& raw, Cell cell, int rounds, const std::string& conditions,
                     Report* report) {
  std::vector<std::vector<double>> samples(std::size(kPolicies));
  for (int round = 0; round < rounds; ++round) {
    for (size_t p = 0; p < std::size(kPolicies); ++p) {
      cell.policy = kPolicies[p];
      samples[p].push_back(RunCell(raw, cell, static_cast<uint64_t>(round) * 16 + p));
    }
  }
  std::vector<Figure> figures;
  for (size_t p = 0; p < std::size(kPolicies); ++p) {
    cell.policy = kPolicies[p];
    figures.push_back(FigureOf(cell, samples[p], conditions));
    report->Add(figures.back());
  }
  return Row(cell, figures);
}

}  // namespace

void RunOneReadGrid(const std::string& raw_file, const SuiteOptions& options, Report* report) {
  const MappedRaw raw(raw_file);
  const ReadAhead read_ahead(raw_file);
  const std::string conditions = fmt::format(
      "{:.1f} GiB of random bytes, 16 MiB of them hot, one thread; each read right after its own "
      "hint, at any offset that 8 divides; {} reads a cold cell, {} a warm one; read_ahead_kb {}",
      static_cast<double>(raw.size_bytes()) / (1 << 30), kColdOps, kWarmOps, read_ahead.kb());
  const int rounds = std::min(options.rounds, kRoundsMax);
  std::vector<std::string> rows;
  for (const bool warm : {false, true}) {
    if (warm) {
      raw.Advise(MADV_NORMAL);
      raw.file().Load(0, raw.size_bytes(), /*single_pages=*/false);
      Populate(raw.data(), raw.size_bytes());
    }
    for (size_t percent = 0; percent < std::size(kPercents); ++percent) {
      for (size_t size = 0; size < std::size(kSizes); ++size) {
        for (const NamedAdvice& advice : kAdvices) {
          rows.push_back(RunPoint(raw, {warm, percent, size, advice, HintPolicy::kNone}, rounds,
                                  conditions, report));
        }
      }
    }
  }
  raw.Advise(MADV_NORMAL);
  raw.file().Drop(0, raw.size_bytes());
  fmt::print("\nOne read after its hint, us a read; {}.\n", conditions);
  fmt::print(
      "| cold | size | advice | none | back-off, shared | back-off, own | always | ours |\n");
  fmt::print("|---|---|---|---|---|---|---|---|\n");
  for (const std::string& row : rows) fmt::print("{}\n", row);
  fmt::print("\n");
}

}  // namespace latchkey
