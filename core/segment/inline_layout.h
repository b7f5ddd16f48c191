// Inline layout: keys of one length lie in the table itself, one record a slot.
//
//   record = doc id, complemented (4 or 8 bytes) | value or its locator | key
//   page   = as many records as fit 4 KiB, zero bytes up to its end
//
// A hit waits for two lines: control bytes, then the record. The doc id is kept complemented so
// that it is never zero: a hole in the file shows as damage. Records do not straddle pages, so a
// hole takes all or nothing.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/bytes.h"
#include "core/segment/format.h"

namespace latchkey {

inline uint64_t LoadDocId(const uint8_t* from, unsigned doc_id_bytes) {
  return doc_id_bytes == 4 ? uint64_t{static_cast<uint32_t>(~Load<uint32_t>(from))}
                           : ~Load<uint64_t>(from);
}
inline void StoreDocId(uint8_t* to, uint64_t doc_id, unsigned doc_id_bytes) {
  if (doc_id_bytes == 4) {
    Store(to, ~static_cast<uint32_t>(doc_id));
  } else {
    Store(to, ~doc_id);
  }
}
// A doc id field of zero bytes: never written.
inline bool IsDocIdHole(const uint8_t* from, unsigned doc_id_bytes) {
  return (doc_id_bytes == 4 ? Load<uint32_t>(from) : Load<uint64_t>(from)) == 0;
}

// The sizes of one segment's inline records.
class InlineShape {
 public:
  InlineShape() = default;
  InlineShape(const TableSchema& schema, size_t key_bytes);

  size_t record_bytes() const { return record_bytes_; }
  size_t value_offset() const { return doc_id_bytes_; }
  size_t key_offset() const { return key_offset_; }
  size_t key_bytes() const { return key_bytes_; }
  unsigned doc_id_bytes() const { return doc_id_bytes_; }

  // Offset of a slot's record from the start of its partition's records.
  uint64_t RecordOffset(uint32_t slot) const {
    const auto page =
        static_cast<uint32_t>((static_cast<unsigned __int128>(reciprocal_) * slot) >> 64);
    return uint64_t{page} * kPageBytes + (slot - page * records_per_page_) * record_bytes_;
  }
  // Bytes of the records of `slots` slots: whole pages, but for the last.
  uint64_t RecordBytes(uint32_t slots) const {
    return slots == 0 ? 0 : RecordOffset(slots - 1) + record_bytes_;
  }

  std::string_view KeyAt(const uint8_t* record) const {
    return {reinterpret_cast<const char*>(record + key_offset_), key_bytes_};
  }

 private:
  size_t record_bytes_ = 1;
  size_t key_offset_ = 0;
  size_t key_bytes_ = 0;
  unsigned doc_id_bytes_ = 4;
  uint32_t records_per_page_ = 1;
  // Division of 32-bit numbers by a multiplication. Source: Lemire, Kaser, Kurz, "Faster remainder
  // by direct computation", 2019: exact with 64 fractional bits.
  uint64_t reciprocal_ = 0;
};

}  // namespace latchkey
