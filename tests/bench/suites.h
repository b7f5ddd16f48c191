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
  double cold_gib = 4;     // of index in the cold suite
  std::string cold_table;  // a data folder with such a table; none is built then
  bool grids = false;      // the seeds' grids too
};

// Look-ups in memory-resident tables.
void RunWarmSuite(const SuiteOptions& options, Report* report);
// Look-ups beside other stores, and beside the memory's limit. A binary that was built without the
// peers says so and exits.
void RunPeersSuite(const SuiteOptions& options, Report* report);
// Look-ups in tables whose pages are on the disk.
void RunColdSuite(const SuiteOptions& options, Report* report);
// Building tables.
void RunBuildSuite(const SuiteOptions& options, Report* report);
// Deltas, deletions and merges of tables, and look-ups in what they leave.
void RunChangeSuite(const SuiteOptions& options, Report* report);

}  // namespace latchkey
