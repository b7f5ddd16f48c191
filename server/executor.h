// Fixed threads that look keys up, behind a bounded queue. They may wait for the disk, so that
// gRPC's threads never do.
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
  uint64_t keys = 0;
  uint64_t found = 0;
  uint64_t damaged = 0;
  uint64_t major_faults = 0;
};

// What a job has at hand on its thread. One thread; only the counts are read by others.
class Worker {
 public:
  ProbeEngine engine;
  LookupResults results;
  std::vector<std::string_view> keys;
  std::string key_bytes;  // of keys that were decoded

  // Adds `counts`, and the major faults of this thread since the last call.
  void Count(const std::string& table, TableCounts counts);

 private:
  friend class Executor;
  std::mutex mutex_;
  std::map<std::string, TableCounts, std::less<>> counts_;
  uint64_t major_faults_ = 0;  // of the thread so far
};

// Thread-safe.
class Executor {
 public:
  using Job = std::function<void(Worker&)>;

  Executor(unsigned threads, size_t queue_max);
  // Runs what is queued, then stops.
  ~Executor();

  // False, and the job is dropped, when the queue is full.
  [[nodiscard]] bool Submit(Job job);

  TableCounts CountsOf(std::string_view table) const;
  // Of all its threads so far.
  uint64_t MajorFaults() const;

 private:
  void Run(Worker& worker);

  const size_t queue_max_;
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
