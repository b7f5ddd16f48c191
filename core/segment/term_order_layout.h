// Term-order layout: keys of any length; each slot points to a record, and the records of a
// partition lie in the order of their keys.
//
//   slot word = pointer + 1 (40 bits, into the partition's records) | displacement (8) | tag (16)
//   record    = doc id, complemented (4 or 8 bytes) | value or its locator | key length (varint) |
//   key
//
// A hit waits for three lines: control bytes, slot word, record. Displacement (slot - home slot, at
// most 255) and tag let a wrong candidate go without reading its record. A pointer field of zero is
// a hole in the file. A record that would straddle a page starts at the next one, and so does any
// record longer than a page.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "core/base/bytes.h"
#include "core/base/checked_math.h"
#include "core/segment/format.h"

namespace latchkey {

inline constexpr unsigned kPointerShift = 24;
inline constexpr uint32_t kDisplacementMax = 255;

inline uint64_t MakeSlotWord(uint64_t record_offset, uint32_t displacement, uint16_t tag) {
  return ((record_offset + 1) << kPointerShift) |
         (uint64_t{std::min(displacement, kDisplacementMax)} << 16) | tag;
}
// Displacement and tag together: what a candidate's word must have below its pointer.
inline uint32_t SlotWordMark(uint32_t displacement, uint16_t tag) {
  return (std::min(displacement, kDisplacementMax) << 16) | tag;
}
inline uint32_t MarkOf(uint64_t word) { return static_cast<uint32_t>(word) & 0xFFFFFF; }
// The record's offset; UINT64_MAX for a hole.
inline uint64_t PointerOf(uint64_t word) { return (word >> kPointerShift) - 1; }

// A record's parts, inside the mapping.
struct TermRecord {
  const uint8_t* doc_id;
  const uint8_t* value;
  std::string_view key;
};

inline size_t TermRecordBytes(const TableSchema& schema, size_t key_bytes) {
  return schema.doc_id_bytes + schema.InlineValueBytes() + VarintSize(key_bytes) + key_bytes;
}

// Where a record of `size_bytes` goes when the one before it ends at `end`.
inline uint64_t PlaceTermRecord(uint64_t end, size_t size_bytes) {
  const bool fits = end % kPageBytes + size_bytes <= kPageBytes;
  return fits ? end : RoundUp(end, kPageBytes);
}

// Reads the record at `offset` of a partition's `record_bytes`; false when it does not lie within
// them, which only a damaged pointer or length can cause.
inline bool ReadTermRecord(const TableSchema& schema, const uint8_t* records, uint64_t record_bytes,
                           uint64_t offset, TermRecord* record) {
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
