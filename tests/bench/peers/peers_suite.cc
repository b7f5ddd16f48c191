// Our look-ups beside those of others, and beside what the memory itself allows: ratios of
// interleaved rounds.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>

#include "tests/bench/bench_table.h"
#include "tests/bench/peers/known_ranges.h"
#include "tests/bench/peers/local_peers.h"
#include "tests/bench/peers/lucene_peer.h"
#include "tests/bench/peers/memory_limit.h"
#include "tests/bench/suites.h"

namespace latchkey {
namespace {

constexpr int kRoundsMin = 5;

struct Contender {
  Peer& peer;
  int hit_percent = 90;
};

// Looks a tenth of the rows up, at least 400,000, or as many as five seconds allow, so that pages,
// caches and compilers have settled; returns ns a key.
double WarmUp(const Contender& contender, uint64_t rows) {
  using Clock = std::chrono::steady_clock;
  constexpr int kBatches = 10;
  const auto end = Clock::now() + std::chrono::seconds(5);
  const uint64_t keys = std::max<uint64_t>(rows / 10, 400'000);
  double ns = 0;
  uint64_t seed = 1'000'000'000;
  for (uint64_t asked = 0; asked < keys && Clock::now() < end; asked += kBatches * kPeerBatchKeys) {
    ns = contender.peer.RunRound({contender.hit_percent, seed, kBatches});
    seed += kBatches * kPeerBatchKeys;
  }
  return ns;
}

// ns a key of each contender in each round. In a round all of them are asked, one after the other,
// for the same keys, as many as take each a quarter of a second.
std::vector<std::vector<double>> RunInterleaved(const std::vector<Contender>& contenders,
                                                uint64_t rows, int rounds) {
  std::vector<int> batches;
  for (const Contender& contender : contenders) {
    const double batch_ns = WarmUp(contender, rows) * kPeerBatchKeys;
    batches.push_back(static_cast<int>(std::clamp(2.5e8 / batch_ns, 20.0, 500.0)));
  }
  std::vector<std::vector<double>> samples(contenders.size());
  for (int round = 0; round < rounds; ++round) {
    const uint64_t seed = 10'000'000 * static_cast<uint64_t>(round + 1);
    for (size_t c = 0; c < contenders.size(); ++c) {
      samples[c].push_back(
          contenders[c].peer.RunRound({contenders[c].hit_percent, seed, batches[c]}));
    }
  }
  return samples;
}

// A table of ours, and the figures of what it is compared with.
class Comparison {
 public:
  Comparison(const SuiteOptions& options, KeyShape shape, int segments, Report* report)
      : rounds_(std::max(options.rounds, kRoundsMin)),
        prefix_(fmt::format("warm/{}/s{}/", KeyShapeName(shape), segments)),
        table_{shape, options.rows, SegmentSizes(options.rows, segments),
               fmt::format("{}/peer", options.scratch_dir)},
        data_dir_(fmt::format("{}/{}-s{}", options.scratch_dir, KeyShapeName(shape), segments)),
        snapshot_(BuildBenchTable(data_dir_, shape, table_.segment_rows)),
        batches_(MakeOurBatches(table_, snapshot_)),
        singles_(MakeOurSingles(table_, snapshot_)),
        report_(report) {}

  const PeerTable& table() const { return table_; }
  const std::string& data_dir() const { return data_dir_; }
  const Snapshot& snapshot() const { return *snapshot_; }
  int rounds() const { return rounds_; }
  Peer& batches() { return *batches_; }
  Peer& singles() { return *singles_; }

  // Adds how many times as fast ours is. `figure` is the last part of the name.
  void AddSpeed(const std::string& figure, Peer& ours, Peer& theirs) {
    std::string settings = theirs.settings();
    if (theirs.size_bytes() != 0) {
      settings += fmt::format(", {:.1f} B/key", static_cast<double>(theirs.size_bytes()) /
                                                    static_cast<double>(table_.rows));
    }
    Add(prefix_ + figure, true, {ours}, theirs.name(), {theirs}, settings);
  }
  // Adds how many times as long ours takes. `name` is the figure's whole name.
  void AddTime(const std::string& name, Contender ours, const std::string& peer, Contender theirs,
               const std::string& settings) {
    Add(name, false, ours, peer, theirs, settings);
  }

  // Builds a peer, adds our batches' speed over it, and frees it, so that no two of them take
  // memory.
  void AddSpeedOver(const std::string& figure,
                    const std::function<std::unique_ptr<Peer>(const PeerTable&)>& make) {
    std::unique_ptr<Peer> peer = make(table_);
    AddSpeed(figure, batches(), *peer);
    peer.reset();
    std::filesystem::remove_all(table_.dir);
  }

 private:
  void Add(const std::string& name, bool faster, Contender ours, const std::string& peer,
           Contender theirs, const std::string& settings) {
    const auto samples = RunInterleaved({ours, theirs}, table_.rows, rounds_);
    std::string conditions = fmt::format(
        "{} keys, {} segments, batches of {}, {}% misses, CPU time of one thread, all in "
        "memory; {}",
        table_.rows, table_.segment_rows.size(), kPeerBatchKeys, 100 - ours.hit_percent, settings);
    const std::string invalid = WhyInvalid(name, table_.rows, Median(samples[1]));
    if (!invalid.empty()) conditions = fmt::format("INVALID: {}; {}", invalid, conditions);
    report_->AddRatio("warm", name, faster, samples[0], peer, samples[1], conditions);
    if (!invalid.empty()) std::printf("  INVALID: %s\n", invalid.c_str());
  }

  const int rounds_;
  const std::string prefix_;
  const PeerTable table_;
  const std::string data_dir_;
  const std::shared_ptr<const Snapshot> snapshot_;
  const std::unique_ptr<Peer> batches_;
  const std::unique_ptr<Peer> singles_;
  Report* const report_;
};

void CompareWithLucene(Comparison& comparison) {
  LuceneProcess process(comparison.table());
  const std::unique_ptr<Peer> seek = MakeLucenePeer(process, LuceneLookup::kSeekExact);
  const std::unique_ptr<Peer> set = MakeLucenePeer(process, LuceneLookup::kTermInSet);
  process.BuildIndex(/*bloom=*/false);
  comparison.AddSpeed("batch_vs_lucene", comparison.batches(), *set);
  comparison.AddSpeed("single_vs_lucene", comparison.singles(), *seek);
  process.BuildIndex(/*bloom=*/true);
  comparison.AddSpeed("batch_vs_lucene_bloom", comparison.batches(), *seek);
  comparison.AddSpeed("single_vs_lucene_bloom", comparison.singles(), *seek);
  std::filesystem::remove_all(comparison.table().dir);
}

void CompareWithMemory(Comparison& comparison) {
  const Segment& segment = *comparison.snapshot().segments()[0];
  const std::unique_ptr<MemoryLimit> limit = MemoryLimit::OverFile(segment.path());
  WarmUp({comparison.batches()}, comparison.table().rows);  // so that its pages are mapped
  const uint64_t our_huge = HugePageBytes(segment.file().data(), segment.file().size_bytes());
  comparison.AddTime("warm/uuid16/s1/batch_vs_memory_limit", {comparison.batches()}, limit->name(),
                     {*limit},
                     fmt::format("ours has {} MiB in huge pages, the limit {}", our_huge >> 20,
                                 limit->settings()));
  const auto huge_snapshot =
      OpenBenchTable(comparison.data_dir(), {.memory_mode = MemoryMode::kHuge});
  const auto ours = MakeOurBatches(comparison.table(), huge_snapshot);
  const std::unique_ptr<MemoryLimit> huge = MemoryLimit::OverHugePages(limit->size_bytes());
  comparison.AddTime("warm/uuid16/s1/batch_vs_memory_limit_huge", {*ours}, huge->name(), {*huge},
                     fmt::format("ours has {} MiB in huge pages, the limit {}",
                                 huge_snapshot->huge_bytes() >> 20, huge->settings()));
}

}  // namespace

void RunPeersSuite(const SuiteOptions& options, Report* report) {
  {
    Comparison one(options, KeyShape::kUuid16, 1, report);
    CompareWithMemory(one);
    one.AddSpeedOver("batch_vs_flat_hash_map", MakeStringMapPeer);
    one.AddSpeedOver("batch_vs_flat_hash_map_inline", MakeInlineMapPeer);
    one.AddSpeedOver("batch_vs_tinycdb", MakeTinyCdbPeer);
    one.AddSpeedOver("batch_vs_lmdb", MakeLmdbPeer);
    one.AddSpeedOver("batch_vs_rocksdb", MakeRocksDbPeer);
    CompareWithLucene(one);

    Comparison many(options, KeyShape::kUuid16, 15, report);
    many.AddTime("warm/uuid16/s15_vs_s1", {many.batches()}, "1 segment", {one.batches()},
                 "the peer has the same rows in 1 segment");
    many.AddTime("warm/uuid16/s15/miss90_vs_miss10", {many.batches(), 10}, "10% misses",
                 {many.batches(), 90}, "the peer is the same table with 10% misses");
    CompareWithLucene(many);
  }
  for (const KeyShape shape : {KeyShape::kSeq6, KeyShape::kAsin10, KeyShape::kUuid36}) {
    Comparison other(options, shape, 15, report);
    CompareWithLucene(other);
  }
}

}  // namespace latchkey
