#include "tests/bench/memory_group.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/bench/cold_pages.h"

namespace latchkey {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMountV1 = "/sys/fs/cgroup/memory";
constexpr const char* kMountV2 = "/sys/fs/cgroup";
constexpr const char* kPrefix = "latchkey-bench-";

bool WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

// The number after `key`, or the first one of the file.
uint64_t ReadNumber(const std::string& path, const std::string& key = {}) {
  std::ifstream file(path);
  std::string word;
  uint64_t number = 0;
  while (!key.empty() && file >> word && word != key) {
  }
  file >> number;
  return number;
}

class MemoryGroup {
 public:
  explicit MemoryGroup(uint64_t limit_bytes) {
    is_v1_ = fs::exists(fmt::format("{}/memory.limit_in_bytes", kMountV1));
    // Where the controller is not handed down yet; without effect where it is.
    if (!is_v1_) WriteText(fmt::format("{}/cgroup.subtree_control", kMountV2), "+memory");
    const fs::path mount = is_v1_ ? kMountV1 : kMountV2;
    // What runs that were killed left; a group that is in use stays.
    for (const fs::directory_entry& entry : fs::directory_iterator(mount)) {
      if (entry.path().filename().string().starts_with(kPrefix)) ::rmdir(entry.path().c_str());
    }
    path_ = fmt::format("{}/{}{}", mount.string(), kPrefix, ::getpid());
    std::error_code error;
    fs::create_directory(path_, error);
    if (error) FailCold(fmt::format("no memory cgroup to be had: {}: {}", path_, error.message()));
    if (!WriteText(File("memory.limit_in_bytes", "memory.max"), std::to_string(limit_bytes))) {
      const std::string why = std::strerror(errno);
      ::rmdir(path_.c_str());
      FailCold(fmt::format("no memory cgroup to be had: {} takes no limit: {}", path_, why));
    }
  }
  ~MemoryGroup() { ::rmdir(path_.c_str()); }

  bool Enter() const { return WriteText(path_ + "/cgroup.procs", std::to_string(::getpid())); }
  MemoryPressure Pressure() const {
    MemoryPressure pressure;
    pressure.limit_bytes = ReadNumber(File("memory.limit_in_bytes", "memory.max"));
    pressure.usage_bytes = ReadNumber(File("memory.usage_in_bytes", "memory.current"));
    pressure.limit_hits = is_v1_ ? ReadNumber(path_ + "/memory.failcnt")
                                 : ReadNumber(path_ + "/memory.events", "max");
    return pressure;
  }

 private:
  std::string File(const char* v1, const char* v2) const {
    return fmt::format("{}/{}", path_, is_v1_ ? v1 : v2);
  }
  bool is_v1_ = false;
  std::string path_;
};

bool WriteAll(int fd, const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd, from, bytes);
    if (written <= 0) return false;
    from += written;
    bytes -= static_cast<size_t>(written);
  }
  return true;
}

std::vector<double> ReadDoubles(int fd) {
  std::vector<double> values;
  double value;
  size_t have = 0;
  for (ssize_t got;
       (got = ::read(fd, reinterpret_cast<char*>(&value) + have, sizeof(value) - have)) > 0;) {
    have += static_cast<size_t>(got);
    if (have < sizeof(value)) continue;
    values.push_back(value);
    have = 0;
  }
  return values;
}

}  // namespace

std::string MemoryPressure::ToString() const {
  constexpr double kMib = 1 << 20;
  return fmt::format("memory cgroup of {:.0f} MiB, {:.0f} MiB used, {} times at its limit",
                     static_cast<double>(limit_bytes) / kMib,
                     static_cast<double>(usage_bytes) / kMib, limit_hits);
}

void CheckMemoryGroups() { const MemoryGroup group(uint64_t{1} << 30); }

std::vector<double> RunInMemoryGroup(uint64_t limit_bytes,
                                     const std::function<std::vector<double>()>& part,
                                     MemoryPressure* pressure) {
  std::vector<double> values;
  int status = 0;
  {
    const MemoryGroup group(limit_bytes);
    int pipe_ends[2];
    if (::pipe(pipe_ends) != 0) FailCold("no pipe");
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(pipe_ends[0]);
      if (!group.Enter()) {
        std::fprintf(stderr, "bench: cold: cannot enter the memory cgroup\n");
        ::_exit(3);
      }
      const std::vector<double> result = part();
      ::_exit(WriteAll(pipe_ends[1], result.data(), result.size() * sizeof(double)) ? 0 : 3);
    }
    ::close(pipe_ends[1]);
    if (child > 0) values = ReadDoubles(pipe_ends[0]);
    ::close(pipe_ends[0]);
    if (child < 0 || ::waitpid(child, &status, 0) != child) status = -1;
    *pressure = group.Pressure();
  }
  if (status != 0) {
    FailCold(fmt::format("the process in the memory cgroup failed, status {}", status));
  }
  if (pressure->limit_hits == 0) FailCold("no pressure: " + pressure->ToString());
  return values;
}

}  // namespace latchkey
