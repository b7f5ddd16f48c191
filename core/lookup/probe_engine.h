// Looks keys up in a snapshot.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/lookup/lookup_results.h"
#include "core/lookup/probe_stages.h"
#include "core/prefetch/fetch_policy.h"
#include "core/prefetch/prefetcher.h"
#include "core/table/bucket_match.h"
#include "core/table/snapshot.h"

namespace latchkey {

// Looks one key up: newest segment first, until one has it or can't tell. Its value points into the
// snapshot, so to copy it, do so within ReadStably, the lookup included. Any key will do; one that
// the table can't hold is absent.
LookupResult LookupOne(const Snapshot& snapshot, std::string_view key);

enum class PrefetchChoice : uint8_t {
  kAuto,    // as measured, batch by batch
  kAlways,  // hints for every page
  kNever,
};

// How keys are looked up; the answers are the same.
struct ProbeEngineOptions {
  size_t tile_keys = kTileKeysMax;  // from 1 to kTileKeysMax
  MatchBucketsFunction match_buckets = MatchBucketsLevels().back().match;
  PrefetchChoice prefetch = PrefetchChoice::kAuto;
};

// What a lookup may take.
struct LookupLimits {
  // False: it gives up when lines, records or values are cold. Where they were warm so far, it
  // notices after two tiles; filters and pilots it reads in any case.
  bool may_wait = true;
  // Asked between waves of pages, if set; true ends the lookup, and the outcome of keys that are
  // not done is kStopped.
  std::function<bool()> should_stop;
};

// Looks keys up and learns, table by table, whether their pages are in memory. While they are, it
// makes one system call a batch, to see whether they still are; while they are not, it goes through
// the batch in waves, asking for the pages of one before those of an earlier one are touched.
//
// One thread: the first that looks something up with it. It keeps memory between batches.
class ProbeEngine {
 public:
  explicit ProbeEngine(const ProbeEngineOptions& options = {}) : options_(options) {}

  // Answers `keys: K views` into *results, K answers in the same order; duplicates are each
  // answered. The same answers as LookupOne, at a fraction of the cost; but of a key that no
  // segment holds, which comes to damaged data by chance, one may say absent and the other damaged.
  // To copy values, do so within ReadStably, the lookup included. False: it gave up, and what is in
  // *results means nothing; some of the pages have been asked for.
  bool Lookup(const Snapshot& snapshot, std::span<const std::string_view> keys,
              LookupResults* results, const LookupLimits& limits = {});

  // As the function LookupOne, but with limits; false as above.
  bool LookupOne(const Snapshot& snapshot, std::string_view key, LookupResult* result,
                 const LookupLimits& limits = {});

  // Counts what the lookups since the last call cost the thread, and judges by it. Batches do so in
  // the end, but with kNever; single lookups now and then. What else the thread reads in between
  // counts as well.
  void Settle(const Snapshot& snapshot);
  // Whether there were none.
  bool settled() const { return silent_.places == 0 && counted_.keys == settled_.keys; }
  // Of all lookups so far, as far as they are settled.
  const FetchCost& cost() const { return settled_; }
  // What the next lookup in the snapshot does.
  FetchMode mode(const Snapshot& snapshot);

 private:
  struct TableState {
    uint64_t generation = 0;
    FetchState fetch;
  };

  bool LookupOnce(const Snapshot& snapshot, std::span<const std::string_view> keys,
                  LookupResults* results, const LookupLimits& limits);
  void LookupSlowly(const Snapshot& snapshot, std::span<const std::string_view> keys,
                    LookupResults* results);
  size_t LookupSilently(const Snapshot& snapshot, std::span<const std::string_view> keys,
                        LookupResults* results);
  bool LookupAsking(const Snapshot& snapshot, std::span<const std::string_view> keys, size_t begin,
                    LookupResults* results, const LookupLimits& limits);
  template <typename... Stages>
  bool Pipeline(const LookupLimits& limits, Stages... stages);
  bool FetchLines(bool may_wait, Tile* tile);
  bool FetchRecords(bool may_wait, Tile* tile);
  bool FetchValues(bool may_wait, bool whole, Tile* tile);
  void SetTile(std::span<const std::string_view> keys, size_t begin, LookupResults* results,
               Tile* tile) const;
  bool UsesFilters(const Snapshot& snapshot) const {
    if (const SegmentMap* const map = snapshot.segment_map()) {
      return map->base() != nullptr && filter_pays_;
    }
    return snapshot.segments().size() > 1 || filter_pays_;
  }
  FetchState& StateOf(uint64_t seed, uint64_t generation, bool warm);
  void SettleSilent();
  void SettleTable(uint64_t seed, uint64_t generation);

  // One segment's filter costs a line; it pays when fewer keys than this are found.
  static constexpr size_t kFilterPaysBelowTenths = 3;

  const ProbeEngineOptions options_;
  std::vector<uint64_t> hashes_;
  Tile tile_;
  bool filter_pays_ = false;

  Prefetcher prefetcher_;
  std::vector<Tile> tiles_;  // of a batch that waits for pages
  bool stopped_ = false;
  std::unordered_map<uint64_t, TableState> states_;  // by the table's seed
  FetchCost counted_;                                // keys and places so far
  FetchCost settled_;
  FetchCost thread_begin_;  // faults and pages read before the first lookup
  bool begun_ = false;
  // The generation that single lookups go on in without a look at faults, and how many more may.
  struct {
    uint64_t seed = 0;
    uint64_t generation = 0;
    uint64_t places = 0;  // that one comes to; 0: no generation

    bool Is(const Snapshot& snapshot) const {
      return places != 0 && generation == snapshot.generation() && seed == snapshot.seed();
    }
  } silent_;
  uint64_t lookups_left_ = 0;
};

}  // namespace latchkey
