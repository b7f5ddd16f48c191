#include "core/io/available_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/io/file_system.h"

namespace latchkey {
namespace {

// Left for everybody else when much is taken at once.
constexpr uint64_t kReserveBytes = uint64_t{128} << 20;

// Files of /proc and /sys have no size, so they are read to their end.
std::optional<std::string> ReadAll(const std::string& path) {
  std::ifstream file(path);
  if (!file) return {};
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return {};
  return number;
}

// The number behind `name` at the start of a line.
std::optional<uint64_t> FindNumber(std::string_view text, std::string_view name) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.starts_with(name)) return ParseNumber(line.substr(name.size()));
    at = end + 1;
  }
  return {};
}

// The names that the two versions have for the same things.
struct GroupFiles {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* droppable;  // of memory.stat
};
constexpr GroupFiles kVersion1 = {"sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                  "memory.usage_in_bytes", "total_inactive_file "};
constexpr GroupFiles kVersion2 = {"sys/fs/cgroup", "memory.max", "memory.current",
                                  "inactive_file "};

// What a group has left; nothing if it has no limit ("max") or can't be read.
std::optional<uint64_t> LeftInGroup(const std::string& folder, const GroupFiles& files) {
  const auto limit_text = ReadAll(JoinPath(folder, files.limit));
  const auto usage_text = ReadAll(JoinPath(folder, files.usage));
  if (!limit_text || !usage_text) return {};
  const auto limit = ParseNumber(*limit_text), usage = ParseNumber(*usage_text);
  if (!limit || !usage) return {};
  const std::string stat = ReadAll(JoinPath(folder, "memory.stat")).value_or("");
  const uint64_t held = *usage - std::min(*usage, FindNumber(stat, files.droppable).value_or(0));
  return *limit - std::min(*limit, held);
}

void Limit(const std::string& root, const GroupFiles& files, std::string group,
           AvailableMemory* available) {
  // A group's parents limit it too. Inside a container the path may be the host's: then only the
  // mount itself is there.
  for (;;) {
    const std::string folder = JoinPath(root, files.mount) + (group == "/" ? "" : group);
    const auto left = LeftInGroup(folder, files);
    if (left && *left < available->bytes) *available = {*left, folder};
    if (group.empty() || group == "/") return;
    group.resize(group.rfind('/'));
  }
}

}  // namespace

absl::StatusOr<AvailableMemory> ReadAvailableMemory(const std::string& root) {
  const std::string meminfo_path = JoinPath(root, "proc/meminfo");
  const auto meminfo = ReadAll(meminfo_path);
  if (!meminfo) return NotFound("cannot read {}", meminfo_path);
  const auto kib = FindNumber(*meminfo, "MemAvailable:");
  if (!kib) return DataLoss("{}: expected a line 'MemAvailable: … kB'", meminfo_path);
  AvailableMemory available{*kib * 1024, "the machine"};
  // Lines "number:controllers:path"; version 2 has number 0 and no controllers.
  std::istringstream groups(ReadAll(JoinPath(root, "proc/self/cgroup")).value_or(""));
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) Limit(root, kVersion2, line.substr(second + 1), &available);
    if ("," + controllers + "," == ",memory,") {
      Limit(root, kVersion1, line.substr(second + 1), &available);
    }
  }
  return available;
}

absl::Status CheckMemorySuffices(std::string_view what, uint64_t size_bytes) {
  LATCHKEY_ASSIGN_OR_RETURN(const AvailableMemory available, ReadAvailableMemory());
  if (size_bytes + kReserveBytes <= available.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format(
      "{}: it takes {} MiB of memory, and {} has {} MiB left, of which {} are to stay free", what,
      size_bytes >> 20, available.limited_by, available.bytes >> 20, kReserveBytes >> 20));
}

}  // namespace latchkey
