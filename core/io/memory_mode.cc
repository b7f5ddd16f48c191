#include "core/io/memory_mode.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/low_priority.h"
#include "core/base/status_macros.h"
#include "core/io/anonymous_memory.h"
#include "core/io/available_memory.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#endif

namespace latchkey {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{2} << 20;
// A copy of a file in the process's own memory.
class CopiedFile final : public MappedFile {
 public:
  explicit CopiedFile(std::unique_ptr<AnonymousMemory> memory) : memory_(std::move(memory)) {
    data_ = memory_->data();
    size_bytes_ = memory_->size_bytes();
  }

 private:
  const std::unique_ptr<AnonymousMemory> memory_;
};

absl::StatusOr<std::unique_ptr<MappedFile>> CopyFile(FileSystem& file_system,
                                                     const std::string& path, uint64_t size_bytes) {
  LATCHKEY_ASSIGN_OR_RETURN(const auto file, file_system.Open(path));
  LATCHKEY_ASSIGN_OR_RETURN(auto memory, AnonymousMemory::Allocate(size_bytes));
  std::vector<char> chunk(kChunkBytes);
  for (uint64_t at = 0; at < size_bytes; at += kChunkBytes) {
    const size_t wanted = std::min(kChunkBytes, size_bytes - at);
    LATCHKEY_ASSIGN_OR_RETURN(const size_t got, file->ReadAt(at, wanted, chunk.data()));
    if (got != wanted)
      return DataLoss("{}: cut off at offset {} while it was read", path, at + got);
    // Holes of the file take no memory.
    const bool hole = chunk[0] == '\0' && std::memcmp(chunk.data(), chunk.data() + 1, got - 1) == 0;
    if (!hole) std::memcpy(memory->data() + at, chunk.data(), got);
    GiveWay();
  }
  return std::make_unique<CopiedFile>(std::move(memory));
}

}  // namespace

std::string_view MemoryModeName(MemoryMode mode) {
  switch (mode) {
    case MemoryMode::kHuge:
      return "huge";
    case MemoryMode::kLocked:
      return "locked";
    case MemoryMode::kMmap:
      break;
  }
  return "mmap";
}

std::optional<MemoryMode> ParseMemoryMode(std::string_view name) {
  for (const MemoryMode mode : {MemoryMode::kMmap, MemoryMode::kHuge, MemoryMode::kLocked}) {
    if (MemoryModeName(mode) == name) return mode;
  }
  return {};
}

absl::StatusOr<std::unique_ptr<MappedFile>> MapFile(FileSystem& file_system,
                                                    const std::string& path, MemoryMode mode) {
  LATCHKEY_ASSIGN_OR_RETURN(auto file, file_system.Map(path));
  const uint64_t size_bytes = file->size_bytes();
  if (mode == MemoryMode::kMmap || size_bytes == 0) return file;
  LATCHKEY_RETURN_IF_ERROR(CheckMemorySuffices(path, size_bytes));
  void* const data = const_cast<uint8_t*>(file->data());
  if (mode == MemoryMode::kLocked) {
    if (::mlock(data, size_bytes) == 0) return file;
    const int error_number = errno;
    return ErrnoStatus(error_number,
                       fmt::format("cannot lock {} in memory, {} MiB (see RLIMIT_MEMLOCK)", path,
                                   size_bytes >> 20));
  }
  // Where the file system has large folios, pages that are not cached yet come in 2 MiB at a time,
  // and those that were written so are there already.
  (void)::madvise(data, size_bytes, MADV_HUGEPAGE);
  (void)::madvise(data, size_bytes, MADV_POPULATE_READ);
  if (HugePageBytes(file->data(), size_bytes) >= size_bytes / 10 * 8) return file;
  return CopyFile(file_system, path, size_bytes);
}

uint64_t HugePageBytes(const uint8_t* data, uint64_t size_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(data);
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool chosen = false;
  uint64_t kib = 0;
  while (std::getline(maps, line)) {
    unsigned long begin, end, amount;
    char field[32];
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      chosen = begin < first + size_bytes && end > first;
    } else if (chosen && std::sscanf(line.c_str(), "%31[^:]: %lu kB", field, &amount) == 2 &&
               (std::strcmp(field, "AnonHugePages") == 0 ||
                std::strcmp(field, "FilePmdMapped") == 0 ||
                std::strcmp(field, "ShmemPmdMapped") == 0)) {
      kib += amount;
    }
  }
  return std::min(kib * 1024, size_bytes);
}

}  // namespace latchkey
