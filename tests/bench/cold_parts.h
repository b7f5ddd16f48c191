// The parts of the cold-page suite.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/cold_table.h"
#include "tests/bench/report.h"
#include "tests/bench/suites.h"

namespace latchkey {

// Adds the median of theirs / ours over interleaved rounds, and prints what it was measured under.
void AddColdRatio(const std::string& name, std::vector<double> ours, const std::string& peer,
                  std::vector<double> theirs, const std::string& conditions, Report* report);
void AddColdFigure(const std::string& name, double value, const std::string& unit,
                   const std::string& conditions, Report* report);

// Batches of which a share of the pages is cold.
void RunColdMixed(const ColdTable& table, const SuiteOptions& options, Report* report);
// More data than memory, eight threads.
void RunColdPressure(const std::string& data_dir, const SuiteOptions& options, Report* report);
// A server that answers one client's warm requests and another's cold batches.
void RunWarmBesideCold(const std::string& data_dir, uint64_t rows, const SuiteOptions& options,
                       Report* report);
// Prints hit rate and mode over time.
void RunColdTimeline(const ColdTable& table);
// The grids of the seeds: one read after its prefetch; many reads on many threads; stored values.
void RunOneReadGrid(const std::string& raw_file, const SuiteOptions& options, Report* report);
void RunThreadsGrid(const std::string& raw_file, const SuiteOptions& options, Report* report);
void RunValuesGrid(const std::string& data_dir, uint64_t bytes, const SuiteOptions& options,
                   Report* report);

}  // namespace latchkey
