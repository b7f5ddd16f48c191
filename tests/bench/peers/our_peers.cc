#include <utility>

#include "core/lookup/probe_engine.h"
#include "tests/bench/peers/local_peers.h"

namespace latchkey {
namespace {

class OurBatches final : public LocalPeer {
 public:
  OurBatches(const PeerTable& table, std::shared_ptr<const Snapshot> snapshot)
      : LocalPeer(table), snapshot_(std::move(snapshot)) {}
  std::string name() const override { return "ours in batches"; }

 protected:
  Answers LookUp(std::span<const std::string_view> keys) override {
    engine_.Lookup(*snapshot_, keys, &results_);
    Answers answers;
    for (size_t i = 0; i < keys.size(); ++i) {
      answers.found += results_.outcomes[i] == Outcome::kFound;
      answers.id_sum += results_.doc_ids[i];
    }
    return answers;
  }

 private:
  const std::shared_ptr<const Snapshot> snapshot_;
  ProbeEngine engine_;
  LookupResults results_;
};

class OurSingles final : public LocalPeer {
 public:
  OurSingles(const PeerTable& table, std::shared_ptr<const Snapshot> snapshot)
      : LocalPeer(table), snapshot_(std::move(snapshot)) {}
  std::string name() const override { return "ours one by one"; }

 protected:
  Answers LookUp(std::span<const std::string_view> keys) override {
    Answers answers;
    for (const std::string_view key : keys) {
      const LookupResult result = LookupOne(*snapshot_, key);
      answers.found += result.outcome == Outcome::kFound;
      answers.id_sum += result.doc_id;
    }
    return answers;
  }

 private:
  const std::shared_ptr<const Snapshot> snapshot_;
};

}  // namespace

std::unique_ptr<Peer> MakeOurBatches(const PeerTable& table,
                                     std::shared_ptr<const Snapshot> snapshot) {
  return std::make_unique<OurBatches>(table, std::move(snapshot));
}

std::unique_ptr<Peer> MakeOurSingles(const PeerTable& table,
                                     std::shared_ptr<const Snapshot> snapshot) {
  return std::make_unique<OurSingles>(table, std::move(snapshot));
}

}  // namespace latchkey
