// The memory's limit: what it costs to read random lines of a region, with nothing looked up in
// them.
#pragma once

#include <memory>

#include "tests/bench/peers/peer.h"

namespace latchkey {

// Reads kPeerBatchKeys random lines a batch, in groups that are prefetched first, of the best of
// several widths, found when it is made. Its "keys" are lines.
class MemoryLimit : public Peer {
 public:
  // Over the file, mapped as our segments are: the same pages of the page cache.
  static std::unique_ptr<MemoryLimit> OverFile(const std::string& path);
  // Over anonymous memory for which pages of 2 MiB were asked.
  static std::unique_ptr<MemoryLimit> OverHugePages(uint64_t size_bytes);

  // What it got, in MiB.
  virtual double huge_mib() const = 0;
};

}  // namespace latchkey
