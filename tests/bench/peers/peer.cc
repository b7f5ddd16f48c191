#include "tests/bench/peers/peer.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/bench/bench_table.h"

namespace latchkey {

void FailBench(const std::string& message) {
  std::fprintf(stderr, "bench: %s\n", message.c_str());
  std::exit(3);
}

void CheckAnswers(const std::string& peer, const PeerTable& table, const Round& round,
                  bool distinct, const Answers& got) {
  KeyBatchMaker maker(table.shape, table.rows, round.hit_percent, kPeerBatchKeys, round.seed);
  Answers expected;
  std::vector<uint64_t> ids;
  for (int b = 0; b < round.batches; ++b) {
    maker.Next();
    ids = maker.doc_ids();
    if (distinct) {
      std::sort(ids.begin(), ids.end());
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    }
    for (const uint64_t id : ids) {
      if (id == UINT64_MAX) continue;
      ++expected.found;
      expected.id_sum += id;
    }
  }
  if (got == expected) return;
  FailBench(fmt::format("wrong answers of {}: {} found with a sum of {}; {} with {} are there",
                        peer, got.found, got.id_sum, expected.found, expected.id_sum));
}

std::chrono::nanoseconds ThreadCpuTime() {
  timespec now;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

double LocalPeer::RunRound(const Round& round) {
  KeyBatchMaker maker(table_.shape, table_.rows, round.hit_percent, kPeerBatchKeys, round.seed);
  std::chrono::nanoseconds elapsed{};
  Answers sum;
  for (int b = 0; b < round.batches; ++b) {
    maker.Next();
    const auto begin = ThreadCpuTime();
    const Answers answers = LookUp(maker.keys());
    elapsed += ThreadCpuTime() - begin;
    sum.found += answers.found;
    sum.id_sum += answers.id_sum;
  }
  CheckAnswers(name(), table_, round, /*distinct=*/false, sum);
  return static_cast<double>(elapsed.count()) / round.batches / kPeerBatchKeys;
}

}  // namespace latchkey
