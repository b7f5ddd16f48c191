#include "server/executor.h"

#include <sys/resource.h>

#include <utility>

namespace latchkey {

uint64_t ProcessMajorFaults() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_majflt);
}

TableCounts& TableCounts::operator+=(const TableCounts& other) {
  keys += other.keys;
  found += other.found;
  damaged += other.damaged;
  cost += other.cost;
  threads_asking += other.threads_asking;
  threads_silent += other.threads_silent;
  return *this;
}

FetchCost Worker::Count(const std::string& table, const Snapshot& snapshot, TableCounts counts) {
  if (!engine.settled()) engine.Settle(snapshot);
  const std::lock_guard<std::mutex> lock(mutex_);
  counts.cost = engine.cost() - counted_;
  counted_ = engine.cost();
  TableCounts& sum = counts_[table];
  sum += counts;
  sum.threads_asking = engine.mode(snapshot) == FetchMode::kAsking;
  sum.threads_silent = 1 - sum.threads_asking;
  return counts.cost;
}

Executor::Executor(unsigned threads, size_t queue_max, const ProbeEngineOptions& engine_options,
                   int nice)
    : queue_max_(queue_max), nice_(nice) {
  for (unsigned i = 0; i < threads; ++i) {
    Worker& worker = *workers_.emplace_back(std::make_unique<Worker>(engine_options));
    threads_.emplace_back([this, &worker] { Run(worker); });
  }
}

Executor::~Executor() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool Executor::Submit(Job job) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (queue_.size() >= queue_max_) return false;
    queue_.push_back(std::move(job));
  }
  ready_.notify_one();
  return true;
}

void Executor::Run(Worker& worker) {
  // On Linux niceness is a thread's own, and 0 is the calling one.
  if (nice_ != 0) (void)::setpriority(PRIO_PROCESS, 0, ::getpriority(PRIO_PROCESS, 0) + nice_);
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    ready_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Job job = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    job(worker);
    job = nullptr;  // what it holds goes now, not under the lock
    lock.lock();
  }
}

TableCounts Executor::CountsOf(std::string_view table) const {
  TableCounts sum;
  for (const auto& worker : workers_) {
    const std::lock_guard<std::mutex> lock(worker->mutex_);
    const auto found = worker->counts_.find(table);
    if (found != worker->counts_.end()) sum += found->second;
  }
  return sum;
}

uint64_t Executor::MajorFaults() const {
  uint64_t sum = 0;
  for (const auto& worker : workers_) {
    const std::lock_guard<std::mutex> lock(worker->mutex_);
    sum += worker->counted_.faults;
  }
  return sum;
}

}  // namespace latchkey
