#include "tests/bench/cold_hints.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <bit>

#include "core/prefetch/prefetcher.h"

namespace latchkey {
namespace {

constexpr uint64_t kHintedPagesMax = 8;  // of one read: 16 KiB, not aligned, are 5

}  // namespace

const char* HintPolicyName(HintPolicy policy) {
  switch (policy) {
    case HintPolicy::kNone:
      return "none";
    case HintPolicy::kBackOffShared:
      return "backoff_shared";
    case HintPolicy::kBackOffOwn:
      return "backoff_own";
    case HintPolicy::kAlways:
      return "always";
    case HintPolicy::kOurs:
      break;
  }
  return "ours";
}

MappedRaw::MappedRaw(const std::string& path) : file_(path) {
  void* const mapped = ::mmap(nullptr, file_.size_bytes(), PROT_READ, MAP_SHARED, file_.fd(), 0);
  if (mapped == MAP_FAILED) FailCold("cannot map " + path);
  data_ = static_cast<const uint8_t*>(mapped);
  file_.AddMap(data_);
}

MappedRaw::~MappedRaw() { ::munmap(const_cast<uint8_t*>(data_), file_.size_bytes()); }

Hinter::Hinter(const MappedRaw& raw, HintPolicy policy, int window_ops,
               std::atomic<uint32_t>* shared)
    : raw_(raw), policy_(policy), window_ops_(window_ops), shared_(shared) {
  settled_ = ThreadFetchCost();
}

void Hinter::Hint(uint64_t begin, uint64_t end) const {
  (void)::posix_fadvise(raw_.file().fd(), static_cast<off_t>(begin),
                        static_cast<off_t>(end - begin), POSIX_FADV_WILLNEED);
}

bool Hinter::AnyAbsent(uint64_t begin, uint64_t end) const {
  unsigned char resident[kHintedPagesMax];
  const uint64_t pages = (end - begin) / kFilePageBytes;
  if (pages > kHintedPagesMax) return true;
  if (::mincore(const_cast<uint8_t*>(raw_.data()) + begin, end - begin, resident) != 0) return true;
  for (uint64_t i = 0; i < pages; ++i) {
    if ((resident[i] & 1) == 0) return true;
  }
  return false;
}

void Hinter::BeforeRead(uint64_t offset, uint64_t size_bytes) {
  const uint64_t begin = offset / kFilePageBytes * kFilePageBytes;
  const uint64_t end = (offset + size_bytes + kFilePageBytes - 1) / kFilePageBytes * kFilePageBytes;
  switch (policy_) {
    case HintPolicy::kNone:
      return;
    case HintPolicy::kBackOffShared:
    case HintPolicy::kBackOffOwn: {
      // As Lucene has it: the counter goes up at each call and starts anew when a page is absent.
      const bool shared = policy_ == HintPolicy::kBackOffShared;
      const uint32_t calls = shared ? shared_->fetch_add(1) : own_++;
      if (calls != 0 && !std::has_single_bit(calls)) return;
      if (!AnyAbsent(begin, end)) return;
      if (shared) {
        shared_->store(0);
      } else {
        own_ = 0;
      }
      Hint(begin, end);
      return;
    }
    case HintPolicy::kAlways:
      Hint(begin, end);
      return;
    case HintPolicy::kOurs:
      places_ += (end - begin) / kFilePageBytes;
      if (state_.mode == FetchMode::kAsking) Hint(begin, end);
      return;
  }
}

void Hinter::AfterOperation() {
  if (policy_ != HintPolicy::kOurs || ++ops_ < window_ops_) return;
  const FetchCost now = ThreadFetchCost();
  FetchCost cost = now - settled_;
  cost.places = places_;
  state_ = NextFetchState(state_, cost);
  settled_ = now;
  places_ = 0;
  ops_ = 0;
}

}  // namespace latchkey
