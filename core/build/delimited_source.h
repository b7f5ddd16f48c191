// Fields by comma or tab.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/build/record_source.h"

namespace latchkey {

// OpenRecordSource for InputFormat::kCsv and kTsv.
absl::StatusOr<std::unique_ptr<RecordSource>> OpenDelimitedSource(
    FileSystem& file_system, const InputOptions& options, const std::vector<std::string>& paths);

}  // namespace latchkey
