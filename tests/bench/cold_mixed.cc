// Batches of which a known share of the pages is cold: where back-off starves and hints without
// thought cost most.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "core/lookup/probe_engine.h"
#include "tests/bench/cold_parts.h"

namespace latchkey {
namespace {

constexpr int kSettleBatches = 6;

struct Contender {
  std::string name;
  const Snapshot* snapshot;
  ProbeEngine engine;
  std::vector<double> ms = {};
};

class MixedRun {
 public:
  explicit MixedRun(const ColdTable& table)
      : table_(table),
        maker_(KeyShape::kUuid16, table.rows(), 100, kColdBatchKeys, uint64_t{600} << 32) {}

  // Makes another batch, and `percent` of its pages cold.
  void NextBatch(int percent) {
    maker_.Next();
    pages_.clear();
    for (const std::string_view key : maker_.keys()) pages_.push_back(table_.PageOf(key));
    std::sort(pages_.begin(), pages_.end());
    pages_.erase(std::unique(pages_.begin(), pages_.end()), pages_.end());
    const size_t cold = pages_.size() * static_cast<size_t>(percent) / 100;
    // Any of them, but those that come first after a shuffle of a fixed seed.
    for (size_t i = 0; i < cold; ++i) {
      std::swap(pages_[i], pages_[i + MulShift(Mix(++state_), pages_.size() - i, 64)]);
      table_.file().Drop(pages_[i] * kFilePageBytes, (pages_[i] + 1) * kFilePageBytes);
    }
    CheckShare(percent);
  }

  // So that nobody comes after the same one each time.
  void Shuffle(std::span<Contender*> order) {
    for (size_t i = 0; i + 1 < order.size(); ++i) {
      std::swap(order[i], order[i + MulShift(Mix(++state_), order.size() - i, 64)]);
    }
  }

  double BatchOf(Contender* contender) {
    return BatchMs(&contender->engine, *contender->snapshot, maker_);
  }
  // Of the batches' pages since it was last asked, the share that was cold.
  double TakeColdShare() {
    const double share = static_cast<double>(cold_pages_) / static_cast<double>(all_pages_);
    cold_pages_ = all_pages_ = 0;
    return share;
  }

 private:
  void CheckShare(int percent) {
    uint64_t cold = 0;
    for (const uint64_t page : pages_) {
      cold += 1 - table_.file().ResidentPages(page * kFilePageBytes, (page + 1) * kFilePageBytes);
    }
    cold_pages_ += cold;
    all_pages_ += pages_.size();
    const double share = 100.0 * static_cast<double>(cold) / static_cast<double>(pages_.size());
    if (std::abs(share - percent) > 0.05 * percent + 0.1) {
      FailCold(fmt::format("{:.2f}% of a batch's pages are cold, not {}%", share, percent));
    }
  }

  const ColdTable& table_;
  KeyBatchMaker maker_;
  uint64_t state_ = 77;
  std::vector<uint64_t> pages_;
  uint64_t cold_pages_ = 0, all_pages_ = 0;
};

void RunShare(int percent, const ColdTable& table, MixedRun* run, int rounds, Report* report) {
  Contender ours{"as measured", &table.ours(), ProbeEngine()};
  Contender others[] = {
      {"hints always", &table.ours(), ProbeEngine({.prefetch = PrefetchChoice::kAlways})},
      {"no hints, MADV_NORMAL", &table.normal(), ProbeEngine({.prefetch = PrefetchChoice::kNever})},
      {"no hints, MADV_RANDOM", &table.random(),
       ProbeEngine({.prefetch = PrefetchChoice::kNever})}};
  for (int b = 0; b < kSettleBatches; ++b) {
    run->NextBatch(percent);
    run->BatchOf(&ours);
  }
  run->TakeColdShare();
  for (int round = 0; round < rounds; ++round) {
    Contender* order[] = {&ours, &others[0], &others[1], &others[2]};
    run->Shuffle(order);
    for (Contender* contender : order) {
      run->NextBatch(percent);
      contender->ms.push_back(run->BatchOf(contender));
    }
  }
  const Contender* best = &others[0];
  std::string all;
  for (const Contender& other : others) {
    if (Median(other.ms) < Median(best->ms)) best = &other;
    all += fmt::format("; {} {:.2f} ms", other.name, Median(other.ms));
  }
  AddColdRatio(
      fmt::format("mixed_{:02}", percent), ours.ms, best->name, best->ms,
      fmt::format("{}, one thread, {:.2f}% of each batch's pages cold (cachestat of each), the "
                  "other lines in "
                  "memory and mapped, after {} batches at that share, then {}; against the best of "
                  "always and never{}; mark: at least 0.9",
                  table.Conditions(), 100 * run->TakeColdShare(), kSettleBatches,
                  ours.engine.mode(table.ours()) == FetchMode::kAsking ? "asking" : "silent", all),
      report);
}

}  // namespace

void RunColdMixed(const ColdTable& table, const SuiteOptions& options, Report* report) {
  table.DropLines();
  table.LoadLines(/*single_pages=*/true);
  MixedRun run(table);
  for (const int percent : {1, 3, 10, 30, 50, 90}) {
    RunShare(percent, table, &run, std::max(options.rounds, percent <= 10 ? 61 : 21), report);
  }
}

}  // namespace latchkey
