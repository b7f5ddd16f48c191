// Tables that change at random, while calls fail, writers are killed and power is lost, beside the
// plainest model of them: a map from generation to a map from key to row. After each step the table
// is what the model says: the newest generation is the one before the change or the one after it,
// whole; what was said to be done is done; older generations, and snapshots of generations that are
// gone, answer as ever; and the next writer goes on.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/build/key_deleter.h"
#include "core/build/table_builder.h"
#include "core/build/table_merger.h"
#include "core/lookup/probe_engine.h"
#include "core/lookup/visible_rows.h"
#include "core/table/generations.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/reference_engine.h"
#include "tests/support/status_asserts.h"
#include "tests/support/test_random.h"
#include "tests/support/test_table.h"
#include "tests/support/vector_source.h"

namespace latchkey::test {
namespace {

// --- the model --------------------------------------------------------------------------------

struct Stored {
  uint64_t doc_id = 0;
  std::shared_ptr<const std::string> value;  // shared among generations

  LookupResult Found() const { return {Outcome::kFound, doc_id, *value}; }
};

struct Content {
  TableSchema schema;
  std::map<std::string, Stored, std::less<>> rows;

  LookupResult Lookup(std::string_view key) const {
    const auto found = rows.find(key);
    return found == rows.end() ? LookupResult() : found->second.Found();
  }
};
using ContentPtr = std::shared_ptr<const Content>;
using Generations = std::map<uint64_t, ContentPtr>;

// What an input makes of `base`; null if the rule refuses it.
ContentPtr WithRows(const Content& base, const std::vector<Row>& rows, DuplicateRule rule) {
  auto content = std::make_shared<Content>(base);
  std::set<std::string_view> seen;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool again = !seen.insert(rows[i].key).second;
    if (again && rule == DuplicateRule::kReject) return nullptr;
    if (again && rule == DuplicateRule::kFirst) continue;
    const bool has_value = base.schema.value_kind != ValueKind::kNone;
    content->rows[rows[i].key] = {rows[i].doc_id.value_or(i), std::make_shared<const std::string>(
                                                                  has_value ? rows[i].value : "")};
  }
  return content;
}

DifferenceCounts CountDifferences(const Content& before, const Content& after) {
  DifferenceCounts counts;
  for (const auto& [key, stored] : before.rows) {
    const LookupResult other = after.Lookup(key);
    if (other.outcome == Outcome::kAbsent) ++counts.removed;
    if (other.outcome == Outcome::kFound && other != stored.Found()) ++counts.changed;
  }
  for (const auto& [key, stored] : after.rows) counts.added += !before.rows.contains(key);
  return counts;
}

// --- what is tried ----------------------------------------------------------------------------

enum Step : size_t {
  // Changes.
  kBuild,
  kAppend,
  kDelete,
  kMergeAll,
  kMergeTiered,
  kRollback,
  kGc,
  // The rest writes nothing.
  kPowerLoss,
  kReopen,
  kDrop,  // of a snapshot that is held
  kLookup,
  kBatch,
  kDump,
  kDiff,
  kStepCount,
};
constexpr size_t kChangeCount = kPowerLoss;
constexpr std::array<const char*, kStepCount> kStepNames = {
    "build",      "append", "delete", "merge all", "merge tiered", "rollback", "gc",
    "power loss", "reopen", "drop",   "lookup",    "batch",        "dump",     "diff"};
// Of 1,000 steps.
constexpr std::array<uint64_t, kStepCount> kStepWeights = {8, 62, 40, 10,  12,  12, 12,
                                                           3, 60, 20, 501, 160, 50, 50};

struct Variety {
  const char* name;
  std::vector<size_t> key_bytes;  // lengths of keys
  std::vector<ValueKind> value_kinds;
  bool doc_ids;     // given with most rows; else they are ordinals
  bool hash_lists;  // in most segments, so that there are segment maps
  std::vector<uint8_t> filter_bits;
  size_t keys_max = 300;
  size_t value_bytes_max = 60;
  uint64_t repetitions = 60;  // of keys in an input that has many
  uint64_t tables = 12;       // one after the other
  uint64_t steps = 3'000;     // of each
};
void PrintTo(const Variety& variety, std::ostream* out) { *out << variety.name; }

struct Tally {
  std::array<uint64_t, kStepCount> steps = {};
  uint64_t published = 0, refused = 0;
  // Changes in which a call failed, by what became of them; and those after which, or in the midst
  // of which, power was lost, or that were killed.
  uint64_t failed_old = 0, failed_new = 0, overcome = 0, killed = 0, power_lost = 0;
  uint64_t unsynced_gone = 0, removed_back = 0;  // generations, with the power
  uint64_t failed_opens = 0;
  uint64_t partitioned = 0, spilled = 0, maps = 0;  // segments, inputs, snapshots

  uint64_t Steps() const {
    uint64_t sum = 0;
    for (const uint64_t count : steps) sum += count;
    return sum;
  }
  uint64_t Changes() const {
    uint64_t sum = 0;
    for (size_t step = 0; step < kChangeCount; ++step) sum += steps[step];
    return sum;
  }
};

std::ostream& operator<<(std::ostream& out, const Tally& tally) {
  out << tally.Steps() << " steps:";
  for (size_t step = 0; step < kStepCount; ++step) {
    out << (step == 0 ? " " : ", ") << tally.steps[step] << ' ' << kStepNames[step];
  }
  return out << "; of " << tally.Changes() << " changes, published " << tally.published
             << ", refused " << tally.refused << ", killed " << tally.killed << ", lost power "
             << tally.power_lost << ", failed as before " << tally.failed_old
             << ", failed and yet there " << tally.failed_new << ", unhurt by a fault "
             << tally.overcome << "; generations lost unsynced " << tally.unsynced_gone
             << ", back after gc " << tally.removed_back << "; opens that failed "
             << tally.failed_opens << "; partitioned segments " << tally.partitioned
             << ", spilled inputs " << tally.spilled << ", segment maps " << tally.maps;
}

// --- one table --------------------------------------------------------------------------------

class ModelledTable {
 public:
  ModelledTable(const Variety& variety, Random& random, Tally& tally)
      : variety_(variety), random_(random), tally_(tally) {
    const size_t count = random_.OneIn(6) ? random_.Between(1, 4)
                                          : random_.Between(variety.keys_max / 4, variety.keys_max);
    std::set<std::string> keys;
    for (const size_t key_bytes : variety_.key_bytes) {
      for (std::string& key : DistinctKeys(random_, count, key_bytes)) keys.insert(std::move(key));
    }
    keys_.assign(keys.begin(), keys.end());
    Shuffle(&keys_);
    keys_.resize(std::min(keys_.size(), count));
    states_key_bytes_ = variety_.key_bytes.size() == 1 && random_.OneIn(2);
    call_counts_.fill(40);
  }

  void Run(uint64_t steps) {
    for (uint64_t i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      const Step step = Choose();
      const testing::ScopedTrace trace(__FILE__, __LINE__,
                                       "step " + std::to_string(i) + ": " + kStepNames[step]);
      Take(step);
      ++tally_.steps[step];
    }
    faults_.Arm(Fault::kNone, 0, 0);
    if (!testing::Test::HasFailure()) CheckAllGenerations();
  }

  // Publishes a generation whose name is not synced, and then loses power at a call of the next
  // change. Whether that came to the call.
  bool LosePowerWhileUnsynced(Step step, uint64_t at_call) {
    plan_ = Plan();
    while (generations_.size() < 2) AddRows(generations_.empty() ? kBuild : kAppend);
    RollBackTo(1);
    // The same again takes the same calls, of which the last one syncs.
    plan_ = Plan{Fault::kError, call_counts_[kRollback] - 1, EIO, false};
    RollBackTo(1);
    EXPECT_TRUE(hurt_ && Unsynced());
    plan_ = Plan{Fault::kCrash, at_call, EIO, true};
    step == kGc ? CollectGarbage(1) : Take(step);
    return hurt_;
  }

 private:
  struct Held {
    std::shared_ptr<const Snapshot> snapshot;
    ContentPtr content;
  };
  // What a change that met no fault does.
  enum class Due { kPublishes, kDoesNothing, kMayPublish, kRefuses };
  struct Plan {
    Fault fault = Fault::kNone;
    uint64_t at_call = 0;
    int error_number = 0;
    bool power = false;  // is lost afterwards
  };

  template <typename T>
  void Shuffle(std::vector<T>* all) {
    for (size_t i = all->size(); i > 1; --i) std::swap((*all)[random_.Below(i)], (*all)[i - 1]);
  }

  Step Choose() {
    if (generations_.empty()) return kBuild;
    // What is not surely on the disk yet is what the next steps can go wrong over.
    if (Unsynced() && random_.OneIn(2)) {
      constexpr std::array kNext = {kAppend, kRollback, kGc, kPowerLoss};
      return random_.Pick(kNext);
    }
    uint64_t at = random_.Below(1000);
    for (size_t step = 0;; at -= kStepWeights[step++]) {
      if (at < kStepWeights[step]) return static_cast<Step>(step);
    }
  }

  void Take(Step step) {
    switch (step) {
      case kBuild:
      case kAppend:
        return AddRows(step);
      case kDelete:
        return DeleteSome();
      case kMergeAll:
      case kMergeTiered:
        return Merge(step);
      case kRollback:
        return RollBack();
      case kGc:
        return CollectGarbage(random_.OneIn(4) ? random_.Between(4, 12) : random_.Between(1, 3));
      case kPowerLoss:
        return LosePower({}, {});
      case kReopen:
        return Reopen();
      case kDrop:
        if (!held_.empty()) Drop(random_.Below(held_.size()));
        return;
      case kLookup:
        return LookUpOne();
      case kBatch:
        return LookUpBatch();
      case kDump:
        return Dump();
      case kDiff:
        return Diff();
      case kStepCount:
        break;
    }
  }

  uint64_t newest() const { return generations_.empty() ? 0 : generations_.rbegin()->first; }
  // Of the newest generation.
  ContentPtr content() const {
    return generations_.empty() ? std::make_shared<Content>() : generations_.rbegin()->second;
  }

  // --- changes

  TableSchema RandomSchema() {
    TableSchema schema;
    if (states_key_bytes_) schema.key_bytes = static_cast<uint16_t>(variety_.key_bytes[0]);
    schema.doc_id_bytes = random_.OneIn(2) ? 4 : 8;
    schema.value_kind = random_.Pick(variety_.value_kinds);
    if (schema.value_kind == ValueKind::kFixed) {
      schema.value_width = static_cast<uint8_t>(random_.OneIn(2) ? 8 : random_.Between(1, 64));
    }
    return schema;
  }

  std::string RandomValue(const TableSchema& schema) {
    switch (schema.value_kind) {
      case ValueKind::kNone:  // of an input that has some, which are dropped
        return random_.Bytes(random_.Below(3));
      case ValueKind::kFixed:
        return random_.Bytes(schema.value_width);
      case ValueKind::kBytes:
        break;
    }
    if (random_.OneIn(8)) return "";
    // Compressible or not is all one; long random ones take their time.
    std::string value = random_.Bytes(std::min<size_t>(32, variety_.value_bytes_max));
    value.resize(random_.Between(1, variety_.value_bytes_max), value.back());
    return value;
  }

  Row RandomRow(const TableSchema& schema, const std::string& key) {
    Row row{key, RandomValue(schema)};
    if (variety_.doc_ids && !random_.OneIn(8)) {
      row.doc_id = random_.OneIn(8) ? schema.DocIdMax() : random_.Next() % schema.DocIdMax();
    }
    return row;
  }

  // Keys that come once; none, one, some or all.
  std::vector<std::string> SomeKeys() {
    Shuffle(&keys_);
    const uint64_t few = std::min<uint64_t>(40, keys_.size());
    const uint64_t count = random_.OneIn(30)   ? 0
                           : random_.OneIn(12) ? keys_.size()
                           : random_.OneIn(8)  ? 1
                                               : random_.Between(1, few);
    return {keys_.begin(), keys_.begin() + static_cast<ptrdiff_t>(count)};
  }

  std::vector<Row> RandomRows(const TableSchema& schema) {
    std::vector<Row> rows;
    for (const std::string& key : SomeKeys()) rows.push_back(RandomRow(schema, key));
    if (!rows.empty() && random_.OneIn(3)) {
      const bool many = random_.OneIn(4);
      for (uint64_t i = many ? variety_.repetitions : random_.Between(1, 4); i > 0; --i) {
        rows.push_back(RandomRow(schema, random_.Pick(rows).key));
      }
      Shuffle(&rows);
    }
    return rows;
  }

  void AddRows(Step step) {
    BuildOptions options;
    options.data_dir = "data";
    options.table = "t";
    options.append = step == kAppend;
    options.layout = random_.OneIn(4) ? LayoutChoice::kPointer : LayoutChoice::kAuto;
    options.filter_bits_per_key = random_.Pick(variety_.filter_bits);
    options.hash_list = variety_.hash_lists && !random_.OneIn(20);
    options.memory_bytes = kBuildMemoryBytesMin;
    constexpr std::array kRules = {DuplicateRule::kReject, DuplicateRule::kFirst,
                                   DuplicateRule::kLast};
    options.duplicates = random_.Pick(kRules);
    Content base;
    base.schema = options.append ? content()->schema : RandomSchema();
    if (options.append) base.rows = content()->rows;
    options.schema = base.schema;
    const std::vector<Row> rows = RandomRows(options.schema);
    const ContentPtr after = WithRows(base, rows, options.duplicates);
    Due due = after == nullptr ? Due::kRefuses : Due::kPublishes;
    if (options.append && random_.OneIn(40)) {  // rows of another table
      options.schema.doc_id_bytes = options.schema.doc_id_bytes == 4 ? 8 : 4;
      due = Due::kRefuses;
    }
    Change(step, due, after, {}, [&]() -> absl::StatusOr<bool> {
      VectorSource source(rows);
      const auto built = BuildTable(faults_, options, source, nullptr);
      if (!built.ok()) return built.status();
      std::set<std::string_view> distinct;
      for (const Row& row : rows) distinct.insert(row.key);
      EXPECT_EQ(built->generation, newest() + 1);
      EXPECT_EQ(built->rows_read, rows.size());
      EXPECT_EQ(built->rows_stored, distinct.size());
      tally_.partitioned += built->header.partition_bits > 0;
      tally_.spilled += built->spilled_bytes > 0;
      return true;
    });
  }

  void DeleteSome() {
    std::vector<Row> keys;
    for (const std::string& key : SomeKeys()) keys.push_back({key, ""});
    for (uint64_t i = random_.Below(4); i > 0; --i) {
      keys.push_back({random_.Bytes(random_.Pick(variety_.key_bytes)), ""});
    }
    if (!keys.empty() && random_.OneIn(3)) keys.push_back(keys.front());
    Shuffle(&keys);
    const auto after = std::make_shared<Content>(*content());
    std::set<std::string_view> distinct;
    uint64_t deleted = 0;
    for (const Row& row : keys) {
      distinct.insert(row.key);
      deleted += after->rows.erase(row.key);
    }
    DeleteOptions options;
    options.data_dir = "data";
    options.table = "t";
    options.memory_bytes = kBuildMemoryBytesMin;
    Change(kDelete, deleted > 0 ? Due::kPublishes : Due::kDoesNothing, after, {},
           [&]() -> absl::StatusOr<bool> {
             VectorSource source(keys);
             const auto done = DeleteKeys(faults_, options, source, nullptr);
             if (!done.ok()) return done.status();
             EXPECT_EQ(done->generation, newest() + done->published);
             EXPECT_EQ(done->keys_read, keys.size());
             EXPECT_EQ(done->deleted, deleted);
             EXPECT_EQ(done->absent, distinct.size() - deleted);
             EXPECT_EQ(done->repeated, keys.size() - distinct.size());
             return done->published;
           });
  }

  void Merge(Step step) {
    MergeOptions options;
    options.data_dir = "data";
    options.table = "t";
    options.policy = step == kMergeAll ? MergePolicy::kAll : MergePolicy::kTiered;
    options.memory_bytes = kBuildMemoryBytesMin;
    const ContentPtr same = content();
    Change(step, Due::kMayPublish, same, {}, [&]() -> absl::StatusOr<bool> {
      const auto merged = MergeTable(faults_, options, nullptr);
      if (!merged.ok()) return merged.status();
      EXPECT_EQ(merged->generation, newest() + merged->published);
      EXPECT_EQ(merged->published, merged->plan.segments > 0);
      if (merged->published && merged->plan.segments == merged->plan.table_segments) {
        EXPECT_EQ(merged->rows_stored, same->rows.size());
        EXPECT_EQ(merged->header.tombstone_count, 0u);
      }
      if (options.policy == MergePolicy::kAll) {
        EXPECT_TRUE(merged->published || merged->plan.table_segments <= 1);
        EXPECT_TRUE(!merged->published || merged->plan.segments == merged->plan.table_segments);
      }
      tally_.partitioned += merged->published && merged->header.partition_bits > 0;
      return merged->published;
    });
  }

  void RollBack() {
    auto to = generations_.begin();
    std::advance(to, random_.Below(generations_.size()));
    RollBackTo(random_.OneIn(10) ? newest() + random_.Between(1, 3) : to->first);
  }

  void RollBackTo(uint64_t generation) {
    const auto to = generations_.find(generation);
    const bool refused = generation == newest() || to == generations_.end();
    Change(kRollback, refused ? Due::kRefuses : Due::kPublishes, refused ? nullptr : to->second, {},
           [&]() -> absl::StatusOr<bool> {
             const auto manifest = Rollback(faults_, kDir, generation);
             if (!manifest.ok()) return manifest.status();
             EXPECT_EQ(manifest->generation, newest() + 1);
             return true;
           });
  }

  void CollectGarbage(uint64_t keep) {
    GcResult expected;
    std::set<uint64_t> held;
    for (const Held& one : held_) held.insert(one.snapshot->generation());
    for (const auto& [generation, content] : generations_) {
      const bool old = expected.removed.size() + expected.held.size() + keep < generations_.size();
      auto& list = !old                        ? expected.kept
                   : held.contains(generation) ? expected.held
                                               : expected.removed;
      list.push_back(generation);
    }
    const std::set<uint64_t> removed(expected.removed.begin(), expected.removed.end());
    Change(kGc, Due::kDoesNothing, nullptr, removed, [&]() -> absl::StatusOr<bool> {
      const auto done = Gc(faults_, kDir, {.keep = keep});
      if (!done.ok()) return done.status();
      EXPECT_EQ(done->kept, expected.kept);
      EXPECT_EQ(done->held, expected.held);
      EXPECT_EQ(done->removed, expected.removed);
      return false;
    });
  }

  // Whether a loss of power may still undo something of what there is.
  bool Unsynced() const { return !(may_vanish_.empty() && may_return_.empty()); }

  Plan PlanFault(Step step) {
    if (plan_.has_value()) return *plan_;
    Plan plan;
    if (random_.OneIn(2)) return plan;
    struct Kind {
      Fault fault;
      int error_number;
    };
    constexpr std::array kKinds = {Kind{Fault::kError, EIO},     Kind{Fault::kError, ENOSPC},
                                   Kind{Fault::kLateError, EIO}, Kind{Fault::kTornWrite, ENOSPC},
                                   Kind{Fault::kShortRead, 0},   Kind{Fault::kDiskFull, ENOSPC},
                                   Kind{Fault::kCrash, EIO}};
    const Kind kind = Unsynced() || random_.OneIn(3) ? kKinds.back() : random_.Pick(kKinds);
    plan.fault = kind.fault;
    plan.error_number = kind.error_number;
    plan.power = kind.fault == Fault::kCrash && random_.OneIn(2);
    // Much depends on the last calls, which publish.
    const uint64_t calls = call_counts_[step];
    plan.at_call =
        random_.OneIn(2) ? random_.Below(calls + 1) : calls - std::min(calls, random_.Below(7));
    return plan;
  }

  // Makes a change, and holds it to what is `due`: that generation newest() + 1 has the content
  // `after`, or that the generations `removable` go; with a fault, perhaps.
  void Change(Step step, Due due, const ContentPtr& after, const std::set<uint64_t>& removable,
              const std::function<absl::StatusOr<bool>()>& change) {
    const Plan plan = PlanFault(step);
    const testing::ScopedTrace trace(__FILE__, __LINE__,
                                     testing::Message()
                                         << "fault " << static_cast<int>(plan.fault) << " at call "
                                         << plan.at_call << ", errno " << plan.error_number
                                         << (plan.power ? ", then without power" : ""));
    faults_.Arm(plan.fault, plan.at_call, plan.error_number);
    const absl::StatusOr<bool> done = change();
    const bool hurt = plan.fault != Fault::kNone && faults_.calls().size() > plan.at_call;
    hurt_ = hurt;
    if (plan.fault == Fault::kNone && done.ok()) call_counts_[step] = faults_.calls().size();
    faults_.Arm(Fault::kNone, 0, 0);
    if (!hurt && due != Due::kRefuses) {
      ASSERT_OK(done);
    }
    if (due == Due::kRefuses) {
      ASSERT_FALSE(done.ok());
      tally_.refused += !hurt;
    }
    if (done.ok()) {
      tally_.overcome += hurt;
      ASSERT_TRUE(due == Due::kMayPublish || *done == (due == Due::kPublishes));
    }
    tally_.killed += hurt && plan.fault == Fault::kCrash && !plan.power;
    const uint64_t before = newest();
    Generations possible;
    if (done.ok()) {
      if (*done) generations_[newest() + 1] = after;
      for (const uint64_t generation : removable) generations_.erase(generation);
      tally_.published += *done;
      if (*done || step == kGc) Synced();
    } else if (due == Due::kPublishes || due == Due::kMayPublish) {
      possible[newest() + 1] = after;
    }
    const std::set<uint64_t> may_go = done.ok() ? std::set<uint64_t>() : removable;
    if (plan.power) {
      ++tally_.power_lost;
      LosePower(std::move(possible), may_go);
    } else {
      Settle(Listed(), possible, may_go);
      if (testing::Test::HasFatalFailure()) return;
      CheckNewest();
    }
    if (!done.ok() && hurt) ++(newest() > before ? tally_.failed_new : tally_.failed_old);
    if (testing::Test::HasFailure()) return;
    if (done.ok() && !plan.power) CheckFiles(step == kGc);
    if (random_.OneIn(4)) CheckSomeGeneration();
  }

  // --- what there is

  // All that there is now is surely on the disk, and what is not there will not be there again.
  void Synced() {
    may_vanish_.clear();
    may_return_.clear();
    sure_ = newest();
  }

  std::set<uint64_t> Listed() {
    const auto listed = ListGenerations(faults_, kDir);
    if (!listed.ok()) {  // no folder, so far
      EXPECT_TRUE(absl::IsNotFound(listed.status()) && generations_.empty()) << listed.status();
      return {};
    }
    return {listed->begin(), listed->end()};
  }

  // Makes the model's generations those that are listed, after a change that failed. It may have
  // made those of `possible`, and removed those of `may_go`.
  void Settle(const std::set<uint64_t>& listed, const Generations& possible,
              const std::set<uint64_t>& may_go) {
    for (auto known = generations_.begin(); known != generations_.end();) {
      const uint64_t generation = known->first;
      if (listed.contains(generation)) {
        ++known;
        continue;
      }
      ASSERT_TRUE(may_go.contains(generation)) << "generation " << generation << " is gone";
      may_return_.insert(*known);
      known = generations_.erase(known);
    }
    for (const uint64_t generation : listed) {
      if (generations_.contains(generation)) continue;
      const auto made = possible.find(generation);
      ASSERT_NE(made, possible.end()) << "generation " << generation << " is there";
      generations_.insert(*made);
      may_vanish_.insert(generation);
    }
  }

  void LosePower(Generations possible, const std::set<uint64_t>& may_go) {
    held_.clear();  // readers go, too
    faults_.LoseUnsynced(random_.OneIn(2) ? nullptr : &random_);
    std::set<uint64_t> all_may_go = may_go;
    all_may_go.insert(may_vanish_.begin(), may_vanish_.end());
    for (const auto& returning : may_return_) possible.insert(returning);
    const Generations known = generations_;
    Settle(Listed(), possible, all_may_go);
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_GE(newest(), sure_) << "what was said to be published is not there";
    for (const auto& [generation, content] : known) {
      tally_.unsynced_gone += !generations_.contains(generation);
    }
    for (const auto& [generation, content] : may_return_) {
      tally_.removed_back += generations_.contains(generation);
    }
    Synced();
    if (newest() > 0) {
      for (const SegmentRef& ref : ManifestOf(newest()).segments) {
        std::vector<DamagedBlock> damaged;
        EXPECT_OK(VerifySegmentFile(faults_, JoinPath(kDir, ref.file), &damaged));
        EXPECT_TRUE(damaged.empty());
      }
    }
    CheckNewest();
    random_.OneIn(8) ? CheckAllGenerations() : CheckSomeGeneration();
  }

  Manifest ManifestOf(uint64_t generation) {
    const auto manifest = ReadManifest(faults_, kDir, generation);
    EXPECT_OK(manifest);
    return manifest.ok() ? *manifest : Manifest();
  }

  // After a change that went well: no temporary, no segment that was not published; after gc,
  // nothing that no manifest names.
  void CheckFiles(bool collected) {
    std::set<std::string> needed = {"lock"};
    for (const auto& [generation, content] : generations_) {
      needed.insert(ManifestFileName(generation));
      if (!collected) continue;
      for (const SegmentRef& ref : ManifestOf(generation).segments) needed.insert(ref.file);
    }
    ASSERT_OK_AND_ASSIGN(const auto names, faults_.List(kDir));
    for (const std::string& name : names) {
      if (needed.contains(name)) {
        needed.erase(name);
        continue;
      }
      EXPECT_TRUE(!collected && IsSegmentFileName(name) && name < SegmentFileName(newest() + 1, 0))
          << name << " is left over";
    }
    EXPECT_TRUE(needed.empty()) << *needed.begin() << " is not there";
  }

  SnapshotOptions RandomOptions() {
    SnapshotOptions options;
    if (random_.OneIn(3)) options.segment_map_bytes_max = 0;
    return options;
  }

  // The newest generation, afresh or from one that is held, as a server does it.
  absl::StatusOr<std::shared_ptr<const Snapshot>> OpenNewest() {
    if (held_.empty() || random_.OneIn(3)) {
      return Snapshot::OpenNewest(faults_, kDir, RandomOptions());
    }
    auto manifest = ReadNewestManifest(faults_, kDir);
    if (!manifest.ok()) return manifest.status();
    const Snapshot& previous = *random_.Pick(held_).snapshot;
    return Snapshot::Open(faults_, kDir, *std::move(manifest), RandomOptions(), &previous);
  }

  void CheckNewest() {
    const auto snapshot = OpenNewest();
    if (generations_.empty()) {
      EXPECT_FAILS(snapshot, kNotFound, testing::HasSubstr(kDir));
      return;
    }
    ASSERT_OK(snapshot);
    ASSERT_EQ((*snapshot)->generation(), newest());
    const Held now = {*snapshot, content()};
    tally_.maps += now.snapshot->segment_map() != nullptr;
    CheckDump(now);
    CheckAnswers(now, AllQuestions());
    if (random_.OneIn(3)) Hold(now);
  }

  void CheckGeneration(uint64_t generation, const ContentPtr& content) {
    const testing::ScopedTrace trace(__FILE__, __LINE__,
                                     "generation " + std::to_string(generation));
    ASSERT_OK_AND_ASSIGN(const HeldManifest held, HoldGeneration(faults_, kDir, generation));
    ASSERT_OK_AND_ASSIGN(const auto snapshot,
                         Snapshot::Open(faults_, kDir, held.manifest, RandomOptions()));
    CheckDump({snapshot, content});
  }
  void CheckSomeGeneration() {
    if (generations_.empty()) return;
    auto one = generations_.begin();
    std::advance(one, random_.Below(generations_.size()));
    CheckGeneration(one->first, one->second);
  }
  void CheckAllGenerations() {
    for (const auto& [generation, content] : generations_) CheckGeneration(generation, content);
  }

  // --- reading

  void Hold(Held held) {
    if (held_.size() >= 6) Drop(random_.Below(held_.size()));
    held_.push_back(std::move(held));
  }
  void Drop(size_t index) { held_.erase(held_.begin() + static_cast<ptrdiff_t>(index)); }

  // One that is held, the oldest as often as all others.
  const Held* PickHeld() {
    if (held_.empty()) Reopen();
    if (held_.empty()) return nullptr;
    return random_.OneIn(2) ? &held_.front() : &random_.Pick(held_);
  }

  // With a call that fails, at times: then it says so, or all is well.
  void Reopen() {
    const bool fails = random_.OneIn(4);
    if (fails) {
      faults_.Arm(random_.OneIn(2) ? Fault::kError : Fault::kShortRead, random_.Below(12), EIO);
    }
    const auto snapshot = OpenNewest();
    faults_.Arm(Fault::kNone, 0, 0);
    if (!snapshot.ok() && fails) {
      ++tally_.failed_opens;
      return;
    }
    ASSERT_OK(snapshot);
    ASSERT_EQ((*snapshot)->generation(), newest());
    Hold({*snapshot, content()});
  }

  std::string Question() {
    return random_.OneIn(5) ? StrangerKeys(random_, keys_, 1)[0] : random_.Pick(keys_);
  }
  std::vector<std::string> Questions(size_t count) {
    std::vector<std::string> questions;
    while (questions.size() < count) questions.push_back(Question());
    return questions;
  }
  // All keys, and some that the table never had.
  std::vector<std::string> AllQuestions() {
    std::vector<std::string> questions = StrangerKeys(random_, keys_, 20);
    questions.insert(questions.end(), keys_.begin(), keys_.end());
    return questions;
  }

  ProbeEngine& AnyEngine() { return random_.Pick(engines_); }

  static void CheckAnswer(const Held& held, const std::string& key, const LookupResult& answer) {
    const LookupResult expected = held.content->Lookup(key);
    EXPECT_EQ(answer, expected) << "generation " << held.snapshot->generation() << ": got "
                                << Describe(answer) << ", expected " << Describe(expected);
  }

  void CheckAnswers(const Held& held, const std::vector<std::string>& questions) {
    const std::vector<std::string_view> keys(questions.begin(), questions.end());
    LookupResults results;
    ASSERT_TRUE(AnyEngine().Lookup(*held.snapshot, keys, &results));
    ASSERT_EQ(results.size(), keys.size());
    for (size_t i = 0; i < keys.size() && !testing::Test::HasFailure(); ++i) {
      CheckAnswer(held, questions[i], results.at(i));
    }
  }

  void CheckDump(const Held& held) {
    std::set<std::string, std::less<>> seen;
    EXPECT_OK(ForEachVisibleRow(*held.snapshot, [&](const StoredRow& row) {
      const std::string key(row.key);
      EXPECT_TRUE(seen.insert(key).second) << "a key comes twice";
      CheckAnswer(held, key, {Outcome::kFound, row.doc_id, row.value});
      return testing::Test::HasFailure() ? absl::CancelledError() : absl::OkStatus();
    }));
    EXPECT_EQ(seen.size(), held.content->rows.size()) << "keys are missing";
  }

  void LookUpOne() {
    const Held* const held = PickHeld();
    if (held == nullptr) return;
    const std::string key = Question();
    LookupResult answer;
    ASSERT_TRUE(AnyEngine().LookupOne(*held->snapshot, key, &answer));
    CheckAnswer(*held, key, answer);
    CheckAnswer(*held, key, LookupOne(*held->snapshot, key));
  }

  void LookUpBatch() {
    const Held* const held = PickHeld();
    if (held != nullptr) CheckAnswers(*held, Questions(random_.Between(1, 150)));
  }

  void Dump() {
    const Held* const held = PickHeld();
    if (held != nullptr) CheckDump(*held);
  }

  void Diff() {
    const Held* const before = PickHeld();
    const Held* const after = PickHeld();
    if (before == nullptr || after == nullptr) return;
    std::set<std::string, std::less<>> seen;
    const auto counts =
        CompareGenerations(*before->snapshot, *after->snapshot, [&](const Difference& difference) {
          const std::string key(difference.key);
          EXPECT_TRUE(seen.insert(key).second) << "a key comes twice";
          EXPECT_NE(difference.before, difference.after);
          CheckAnswer(*before, key, difference.before);
          CheckAnswer(*after, key, difference.after);
          return absl::OkStatus();
        });
    ASSERT_OK(counts);
    const DifferenceCounts expected = CountDifferences(*before->content, *after->content);
    EXPECT_EQ(seen.size(), expected.all());
    EXPECT_EQ(counts->added, expected.added);
    EXPECT_EQ(counts->removed, expected.removed);
    EXPECT_EQ(counts->changed, expected.changed);
  }

  static constexpr const char* kDir = "data/t";

  const Variety& variety_;
  Random& random_;
  Tally& tally_;
  MemoryFileSystem files_;
  FaultFileSystem faults_{files_};
  std::vector<std::string> keys_;  // that the table may have
  bool states_key_bytes_ = false;
  std::array<uint64_t, kChangeCount> call_counts_ = {};  // of a change of the kind, lately
  std::optional<Plan> plan_;                             // of the next changes; else at random
  bool hurt_ = false;                                    // the last change met its fault

  Generations generations_;        // that there are
  std::set<uint64_t> may_vanish_;  // those of them that were said to have failed, with the power
  Generations may_return_;         // removed by what was said to have failed
  uint64_t sure_ = 0;              // the newest that was said to be published
  std::vector<Held> held_;         // snapshots, the oldest first
  std::array<ProbeEngine, 3> engines_ = {ProbeEngine(),
                                         ProbeEngine({.prefetch = PrefetchChoice::kAlways}),
                                         ProbeEngine({.prefetch = PrefetchChoice::kNever})};
};

// --- the tests --------------------------------------------------------------------------------

class TableModelTest : public SeededTest, public testing::WithParamInterface<Variety> {};

TEST_P(TableModelTest, ATableEqualsItsModelWhateverHappens) {
  const Variety& variety = GetParam();
  Tally tally;
  for (uint64_t i = 0; i < variety.tables; ++i) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, "table " + std::to_string(i));
    ModelledTable table(variety, random_, tally);
    table.Run(variety.steps);
    if (HasFailure()) break;
  }
  std::cout << variety.name << ": seed " << TestSeed() << ": " << tally << std::endl;
  if (HasFailure()) return;
  const uint64_t steps = variety.tables * variety.steps;
  EXPECT_EQ(tally.Steps(), steps);
  EXPECT_EQ(tally.maps > 0, variety.hash_lists);
  if (variety.value_bytes_max > 1000) {
    EXPECT_GE(tally.partitioned, 10u);
    EXPECT_GE(tally.spilled, 3u);
  }
  for (size_t step = 0; step < kStepCount; ++step) {
    EXPECT_GE(tally.steps[step], steps * kStepWeights[step] / 4000) << kStepNames[step];
  }
  EXPECT_GE(tally.Changes(), steps / 10);
  EXPECT_GE(tally.published, steps / 25);
  for (const uint64_t count : {tally.refused, tally.failed_new, tally.overcome}) {
    EXPECT_GE(count, steps / 4000);
  }
  for (const uint64_t count : {tally.failed_old, tally.killed, tally.power_lost}) {
    EXPECT_GE(count, steps / 200);
  }
}

const std::vector<ValueKind> kAnyValues = {ValueKind::kNone, ValueKind::kFixed, ValueKind::kBytes};

const std::vector<Variety> kVarieties = {
    {"KeysOfOneLengthWithoutValues", {16}, {ValueKind::kNone}, false, true, {0}},
    {"KeysOfOneLengthWithFixedValues", {8}, {ValueKind::kFixed}, true, true, {10}},
    {"KeysOfOneLengthWithValuesOfBytes", {20}, {ValueKind::kBytes}, true, false, {12}},
    {"KeysOfAnyLengthWithFixedValues",
     {1, 3, 8, 40, 300},
     {ValueKind::kFixed},
     false,
     true,
     {0, 10}},
    {"KeysOfAnyLengthWithValuesOfBytes", {2, 7, 16, 33, 90}, {ValueKind::kBytes}, true, true, {10}},
    {"SchemasThatChange", {4, 16, 36}, kAnyValues, true, true, {0, 1, 10, 32}},
    // Builds of several partitions, and inputs that are spilled.
    {"LargeValues", {16}, {ValueKind::kBytes}, true, true, {10}, 160, 60'000, 600, 3, 2'500},
};

INSTANTIATE_TEST_SUITE_P(Tables, TableModelTest, testing::ValuesIn(kVarieties),
                         [](const testing::TestParamInfo<Variety>& variety) {
                           return variety.param.name;
                         });

class UnsyncedTableTest : public SeededTest {};

// As a writer leaves it that is killed, or fails, before its last sync.
TEST_F(UnsyncedTableTest, PowerIsLostInTheChangeAfterOneThatIsNotSynced) {
  Tally tally;
  struct Next {
    Step step;
    uint64_t stride;  // calls; some have many that write
    int rounds;
  };
  for (const Next& next : {Next{kGc, 1, 50}, Next{kRollback, 1, 10}, Next{kMergeAll, 5, 10},
                           Next{kAppend, 5, 10}, Next{kDelete, 5, 10}}) {
    bool reached = true;
    for (uint64_t call = 0; reached; call += next.stride) {
      reached = false;
      for (int round = 0; round < next.rounds; ++round) {
        const testing::ScopedTrace trace(
            __FILE__, __LINE__, testing::Message() << kStepNames[next.step] << ", call " << call);
        ModelledTable table(random_.Pick(kVarieties), random_, tally);
        reached |= table.LosePowerWhileUnsynced(next.step, call);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
  EXPECT_GE(tally.power_lost, 500u);
  // The generation is there, or it is not.
  EXPECT_GE(tally.unsynced_gone, 100u);
  EXPECT_GE(tally.power_lost - tally.unsynced_gone, 100u);
}

}  // namespace
}  // namespace latchkey::test
