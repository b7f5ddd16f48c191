// The peers that are called in this process. All but ours are built when made, from the table's
// keys.
#pragma once

#include <memory>

#include "core/table/snapshot.h"
#include "tests/bench/peers/peer.h"

namespace latchkey {

// Our batch engine, and our look-ups of one key. `snapshot` holds the rows of `table`.
std::unique_ptr<Peer> MakeOurBatches(const PeerTable& table,
                                     std::shared_ptr<const Snapshot> snapshot);
std::unique_ptr<Peer> MakeOurSingles(const PeerTable& table,
                                     std::shared_ptr<const Snapshot> snapshot);

// absl::flat_hash_map from std::string, by find.
std::unique_ptr<Peer> MakeStringMapPeer(const PeerTable& table);
// absl::flat_hash_map from a key of 16 bytes held in the slot: a pass of prefetch, then one of
// find.
std::unique_ptr<Peer> MakeInlineMapPeer(const PeerTable& table);
// One MultiGet a batch.
std::unique_ptr<Peer> MakeRocksDbPeer(const PeerTable& table);
// One mdb_get a key.
std::unique_ptr<Peer> MakeLmdbPeer(const PeerTable& table);
// One cdb_find a key.
std::unique_ptr<Peer> MakeTinyCdbPeer(const PeerTable& table);

}  // namespace latchkey
