#include "core/build/key_deleter.h"

#include <bit>
#include <memory>
#include <string_view>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/build/partitioned_rows.h"
#include "core/build/partitioner.h"
#include "core/lookup/probe_engine.h"
#include "core/table/snapshot.h"

namespace latchkey {
namespace {

// Keys that are looked up at once.
constexpr size_t kLookupKeys = 4096;
constexpr size_t kLookupBytes = size_t{1} << 20;

// Partitioned keys whose doc ids say whether the table has them: gives tombstones for those that it
// has, and counts the others.
class Tombstones final : public RowsByBucket {
 public:
  Tombstones(Partitioner& partitioner, uint64_t seed, const RowCounts& present)
      : keys_(partitioner, seed), counts_(present) {
    // All keys lie beside the tombstones until those that are absent are counted.
    counts_.working_bytes =
        keys_.counts().working_bytes + 4 * sizeof(TakenRow) * keys_.counts().rows;
  }

  const RowCounts& counts() const override { return counts_; }
  absl::Status Take(size_t begin, size_t end, std::vector<TakenRow>* rows) override {
    taken_.clear();
    absent_.clear();
    LATCHKEY_RETURN_IF_ERROR(keys_.Take(begin, end, &taken_));
    for (TakenRow& row : taken_) {
      const bool present = row.doc_id != 0;
      row.doc_id = 0;
      row.tombstone = present;
      (present ? *rows : absent_).push_back(row);
    }
    SortByHash(kPartitionBitsMax - static_cast<unsigned>(std::countr_zero(end - begin)), &absent_,
               &scratch_);
    DropDuplicates(absent_, DuplicateRule::kFirst, &distinct_, &repeated_absent_);
    absent_count_ += distinct_.size();
    return absl::OkStatus();
  }

  // Of the keys that were taken.
  uint64_t absent() const { return absent_count_; }
  uint64_t repeated_absent() const { return repeated_absent_.dropped; }

 private:
  PartitionedRows keys_;
  RowCounts counts_;
  uint64_t absent_count_ = 0;
  Duplicates repeated_absent_;
  std::vector<TakenRow> taken_, absent_, scratch_;
  std::vector<SegmentRow> distinct_;
};

// One deletion, from its lock to its manifest.
class Deletion {
 public:
  Deletion(FileSystem& file_system, const DeleteOptions& options, RecordSource& source,
           const ProgressFunction& progress)
      : file_system_(file_system),
        options_(options),
        source_(source),
        progress_(progress),
        change_(file_system, options.data_dir, options.table) {}

  absl::StatusOr<DeleteResult> Run() {
    LATCHKEY_RETURN_IF_ERROR(CheckMemoryBytes(options_.memory_bytes));
    LATCHKEY_RETURN_IF_ERROR(change_.Begin(/*create=*/false));
    const Manifest& manifest = change_.manifest();
    result_.generation = change_.newest_generation();
    if (manifest.schema.key_kind != options_.key_kind) {
      return FailedPrecondition("cannot delete: the table has key kind {}, the keys have {}",
                                KeyKindName(manifest.schema.key_kind),
                                KeyKindName(options_.key_kind));
    }
    LATCHKEY_RETURN_IF_ERROR(change_.CheckRoomForSegment());
    LATCHKEY_ASSIGN_OR_RETURN(snapshot_, change_.OpenNewest());
    Partitioner partitioner(file_system_, JoinPath(change_.table_dir(), "spill.tmp"),
                            options_.memory_bytes / 4 * 3);
    LATCHKEY_RETURN_IF_ERROR(ReadKeys(&partitioner));
    Tombstones rows(partitioner, manifest.identity.seed, present_);
    LATCHKEY_RETURN_IF_ERROR(present_.rows > 0 ? Write(rows) : CountAbsent(rows));
    result_.absent = rows.absent();
    result_.repeated += rows.repeated_absent();
    result_.spilled_bytes = partitioner.spilled_bytes();
    LATCHKEY_CHECK(result_.keys_read == result_.deleted + result_.absent + result_.repeated);
    return result_;
  }

 private:
  absl::Status ReadKeys(Partitioner* partitioner);
  absl::Status LookUp(Partitioner* partitioner);
  absl::Status Write(Tombstones& rows);
  absl::Status CountAbsent(Tombstones& rows);
  void Report(BuildProgress::Phase phase, uint64_t rows, uint64_t rows_total) const {
    if (!progress_) return;
    progress_({phase, rows, rows_total, source_.bytes_read(), source_.total_bytes()});
  }

  FileSystem& file_system_;
  const DeleteOptions& options_;
  RecordSource& source_;
  const ProgressFunction& progress_;
  TableChange change_;
  std::shared_ptr<const Snapshot> snapshot_;
  ProbeEngine engine_;
  RowCounts present_;
  // The keys that are looked up next: their bytes, back to back, and where each ends.
  std::string batch_;
  std::vector<size_t> batch_ends_;
  std::vector<std::string_view> keys_;
  LookupResults answers_;
  DeleteResult result_;
};

absl::Status Deletion::ReadKeys(Partitioner* partitioner) {
  const TableSchema& schema = change_.manifest().schema;
  InputRow input;
  for (;; ++result_.keys_read) {
    if (result_.keys_read % kProgressRows == 0) {
      Report(BuildProgress::Phase::kRead, result_.keys_read, 0);
    }
    LATCHKEY_ASSIGN_OR_RETURN(const bool more, source_.Next(&input));
    if (!more) break;
    if (schema.key_bytes != 0 && input.key.size() != schema.key_bytes) {
      return InvalidArgument("{}: key: expected {} bytes, got {}", source_.Position(),
                             schema.key_bytes, input.key.size());
    }
    batch_ += input.key;
    batch_ends_.push_back(batch_.size());
    if (batch_ends_.size() == kLookupKeys || batch_.size() >= kLookupBytes) {
      LATCHKEY_RETURN_IF_ERROR(LookUp(partitioner));
    }
  }
  LATCHKEY_RETURN_IF_ERROR(LookUp(partitioner));
  Report(BuildProgress::Phase::kRead, result_.keys_read, result_.keys_read);
  return absl::OkStatus();
}

absl::Status Deletion::LookUp(Partitioner* partitioner) {
  keys_.clear();
  size_t begin = 0;
  for (const size_t end : batch_ends_) {
    keys_.push_back(std::string_view(batch_).substr(begin, end - begin));
    begin = end;
  }
  LATCHKEY_CHECK(engine_.Lookup(*snapshot_, keys_, &answers_));
  for (size_t i = 0; i < keys_.size(); ++i) {
    const std::string_view key = keys_[i];
    const bool present = answers_.outcomes[i] == Outcome::kFound;
    if (!present && answers_.outcomes[i] != Outcome::kAbsent) {
      return DataLoss("{}: what it holds for the key {} can't be read", change_.table_dir(),
                      QuoteShort(KeyToText(options_.key_kind, key)));
    }
    const uint64_t hash = HashBytes(key.data(), key.size(), snapshot_->seed());
    if (present) {
      RowCounts::Bucket& bucket = present_.buckets[PartitionOf(hash, 0, kPartitionBitsMax)];
      ++bucket.rows;
      bucket.key_bytes += key.size();
      ++present_.rows;
      present_.AddKeyBytes(key.size());
    }
    LATCHKEY_RETURN_IF_ERROR(partitioner->Add(hash, {present, 0, key, {}}));
  }
  batch_.clear();
  batch_ends_.clear();
  return absl::OkStatus();
}

absl::Status Deletion::Write(Tombstones& rows) {
  SegmentChoices choices;
  ChooseAsIn(snapshot_->segments().front()->header(), &choices);
  choices.layout = AutoLayout(snapshot_->schema(), present_);
  choices.duplicates = DuplicateRule::kFirst;
  choices.memory_bytes = options_.memory_bytes;
  LATCHKEY_RETURN_IF_ERROR(change_.WriteSegment(
      choices, rows, [this](BuildProgress::Phase phase, uint64_t done, uint64_t total) {
        Report(phase, done, total);
      }));
  LATCHKEY_RETURN_IF_ERROR(change_.Publish());
  result_.published = true;
  result_.generation = change_.manifest().generation;
  result_.deleted = change_.header().row_count;
  result_.repeated = change_.duplicates_dropped();
  result_.header = change_.header();
  result_.segment_path = change_.segment_path();
  return absl::OkStatus();
}

absl::Status Deletion::CountAbsent(Tombstones& rows) {
  std::vector<TakenRow> none;
  const size_t buckets = kBucketCount >> PartitionBitsFor(rows.counts(), options_.memory_bytes);
  for (size_t begin = 0; begin < kBucketCount; begin += buckets) {
    LATCHKEY_RETURN_IF_ERROR(rows.Take(begin, begin + buckets, &none));
  }
  LATCHKEY_CHECK(none.empty());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeleteResult> DeleteKeys(FileSystem& file_system, const DeleteOptions& options,
                                        RecordSource& source, const ProgressFunction& progress) {
  return Deletion(file_system, options, source, progress).Run();
}

}  // namespace latchkey
