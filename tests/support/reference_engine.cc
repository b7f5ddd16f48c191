#include "tests/support/reference_engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>

#include "core/key/key_kind.h"
#include "core/lookup/probe_engine.h"

namespace latchkey::test {

void ReferenceEngine::AddSegment(const std::vector<Row>& rows, DuplicateRule rule,
                                 const TableSchema& schema) {
  auto& segment = segments_.emplace_back();
  for (size_t i = 0; i < rows.size(); ++i) {
    Stored stored{rows[i].doc_id.value_or(i), rows[i].value};
    if (schema.value_kind == ValueKind::kNone) stored.value.clear();
    if (rule == DuplicateRule::kLast) {
      segment.insert_or_assign(rows[i].key, std::move(stored));
    } else {
      segment.emplace(rows[i].key, std::move(stored));
    }
  }
}

LookupResult ReferenceEngine::Lookup(std::string_view key) const {
  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    const auto found = segment->find(std::string(key));
    if (found != segment->end()) {
      return {Outcome::kFound, found->second.doc_id, found->second.value};
    }
  }
  return {};
}

std::vector<std::string> ReferenceEngine::Keys() const {
  std::set<std::string> keys;
  for (const auto& segment : segments_) {
    for (const auto& [key, stored] : segment) keys.insert(key);
  }
  return {keys.begin(), keys.end()};
}

std::string Describe(const LookupResult& result) {
  if (result.outcome == Outcome::kDamaged) return "damaged";
  if (result.outcome == Outcome::kAbsent) return "absent";
  return fmt::format("found, doc id {}, value {} of {} bytes", result.doc_id,
                     QuoteShort(result.value), result.value.size());
}

void ExpectSameAnswers(const Snapshot& snapshot, const ReferenceEngine& reference,
                       const std::vector<std::string>& keys, size_t batch_keys) {
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  ProbeEngine engine({.prefetch = PrefetchChoice::kNever});
  LookupResults results, others;
  size_t next_turn = keys.size();
  int differing = 0;
  const auto compare = [&](std::string_view who, std::string_view key, const LookupResult& got,
                           const LookupResult& expected) {
    if (got == expected || ++differing > 5) return;
    ADD_FAILURE() << who << ", key of " << key.size() << " bytes " << QuoteShort(key)
                  << ": expected " << Describe(expected) << "; got " << Describe(got);
  };
  for (size_t begin = 0; begin < keys.size(); begin += batch_keys) {
    const auto batch = std::span(views).subspan(begin, std::min(batch_keys, keys.size() - begin));
    engine.Lookup(snapshot, batch, &results);
    ASSERT_EQ(results.size(), batch.size());
    ASSERT_EQ(results.doc_ids.size(), batch.size());
    // Every width and every level has its turn.
    const auto levels = MatchBucketsLevels();
    const size_t turn = next_turn++;
    const size_t tile_keys = 1 + turn * 37 % kTileKeysMax;
    ProbeEngine other({.tile_keys = tile_keys,
                       .match_buckets = levels[turn % levels.size()].match,
                       .prefetch = static_cast<PrefetchChoice>(turn % 3)});
    ASSERT_TRUE(other.Lookup(snapshot, batch, &others));
    ASSERT_EQ(others.size(), batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      const LookupResult expected = reference.Lookup(batch[i]);
      compare("batch", batch[i], results.at(i), expected);
      compare(fmt::format("tiles of {}, {}", tile_keys, levels[turn % levels.size()].name),
              batch[i], others.at(i), expected);
      compare("one by one", batch[i], LookupOne(snapshot, batch[i]), expected);
    }
  }
  EXPECT_EQ(differing, 0) << "answers of " << 3 * keys.size() << " differ";
}

}  // namespace latchkey::test
