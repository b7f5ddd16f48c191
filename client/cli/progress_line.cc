#include "client/cli/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace latchkey {
namespace {

std::string_view PhaseName(BuildProgress::Phase phase) {
  switch (phase) {
    case BuildProgress::Phase::kRead:
      return "reading";
    case BuildProgress::Phase::kWrite:
      return "writing";
    case BuildProgress::Phase::kCheck:
      break;
  }
  return "checking";
}

}  // namespace

ProgressLine::ProgressLine() : terminal_(::isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

void ProgressLine::Show(const BuildProgress& progress) {
  if (!terminal_) return;
  const Clock::time_point now = Clock::now();
  if (progress.phase != phase_) {
    phase_ = progress.phase;
    phase_begin_ = now;
  } else if (shown_ && now - last_shown_ < std::chrono::milliseconds(100)) {
    return;
  }
  last_shown_ = now;
  shown_ = true;
  const double elapsed_s = std::chrono::duration<double>(now - phase_begin_).count();
  const bool by_bytes = progress.phase == BuildProgress::Phase::kRead;
  const auto done = static_cast<double>(by_bytes ? progress.bytes : progress.rows);
  const auto total = static_cast<double>(by_bytes ? progress.bytes_total : progress.rows_total);
  std::string line = fmt::format("{}: {} rows", PhaseName(phase_), progress.rows);
  if (elapsed_s > 0.2) {
    line += fmt::format(", {:.2f} M rows/s", static_cast<double>(progress.rows) / elapsed_s / 1e6);
  }
  if (total > 0 && done > 0 && elapsed_s > 0.2) {
    line += fmt::format(", {:.0f}%, {:.0f} s left", 100 * done / total,
                        elapsed_s * (total - done) / done);
  }
  std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
  std::fflush(stderr);
}

}  // namespace latchkey
