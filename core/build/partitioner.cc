#include "core/build/partitioner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/key/key_hash.h"
#include "core/segment/value_locator.h"

namespace latchkey {

Partitioner::Partitioner(FileSystem& file_system, std::string spill_path, uint64_t memory_bytes)
    : file_system_(file_system),
      spill_path_(std::move(spill_path)),
      memory_bytes_(memory_bytes),
      // An eighth of the memory may lie in chunks that are not full when the rest is spilled.
      chunk_bytes_(std::clamp<uint64_t>(memory_bytes / 8 / kBucketCount, 1024, 65'536)) {}

Partitioner::~Partitioner() {
  if (spill_ != nullptr || spilled_ != nullptr) (void)file_system_.Remove(spill_path_);
}

// Packed: varints of ordinal, doc id, key length, value length; then key and value.
absl::Status Partitioner::Add(uint64_t hash, const PackedRow& row) {
  const size_t index = PartitionOf(hash, 0, kPartitionBitsMax);
  const size_t size_bytes = VarintSize(row.ordinal) + VarintSize(row.doc_id) +
                            VarintSize(row.key.size()) + VarintSize(row.value.size()) +
                            row.key.size() + row.value.size();
  LATCHKEY_ASSIGN_OR_RETURN(char* const begin, Reserve(index, size_bytes));
  auto* to = reinterpret_cast<uint8_t*>(begin);
  to = StoreVarint(to, row.ordinal);
  to = StoreVarint(to, row.doc_id);
  to = StoreVarint(to, row.key.size());
  to = StoreVarint(to, row.value.size());
  std::memcpy(to, row.key.data(), row.key.size());
  if (!row.value.empty()) std::memcpy(to + row.key.size(), row.value.data(), row.value.size());
  Bucket& bucket = buckets_[index];
  ++bucket.rows;
  bucket.key_bytes += row.key.size();
  bucket.value_bytes += StoredValueBytes(row.value.size());
  bucket.packed_bytes += size_bytes;
  return absl::OkStatus();
}

const char* Partitioner::Unpack(const char* from, PackedRow* row) {
  // Packed by Add in this process, so the bounds are known to hold.
  const auto* at = reinterpret_cast<const uint8_t*>(from);
  const uint8_t* const far = at + 4 * kVarintBytesMax;
  uint64_t key_bytes = 0, value_bytes = 0;
  at = LoadVarint(at, far, &row->ordinal);
  at = LoadVarint(at, far, &row->doc_id);
  at = LoadVarint(at, far, &key_bytes);
  at = LoadVarint(at, far, &value_bytes);
  row->key = {reinterpret_cast<const char*>(at), key_bytes};
  row->value = {reinterpret_cast<const char*>(at) + key_bytes, value_bytes};
  return row->value.data() + value_bytes;
}

absl::StatusOr<char*> Partitioner::Reserve(size_t bucket, size_t size_bytes) {
  if (chunks_[bucket].empty() ||
      chunks_[bucket].back().capacity - chunks_[bucket].back().size_bytes < size_bytes) {
    const size_t capacity = std::max(chunk_bytes_, size_bytes);
    if (chunks_bytes_ > 0 && chunks_bytes_ + capacity > memory_bytes_) {
      LATCHKEY_RETURN_IF_ERROR(Spill());
    }
    Chunk& chunk = chunks_[bucket].emplace_back();
    chunk.data = std::make_unique_for_overwrite<char[]>(capacity);
    chunk.capacity = capacity;
    chunks_bytes_ += capacity;
  }
  Chunk& chunk = chunks_[bucket].back();
  char* const begin = chunk.data.get() + chunk.size_bytes;
  chunk.size_bytes += size_bytes;
  return begin;
}

absl::Status Partitioner::Spill() {
  if (spill_ == nullptr) {
    LATCHKEY_ASSIGN_OR_RETURN(spill_, file_system_.Create(spill_path_));
  }
  for (size_t i = 0; i < kBucketCount; ++i) {
    if (chunks_[i].empty()) continue;
    Extent extent{spill_end_, 0};
    for (const Chunk& chunk : chunks_[i]) {
      LATCHKEY_RETURN_IF_ERROR(spill_->WriteAt(spill_end_, {chunk.data.get(), chunk.size_bytes}));
      spill_end_ += chunk.size_bytes;
      extent.size_bytes += chunk.size_bytes;
    }
    extents_[i].push_back(extent);
    chunks_[i].clear();
  }
  chunks_bytes_ = 0;
  return absl::OkStatus();
}

absl::Status Partitioner::Take(size_t begin, size_t end, std::string* packed) {
  if (spill_end_ > 0 && spilled_ == nullptr) {
    LATCHKEY_RETURN_IF_ERROR(spill_->Close());
    LATCHKEY_ASSIGN_OR_RETURN(spilled_, file_system_.Open(spill_path_));
  }
  for (size_t i = begin; i < end; ++i) {
    for (const Extent& extent : extents_[i]) {
      const size_t at = packed->size();
      packed->resize(at + extent.size_bytes);
      LATCHKEY_ASSIGN_OR_RETURN(const size_t got,
                                spilled_->ReadAt(extent.offset, extent.size_bytes, &(*packed)[at]));
      if (got != extent.size_bytes) {
        return DataLoss("{}: cut off at offset {}", spill_path_, extent.offset + got);
      }
    }
    for (Chunk& chunk : chunks_[i]) packed->append(chunk.data.get(), chunk.size_bytes);
    chunks_[i] = std::vector<Chunk>();
    extents_[i] = std::vector<Extent>();
  }
  return absl::OkStatus();
}

}  // namespace latchkey
