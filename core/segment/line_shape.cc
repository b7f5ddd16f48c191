#include "core/segment/line_shape.h"

#include "core/key/limits.h"

namespace latchkey {
namespace {

constexpr unsigned kLineShiftMin = 6, kLineShiftMax = 8;

uint32_t EntriesIn(unsigned line_shift, size_t entry_bytes) {
  return static_cast<uint32_t>(((size_t{1} << line_shift) - 1) / entry_bytes);
}

// Whether so many entries fill a line well enough. A second line to read is worth less waste than
// a third and fourth.
bool FillsLine(unsigned line_shift, size_t entry_bytes) {
  const size_t filled_percent =
      100 * EntriesIn(line_shift, entry_bytes) * entry_bytes >> line_shift;
  return EntriesIn(line_shift, entry_bytes) >= 2 &&
         filled_percent >= (line_shift == kLineShiftMin ? 85u : 75u);
}

// The smallest line that such entries fill well, else the one that they fill best.
unsigned LineShiftFor(size_t entry_bytes) {
  unsigned best = kLineShiftMax;
  for (unsigned shift = kLineShiftMax; shift >= kLineShiftMin; --shift) {
    if (FillsLine(shift, entry_bytes)) best = shift;
  }
  return best;
}

size_t EntryBytes(const TableSchema& schema, size_t key_bytes) {
  return schema.doc_id_bytes + schema.InlineValueBytes() + key_bytes;
}

}  // namespace

LineShape LineShape::OfRows(const TableSchema& schema, size_t key_bytes) {
  LineShape shape;
  shape.doc_id_bytes_ = schema.doc_id_bytes;
  shape.entry_bytes_ = EntryBytes(schema, key_bytes);
  shape.key_bytes_ = key_bytes;
  shape.key_offset_ = shape.entry_bytes_ - key_bytes;
  shape.line_shift_ = LineShiftFor(shape.entry_bytes_);
  shape.entries_ = EntriesIn(shape.line_shift_, shape.entry_bytes_);
  return shape;
}

LineShape LineShape::OfPointers(const TableSchema& schema) {
  LineShape shape;
  shape.doc_id_bytes_ = schema.doc_id_bytes;
  shape.entries_ = EntriesIn(shape.line_shift_, shape.entry_bytes_);
  return shape;
}

bool LineShape::SuitsRows(const TableSchema& schema, size_t key_bytes) {
  const size_t entry_bytes = EntryBytes(schema, key_bytes);
  return entry_bytes <= kLineRecordBytesMax && FillsLine(LineShiftFor(entry_bytes), entry_bytes);
}

}  // namespace latchkey
