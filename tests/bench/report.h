// The figures of a run: printed as a table, written as a JSON array.
#pragma once

#include <string>
#include <vector>

namespace latchkey {

struct Figure {
  std::string suite;
  std::string name;
  double value = 0;
  std::string unit;
  double ours = 0;   // of a comparison: what was measured of us
  std::string peer;  // and of whom
  double theirs = 0;
  int rounds = 0;
  double spread = 0;  // (largest - smallest) / median over the rounds
  std::string conditions;
};

class Report {
 public:
  // Prints the figure at once.
  void Add(Figure figure);
  // Adds the median of `samples`.
  void AddMedian(const std::string& suite, const std::string& name, const std::string& unit,
                 std::vector<double> samples, const std::string& conditions);
  // Adds the ratio of two medians measured in interleaved rounds: theirs over ours if `faster`,
  // else ours over theirs.
  void AddRatio(const std::string& suite, const std::string& name, bool faster,
                std::vector<double> ours, const std::string& peer, std::vector<double> theirs,
                const std::string& conditions);
  // False when the file can't be written.
  bool WriteJson(const std::string& path) const;

 private:
  std::vector<Figure> figures_;
};

double Median(std::vector<double> samples);

}  // namespace latchkey
