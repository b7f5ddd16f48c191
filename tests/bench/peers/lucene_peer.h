// Lucene, in a Java process of its own.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <memory>

#include "tests/bench/peers/peer.h"

namespace latchkey {

// A Java process that holds one index and makes the keys itself, so that none crosses the pipe.
// Ends with this object.
class LuceneProcess {
 public:
  // Starts it, and fails the benchmark unless it makes the same keys as MakeKey.
  explicit LuceneProcess(const PeerTable& table);
  ~LuceneProcess();
  LuceneProcess(const LuceneProcess&) = delete;
  LuceneProcess& operator=(const LuceneProcess&) = delete;

  // Builds the index with the default postings format or with BloomFilteringPostingsFormat over it,
  // as many segments as the table says, and opens it in place of the one before.
  void BuildIndex(bool bloom);
  // Sends a line, and returns what stands behind "OK " in the answer.
  std::string Ask(const std::string& line);

  const PeerTable& table() const { return table_; }
  const std::string& versions() const { return versions_; }  // "Lucene 10.6.0 (JDK 25.0.3)"
  bool bloom() const { return bloom_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  std::string ReadLine();
  void CheckKeys();

  const PeerTable table_;
  pid_t pid_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  std::string versions_;
  bool bloom_ = false;
  uint64_t size_bytes_ = 0;
};

enum class LuceneLookup {
  kSeekExact,  // a key at a time
  kTermInSet,  // one TermInSetQuery a batch
};

// Looks keys up in the index that `process` has; borrows it.
std::unique_ptr<Peer> MakeLucenePeer(LuceneProcess& process, LuceneLookup lookup);

}  // namespace latchkey
