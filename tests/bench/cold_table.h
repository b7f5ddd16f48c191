// The table of the cold-page suite, in files whose pages it has in hand, and its batches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/lookup/lookup_results.h"
#include "core/table/snapshot.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/cold_pages.h"

namespace latchkey {

class ProbeEngine;

inline constexpr size_t kColdBatchKeys = 4096;

// One segment of uuid16 keys. It is mapped thrice, since advice is a map's: once as the core has
// it, and once each as somebody has it who does without hints.
class ColdTable {
 public:
  // Opens what lies in `data_dir`; with `advised` false only as the core has it.
  explicit ColdTable(const std::string& data_dir, bool advised = true);

  uint64_t rows() const { return ours_->row_count(); }
  const Snapshot& ours() const { return *ours_; }
  const std::shared_ptr<const Snapshot>& ours_ptr() const { return ours_; }
  const Snapshot& normal() const { return *normal_; }  // MADV_NORMAL
  const Snapshot& random() const { return *random_; }  // MADV_RANDOM
  const ColdFile& file() const { return *file_; }
  // Where the lines lie in the file; what is before them is the index.
  const Section& lines() const { return lines_; }
  // The page of the file that a present key's lookup comes to.
  uint64_t PageOf(std::string_view key) const;
  // Another `count` random pages of the lines.
  std::vector<uint64_t> RandomPages(size_t count, uint64_t* state) const;

  // Everything before the lines: in memory and mapped.
  void LoadIndex() const;
  // All lines out of memory, for sure; the index stays.
  void DropLines() const { file_->DropSurely(lines_.offset, lines_.end()); }
  // All lines in memory and mapped.
  void LoadLines(bool single_pages) const;
  double LinesResident() const { return file_->ResidentShare(lines_.offset, lines_.end()); }
  std::string Conditions() const;

 private:
  std::shared_ptr<const Snapshot> ours_, normal_, random_;
  std::unique_ptr<ColdFile> file_;
  Section lines_;
};

// Builds about `index_bytes` of table in `data_dir`.
void BuildColdTable(const std::string& data_dir, uint64_t index_bytes);

// Fails unless every answer is right.
void CheckAnswers(const LookupResults& results, const KeyBatchMaker& maker);

// ms of the batch that `maker` holds; its answers are checked outside the time.
double BatchMs(ProbeEngine* engine, const Snapshot& snapshot, const KeyBatchMaker& maker);

// ms from when `threads` threads are there until each of them has done `part(number)`.
double ThreadsMs(int threads, const std::function<void(int)>& part);

// The median's 95% interval by order statistics: no assumption but that the samples are
// independent.
struct MedianInterval {
  double low = 0, high = 0;
};
MedianInterval IntervalOfMedian(std::vector<double> samples);

}  // namespace latchkey
