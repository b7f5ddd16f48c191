// Looks keys up in a snapshot.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "core/lookup/lookup_results.h"
#include "core/lookup/probe_stages.h"
#include "core/table/bucket_match.h"
#include "core/table/snapshot.h"

namespace latchkey {

// Looks one key up: newest segment first, until one has it or can't tell. Its value points into the
// snapshot, so to copy it, do so within ReadStably, the lookup included. Any key will do; one that
// the table can't hold is absent.
LookupResult LookupOne(const Snapshot& snapshot, std::string_view key);

// How batches are looked up; the answers are the same.
struct ProbeEngineOptions {
  size_t tile_keys = kTileKeysMax;  // from 1 to kTileKeysMax
  MatchBucketsFunction match_buckets = MatchBucketsLevels().back().match;
};

// Looks batches up. Thread-compatible: it keeps memory between batches, so have one a thread.
class ProbeEngine {
 public:
  explicit ProbeEngine(const ProbeEngineOptions& options = {}) : options_(options) {}

  // Answers `keys: K views` into *results, K answers in the same order; duplicates are each
  // answered. The same answers as LookupOne, at a fraction of the cost; but of a key that no
  // segment holds, which comes to damaged data by chance, one may say absent and the other damaged.
  // To copy values, do so within ReadStably, the lookup included.
  void Lookup(const Snapshot& snapshot, std::span<const std::string_view> keys,
              LookupResults* results);

 private:
  void LookupOnce(const Snapshot& snapshot, std::span<const std::string_view> keys,
                  LookupResults* results);

  // One segment's filter costs a line; it pays when fewer keys than this are found.
  static constexpr size_t kFilterPaysBelowTenths = 3;

  ProbeEngineOptions options_;
  std::vector<uint64_t> hashes_;
  Tile tile_;
  bool filter_pays_ = false;
};

}  // namespace latchkey
