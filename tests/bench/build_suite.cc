#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

#include "core/base/error.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/in_child.h"
#include "tests/bench/suites.h"

namespace latchkey {
namespace {

constexpr uint64_t kMemoryMib = 256;

// Writes the keys in random order, back to back, as the fixed format takes them.
void WriteKeys(const std::string& path, KeyShape shape, uint64_t rows) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) OrDie(absl::StatusOr<int>(ErrnoStatus(errno, "cannot create " + path)));
  char key[64];
  // An odd multiple of the index, modulo the next power of two, visits every index once.
  const uint64_t mask = std::bit_ceil(rows) - 1;
  for (uint64_t i = 0; i <= mask; ++i) {
    const uint64_t index = (i * 0x9E3779B97F4A7C15 + 12345) & mask;
    if (index >= rows) continue;
    MakeKey(shape, index, 0, key);
    std::fwrite(key, 1, KeyShapeBytes(shape), file);
  }
  if (std::fclose(file) != 0)
    OrDie(absl::StatusOr<int>(ErrnoStatus(errno, "cannot write " + path)));
}

// From file to published manifest, with syncs and the check by reading.
ChildCost BuildInChild(const std::string& input, const std::string& data_dir, KeyShape shape) {
  return InChild([&] {
    InputOptions input_options;
    input_options.format = InputFormat::kFixed;
    input_options.key_width = KeyShapeBytes(shape);
    BuildOptions options;
    options.data_dir = data_dir;
    options.table = "bench";
    options.memory_bytes = kMemoryMib << 20;
    const auto source = OrDie(OpenRecordSource(PosixFileSystem(), input_options, {input}));
    OrDie(BuildTable(PosixFileSystem(), options, *source, nullptr));
  });
}

}  // namespace

void RunBuildSuite(const SuiteOptions& options, Report* report) {
  for (const KeyShape shape : options.shapes) {
    for (const uint64_t rows : {options.rows / 10, options.rows}) {
      const std::string input = options.scratch_dir + ".keys";
      WriteKeys(input, shape, rows);
      std::vector<double> keys_per_s, peaks;
      for (int round = 0; round < std::min(options.rounds, 3); ++round) {
        const ChildCost cost = BuildInChild(input, options.scratch_dir, shape);
        keys_per_s.push_back(static_cast<double>(rows) / cost.seconds);
        peaks.push_back(cost.peak_mib);
      }
      ::unlink(input.c_str());
      const std::string conditions = fmt::format(
          "{} keys in random order from a file of fixed records, --memory {}, one core, "
          "sync and check by reading included",
          rows, kMemoryMib);
      const std::string prefix =
          fmt::format("build/{}{}", rows == options.rows ? "" : "tenth/", KeyShapeName(shape));
      report->AddMedian("build", prefix + "_keys_per_s", "keys/s", keys_per_s, conditions);
      report->AddMedian("build", prefix + "_peak_mib", "MiB", peaks, conditions);
    }
  }
}

}  // namespace latchkey
