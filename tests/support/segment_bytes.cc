#include "tests/support/segment_bytes.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/hash.h"

namespace latchkey::test {

SegmentHeader HeaderOf(const std::string& file) {
  const auto header = DecodeHeader(file);
  LATCHKEY_CHECK(header.ok());
  return *header;
}

void SealHeader(std::string* file) {
  constexpr size_t kAtChecksum = kHeaderBytes - 8;
  Store(file->data() + kAtChecksum, Checksum(file->data(), kAtChecksum));
}

void SealSegment(SegmentHeader header, std::string* file) {
  std::string checksums;
  for (size_t i = 0; i + 1 < kSectionCount; ++i) {
    const Section& section = header.sections[i];
    for (uint64_t at = 0; at < section.size_bytes; at += kChecksumBlockBytes) {
      Append(&checksums,
             Checksum(file->data() + section.offset + at,
                      std::min<uint64_t>(kChecksumBlockBytes, section.size_bytes - at)));
    }
  }
  file->replace(header.section(SectionKind::kChecksums).offset, checksums.size(), checksums);
  header.checksums_checksum = Checksum(checksums.data(), checksums.size());
  file->replace(0, kHeaderBytes, EncodeHeader(header));
}

std::string PartOf(const SegmentHeader& header, uint64_t offset) {
  if (offset < kHeaderBytes) return "header";
  for (size_t i = 0; i < kSectionCount; ++i) {
    const Section& section = header.sections[i];
    if (offset >= section.offset && offset < section.end()) {
      return std::string(SectionName(static_cast<SectionKind>(i)));
    }
  }
  return "padding";
}

}  // namespace latchkey::test
