// The suites of figures.
#pragma once

#include <iterator>
#include <string>
#include <vector>

#include "tests/bench/key_sets.h"
#include "tests/bench/report.h"

namespace latchkey {

struct SuiteOptions {
  std::string scratch_dir;  // for tables; removed afterwards
  uint64_t rows = 10'000'000;
  std::vector<KeyShape> shapes{std::begin(kKeyShapes), std::end(kKeyShapes)};
  int rounds = 5;
};

// Look-ups in memory-resident tables.
void RunWarmSuite(const SuiteOptions& options, Report* report);
// Look-ups beside other stores, and beside the memory's limit. A binary that was built without the
// peers says so and exits.
void RunPeersSuite(const SuiteOptions& options, Report* report);
// Building tables.
void RunBuildSuite(const SuiteOptions& options, Report* report);

}  // namespace latchkey
