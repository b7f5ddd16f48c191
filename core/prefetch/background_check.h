// Reads what serves against its checksums, slowly, while it serves.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "core/table/snapshot.h"

namespace latchkey {

struct BackgroundCheckOptions {
  uint64_t bytes_per_s_max = uint64_t{32} << 20;  // 0: nothing is checked
  // Called by the thread that checks, when blocks are found to be damaged, and so quarantined: the
  // error names the file and the place of the first.
  std::function<void(const std::string& table, const absl::Status& damage)> on_damage =
      [](const std::string&, const absl::Status&) {};
};

// Thread-safe. One thread, of low priority, checks each section once that was not checked when its
// segment was opened. Pages that it had to bring to memory are let go again, unless somebody has
// touched them meanwhile, so lookups keep theirs.
class BackgroundCheck {
 public:
  explicit BackgroundCheck(BackgroundCheckOptions options);
  ~BackgroundCheck();

  // Checks the snapshot's segments too, after those it has. Segments that nobody uses any more are
  // left out.
  void Add(const std::string& table, const Snapshot& snapshot);

 private:
  struct Waiting {
    std::string table;
    std::weak_ptr<const Segment> segment;
  };

  void Run();
  // False when it should stop. `read_bytes`: those that the disk gave, ahead of what was checked.
  bool CheckSection(const Waiting& waiting, SectionKind kind, uint64_t* read_bytes);

  const BackgroundCheckOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::vector<Waiting> waiting_;
  std::thread thread_;
};

}  // namespace latchkey
