// Who takes part in a comparison: ourselves, and those that our look-ups are compared with.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/bench/key_sets.h"

namespace latchkey {

inline constexpr size_t kPeerBatchKeys = 4000;

// What a peer is built from: key number i of the set, for i in [0, rows), leads to id i.
struct PeerTable {
  KeyShape shape = KeyShape::kUuid16;
  uint64_t rows = 0;
  std::vector<uint64_t>
      segment_rows;  // sums to rows, the largest first; most peers have no segments
  std::string dir;   // for its files, its own; the suite removes it
};

// Names the keys that are asked for: the same for every peer of a shape and a row count.
struct Round {
  int hit_percent = 90;
  uint64_t seed = 0;
  int batches = 1;  // of kPeerBatchKeys
};

// What answers add up to.
struct Answers {
  uint64_t found = 0;
  uint64_t id_sum = 0;
  bool operator==(const Answers&) const = default;
};

// A benchmark has nothing to go on with: prints the message and exits.
[[noreturn]] void FailBench(const std::string& message);

// Fails unless `got` is what the keys of `round` lead to. `distinct`: a key that a batch has twice
// counts once.
void CheckAnswers(const std::string& peer, const PeerTable& table, const Round& round,
                  bool distinct, const Answers& got);

// CPU time of this thread. Machines are shared, and a round that takes long is interrupted more
// often than a short one: the clock on the wall would favour whoever is fast.
std::chrono::nanoseconds ThreadCpuTime();

// One thread at a time.
class Peer {
 public:
  virtual ~Peer() = default;
  // With its version, as the row says it.
  virtual std::string name() const = 0;
  // Its settings.
  virtual std::string settings() const { return {}; }
  // Looks the keys up and checks the answers; returns ns a key of the thread's CPU time, that of
  // making and checking left out.
  virtual double RunRound(const Round& round) = 0;
  // Of its files, if it has files; else 0.
  virtual uint64_t size_bytes() const { return 0; }
};

// A peer that is called in this process.
class LocalPeer : public Peer {
 public:
  explicit LocalPeer(const PeerTable& table) : table_(table) {}
  double RunRound(const Round& round) final;

 protected:
  // `keys: kPeerBatchKeys views`.
  virtual Answers LookUp(std::span<const std::string_view> keys) = 0;
  const PeerTable& table() const { return table_; }

 private:
  const PeerTable table_;
};

}  // namespace latchkey
