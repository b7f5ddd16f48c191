// Makes pages of files cold or warm, and tells which they are: what the cold-page benchmarks stand
// on. Only the files named to it are touched; the machine's page cache as a whole is left alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace latchkey {

inline constexpr uint64_t kFilePageBytes = 4096;

// Ends the benchmark: a figure that was measured in the wrong state is worse than none.
[[noreturn]] void FailCold(const std::string& what);

// A file and all the maps of it, whose pages come and go together.
class ColdFile {
 public:
  explicit ColdFile(const std::string& path);
  ~ColdFile();
  ColdFile(const ColdFile&) = delete;
  ColdFile& operator=(const ColdFile&) = delete;

  // Pages that a map holds can't be dropped, so every map of the file is to be known here.
  void AddMap(const uint8_t* data);
  const std::string& path() const { return path_; }
  int fd() const { return fd_; }
  uint64_t size_bytes() const { return size_bytes_; }

  // Ranges are of bytes; pages that lie in them partly count.
  void Drop(uint64_t begin, uint64_t end) const;
  // As above, and fails unless less than 1% stayed in memory.
  void DropSurely(uint64_t begin, uint64_t end) const;
  uint64_t ResidentPages(uint64_t begin, uint64_t end) const;
  double ResidentShare(uint64_t begin, uint64_t end) const;
  // Reads them into the page cache, as pages of their own, which can be dropped one by one, or as
  // large as the kernel likes.
  void Load(uint64_t begin, uint64_t end, bool single_pages) const;

 private:
  const std::string path_;
  int fd_ = -1;
  uint64_t size_bytes_ = 0;
  std::vector<const uint8_t*> maps_;
};

// Fails unless the kernel takes the advice: MADV_NORMAL, MADV_RANDOM, …
void Advise(const uint8_t* data, uint64_t size_bytes, int advice);
// Maps the pages that are in memory, and reads the others.
void Populate(const uint8_t* data, uint64_t size_bytes);

// read_ahead_kb of the device that a file lies on. What was there before is put back when this
// ends, when the program exits, and when a signal ends it.
class ReadAhead {
 public:
  explicit ReadAhead(const std::string& file);
  ~ReadAhead();
  // 0 if it can't be told.
  uint64_t kb() const;
  // False, and why in *reason, if it can't be set. Files that are open already keep what they have.
  bool Set(uint64_t kb, std::string* reason);

 private:
  std::string path_;
};

}  // namespace latchkey
