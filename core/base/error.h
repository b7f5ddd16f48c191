// Making absl::Status: a message reads "what failed, which file and offset, expected, got".
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

namespace latchkey {

template <typename... Args>
absl::Status InvalidArgument(fmt::format_string<Args...> format, Args&&... args) {
  return absl::InvalidArgumentError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status DataLoss(fmt::format_string<Args...> format, Args&&... args) {
  return absl::DataLossError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status FailedPrecondition(fmt::format_string<Args...> format, Args&&... args) {
  return absl::FailedPreconditionError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status NotFound(fmt::format_string<Args...> format, Args&&... args) {
  return absl::NotFoundError(fmt::format(format, std::forward<Args>(args)...));
}

// The status of a failed system call: `what` names the call's purpose and its file, `error_number`
// is errno.
absl::Status ErrnoStatus(int error_number, std::string_view what);

// The same status with `prefix` and ": " before its message.
absl::Status Prefixed(const absl::Status& status, std::string_view prefix);

// The message as a standard string; Abseil's own string_view does not convert.
inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

}  // namespace latchkey
