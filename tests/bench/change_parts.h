// The parts of the suite of changes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "tests/bench/report.h"
#include "tests/bench/suites.h"

namespace latchkey {

inline double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

[[noreturn]] void FailChange(const std::string& why);

// Keys number `first`, `first + step` … of the set of uuid16; the doc id is the number, and
// `doc_id_shift` more.
struct KeyRange {
  uint64_t first = 0;
  uint64_t step = 1;
  uint64_t count = 0;
  uint64_t doc_id_shift = 0;
};
// Builds the table "bench" of them, or appends them to it.
void BuildKeys(const std::string& data_dir, const KeyRange& range, bool append);

// What it takes to open a generation that shares most segments with the one before.
void RunSharedOpen(const SuiteOptions& options, Report* report);
// What a server's clients notice of reload after reload.
void RunReload(const SuiteOptions& options, Report* report);

}  // namespace latchkey
