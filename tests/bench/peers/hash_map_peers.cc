#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/peers/local_peers.h"
#include "tests/bench/report.h"

namespace latchkey {
namespace {

class StringMapPeer final : public LocalPeer {
 public:
  explicit StringMapPeer(const PeerTable& table) : LocalPeer(table) {
    map_.reserve(table.rows);
    char key[64];
    for (uint64_t i = 0; i < table.rows; ++i) {
      MakeKey(table.shape, i, 0, key);
      map_.emplace(std::string(key, KeyShapeBytes(table.shape)), static_cast<uint32_t>(i));
    }
  }
  std::string name() const override { return "absl::flat_hash_map<string, uint32>"; }
  std::string settings() const override { return "reserved, then filled; one find a key"; }

 protected:
  Answers LookUp(std::span<const std::string_view> keys) override {
    Answers answers;
    for (const std::string_view key : keys) {
      const auto found = map_.find(absl::string_view(key.data(), key.size()));
      if (found == map_.end()) continue;
      ++answers.found;
      answers.id_sum += found->second;
    }
    return answers;
  }

 private:
  absl::flat_hash_map<std::string, uint32_t> map_;
};

using InlineKey = std::array<uint64_t, 2>;

InlineKey InlineKeyOf(std::string_view key) {
  InlineKey inline_key;
  std::memcpy(inline_key.data(), key.data(), sizeof(inline_key));
  return inline_key;
}

class InlineMapPeer final : public LocalPeer {
 public:
  explicit InlineMapPeer(const PeerTable& table) : LocalPeer(table) {
    if (KeyShapeBytes(table.shape) != sizeof(InlineKey)) {
      FailBench("the map of inline keys has keys of 16 bytes only");
    }
    map_.reserve(table.rows);
    char key[64];
    for (uint64_t i = 0; i < table.rows; ++i) {
      MakeKey(table.shape, i, 0, key);
      map_.emplace(InlineKeyOf({key, sizeof(InlineKey)}), static_cast<uint32_t>(i));
    }
    TuneTile();
  }
  std::string name() const override { return "absl::flat_hash_map<array<uint64,2>, uint32>"; }
  std::string settings() const override {
    return fmt::format("prefetch pass over tiles of {} keys, the best of several widths",
                       tile_keys_);
  }

 protected:
  Answers LookUp(std::span<const std::string_view> keys) override {
    Answers answers;
    std::array<InlineKey, kPeerBatchKeys> tile;
    for (size_t begin = 0; begin < keys.size(); begin += tile_keys_) {
      const size_t count = std::min(tile_keys_, keys.size() - begin);
      for (size_t i = 0; i < count; ++i) {
        tile[i] = InlineKeyOf(keys[begin + i]);
        map_.prefetch(tile[i]);
      }
      for (size_t i = 0; i < count; ++i) {
        const auto found = map_.find(tile[i]);
        if (found == map_.end()) continue;
        ++answers.found;
        answers.id_sum += found->second;
      }
    }
    return answers;
  }

 private:
  // One pass over the whole batch is the plain way; where its lines overflow the first caches,
  // tiles win.
  void TuneTile() {
    size_t best = 0;
    double best_ns = 0;
    for (const size_t width :
         {size_t{16}, size_t{32}, size_t{64}, size_t{128}, size_t{256}, kPeerBatchKeys}) {
      tile_keys_ = width;
      std::vector<double> samples;
      for (uint64_t seed = 0; seed < 5; ++seed) samples.push_back(RunRound({90, seed, 20}));
      const double ns = Median(samples);
      if (best != 0 && ns >= best_ns) continue;
      best = width;
      best_ns = ns;
    }
    tile_keys_ = best;
  }

  absl::flat_hash_map<InlineKey, uint32_t> map_;
  size_t tile_keys_ = kPeerBatchKeys;
};

}  // namespace

std::unique_ptr<Peer> MakeStringMapPeer(const PeerTable& table) {
  return std::make_unique<StringMapPeer>(table);
}

std::unique_ptr<Peer> MakeInlineMapPeer(const PeerTable& table) {
  return std::make_unique<InlineMapPeer>(table);
}

}  // namespace latchkey
