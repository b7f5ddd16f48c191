#include "core/segment/inline_layout.h"

#include <algorithm>

namespace latchkey {

InlineShape::InlineShape(const TableSchema& schema, size_t key_bytes)
    : record_bytes_(schema.doc_id_bytes + schema.InlineValueBytes() + key_bytes),
      key_offset_(schema.doc_id_bytes + schema.InlineValueBytes()),
      key_bytes_(key_bytes),
      doc_id_bytes_(schema.doc_id_bytes),
      // Another layout's keys may be longer than a page; it has a shape too, which nothing uses.
      records_per_page_(static_cast<uint32_t>(std::max<size_t>(kPageBytes / record_bytes_, 1))),
      reciprocal_(UINT64_MAX / records_per_page_ + 1) {}

static_assert(8 + kFixedValueBytesMax + kInlineKeyBytesMax < kPageBytes / 2,
              "a page holds several records, so a division by 1 never happens");

}  // namespace latchkey
