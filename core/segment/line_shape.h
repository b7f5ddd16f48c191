// Lines: the table of a segment is an array of lines of 64, 128 or 256 bytes. A key's line follows
// from its hash and its group's pilot, so a lookup reads one line, whether the key is there or not.
//
//   line          = as many entries as fit, from its start | zero bytes | mark (the last byte)
//   mark          = 0x80 | number of entries; anything else is damage, as is a hole's zero
//   entry, kLine  = doc id, complemented (4 or 8 bytes) | value or its locator | key
//   entry, kPointer = record pointer (8 bytes; record_pointer.h)
//
// Lines do not straddle pages, so a hole in the file takes all of a line or nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "core/base/bytes.h"
#include "core/segment/format.h"

namespace latchkey {

// A doc id is kept complemented, so that zero, which a hole in the file reads as, is none.
inline constexpr uint64_t kDocIdHole = 0;
inline constexpr uint64_t kDocIdTombstone = 1;
inline uint64_t LoadDocIdField(const uint8_t* from, unsigned doc_id_bytes) {
  return doc_id_bytes == 4 ? Load<uint32_t>(from) : Load<uint64_t>(from);
}
inline void StoreDocIdField(uint8_t* to, uint64_t field, unsigned doc_id_bytes) {
  if (doc_id_bytes == 4) {
    Store(to, static_cast<uint32_t>(field));
  } else {
    Store(to, field);
  }
}
inline uint64_t FieldOfDocId(uint64_t doc_id, unsigned doc_id_bytes) {
  return doc_id_bytes == 4 ? static_cast<uint32_t>(~doc_id) : ~doc_id;
}
inline uint64_t DocIdOfField(uint64_t field, unsigned doc_id_bytes) {
  return FieldOfDocId(field, doc_id_bytes);
}

// One byte, read after all that was read before.
inline uint8_t LoadAfter(const uint8_t* from) {
  std::atomic_thread_fence(std::memory_order_acquire);
  return *static_cast<const volatile uint8_t*>(from);
}

inline constexpr uint8_t kMarkBit = 0x80;
// One bit for each entry of a line with that mark.
inline uint32_t EntriesMask(uint8_t mark) { return (uint32_t{1} << (mark & ~kMarkBit)) - 1; }

// The sizes of one segment's lines and entries.
class LineShape {
 public:
  LineShape() = default;
  // Of rows of the line layout. The line is the smallest that wastes little; FORMAT.md has the
  // rule.
  static LineShape OfRows(const TableSchema& schema, size_t key_bytes);
  static LineShape OfPointers(const TableSchema& schema);

  // Whether rows with keys of that length should lie in lines.
  static bool SuitsRows(const TableSchema& schema, size_t key_bytes);

  size_t line_bytes() const { return size_t{1} << line_shift_; }
  unsigned line_shift() const { return line_shift_; }
  uint32_t entries() const { return entries_; }  // that fit a line
  size_t entry_bytes() const { return entry_bytes_; }
  size_t value_offset() const { return doc_id_bytes_; }
  size_t key_offset() const { return key_offset_; }
  size_t key_bytes() const { return key_bytes_; }  // 0 for pointers
  unsigned doc_id_bytes() const { return doc_id_bytes_; }

  // To be read after the entries, never before: a page that becomes a hole meanwhile shows in the
  // mark then, and no entry of it is taken for a missing one.
  uint8_t MarkAfter(const uint8_t* line) const { return LoadAfter(line + line_bytes() - 1); }
  bool IsMark(uint8_t mark) const { return static_cast<uint8_t>(mark - kMarkBit) <= entries_; }
  const uint8_t* Entry(const uint8_t* line, uint32_t index) const {
    return line + index * entry_bytes_;
  }
  std::string_view KeyAt(const uint8_t* entry) const {
    return {reinterpret_cast<const char*>(entry + key_offset_), key_bytes_};
  }

  bool operator==(const LineShape&) const = default;

 private:
  unsigned line_shift_ = 6;
  uint32_t entries_ = 1;
  size_t entry_bytes_ = 8;
  size_t key_offset_ = 0;
  size_t key_bytes_ = 0;
  unsigned doc_id_bytes_ = 4;
};

// Whether two keys of `size_bytes` are the same. Keys of one length: the branches on it are always
// the same.
inline bool SameBytes(const char* a, const char* b, size_t size_bytes) {
  if (size_bytes >= 8) {
    uint64_t differing = Load<uint64_t>(a + size_bytes - 8) ^ Load<uint64_t>(b + size_bytes - 8);
    for (size_t at = 0; at + 8 < size_bytes; at += 8) {
      differing |= Load<uint64_t>(a + at) ^ Load<uint64_t>(b + at);
    }
    return differing == 0;
  }
  if (size_bytes >= 4) {
    return ((Load<uint32_t>(a) ^ Load<uint32_t>(b)) |
            (Load<uint32_t>(a + size_bytes - 4) ^ Load<uint32_t>(b + size_bytes - 4))) == 0;
  }
  return size_bytes == 0 || std::memcmp(a, b, size_bytes) == 0;
}

// Bit i of the result: whether the i-th entry of a full line has this key, of shape.key_bytes().
// Entries beyond the mark's number count as well; the caller takes their bits away.
inline uint32_t MatchKeys(const LineShape& shape, const uint8_t* line, const char* key) {
  uint32_t same = 0;
  const auto* stored = reinterpret_cast<const char*>(line + shape.key_offset());
  for (uint32_t i = 0; i < shape.entries(); ++i, stored += shape.entry_bytes()) {
    same |= static_cast<uint32_t>(SameBytes(stored, key, shape.key_bytes())) << i;
  }
  return same;
}

}  // namespace latchkey
