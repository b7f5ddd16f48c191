#include "tests/bench/bench_table.h"

#include <filesystem>

#include "core/base/error.h"

namespace latchkey {
namespace {

// Generated rows [begin, end).
class GeneratedSource final : public RecordSource {
 public:
  GeneratedSource(KeyShape shape, uint64_t begin, uint64_t end)
      : shape_(shape), next_(begin), end_(end) {}

  absl::StatusOr<bool> Next(InputRow* row) override {
    if (next_ == end_) return false;
    MakeKey(shape_, next_, 0, key_);
    row->key = {key_, KeyShapeBytes(shape_)};
    row->value = {};
    row->doc_id = next_++;
    return true;
  }
  std::string Position() const override { return "generated"; }
  uint64_t bytes_read() const override { return 0; }
  uint64_t total_bytes() const override { return 0; }

 private:
  const KeyShape shape_;
  uint64_t next_;
  const uint64_t end_;
  char key_[64];
};

}  // namespace

std::vector<uint64_t> SegmentSizes(uint64_t rows, int segments) {
  if (segments == 1) return {rows};
  std::vector<uint64_t> sizes;
  uint64_t left = rows;
  for (const uint64_t part : {10, 3, 1}) {
    for (int i = 0; i < 5; ++i) {
      sizes.push_back(rows * part / 70);
      left -= sizes.back();
    }
  }
  sizes[0] += left;
  return sizes;
}

std::shared_ptr<const Snapshot> BuildBenchTable(const std::string& data_dir, KeyShape shape,
                                                const std::vector<uint64_t>& segment_rows,
                                                const BenchTableOptions& table_options) {
  std::filesystem::remove_all(data_dir);
  BuildOptions options;
  options.data_dir = data_dir;
  options.table = "bench";
  options.filter_bits_per_key = table_options.filter_bits_per_key;
  options.hash_list = table_options.hash_list;
  uint64_t begin = 0;
  for (const uint64_t rows : segment_rows) {
    GeneratedSource source(shape, begin, begin + rows);
    OrDie(BuildTable(PosixFileSystem(), options, source, nullptr));
    options.append = true;
    begin += rows;
  }
  return OpenBenchTable(data_dir, {});
}

std::shared_ptr<const Snapshot> OpenBenchTable(const std::string& data_dir,
                                               const SnapshotOptions& options) {
  return OrDie(Snapshot::OpenNewest(PosixFileSystem(), JoinPath(data_dir, "bench"), options));
}

uint64_t BytesOf(const Snapshot& snapshot) {
  uint64_t bytes = snapshot.segment_map_bytes();
  for (const auto& segment : snapshot.segments()) {
    bytes += kHeaderBytes;
    for (const Section& section : segment->header().sections) bytes += section.size_bytes;
  }
  return bytes;
}

KeyBatchMaker::KeyBatchMaker(KeyShape shape, uint64_t rows, int hit_percent, size_t batch_keys,
                             uint64_t seed)
    : shape_(shape),
      rows_(rows),
      hit_percent_(hit_percent),
      state_(seed),
      bytes_(batch_keys * KeyShapeBytes(shape), '\0'),
      doc_ids_(batch_keys) {
  for (size_t i = 0; i < batch_keys; ++i) {
    keys_.emplace_back(bytes_.data() + i * KeyShapeBytes(shape), KeyShapeBytes(shape));
  }
}

void KeyBatchMaker::Next() {
  for (size_t i = 0; i < keys_.size(); ++i) {
    const uint64_t random = Mix(++state_);
    const bool hit = static_cast<int>(random % 100) < hit_percent_;
    const uint64_t index = MulShift(random, rows_, 64);
    MakeKey(shape_, index, hit ? 0 : 1, bytes_.data() + i * KeyShapeBytes(shape_));
    doc_ids_[i] = hit ? index : UINT64_MAX;
  }
}

}  // namespace latchkey
