// Answers of a batch: one for each key, in the order of the keys.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace latchkey {

enum class Outcome : uint8_t {
  kFound,
  kAbsent,
  kDamaged,  // what a segment holds for this key can't be read: neither found nor absent
  kStopped,  // the lookup was stopped before this key was done
};

// The answer to one key. The value points into the snapshot that it was looked up in.
struct LookupResult {
  Outcome outcome = Outcome::kAbsent;
  uint64_t doc_id = 0;
  std::string_view value;
  bool operator==(const LookupResult&) const = default;
};

// K answers as columns. Values point into the snapshot.
struct LookupResults {
  std::vector<Outcome> outcomes;
  std::vector<uint64_t> doc_ids;  // 0 where nothing was found
  // Empty where nothing was found; no elements at all when the table has no values.
  std::vector<std::string_view> values;

  size_t size() const { return outcomes.size(); }
  LookupResult at(size_t i) const {
    return {outcomes[i], doc_ids[i], values.empty() ? std::string_view() : values[i]};
  }
};

}  // namespace latchkey
