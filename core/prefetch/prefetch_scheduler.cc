#include "core/prefetch/prefetch_scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace latchkey {
namespace {

using Clock = std::chrono::steady_clock;

// Smaller sections are measured whole, of larger ones so many windows, one by chance in each of as
// many equal parts.
constexpr uint64_t kWholeBytesMax = uint64_t{16} << 20;
constexpr uint64_t kWindows = 64;
constexpr uint64_t kWindowBytes = kWholeBytesMax / kWindows;
// Of what is measured: more that was evicted a moment ago means that memory does not suffice.
constexpr double kThrashingShare = 0.01;
// Lookups between two looks that say something about residency, where nothing else does.
constexpr uint64_t kJudgedPlaces = 1000;

uint64_t NowMs() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
          .count());
}

std::string FileName(const Segment& segment) {
  return segment.path().substr(segment.path().rfind('/') + 1);
}

}  // namespace

PrefetchScheduler::PrefetchScheduler(PrefetchSchedulerOptions options)
    : options_(std::move(options)), thread_([this] { Run(); }) {}

PrefetchScheduler::~PrefetchScheduler() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void PrefetchScheduler::Watch(const std::string& name,
                              const std::shared_ptr<const Snapshot>& snapshot) {
  WatchedTable table;
  table.name = name;
  table.snapshot = snapshot;
  table.generation = snapshot->generation();
  // What is in memory for good needs no watching.
  if (snapshot->memory_mode() == MemoryMode::kMmap && !snapshot->segments().empty()) {
    table.probe = ChooseResidencyProbe(snapshot->segments()[0]->file());
    for (const auto& segment : snapshot->segments()) {
      for (size_t i = 0; i < kSectionCount; ++i) {
        const auto kind = static_cast<SectionKind>(i);
        if (segment->header().sections[i].size_bytes == 0) continue;
        if (!IsIndexSection(kind) && !IsDataSection(kind)) continue;
        table.sections.push_back({segment.get(), kind, {}, {}});
      }
    }
    options_.on_event(fmt::format("prefetch table={} generation={} sections={} residency_probe={}",
                                  name, table.generation, table.sections.size(),
                                  ResidencyProbeName(table.probe)));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (WatchedSection& section : table.sections) Measure(table, section);
  const auto place = std::lower_bound(
      tables_.begin(), tables_.end(), name,
      [](const WatchedTable& watched, const std::string& wanted) { return watched.name < wanted; });
  if (place != tables_.end() && place->name == name) {
    *place = std::move(table);
  } else {
    tables_.insert(place, std::move(table));
  }
}

void PrefetchScheduler::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!wake_.wait_for(lock, options_.period, [this] { return stopping_; })) Round();
}

void PrefetchScheduler::Round() {
  const auto end = Clock::now() + options_.budget;
  std::erase_if(tables_, [](const WatchedTable& table) { return table.snapshot.expired(); });
  size_t sections = 0;
  for (WatchedTable& table : tables_) {
    sections += table.sections.size();
    Judge(table);
  }
  for (size_t done = 0; done < sections && Clock::now() < end; ++done) {
    size_t index = next_++ % sections;
    for (WatchedTable& table : tables_) {
      if (index < table.sections.size()) {
        const auto held = table.snapshot.lock();
        if (held != nullptr) Measure(table, table.sections[index]);
        break;
      }
      index -= table.sections.size();
    }
  }
}

void PrefetchScheduler::Measure(WatchedTable& table, WatchedSection& watched) {
  const Section& section = watched.segment->header().section(watched.kind);
  const MappedFile& file = watched.segment->file();
  if (table.probe != ResidencyProbe::kFaults) {
    Residency sum;
    const bool whole = section.size_bytes <= kWholeBytesMax;
    const uint64_t windows = whole ? 1 : kWindows;
    const uint64_t part = section.size_bytes / windows;
    for (uint64_t i = 0; i < windows; ++i) {
      random_state_ = random_state_ * 6364136223846793005 + 1442695040888963407;
      const uint64_t begin =
          whole ? 0 : i * part + (random_state_ >> 33) % (part - kWindowBytes + 1);
      const auto residency = MeasureResidency(file, table.probe, section.offset + begin,
                                              whole ? section.size_bytes : kWindowBytes);
      if (!residency) return;
      sum += *residency;
    }
    if (sum.pages == 0) return;
    watched.resident_share = static_cast<double>(sum.resident) / static_cast<double>(sum.pages);
    watched.evicted_share =
        static_cast<double>(sum.recently_evicted) / static_cast<double>(sum.pages);
  }
  if (!options_.advise) return;
  // Not known: as if cold.
  const AdviceState next = NextAdvice(watched.advice, watched.kind, section.size_bytes,
                                      watched.resident_share.value_or(0), NowMs());
  if (next.advice != watched.advice.advice || !watched.advice.given) {
    AdvisePages(file, section.offset, section.size_bytes, next.advice);
    if (watched.advice.given) {
      options_.on_event(
          fmt::format("advice table={} segment={} section={} advice={} resident={:.3f}", table.name,
                      FileName(*watched.segment), SectionName(watched.kind),
                      PageAdviceName(next.advice), watched.resident_share.value_or(0)));
    }
  }
  watched.advice = next;
}

void PrefetchScheduler::Judge(WatchedTable& table) {
  const auto snapshot = table.snapshot.lock();
  if (snapshot == nullptr) return;
  for (const auto& segment : snapshot->segments()) {
    if (!segment->quarantined()) continue;
    if (std::find(table.quarantined.begin(), table.quarantined.end(), segment.get()) !=
        table.quarantined.end()) {
      continue;
    }
    table.quarantined.push_back(segment.get());
    options_.on_event(
        fmt::format("quarantined table={} segment={}: its file is damaged, cut off, or can't be "
                    "read; keys that it "
                    "may hold are answered as damaged",
                    table.name, FileName(*segment)));
  }
  double evicted = 0, weight = 0;
  for (const WatchedSection& section : table.sections) {
    const auto bytes =
        static_cast<double>(section.segment->header().section(section.kind).size_bytes);
    evicted += section.evicted_share * bytes;
    weight += bytes;
  }
  const bool thrashing = weight > 0 && evicted / weight > kThrashingShare;
  if (thrashing != table.thrashing) {
    table.thrashing = thrashing;
    options_.on_event(fmt::format("thrashing table={} {} recently_evicted={:.3f}", table.name,
                                  thrashing ? "begins" : "ends", evicted / weight));
  }
  if (table.probe != ResidencyProbe::kFaults) return;
  const FetchCost cost = options_.cost_of(table.name);
  const FetchCost since = cost - table.cost;
  if (since.places < kJudgedPlaces) return;
  table.cost = cost;
  const double cold =
      static_cast<double>(std::max(since.read, since.faults)) / static_cast<double>(since.places);
  for (WatchedSection& section : table.sections) {
    if (IsDataSection(section.kind)) section.resident_share = std::max(0.0, 1 - cold);
  }
}

std::vector<TableReport> PrefetchScheduler::Report() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<TableReport> reports;
  for (const WatchedTable& table : tables_) {
    const auto snapshot = table.snapshot.lock();
    if (snapshot == nullptr) continue;
    TableReport report{table.name, table.generation, table.probe, table.thrashing, {}, {}};
    for (const auto& segment : snapshot->segments()) {
      if (segment->quarantined()) report.quarantined.push_back(FileName(*segment));
    }
    for (const WatchedSection& section : table.sections) {
      report.sections.push_back({FileName(*section.segment), SectionName(section.kind),
                                 section.segment->header().section(section.kind).size_bytes,
                                 section.resident_share, section.evicted_share,
                                 section.advice.advice});
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace latchkey
