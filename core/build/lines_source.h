// A key a line, with or without a value behind it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/build/record_source.h"

namespace latchkey {

// OpenRecordSource for InputFormat::kLines.
absl::StatusOr<std::unique_ptr<RecordSource>> OpenLinesSource(
    FileSystem& file_system, const InputOptions& options, const std::vector<std::string>& paths);

}  // namespace latchkey
