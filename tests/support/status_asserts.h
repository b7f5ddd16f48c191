// Assertions about absl::Status and absl::StatusOr; the installed Abseil has no matchers.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/error.h"

namespace latchkey::test {

inline absl::Status ToStatus(const absl::Status& status) { return status; }
template <typename T>
absl::Status ToStatus(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}

inline testing::AssertionResult IsOk(const absl::Status& status) {
  if (status.ok()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << status.ToString();
}

}  // namespace latchkey::test

#define ASSERT_OK(expr) ASSERT_TRUE(::latchkey::test::IsOk(::latchkey::test::ToStatus(expr)))
#define EXPECT_OK(expr) EXPECT_TRUE(::latchkey::test::IsOk(::latchkey::test::ToStatus(expr)))

// Fails the test, by leaving it, unless `expr` is OK; else its value goes to `lhs`.
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  ASSERT_OK_AND_ASSIGN_IMPL(lhs, expr, LATCHKEY_TEST_CONCAT(status_or_, __LINE__))
#define ASSERT_OK_AND_ASSIGN_IMPL(lhs, expr, var)                       \
  auto var = (expr);                                                    \
  ASSERT_TRUE(::latchkey::test::IsOk(::latchkey::test::ToStatus(var))); \
  lhs = std::move(var).value()
#define LATCHKEY_TEST_CONCAT_INNER(a, b) a##b
#define LATCHKEY_TEST_CONCAT(a, b) LATCHKEY_TEST_CONCAT_INNER(a, b)

// `expr` failed with that code, and its message matches.
#define EXPECT_FAILS(expr, expected_code, message_matcher)                 \
  do {                                                                     \
    const absl::Status status_ = ::latchkey::test::ToStatus(expr);         \
    EXPECT_EQ(status_.code(), absl::StatusCode::expected_code) << status_; \
    EXPECT_THAT(::latchkey::Message(status_), (message_matcher));          \
  } while (0)
