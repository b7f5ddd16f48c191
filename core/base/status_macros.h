// Early return on a failed absl::Status or absl::StatusOr; the installed Abseil has no macros of
// its own.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define LATCHKEY_RETURN_IF_ERROR(expr)                                \
  do {                                                                \
    if (absl::Status status_ = (expr); !status_.ok()) return status_; \
  } while (0)

#define LATCHKEY_CONCAT_INNER(a, b) a##b
#define LATCHKEY_CONCAT(a, b) LATCHKEY_CONCAT_INNER(a, b)

#define LATCHKEY_ASSIGN_OR_RETURN(lhs, expr) \
  LATCHKEY_ASSIGN_OR_RETURN_IMPL(LATCHKEY_CONCAT(status_or_, __LINE__), lhs, expr)

#define LATCHKEY_ASSIGN_OR_RETURN_IMPL(var, lhs, expr) \
  auto var = (expr);                                   \
  if (!var.ok()) return std::move(var).status();       \
  lhs = std::move(var).value()
