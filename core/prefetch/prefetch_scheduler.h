// Watches how much of each section is in memory and advises the kernel by it: the slow half of the
// prefetching, of which the fast half is in each thread's ProbeEngine.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/prefetch/advice_policy.h"
#include "core/prefetch/fetch_policy.h"
#include "core/prefetch/page_cache.h"
#include "core/table/snapshot.h"

namespace latchkey {

struct SectionReport {
  std::string segment;  // the file's name
  std::string_view section;
  uint64_t size_bytes = 0;
  std::optional<double> resident_share;  // as last measured
  double evicted_share = 0;              // of the section, recently evicted
  PageAdvice advice = PageAdvice::kNormal;
};

struct TableReport {
  std::string table;
  uint64_t generation = 0;
  ResidencyProbe probe = ResidencyProbe::kFaults;
  bool thrashing = false;                // much of it was evicted a moment ago
  std::vector<std::string> quarantined;  // files
  std::vector<SectionReport> sections;
};

struct PrefetchSchedulerOptions {
  // Of one round of measurements, whatever the tables' size: 1% of a core.
  std::chrono::milliseconds period{250};
  std::chrono::microseconds budget{2500};
  bool advise = true;  // false: it only measures and reports
  // Neither may call the scheduler.
  // What happens, as text for a log.
  std::function<void(const std::string&)> on_event = [](const std::string&) {};
  // What all lookups in a table cost so far: the sign where residency can't be asked.
  std::function<FetchCost(const std::string& table)> cost_of = [](const std::string&) {
    return FetchCost{};
  };
};

// Thread-safe.
class PrefetchScheduler {
 public:
  explicit PrefetchScheduler(PrefetchSchedulerOptions options);
  ~PrefetchScheduler();

  // Measures the snapshot's data and index sections at once and advises the kernel; then again and
  // again for as long as it lives. A newer snapshot of the table takes its place.
  void Watch(const std::string& table, const std::shared_ptr<const Snapshot>& snapshot);

  // Of the tables that are watched, by name.
  std::vector<TableReport> Report() const;

 private:
  struct WatchedSection {
    const Segment* segment;
    SectionKind kind;
    AdviceState advice;
    std::optional<double> resident_share;
    double evicted_share = 0;
  };
  struct WatchedTable {
    std::string name;
    std::weak_ptr<const Snapshot> snapshot;
    uint64_t generation = 0;
    ResidencyProbe probe = ResidencyProbe::kFaults;
    std::vector<WatchedSection> sections;
    std::vector<const Segment*> quarantined;
    FetchCost cost;
    bool thrashing = false;
  };

  void Run();
  void Round();
  // Requires mutex_.
  void Measure(WatchedTable& table, WatchedSection& section);
  void Judge(WatchedTable& table);

  const PrefetchSchedulerOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::vector<WatchedTable> tables_;  // by name
  size_t next_ = 0;                   // section to measure, of all tables' in a row
  uint64_t random_state_ = 0x9E3779B97F4A7C15;
  std::thread thread_;
};

}  // namespace latchkey
