// What a new generation costs those who look keys up meanwhile: a server of its own process, to
// which requests come at a fixed rate, whether it keeps up or not. And what opening one costs that
// shares most segments with the one before.
#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "client/admin_client.h"
#include "client/lookup_client.h"
#include "core/base/error.h"
#include "core/lookup/probe_engine.h"
#include "core/prefetch/warm_up.h"
#include "core/table/catalog.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/change_parts.h"
#include "tests/bench/in_child.h"
#include "tests/bench/server_process.h"

namespace latchkey {
namespace {

using Clock = std::chrono::steady_clock;

constexpr KeyShape kShape = KeyShape::kUuid16;
constexpr int kSegments = 15;
constexpr size_t kBatchKeys = 1000;
constexpr int kClients = 8;  // requests in flight at most; more wait, and their time runs
constexpr double kLoadShare = 0.3;
constexpr double kTimeoutS = 60;
// The first takes the table to 16 segments, for which its segment map is made anew; the others,
// which are measured, extend that.
constexpr uint64_t kDeltas = 13;
constexpr std::chrono::milliseconds kDeltaPause(250);
constexpr std::chrono::milliseconds kReloadPause(1000);

// What a generation holds: all keys, with doc ids that tell from which of the two tables they are,
// and the deltas on top, of which each has other doc ids for some keys.
struct Content {
  uint64_t doc_id_shift = 0;
  uint64_t deltas = 0;
};

// How a table of so many rows and its deltas look.
struct Shape {
  explicit Shape(uint64_t rows_count)
      : rows(rows_count),
        delta_keys(std::min<uint64_t>(10'000, rows / 20)),
        step(rows / delta_keys) {}
  KeyRange Delta(uint64_t delta) const { return {delta, step, delta_keys, (2 + delta) * rows}; }
  uint64_t DocIdOf(uint64_t number, const Content& content) const {
    const uint64_t delta = number % step;
    const bool changed = delta < content.deltas && number / step < delta_keys;
    return number + (changed ? Delta(delta).doc_id_shift : content.doc_id_shift);
  }

  const uint64_t rows;
  const uint64_t delta_keys;
  const uint64_t step;
};

void BuildSegments(const std::string& data_dir, uint64_t rows, int segments,
                   uint64_t doc_id_shift) {
  const std::vector<uint64_t> sizes = SegmentSizes(rows, kSegments);
  uint64_t first = 0;
  for (int i = 0; i < segments; ++i) {
    const uint64_t count = sizes[static_cast<size_t>(i)];
    BuildKeys(data_dir, {first, 1, count, doc_id_shift}, /*append=*/i > 0);
    first += count;
  }
}

// Has the server take one generation after the other, whose content was built before. Knows what
// any of them holds. Thread-safe but for Publish.
class Publisher {
 public:
  Publisher(const std::string& table_dir, const std::string& address, Content newest)
      : table_dir_(table_dir),
        address_(address),
        newest_(OrDie(ListGenerations(PosixFileSystem(), table_dir)).back()) {
    contents_.resize(newest_);
    contents_.push_back(newest);
  }

  // Returns the milliseconds until it serves.
  double Publish(Manifest manifest, Content content) {
    manifest.generation = ++newest_;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      contents_.push_back(content);
    }
    const auto begin = Clock::now();
    const absl::Status status = PublishManifest(PosixFileSystem(), table_dir_, manifest);
    if (!status.ok()) FailChange(Message(status));
    const uint64_t serves = OrDie(Reload(address_, "bench", kTimeoutS));
    const double ms = SecondsSince(begin) * 1e3;
    if (serves != newest_) FailChange("another generation serves than the one that was published");
    serves_ = serves;
    return ms;
  }

  // Which every call gets at least that begins now.
  uint64_t serves() const { return serves_; }
  // Nothing for a generation that there is not.
  std::optional<Content> ContentOf(uint64_t generation) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (generation >= contents_.size()) return {};
    return contents_[generation];
  }

 private:
  const std::string table_dir_, address_;
  uint64_t newest_;
  std::atomic<uint64_t> serves_{0};
  mutable std::mutex mutex_;
  std::vector<Content> contents_;  // by generation; guarded by mutex_
};

// Requests of random keys of the table. Every reply is checked.
class Requests {
 public:
  Requests(const std::string& address, const Shape& shape, const Publisher& publisher)
      : client_(address, kTimeoutS), shape_(shape), publisher_(publisher) {}

  // Requests a second that are answered when every client asks without pause.
  double Capacity(double seconds) {
    std::atomic<uint64_t> replies{0};
    const auto begin = Clock::now();
    OnClients([&](KeyBatchMaker& keys, uint64_t& generation) {
      while (SecondsSince(begin) < seconds && !failed_) {
        keys.Next();
        Check(client_.BatchGet("bench", keys.keys()), keys, publisher_.serves(), &generation);
        ++replies;
      }
    });
    return static_cast<double>(replies) / SecondsSince(begin);
  }

  // The 99th percentile, in us, of the times from when a request was to be sent to its reply, also
  // when all clients were late.
  double P99(double requests_per_s, double seconds) {
    const auto count = std::max<uint64_t>(1, static_cast<uint64_t>(requests_per_s * seconds));
    std::vector<double> times(count);
    std::atomic<uint64_t> next{0};
    const auto begin = Clock::now();
    OnClients([&](KeyBatchMaker& keys, uint64_t& generation) {
      for (uint64_t i = next++; i < count && !failed_; i = next++) {
        const std::chrono::duration<double> at(static_cast<double>(i) / requests_per_s);
        const auto due = begin + std::chrono::duration_cast<Clock::duration>(at);
        keys.Next();
        std::this_thread::sleep_until(due);
        const uint64_t least = publisher_.serves();
        const auto reply = client_.BatchGet("bench", keys.keys());
        times[i] = SecondsSince(due) * 1e6;
        Check(reply, keys, least, &generation);
      }
    });
    const auto p99 = times.begin() + static_cast<ptrdiff_t>(count * 99 / 100);
    std::nth_element(times.begin(), p99, times.end());
    return *p99;
  }

 private:
  // Calls `ask` on a thread for each client: with its keys, and the generation that it saw last.
  void OnClients(const std::function<void(KeyBatchMaker&, uint64_t&)>& ask) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kClients; ++i) {
      threads.emplace_back([&, seed = ++seed_ << 40] {
        ::prctl(PR_SET_TIMERSLACK, 1);
        KeyBatchMaker keys(kShape, shape_.rows, 100, kBatchKeys, seed);
        uint64_t generation = 0;
        ask(keys, generation);
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (failed_) FailChange(why_);
  }

  void Check(const absl::StatusOr<ClientRows>& reply, const KeyBatchMaker& keys, uint64_t least,
             uint64_t* generation) {
    if (!reply.ok()) return Fail(fmt::format("a call failed: {}", Message(reply.status())));
    least = std::max(least, *generation);
    if (reply->generation < least) {
      return Fail(fmt::format("generation {} after {}", reply->generation, least));
    }
    *generation = reply->generation;
    const auto content = publisher_.ContentOf(reply->generation);
    if (!content) return Fail(fmt::format("there is no generation {}", reply->generation));
    if (reply->rows.size() != keys.keys().size()) return Fail("a reply is not complete");
    for (size_t i = 0; i < reply->rows.size(); ++i) {
      const ClientRow& row = reply->rows[i];
      if (row.outcome != v1::FOUND || row.doc_id != shape_.DocIdOf(keys.doc_ids()[i], *content)) {
        return Fail(fmt::format("a wrong answer for key {} of generation {}", keys.doc_ids()[i],
                                reply->generation));
      }
    }
  }

  void Fail(const std::string& why) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failed_) why_ = why;
    failed_ = true;
  }

  const LookupClient client_;
  const Shape shape_;
  const Publisher& publisher_;
  uint64_t seed_ = 0;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::string why_;  // guarded by mutex_
};

// The 99th percentile at the rate, while `change` is called again and again on another thread.
double P99Beside(Requests& requests, double requests_per_s, double seconds,
                 const std::function<void()>& change) {
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    while (!stop) change();
  });
  const double p99 = requests.P99(requests_per_s, seconds);
  stop = true;
  changer.join();
  return p99;
}

struct Prepared {
  Manifest manifest;
  Content content;
};

// The table twice, of which no segment is the same, and on the second so many deltas.
std::vector<Prepared> Prepare(const std::string& data_dir, const Shape& shape) {
  InChild([&] {
    BuildSegments(data_dir, shape.rows, kSegments, 0);
    BuildSegments(data_dir, shape.rows, kSegments, shape.rows);
    for (uint64_t i = 0; i < kDeltas; ++i) BuildKeys(data_dir, shape.Delta(i), /*append=*/true);
  });
  std::vector<Prepared> prepared;
  const auto add = [&](uint64_t generation, Content content) {
    const std::string table_dir = JoinPath(data_dir, "bench");
    prepared.push_back({OrDie(ReadManifest(PosixFileSystem(), table_dir, generation)), content});
  };
  add(kSegments, {0, 0});
  for (uint64_t i = 0; i <= kDeltas; ++i) add(2 * kSegments + i, {shape.rows, i});
  return prepared;
}

// --- opening what shares segments ----------------------------------------------------------------

struct OpenTimes {
  std::vector<double> ms, warm_up_ms, release_ms;
};

// Opens and publishes as a server does that serves `before`. Warming up and letting go of `before`
// are counted for themselves.
void TimeOpen(const std::string& table_dir, const Manifest& before, const Manifest& manifest,
              bool share, const std::function<void(const Snapshot&)>& check, OpenTimes* times) {
  Catalog catalog;
  catalog.Publish("bench", OrDie(Snapshot::Open(PosixFileSystem(), table_dir, before)));
  auto current = catalog.Acquire("bench");
  WarmUpOptions warm_up;
  if (!WarmUpSnapshot(*current, warm_up).ok()) FailChange("the warm-up failed");
  warm_up.previous = share ? current.get() : nullptr;
  auto begin = Clock::now();
  const auto snapshot =
      OrDie(Snapshot::Open(PosixFileSystem(), table_dir, manifest, {}, warm_up.previous));
  double seconds = SecondsSince(begin);
  begin = Clock::now();
  if (!WarmUpSnapshot(*snapshot, warm_up).ok()) FailChange("the warm-up failed");
  times->warm_up_ms.push_back(SecondsSince(begin) * 1e3);
  begin = Clock::now();
  catalog.Publish("bench", snapshot);
  seconds += SecondsSince(begin);
  times->ms.push_back(seconds * 1e3);
  begin = Clock::now();
  current.reset();
  times->release_ms.push_back(SecondsSince(begin) * 1e3);
  if (snapshot->segment_map() == nullptr) FailChange("a generation has no segment map");
  check(*snapshot);
}

}  // namespace

void RunSharedOpen(const SuiteOptions& options, Report* report) {
  const std::string data_dir = options.scratch_dir, table_dir = JoinPath(data_dir, "bench");
  std::filesystem::remove_all(data_dir);
  InChild([&] { BuildSegments(data_dir, options.rows, kSegments - 1, 0); });
  const uint64_t newest_rows = SegmentSizes(options.rows, kSegments).back();
  const uint64_t older_rows = options.rows - newest_rows;
  const auto read = [&](uint64_t generation) {
    return OrDie(ReadManifest(PosixFileSystem(), table_dir, generation));
  };
  // Where the newest segment has the keys of the last rows, with doc ids shifted.
  const auto check = [&](uint64_t doc_id_shift) {
    return [=, rows = options.rows](const Snapshot& snapshot) {
      KeyBatchMaker batches(kShape, rows, 100, 4096, 3);
      ProbeEngine engine;
      LookupResults results;
      for (int batch = 0; batch < 10; ++batch) {
        batches.Next();
        engine.Lookup(snapshot, batches.keys(), &results);
        for (size_t i = 0; i < results.size(); ++i) {
          const uint64_t number = batches.doc_ids()[i];
          const uint64_t doc_id = number + (number < older_rows ? 0 : doc_id_shift);
          if (results.at(i) == LookupResult{Outcome::kFound, doc_id, {}}) continue;
          FailChange(fmt::format("a wrong answer for key {}", number));
        }
      }
    };
  };
  OpenTimes added, replaced, alone;
  for (int round = 0; round < options.rounds; ++round) {
    BuildKeys(data_dir, {older_rows, 1, newest_rows, 0}, /*append=*/true);
    BuildKeys(data_dir, {older_rows, 1, newest_rows, options.rows}, /*append=*/true);
    const Manifest base = read(kSegments - 1), one_more = read(kSegments);
    // With the other newest segment in place of the first, not above it.
    Manifest other = read(kSegments + 1);
    other.segments.erase(other.segments.begin() + 1);
    ++other.generation;
    if (!PublishManifest(PosixFileSystem(), table_dir, other).ok()) FailChange("cannot publish");
    TimeOpen(table_dir, base, one_more, /*share=*/true, check(0), &added);
    TimeOpen(table_dir, one_more, other, /*share=*/true, check(options.rows), &replaced);
    TimeOpen(table_dir, base, one_more, /*share=*/false, check(0), &alone);
    for (uint64_t generation : {other.generation, other.generation - 1, one_more.generation}) {
      std::filesystem::remove(JoinPath(table_dir, ManifestFileName(generation)));
      std::filesystem::remove(JoinPath(table_dir, SegmentFileName(generation, 0)));
    }
  }
  const auto add = [&](const std::string& name, const OpenTimes& times, const std::string& what) {
    report->AddMedian(
        "change", name, "ms", times.ms,
        fmt::format("Snapshot::Open and Catalog::Publish of {} segments, {} keys in all, {}; page "
                    "cache warm; beside that, {:.1f} ms for reading the new segments' index and "
                    "{:.1f} ms for letting the generation before go",
                    kSegments, options.rows, what, Median(times.warm_up_ms),
                    Median(times.release_ms)));
  };
  add("change/shared_open_ms", added,
      fmt::format("one of {} keys on top of those that serve", newest_rows));
  add("change/shared_open_replaced_ms", replaced,
      fmt::format("one of {} keys in place of the newest that serves", newest_rows));
  add("change/unshared_open_ms", alone, "all opened anew");
}

void RunReload(const SuiteOptions& options, Report* report) {
  const Shape shape(options.rows);
  const std::string data_dir = options.scratch_dir;
  std::filesystem::remove_all(data_dir);
  const std::vector<Prepared> prepared = Prepare(data_dir, shape);
  const ServerProcess server(data_dir, data_dir + "/server");
  server.AwaitTable("bench");
  Publisher publisher(JoinPath(data_dir, "bench"), server.address(), prepared.back().content);
  const auto publish = [&](size_t i) {
    return publisher.Publish(prepared[i].manifest, prepared[i].content);
  };
  Requests requests(server.address(), shape, publisher);
  // Long enough for reload after reload, where it is not only tried out.
  const double phase_s = options.rows >= 1'000'000 ? 3 : 0.3, settle_s = phase_s / 6;
  requests.Capacity(settle_s);  // so that all is in memory
  const double capacity = requests.Capacity(settle_s * 2), rate = capacity * kLoadShare;

  std::vector<double> full_p99, full_without, full_ms, spaced_p99, spaced_without, delta_p99,
      delta_without, delta_ms;
  for (int round = 0; round < options.rounds; ++round) {
    // What the reloads before left to do is none of this.
    requests.P99(rate, settle_s);
    full_without.push_back(requests.P99(rate, phase_s));
    full_p99.push_back(P99Beside(requests, rate, phase_s, [&, i = size_t{0}]() mutable {
      full_ms.push_back(publish(i));
      i = 1 - i;
    }));

    requests.P99(rate, settle_s);
    spaced_without.push_back(requests.P99(rate, phase_s));
    spaced_p99.push_back(P99Beside(requests, rate, phase_s, [&, i = size_t{0}]() mutable {
      const auto begin = Clock::now();
      publish(i);
      i = 1 - i;
      std::this_thread::sleep_until(begin + kReloadPause);
    }));

    publish(1);
    publish(2);
    requests.P99(rate, settle_s);
    delta_without.push_back(requests.P99(rate, phase_s));
    delta_p99.push_back(P99Beside(requests, rate, phase_s, [&, i = size_t{3}]() mutable {
      if (i < prepared.size()) delta_ms.push_back(publish(i++));
      std::this_thread::sleep_for(kDeltaPause);
    }));
  }
  const std::string conditions = fmt::format(
      "requests of {} keys, packed, all over a table of {} uuid16 keys in memory, {:.0f} a second "
      "whether or not they are answered, 30% of the {:.0f} that clients who wait get; us from when "
      "one was to be sent; server and clients on the same {} cores; phases of {} s",
      kBatchKeys, shape.rows, rate, capacity, std::thread::hardware_concurrency(), phase_s);
  report->AddRatio("change", "change/reload_p99", false, full_p99, "p99 without", full_without,
                   fmt::format("{}; reload after reload of all {} segments, {} in all", conditions,
                               kSegments, full_ms.size()));
  report->AddRatio("change", "change/reload_p99_each_second", false, spaced_p99, "p99 without",
                   spaced_without,
                   fmt::format("{}; every {} ms a reload of all {} segments", conditions,
                               kReloadPause.count(), kSegments));
  report->AddRatio(
      "change", "change/reload_p99_delta", false, delta_p99, "p99 without", delta_without,
      fmt::format("{}; every {} ms a delta of {} keys on top of {} segments, {} in all", conditions,
                  kDeltaPause.count(), shape.delta_keys, kSegments + 1, delta_ms.size()));
  report->AddMedian("change", "change/reload_ms", "ms", full_ms,
                    "those of change/reload_p99, from before the manifest is written until all "
                    "calls get it, beside those requests");
  report->AddMedian("change", "change/reload_delta_ms", "ms", delta_ms,
                    "those of change/reload_p99_delta, likewise");
}

}  // namespace latchkey
