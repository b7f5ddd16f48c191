// What clients of warm keys notice of another client's cold batches: a server of its own process,
// two clients.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "client/lookup_client.h"
#include "tests/bench/cold_parts.h"
#include "tests/bench/server_process.h"

namespace latchkey {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kWarmKeys = 100;      // of a request
constexpr uint64_t kHotKeys = 20'000;  // that the warm requests are about
constexpr int kWarmRequests = 4000;    // a round

// Asks for the maker's batch and checks the answers.
void Ask(const LookupClient& client, const KeyBatchMaker& maker) {
  const auto rows = OrDie(client.BatchGet("bench", maker.keys()));
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    const bool expected = maker.doc_ids()[i] != UINT64_MAX;
    if ((rows.rows[i].outcome == v1::FOUND) != expected ||
        (expected && rows.rows[i].doc_id != maker.doc_ids()[i])) {
      FailCold("the server gave a wrong answer");
    }
  }
}

// The 99th percentile of the warm requests' times, in us.
double WarmP99(const LookupClient& client) {
  std::vector<double> times;
  KeyBatchMaker maker(KeyShape::kUuid16, kHotKeys, 100, kWarmKeys, 1);
  for (int i = 0; i < kWarmRequests; ++i) {
    maker.Next();
    const auto begin = Clock::now();
    Ask(client, maker);
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  const auto p99 = times.begin() + kWarmRequests / 100 * 99;
  std::nth_element(times.begin(), p99, times.end());
  return *p99;
}

}  // namespace

void RunWarmBesideCold(const std::string& data_dir, uint64_t rows, const SuiteOptions& options,
                       Report* report) {
  const std::string folder = options.scratch_dir + "/server";
  // What is checked in the background is read from the same disk.
  const ServerProcess server(data_dir, folder, {"--verify-mib-per-s", "0"});
  server.AwaitTable("bench");
  const LookupClient warm(server.address(), 30), cold(server.address(), 30);
  WarmP99(warm);  // so that its keys' pages are in memory
  std::vector<double> alone, beside;
  uint64_t cold_batches = 0;
  KeyBatchMaker maker(KeyShape::kUuid16, rows, 100, kColdBatchKeys, 2);
  for (int round = 0; round < options.rounds; ++round) {
    alone.push_back(WarmP99(warm));
    std::atomic<bool> stop{false};
    std::thread other([&] {
      for (; !stop; ++cold_batches) {
        maker.Next();
        Ask(cold, maker);
      }
    });
    beside.push_back(WarmP99(warm));
    stop = true;
    other.join();
  }
  report->AddRatio(
      "cold", "cold/warm_p99_beside_cold", false, beside, "p99 without cold batches", alone,
      fmt::format("requests of {} keys in memory, one after the other, beside another "
                  "client's batches of {} keys all over a table that was cold ({} of them "
                  "in all), server and both clients on the same {} cores; times as long, "
                  "us",
                  kWarmKeys, kColdBatchKeys, cold_batches, std::thread::hardware_concurrency()));
}

}  // namespace latchkey
