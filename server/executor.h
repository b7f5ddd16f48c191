// Fixed threads that look keys up, behind a bounded queue, so that gRPC's threads never do. The
// server has two: one for lookups that memory answers, one for those that wait for the disk.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/lookup/probe_engine.h"

namespace latchkey {

// Of one table, on one thread or summed.
struct TableCounts {
  TableCounts& operator+=(const TableCounts& other);

  uint64_t keys = 0;
  uint64_t found = 0;
  uint64_t damaged = 0;
  FetchCost cost;
  // Threads that asked for pages, or did not, when they last looked something up.
  uint32_t threads_asking = 0;
  uint32_t threads_silent = 0;
};

// What a job has at hand on its thread. One thread; only the counts are read by others.
class Worker {
 public:
  explicit Worker(const ProbeEngineOptions& engine_options) : engine(engine_options) {}

  ProbeEngine engine;
  LookupResults results;
  std::vector<std::string_view> keys;
  std::string key_bytes;  // of keys that were decoded

  // Adds `counts`, and what the engine's lookups cost since the last call; returns that.
  FetchCost Count(const std::string& table, const Snapshot& snapshot, TableCounts counts);

 private:
  friend class Executor;
  std::mutex mutex_;
  std::map<std::string, TableCounts, std::less<>> counts_;
  FetchCost counted_;  // of the engine's lookups so far
};

// Thread-safe.
class Executor {
 public:
  using Job = std::function<void(Worker&)>;

  // `nice`: added to the threads' niceness, so that they leave the processors to others.
  Executor(unsigned threads, size_t queue_max, const ProbeEngineOptions& engine_options = {},
           int nice = 0);
  // Runs what is queued, then stops.
  ~Executor();

  // False, and the job is dropped, when the queue is full.
  [[nodiscard]] bool Submit(Job job);

  TableCounts CountsOf(std::string_view table) const;
  // Major faults of its threads so far, within lookups.
  uint64_t MajorFaults() const;

 private:
  void Run(Worker& worker);

  const size_t queue_max_;
  const int nice_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Job> queue_;
  bool stopping_ = false;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::thread> threads_;
};

// Major faults of the whole process so far.
uint64_t ProcessMajorFaults();

}  // namespace latchkey
