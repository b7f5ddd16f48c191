// One file, mapped and read at random by several policies of hints, for the seeds' grids. All of
// them give their hints in the same way; they differ in when.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "core/prefetch/fetch_policy.h"
#include "tests/bench/cold_pages.h"

namespace latchkey {

enum class HintPolicy {
  kNone,
  kBackOffShared,  // at the 0th, 1st, 2nd, 4th, 8th … call since a page was absent, of all threads
  kBackOffOwn,     // the same, counted by each thread
  kAlways,
  kOurs,  // FetchState, settled every so many operations
};
const char* HintPolicyName(HintPolicy policy);

// A file of the grid and its map.
class MappedRaw {
 public:
  explicit MappedRaw(const std::string& path);
  ~MappedRaw();
  MappedRaw(const MappedRaw&) = delete;
  MappedRaw& operator=(const MappedRaw&) = delete;
  const uint8_t* data() const { return data_; }
  uint64_t size_bytes() const { return file_.size_bytes(); }
  const ColdFile& file() const { return file_; }
  void Advise(int advice) const { latchkey::Advise(data_, size_bytes(), advice); }

 private:
  ColdFile file_;
  const uint8_t* data_ = nullptr;
};

// Of one thread.
class Hinter {
 public:
  // `shared`: the counter of kBackOffShared.
  Hinter(const MappedRaw& raw, HintPolicy policy, int window_ops, std::atomic<uint32_t>* shared);

  // Before [offset, offset + size_bytes) is read.
  void BeforeRead(uint64_t offset, uint64_t size_bytes);
  // After an operation is over.
  void AfterOperation();

 private:
  void Hint(uint64_t begin, uint64_t end) const;
  bool AnyAbsent(uint64_t begin, uint64_t end) const;

  const MappedRaw& raw_;
  const HintPolicy policy_;
  const int window_ops_;
  std::atomic<uint32_t>* const shared_;
  uint32_t own_ = 0;
  FetchState state_;
  uint64_t places_ = 0;
  FetchCost settled_;
  int ops_ = 0;
};

}  // namespace latchkey
