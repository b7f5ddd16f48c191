// Every maximum of the product, in one place. Relations between them are held at compile time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace latchkey {

inline constexpr size_t kKeyBytesMax = 32'766;
inline constexpr size_t kLineRecordBytesMax = 127;  // of rows kept in lines
inline constexpr size_t kFixedValueBytesMax = 64;
inline constexpr size_t kValueBytesMax = size_t{16} << 20;

inline constexpr uint32_t kPartitionBitsMax = 10;
inline constexpr uint64_t kPartitionRowsMax = uint64_t{1} << 31;
inline constexpr uint64_t kPartitionFilterWordsMax = uint64_t{1}
                                                     << 34;  // filter words: 34 hash bits
inline constexpr uint64_t kPartitionRecordBytesMax = uint64_t{1}
                                                     << 40;  // pointers to records: 40 bits
inline constexpr uint64_t kSegmentRowsMax = uint64_t{1} << 40;
inline constexpr uint32_t kFilterBitsPerKeyMax = 32;
inline constexpr size_t kSegmentsPerGenerationMax = 4096;

inline constexpr uint32_t kBatchKeysDefault = 4096;
inline constexpr uint32_t kBatchKeysMax = 65'536;
// A request's budget: a batch of the most keys, each of so many bytes as sent, always fits.
inline constexpr size_t kRequestBytesPerKey = 1024;

inline constexpr size_t kTableNameBytesMax = 128;

static_assert(kKeyBytesMax < 1 << 16, "key lengths are kept in 16 bits by segment headers");

}  // namespace latchkey
