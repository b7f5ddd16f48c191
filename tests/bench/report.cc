#include "tests/bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace latchkey {
namespace {

double Spread(const std::vector<double>& samples) {
  const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
  return (*high - *low) / Median(samples);
}

}  // namespace

double Median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t half = samples.size() / 2;
  return samples.size() % 2 == 1 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
}

void Report::Add(Figure figure) {
  std::string line = fmt::format("{:<52} {:>12.2f} {:<10}", figure.name, figure.value, figure.unit);
  if (!figure.peer.empty()) {
    line += fmt::format(" ours {:.2f}, {} {:.2f};", figure.ours, figure.peer, figure.theirs);
  }
  if (figure.rounds > 0) {
    line += fmt::format(" {} rounds, spread {:.0f}%", figure.rounds, figure.spread * 100);
  }
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  figures_.push_back(std::move(figure));
}

void Report::AddMedian(const std::string& suite, const std::string& name, const std::string& unit,
                       std::vector<double> samples, const std::string& conditions) {
  Figure figure;
  figure.suite = suite;
  figure.name = name;
  figure.value = Median(samples);
  figure.unit = unit;
  figure.rounds = static_cast<int>(samples.size());
  figure.spread = Spread(samples);
  figure.conditions = conditions;
  Add(std::move(figure));
}

void Report::AddRatio(const std::string& suite, const std::string& name, bool faster,
                      std::vector<double> ours, const std::string& peer, std::vector<double> theirs,
                      const std::string& conditions) {
  std::vector<double> ratios;
  for (size_t i = 0; i < ours.size(); ++i) {
    ratios.push_back(faster ? theirs[i] / ours[i] : ours[i] / theirs[i]);
  }
  Figure figure;
  figure.suite = suite;
  figure.name = name;
  figure.value = Median(ratios);
  figure.unit = faster ? "x speed" : "x time";
  figure.ours = Median(ours);
  figure.peer = peer;
  figure.theirs = Median(theirs);
  figure.rounds = static_cast<int>(ratios.size());
  figure.spread = Spread(ratios);
  figure.conditions = conditions;
  Add(std::move(figure));
}

bool Report::WriteJson(const std::string& path) const {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Figure& figure : figures_) {
    json.push_back({{"suite", figure.suite},
                    {"name", figure.name},
                    {"value", figure.value},
                    {"unit", figure.unit},
                    {"ours", figure.ours},
                    {"peer", figure.peer},
                    {"theirs", figure.theirs},
                    {"rounds", figure.rounds},
                    {"spread", figure.spread},
                    {"conditions", figure.conditions}});
  }
  std::ofstream file(path);
  file << json.dump(1) << '\n';
  file.close();
  return !file.fail();
}

}  // namespace latchkey
