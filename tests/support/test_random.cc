#include "tests/support/test_random.h"

#include <cstdlib>

#include "core/base/hash.h"

namespace latchkey::test {
namespace {

uint64_t SeedOfThisTest() {
  const testing::TestInfo* const info = testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(info->test_suite_name()) + "." + info->name();
  return HashBytes(name.data(), name.size(), TestSeed());
}

}  // namespace

uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* const given = std::getenv("LATCHKEY_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  }();
  return seed;
}

std::string Random::Bytes(size_t size_bytes) {
  std::string bytes(size_bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(Next());
  return bytes;
}

SeededTest::SeededTest()
    : random_(SeedOfThisTest()),
      trace_(__FILE__, __LINE__,
             "to see it again: LATCHKEY_TEST_SEED=" + std::to_string(TestSeed())) {}

}  // namespace latchkey::test
