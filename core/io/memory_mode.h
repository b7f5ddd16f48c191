// How a table's files lie in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/io/file_system.h"

namespace latchkey {

enum class MemoryMode {
  kMmap,    // mapped; the page cache keeps what is used
  kHuge,    // all in memory, in pages of 2 MiB: the page cache's where the kernel has them, else a
            // copy
  kLocked,  // mapped, all in memory, and not to be evicted
};
std::string_view MemoryModeName(MemoryMode mode);  // "mmap", "huge", "locked"
std::optional<MemoryMode> ParseMemoryMode(std::string_view name);

// Maps a file, or reads it into memory, as `mode` says. ResourceExhausted, before anything is read,
// when what the machine or a control group has left does not suffice: nothing is driven into swap.
// Else what FileSystem::Map, reading, and locking give.
absl::StatusOr<std::unique_ptr<MappedFile>> MapFile(FileSystem& file_system,
                                                    const std::string& path, MemoryMode mode);

// The bytes of [data, data + size_bytes) that this process has mapped by pages of 2 MiB, as
// /proc/self/smaps counts whole mappings: an upper bound where one reaches beyond. Takes
// milliseconds.
uint64_t HugePageBytes(const uint8_t* data, uint64_t size_bytes);

}  // namespace latchkey
