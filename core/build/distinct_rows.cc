#include "core/build/distinct_rows.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/error.h"
#include "core/key/key_hash.h"

namespace latchkey {

// One counting pass by the next bits leaves about one row a bucket.
void SortByHash(unsigned common_bits, std::vector<TakenRow>* rows, std::vector<TakenRow>* scratch) {
  const unsigned bits = std::bit_width(rows->size());
  std::vector<uint32_t> starts((size_t{1} << bits) + 1);
  const auto bucket_of = [&](const TakenRow& row) {
    return TopBits(row.hash << common_bits, bits);
  };
  for (const TakenRow& row : *rows) ++starts[bucket_of(row) + 1];
  for (size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
  scratch->resize(rows->size());
  for (const TakenRow& row : *rows) (*scratch)[starts[bucket_of(row)]++] = row;
  rows->swap(*scratch);
  for (size_t i = 1; i < rows->size(); ++i) {
    for (size_t j = i; j > 0 && (*rows)[j].hash < (*rows)[j - 1].hash; --j) {
      std::swap((*rows)[j], (*rows)[j - 1]);
    }
  }
}

// Rows of one key have equal hashes, so they lie side by side.
void DropDuplicates(const std::vector<TakenRow>& rows, DuplicateRule rule,
                    std::vector<SegmentRow>* distinct, Duplicates* duplicates) {
  distinct->clear();
  size_t group_begin = 0;  // in *distinct: rows of the present hash
  uint64_t group_hash = 0;
  std::vector<uint64_t> ordinals;  // of the rows in *distinct of the present hash
  for (const TakenRow& row : rows) {
    if (distinct->empty() || row.hash != group_hash) {
      group_begin = distinct->size();
      group_hash = row.hash;
      ordinals.clear();
    }
    const auto same =
        std::find_if(distinct->begin() + static_cast<ptrdiff_t>(group_begin), distinct->end(),
                     [&](const SegmentRow& other) { return other.key == row.key; });
    if (same == distinct->end()) {
      distinct->push_back({row.hash, row.doc_id, row.key, row.value, row.tombstone != 0});
      ordinals.push_back(row.ordinal);
      continue;
    }
    const uint64_t earlier = ordinals[static_cast<size_t>(same - distinct->begin()) - group_begin];
    if (duplicates->dropped++ == 0 || row.ordinal < duplicates->second_ordinal) {
      duplicates->first_key = row.key;
      duplicates->first_ordinal = earlier;
      duplicates->second_ordinal = row.ordinal;
    }
    if (rule == DuplicateRule::kLast) {
      same->doc_id = row.doc_id;
      same->value = row.value;
      same->tombstone = row.tombstone != 0;
    }
  }
}

absl::Status RejectDuplicates(const Duplicates& duplicates, KeyKind key_kind) {
  std::string key = KeyToText(key_kind, duplicates.first_key);
  if (key.size() > 80) key = key.substr(0, 77) + "...";
  return InvalidArgument(
      "{} rows repeat a key; the first is row {} of the input, with the key '{}' of row {} (rows "
      "are counted from 1); keep one with --duplicates first or last",
      duplicates.dropped, duplicates.second_ordinal + 1, key, duplicates.first_ordinal + 1);
}

}  // namespace latchkey
