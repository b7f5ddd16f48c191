// Pointer layout: for keys of any length. A line's entries point to records.
//
//   pointer = record's offset + 1 (40 bits, into the partition's records) | tag (24)
//   record  = doc id, complemented (4 or 8 bytes) | value or its locator | key length (varint) |
//   key
//
// A hit waits for the line, then the record; the tag lets all but one in 2^24 of the wrong
// candidates go without reading theirs. A pointer field of zero is a hole in the file. Records lie
// in the order of their lines. One that would straddle a page starts at the next one, and so does
// any record longer than a page.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/bytes.h"
#include "core/base/checked_math.h"
#include "core/key/key_hash.h"
#include "core/segment/format.h"

namespace latchkey {

inline uint64_t MakePointer(uint64_t record_offset, uint32_t tag) {
  return ((record_offset + 1) << kTagBits) | tag;
}
// The record's offset; UINT64_MAX for a hole.
inline uint64_t OffsetOfPointer(uint64_t pointer) { return (pointer >> kTagBits) - 1; }
inline uint32_t TagOfPointer(uint64_t pointer) { return TagOf(pointer); }

// A record's parts, inside the mapping.
struct PointedRecord {
  const uint8_t* doc_id;
  const uint8_t* value;
  std::string_view key;
};

inline size_t PointedRecordBytes(const TableSchema& schema, size_t key_bytes) {
  return schema.doc_id_bytes + schema.InlineValueBytes() + VarintSize(key_bytes) + key_bytes;
}

// Where a record of `size_bytes` goes when the one before it ends at `end`.
inline uint64_t PlacePointedRecord(uint64_t end, size_t size_bytes) {
  const bool fits = end % kPageBytes + size_bytes <= kPageBytes;
  return fits ? end : RoundUp(end, kPageBytes);
}

// Reads the record at `offset` of a partition's `record_bytes`; false when it does not lie within
// them, which only a damaged pointer or length can cause.
inline bool ReadPointedRecord(const TableSchema& schema, const uint8_t* records,
                              uint64_t record_bytes, uint64_t offset, PointedRecord* record) {
  const size_t fixed_bytes = schema.doc_id_bytes + schema.InlineValueBytes();
  if (offset >= record_bytes || record_bytes - offset <= fixed_bytes) return false;
  const uint8_t* const begin = records + offset;
  const uint8_t* const end = records + record_bytes;
  uint64_t key_bytes;
  const uint8_t* const key = LoadVarint(begin + fixed_bytes, end, &key_bytes);
  if (key == nullptr || key_bytes > static_cast<uint64_t>(end - key)) return false;
  record->doc_id = begin;
  record->value = begin + schema.doc_id_bytes;
  record->key = {reinterpret_cast<const char*>(key), key_bytes};
  return true;
}

}  // namespace latchkey
