// Rows of a hash range in the order of their hashes, one a key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "core/key/key_kind.h"
#include "core/segment/segment_writer.h"

namespace latchkey {

enum class DuplicateRule {
  kReject,  // a key that comes twice fails the build
  kFirst,   // its first row counts
  kLast,    // its last row counts
};

// A row before it is known to be the one of its key that counts.
struct TakenRow {
  uint64_t hash = 0;
  uint64_t doc_id = 0;
  uint64_t ordinal : 63 = 0;  // of the row in the input, from 0
  uint64_t tombstone : 1 = 0;
  std::string_view key;
  std::string_view value;
};

struct Duplicates {
  uint64_t dropped = 0;
  std::string first_key;  // an example, for the message
  uint64_t first_ordinal = 0, second_ordinal = 0;
};

// Puts rows in the order of their hashes, and leaves those of equal hashes in the order they are
// in. The bits above `common_bits` are equal in all of them. *scratch is memory to be used again.
void SortByHash(unsigned common_bits, std::vector<TakenRow>* rows, std::vector<TakenRow>* scratch);

// Replaces *distinct by the rows that count, `rows` being sorted by SortByHash; adds to
// *duplicates. kReject counts as kFirst does.
void DropDuplicates(const std::vector<TakenRow>& rows, DuplicateRule rule,
                    std::vector<SegmentRow>* distinct, Duplicates* duplicates);

// The error that says so.
absl::Status RejectDuplicates(const Duplicates& duplicates, KeyKind key_kind);

}  // namespace latchkey
