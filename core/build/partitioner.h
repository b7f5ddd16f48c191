// Splits rows by their hash into 1,024 buckets within a memory limit: what does not fit is spilled
// to disk.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/hash.h"
#include "core/io/file_system.h"
#include "core/key/limits.h"

namespace latchkey {

inline constexpr size_t kBucketCount = size_t{1} << kPartitionBitsMax;

// Rows as the partitioner keeps them, packed one after the other.
struct PackedRow {
  uint64_t doc_id = 0;
  uint64_t ordinal = 0;  // of the row in the input, from 0
  std::string_view key;
  std::string_view value;
};

// One thread. First Add every row, then Take the buckets.
class Partitioner {
 public:
  struct Bucket {
    uint64_t rows = 0;
    uint64_t key_bytes = 0;
    uint64_t value_bytes = 0;
    uint64_t packed_bytes = 0;
  };

  // Keeps at most `memory_bytes` in memory; more goes to a file at `spill_path`, which is created
  // on need and removed by the destructor.
  Partitioner(FileSystem& file_system, std::string spill_path, uint64_t memory_bytes);
  ~Partitioner();
  Partitioner(const Partitioner&) = delete;
  Partitioner& operator=(const Partitioner&) = delete;

  absl::Status Add(uint64_t hash, const PackedRow& row);

  const std::array<Bucket, kBucketCount>& buckets() const { return buckets_; }
  uint64_t spilled_bytes() const { return spill_end_; }

  // Appends the packed rows of buckets [begin, end) to *packed, in the order they were added within
  // each bucket, and lets their memory go.
  absl::Status Take(size_t begin, size_t end, std::string* packed);

  // Reads the row at `from` of packed rows; returns where the next one begins.
  static const char* Unpack(const char* from, PackedRow* row);

 private:
  // A piece of a bucket in memory, being filled; or written out.
  struct Chunk {
    Chunk() = default;
    Chunk(Chunk&&) = default;
    Chunk& operator=(Chunk&&) = default;

    std::unique_ptr<char[]> data;
    size_t size_bytes = 0;
    size_t capacity = 0;
  };
  struct Extent {
    uint64_t offset = 0;
    uint64_t size_bytes = 0;
  };

  // Room for `size_bytes` at the end of a bucket, in one piece.
  absl::StatusOr<char*> Reserve(size_t bucket, size_t size_bytes);
  absl::Status Spill();

  FileSystem& file_system_;
  const std::string spill_path_;
  const uint64_t memory_bytes_;
  const size_t chunk_bytes_;
  uint64_t chunks_bytes_ = 0;  // capacity of all chunks in memory
  std::array<Bucket, kBucketCount> buckets_ = {};
  std::vector<std::vector<Chunk>> chunks_{kBucketCount};
  std::vector<std::vector<Extent>> extents_{kBucketCount};
  std::unique_ptr<WritableFile> spill_;
  std::unique_ptr<ReadableFile> spilled_;
  uint64_t spill_end_ = 0;
};

}  // namespace latchkey
