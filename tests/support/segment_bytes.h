// The bytes of a segment file, taken apart and sealed again, to make files that only a bug or a
// forger would write: every checksum is right, and what it covers is wrong.
#pragma once

#include <string>

#include "core/segment/format.h"

namespace latchkey::test {

// The header of a file that is whole.
SegmentHeader HeaderOf(const std::string& file);

// Makes the header's own checksum right.
void SealHeader(std::string* file);

// Makes the checksums of all blocks right, as the sections of `header` lie, and writes that header.
void SealSegment(SegmentHeader header, std::string* file);

// The name of the section, or "header" or "padding", that the byte at `offset` is part of.
std::string PartOf(const SegmentHeader& header, uint64_t offset);

}  // namespace latchkey::test
