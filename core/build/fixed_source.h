// Records of one width.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/build/record_source.h"

namespace latchkey {

// OpenRecordSource for InputFormat::kFixed.
absl::StatusOr<std::unique_ptr<RecordSource>> OpenFixedSource(
    FileSystem& file_system, const InputOptions& options, const std::vector<std::string>& paths);

}  // namespace latchkey
