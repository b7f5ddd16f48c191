// Stored values of up to 16 KiB, read by their keys, the few best of a query at a time: the seeds'
// stored fields.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/build/table_builder.h"
#include "core/lookup/probe_engine.h"
#include "core/prefetch/prefetch_scheduler.h"
#include "tests/bench/cold_parts.h"
#include "tests/bench/memory_group.h"

namespace latchkey {
namespace {

constexpr uint64_t kShortestValue = 512, kLongestValue = 16384;
constexpr int kThreadCounts[] = {1, 8};
constexpr int kTops[] = {10, 100};
constexpr int kRoundsMax = 3;

struct NamedState {
  const char* name;
  int lookups;  // of all threads together, a cell and round; a multiple of 800
};
constexpr NamedState kStates[] = {{"hot", 80'000}, {"pressure", 800}, {"cold", 1600}};
constexpr size_t kHot = 0, kPressure = 1, kCold = 2;

struct Column {
  const char* name;
  bool random;  // on a map with MADV_RANDOM
  PrefetchChoice prefetch;
};
constexpr Column kColumns[] = {{"retrieve_no_prefetch", false, PrefetchChoice::kNever},
                               {"retrieve_no_prefetch_random", true, PrefetchChoice::kNever},
                               {"retrieve_ours", false, PrefetchChoice::kAuto}};
// Operations a ms, main and branch, by state, threads and top: first what is beside our column
// without hints, then beside ours.
struct Seed {
  double main, branch;
};
constexpr Seed kNoPrefetchSeeds[3][2][2] = {
    {{{28.0, 28.1}, {2.8, 2.8}}, {{173.7, 174.7}, {17.4, 17.6}}},
    {{{0.5, 0.6}, {0.1, 0.1}}, {{4.0, 4.3}, {0.4, 0.4}}},
    {{{0.2, 0.2}, {0.0, 0.0}}, {{2.9, 2.9}, {0.3, 0.3}}}};
constexpr Seed kPrefetchSeeds[3][2][2] = {
    {{{26.2, 26.0}, {2.6, 2.6}}, {{164.2, 166.5}, {16.6, 16.8}}},
    {{{1.0, 3.0}, {0.1, 0.4}}, {{5.1, 6.1}, {0.6, 0.6}}},
    {{{0.9, 20.3}, {0.1, 2.2}}, {{98.0, 164.2}, {10.2, 16.5}}}};

uint64_t ValueBytes(uint64_t row) {
  return kShortestValue + MulShift(Mix(row + 1), kLongestValue - kShortestValue, 64);
}

// Rows of uuid16 keys and values of random bytes; row i begins with its own number.
class ValueSource final : public RecordSource {
 public:
  explicit ValueSource(uint64_t rows) : rows_(rows), value_(kLongestValue / 8 + 1) {
    for (size_t i = 0; i < value_.size(); ++i) value_[i] = Mix(i + 1);
  }
  absl::StatusOr<bool> Next(InputRow* row) override {
    if (next_ == rows_) return false;
    MakeKey(KeyShape::kUuid16, next_, 0, key_);
    value_[0] = next_;
    row->key = {key_, KeyShapeBytes(KeyShape::kUuid16)};
    row->value = {reinterpret_cast<const char*>(value_.data()), ValueBytes(next_)};
    row->doc_id = next_++;
    return true;
  }
  std::string Position() const override { return "generated"; }
  uint64_t bytes_read() const override { return 0; }
  uint64_t total_bytes() const override { return 0; }

 private:
  const uint64_t rows_;
  uint64_t next_ = 0;
  std::vector<uint64_t> value_;
  char key_[64];
};

void BuildValues(const std::string& data_dir, uint64_t bytes) {
  BuildOptions options;
  options.data_dir = data_dir;
  options.table = "bench";
  options.hash_list = false;
  options.schema.value_kind = ValueKind::kBytes;
  ValueSource source(bytes / ((kShortestValue + kLongestValue) / 2));
  OrDie(BuildTable(PosixFileSystem(), options, source, nullptr));
}

void CheckValues(const LookupResults& results, const KeyBatchMaker& maker) {
  CheckAnswers(results, maker);
  for (size_t i = 0; i < results.size(); ++i) {
    uint64_t row = 0;
    const std::string_view value = results.values[i];
    if (value.size() >= sizeof(row))
      std::copy_n(value.data(), sizeof(row), reinterpret_cast<char*>(&row));
    if (value.size() != ValueBytes(maker.doc_ids()[i]) || row != maker.doc_ids()[i]) {
      FailCold("wrong value");
    }
  }
}

// Operations a ms. The engine reads every value through, to check that it is the key's.
double RunCell(const ColdTable& table, size_t state, const Column& column, int threads, int top,
               uint64_t seed) {
  const ColdFile& file = table.file();
  if (state == kCold) file.DropSurely(table.lines().offset, file.size_bytes());
  PrefetchScheduler scheduler({});  // as a server has it: it advises the kernel on our map
  const bool ours = column.prefetch == PrefetchChoice::kAuto;
  if (ours) scheduler.Watch("bench", table.ours_ptr());
  const Snapshot& snapshot = ours ? table.ours() : column.random ? table.random() : table.normal();
  const int ops = kStates[state].lookups / top / threads;
  const double ms = ThreadsMs(threads, [&](int t) {
    ProbeEngine engine({.prefetch = column.prefetch});
    LookupResults results;
    KeyBatchMaker maker(KeyShape::kUuid16, table.rows(), 100, static_cast<size_t>(top),
                        (seed * 8 + static_cast<uint64_t>(t)) << 32);
    for (int op = 0; op < ops; ++op) {
      maker.Next();
      engine.Lookup(snapshot, maker.keys(), &results);
      CheckValues(results, maker);
    }
  });
  return ops * threads / ms;
}

// By threads, top, column and round.
std::vector<double> RunState(const std::string& data_dir, size_t state, int rounds) {
  const ColdTable table(data_dir);
  const ColdFile& file = table.file();
  table.LoadIndex();
  if (state != kCold) {
    file.Load(table.lines().offset, file.size_bytes(), /*single_pages=*/state == kPressure);
  }
  std::vector<double> values;
  uint64_t seed = 1 + state * 1000;
  for (const int threads : kThreadCounts) {
    for (const int top : kTops) {
      std::vector<std::vector<double>> samples(std::size(kColumns));
      // Before the first round of the hot state, all that it will touch is touched.
      for (int round = state == kHot ? -1 : 0; round < rounds; ++round) {
        for (size_t c = 0; c < std::size(kColumns); ++c) {
          const double ops = RunCell(table, state, kColumns[c], threads, top, seed++);
          if (round >= 0) samples[c].push_back(ops);
        }
      }
      for (const auto& column : samples) values.insert(values.end(), column.begin(), column.end());
    }
  }
  file.Drop(0, file.size_bytes());
  return values;
}

std::string ReportState(size_t state, const std::vector<double>& values, int rounds,
                        const std::string& conditions, Report* report) {
  std::string rows;
  auto at = values.begin();
  for (size_t t = 0; t < std::size(kThreadCounts); ++t) {
    for (size_t k = 0; k < std::size(kTops); ++k) {
      rows += fmt::format("| {} | {} | {} |", kStates[state].name, kThreadCounts[t], kTops[k]);
      for (const Column& column : kColumns) {
        const std::vector<double> samples(at, at + rounds);
        at += rounds;
        const bool ours = column.prefetch == PrefetchChoice::kAuto;
        const Seed& seed = (ours ? kPrefetchSeeds : kNoPrefetchSeeds)[state][t][k];
        Figure figure;
        figure.suite = "cold";
        figure.name = fmt::format("cold/grid_b/{}/t{:02}/top{}/{}", kStates[state].name,
                                  kThreadCounts[t], kTops[k], column.name);
        figure.value = figure.ours = Median(samples);
        figure.unit = "ops/ms";
        figure.rounds = rounds;
        const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
        figure.spread = (*high - *low) / figure.value;
        figure.conditions = conditions;
        rows += fmt::format(" {:.3g}", figure.value);
        if (!column.random) {
          figure.peer = fmt::format("seed, main {:.1f}, branch", seed.main);
          figure.theirs = seed.branch;
          rows += fmt::format(" (seed {:.4g}, {:.4g})", seed.main, seed.branch);
        }
        rows += " |";
        report->Add(std::move(figure));
      }
      rows += '\n';
    }
  }
  return rows;
}

}  // namespace

void RunValuesGrid(const std::string& data_dir, uint64_t bytes, const SuiteOptions& options,
                   Report* report) {
  BuildValues(data_dir, bytes);
  const int rounds = std::min(options.rounds, kRoundsMax);
  std::string rows;
  for (size_t state = 0; state < std::size(kStates); ++state) {
    std::string conditions = fmt::format(
        "{:.2f} GiB of values of {} to {} bytes, found by uuid16 keys and read through; {} lookups "
        "a cell and round; prefetch-only has no meaning here and is left out",
        static_cast<double>(bytes) / (1 << 30), kShortestValue, kLongestValue,
        kStates[state].lookups);
    std::vector<double> values;
    if (state == kPressure) {
      MemoryPressure pressure;
      values = RunInMemoryGroup(
          bytes / 2, [&] { return RunState(data_dir, state, rounds); }, &pressure);
      conditions += "; " + pressure.ToString();
    } else {
      values = RunState(data_dir, state, rounds);
    }
    rows += ReportState(state, values, rounds, conditions, report);
  }
  std::filesystem::remove_all(data_dir);
  fmt::print("\nStored values, operations a ms; in brackets the seed's, main and branch.\n");
  fmt::print("| state | threads | top |");
  for (const Column& column : kColumns) fmt::print(" {} |", column.name);
  fmt::print("\n|---|---|---|---|---|---|\n{}\n", rows);
}

}  // namespace latchkey
