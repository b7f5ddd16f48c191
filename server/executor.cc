#include "server/executor.h"

#include <sys/resource.h>

#include <utility>

namespace latchkey {
namespace {

uint64_t MajorFaultsOf(int who) {
  struct rusage usage = {};
  ::getrusage(who, &usage);
  return static_cast<uint64_t>(usage.ru_majflt);
}

}  // namespace

uint64_t ProcessMajorFaults() { return MajorFaultsOf(RUSAGE_SELF); }

void Worker::Count(const std::string& table, TableCounts counts) {
  const uint64_t faults = MajorFaultsOf(RUSAGE_THREAD);
  const std::lock_guard<std::mutex> lock(mutex_);
  TableCounts& sum = counts_[table];
  sum.keys += counts.keys;
  sum.found += counts.found;
  sum.damaged += counts.damaged;
  sum.major_faults += faults - major_faults_;
  major_faults_ = faults;
}

Executor::Executor(unsigned threads, size_t queue_max) : queue_max_(queue_max) {
  for (unsigned i = 0; i < threads; ++i) {
    Worker& worker = *workers_.emplace_back(std::make_unique<Worker>());
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
    if (found == worker->counts_.end()) continue;
    sum.keys += found->second.keys;
    sum.found += found->second.found;
    sum.damaged += found->second.damaged;
    sum.major_faults += found->second.major_faults;
  }
  return sum;
}

uint64_t Executor::MajorFaults() const {
  uint64_t sum = 0;
  for (const auto& worker : workers_) {
    const std::lock_guard<std::mutex> lock(worker->mutex_);
    sum += worker->major_faults_;
  }
  return sum;
}

}  // namespace latchkey
