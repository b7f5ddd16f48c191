#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/bench/suites.h"

namespace {

std::string scratch_dir;

// At the program's end, however it comes: the tables are large.
void RemoveScratch() {
  std::error_code ignored;
  for (const char* suffix : {"", ".raw"}) {
    std::filesystem::remove_all(scratch_dir + suffix, ignored);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Prints the figures that Latchkey is judged by.", "tests/bench/run");
  std::string suite = "all", json;
  latchkey::SuiteOptions options;
  options.scratch_dir =
      (std::filesystem::temp_directory_path() / fmt::format("latchkey-bench-{}", ::getpid()))
          .string();
  bool peers = false;
  app.add_option("--suite", suite,
                 "warm, peers, cold, build, change or all; peers: of warm, the comparisons only")
      ->check(CLI::IsMember({"warm", "peers", "cold", "build", "change", "all"}))
      ->capture_default_str();
  app.add_flag("--peers", peers, "Compare with other stores too, which are installed first");
  app.add_option("--json", json, "File for the figures as a JSON array");
  app.add_option("--rows", options.rows, "Keys of the large tables; the small ones have a tenth")
      ->check(CLI::Range(uint64_t{1000}, uint64_t{1'000'000'000}))
      ->capture_default_str();
  std::vector<std::string> shapes;
  app.add_option("--shapes", shapes, "seq6, asin10, uuid16, uuid36: those of warm and build; all")
      ->delimiter(',')
      ->check(CLI::IsMember({"seq6", "asin10", "uuid16", "uuid36"}));
  app.add_option("--rounds", options.rounds, "Rounds of which the median is taken")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option(
         "--cold-gib", options.cold_gib,
         "cold: GiB of table and raw file; less where the disk would have under 20 GiB left")
      ->check(CLI::Range(0.05, 24.0))
      ->capture_default_str();
  app.add_option("--cold-table", options.cold_table,
                 "cold: data folder with a table \"bench\" of this suite, instead of building one")
      ->check(CLI::ExistingDirectory);
  app.add_flag("--grids", options.grids,
               "cold: also the grids of reads and policies, some eight minutes more");
  app.add_option("--scratch", options.scratch_dir, "Folder for tables; it is removed")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (!shapes.empty()) {
    std::erase_if(options.shapes, [&](latchkey::KeyShape shape) {
      return std::find(shapes.begin(), shapes.end(), latchkey::KeyShapeName(shape)) == shapes.end();
    });
  }
  scratch_dir = options.scratch_dir;
  if (std::atexit(RemoveScratch) != 0) return 3;
  latchkey::Report report;
  if (suite == "warm" || suite == "all") latchkey::RunWarmSuite(options, &report);
  if (suite == "peers" || (peers && (suite == "warm" || suite == "all")))
    latchkey::RunPeersSuite(options, &report);
  if (suite == "cold" || suite == "all") latchkey::RunColdSuite(options, &report);
  if (suite == "build" || suite == "all") latchkey::RunBuildSuite(options, &report);
  if (suite == "change" || suite == "all") latchkey::RunChangeSuite(options, &report);
  if (!json.empty() && !report.WriteJson(json)) {
    fmt::print(stderr, "bench: cannot write {}\n", json);
    return 3;
  }
  return 0;
}
