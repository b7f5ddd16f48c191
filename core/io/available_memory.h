// How much memory this process may still take before something must be swapped out or killed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace latchkey {

struct AvailableMemory {
  uint64_t bytes = 0;
  std::string limited_by;  // "the machine", or the control group's folder
};

// The least of what the machine and each control group (version 1 or 2) around this process have
// left. Page cache that can be dropped counts as left. `root` is where /proc and /sys are to be
// found: tests give a folder. NotFound or DataLoss when /proc/meminfo can't be read or understood;
// control groups that can't be read do not limit.
absl::StatusOr<AvailableMemory> ReadAvailableMemory(const std::string& root = "/");

// ResourceExhausted, with the figures, when taking `size_bytes` would leave less than 128 MiB.
// `what` begins the message.
absl::Status CheckMemorySuffices(std::string_view what, uint64_t size_bytes);

}  // namespace latchkey
