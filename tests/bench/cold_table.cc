#include "tests/bench/cold_table.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "core/base/hash.h"
#include "core/lookup/probe_engine.h"

namespace latchkey {
namespace {

// Of uuid16 keys with 4-byte doc ids and a filter of 10 bits, without hash list, which no lookup of
// a table of one segment reads.
constexpr double kBytesPerKey = 26.7;

}  // namespace

ColdTable::ColdTable(const std::string& data_dir, bool advised) {
  ours_ = OpenBenchTable(data_dir, {});
  if (ours_->segments().size() != 1) FailCold(data_dir + " is not a table of one segment");
  file_ = std::make_unique<ColdFile>(ours_->segments()[0]->path());
  lines_ = ours_->segments()[0]->header().section(SectionKind::kLines);
  file_->AddMap(ours_->segments()[0]->file().data());
  if (!advised) return;
  normal_ = OpenBenchTable(data_dir, {});
  random_ = OpenBenchTable(data_dir, {});
  for (const auto& [snapshot, advice] :
       {std::pair(normal_.get(), MADV_NORMAL), std::pair(random_.get(), MADV_RANDOM)}) {
    const MappedFile& map = snapshot->segments()[0]->file();
    Advise(map.data(), map.size_bytes(), advice);
    file_->AddMap(map.data());
  }
}

uint64_t ColdTable::PageOf(std::string_view key) const {
  const Segment& segment = *ours_->segments()[0];
  const uint64_t hash = HashBytes(key.data(), key.size(), ours_->seed());
  const Partition& partition = segment.PartitionFor(hash);
  const uint8_t* const line = partition.LineAddress(hash, *partition.PilotAddress(hash));
  return static_cast<uint64_t>(line - segment.file().data()) / kFilePageBytes;
}

std::vector<uint64_t> ColdTable::RandomPages(size_t count, uint64_t* state) const {
  std::vector<uint64_t> pages(count);
  for (uint64_t& page : pages) {
    page = lines_.offset / kFilePageBytes +
           MulShift(Mix(++*state), lines_.size_bytes / kFilePageBytes, 64);
  }
  return pages;
}

void ColdTable::LoadIndex() const {
  for (const Snapshot* snapshot : {ours_.get(), normal_.get(), random_.get()}) {
    if (snapshot == nullptr) continue;
    file_->Load(0, lines_.offset, /*single_pages=*/true);
    Populate(snapshot->segments()[0]->file().data(), lines_.offset);
  }
}

void ColdTable::LoadLines(bool single_pages) const {
  file_->Load(lines_.offset, lines_.end(), single_pages);
  for (const Snapshot* snapshot : {ours_.get(), normal_.get(), random_.get()}) {
    if (snapshot == nullptr) continue;
    Populate(snapshot->segments()[0]->file().data() + lines_.offset, lines_.size_bytes);
  }
}

std::string ColdTable::Conditions() const {
  constexpr double kMib = 1 << 20;
  return fmt::format(
      "{} uuid16 keys, one segment of {:.0f} MiB, {:.0f} MiB of them lines, batches of {} present "
      "keys, index (pilots, filter) in memory",
      rows(), static_cast<double>(file_->size_bytes()) / kMib,
      static_cast<double>(lines_.size_bytes) / kMib, kColdBatchKeys);
}

void BuildColdTable(const std::string& data_dir, uint64_t index_bytes) {
  const auto rows = static_cast<uint64_t>(static_cast<double>(index_bytes) / kBytesPerKey);
  BuildBenchTable(data_dir, KeyShape::kUuid16, {rows}, {.hash_list = false});
}

void CheckAnswers(const LookupResults& results, const KeyBatchMaker& maker) {
  if (results.size() != maker.keys().size()) FailCold("an answer is missing");
  for (size_t i = 0; i < results.size(); ++i) {
    const uint64_t expected = maker.doc_ids()[i];
    const bool right = expected == UINT64_MAX ? results.outcomes[i] == Outcome::kAbsent
                                              : results.outcomes[i] == Outcome::kFound &&
                                                    results.doc_ids[i] == expected;
    if (!right) FailCold("wrong answer");
  }
}

double BatchMs(ProbeEngine* engine, const Snapshot& snapshot, const KeyBatchMaker& maker) {
  static thread_local LookupResults results;  // so that its memory is not asked for each time
  const auto begin = std::chrono::steady_clock::now();
  engine->Lookup(snapshot, maker.keys(), &results);
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  CheckAnswers(results, maker);
  return std::chrono::duration<double, std::milli>(elapsed).count();
}

double ThreadsMs(int threads, const std::function<void(int)>& part) {
  std::vector<std::thread> running;
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      ++ready;
      while (!go) std::this_thread::yield();
      part(t);
    });
  }
  while (ready < threads) std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  go = true;
  for (std::thread& thread : running) thread.join();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

MedianInterval IntervalOfMedian(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  // The k-th smallest lies above the median with the probability that fewer than k of n fair coins
  // show heads.
  double term = std::pow(0.5, static_cast<double>(n)), below = 0;
  size_t k = 0;
  while (k < n / 2 && below + term <= 0.025) {
    below += term;
    term = term * static_cast<double>(n - k) / static_cast<double>(k + 1);
    ++k;
  }
  if (k == 0) return {samples.front(), samples.back()};
  return {samples[k - 1], samples[n - k]};
}

}  // namespace latchkey
