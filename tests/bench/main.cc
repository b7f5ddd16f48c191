#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "tests/bench/suites.h"

int main(int argc, char** argv) {
  CLI::App app("Prints the figures that Latchkey is judged by.", "tests/bench/run");
  std::string suite = "all", json;
  latchkey::SuiteOptions options;
  options.scratch_dir =
      (std::filesystem::temp_directory_path() / fmt::format("latchkey-bench-{}", ::getpid()))
          .string();
  bool peers = false;
  app.add_option("--suite", suite,
                 "warm, peers, build or all; peers: of warm, the comparisons only")
      ->check(CLI::IsMember({"warm", "peers", "build", "all"}))
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
  app.add_option("--scratch", options.scratch_dir, "Folder for tables; it is removed")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (!shapes.empty()) {
    std::erase_if(options.shapes, [&](latchkey::KeyShape shape) {
      return std::find(shapes.begin(), shapes.end(), latchkey::KeyShapeName(shape)) == shapes.end();
    });
  }
  latchkey::Report report;
  if (suite == "warm" || suite == "all") latchkey::RunWarmSuite(options, &report);
  if (suite == "peers" || (peers && suite != "build")) latchkey::RunPeersSuite(options, &report);
  if (suite == "build" || suite == "all") latchkey::RunBuildSuite(options, &report);
  std::filesystem::remove_all(options.scratch_dir);
  if (!json.empty() && !report.WriteJson(json)) {
    fmt::print(stderr, "bench: cannot write {}\n", json);
    return 3;
  }
  return 0;
}
