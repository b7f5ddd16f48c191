#include "core/io/available_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/support/status_asserts.h"
#include "tests/support/temp_dir.h"

namespace latchkey::test {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMib = uint64_t{1} << 20;

// A folder that looks like / of a machine with 1,000 MiB available.
class AvailableMemoryTest : public testing::Test {
 protected:
  AvailableMemoryTest() {
    Put("proc/meminfo",
        "MemTotal:       4096000 kB\nMemFree:          10000 kB\n"
        "MemAvailable:    1024000 kB\n");
  }
  void Put(const std::string& path, std::string_view text) {
    const std::filesystem::path whole = root_.Path(path);
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  // A group of version 2: limit, usage, and what of it is cache that can be dropped.
  void PutGroup2(const std::string& group, std::string_view limit, uint64_t usage_mib,
                 uint64_t cache_mib) {
    const std::string folder = "sys/fs/cgroup" + group + "/";
    Put(folder + "memory.max", std::string(limit) + "\n");
    Put(folder + "memory.current", std::to_string(usage_mib * kMib) + "\n");
    Put(folder + "memory.stat", "anon 1\ninactive_file " + std::to_string(cache_mib * kMib) +
                                    "\nactive_file 99999999999\n");
  }
  void PutGroup1(const std::string& group, uint64_t limit_bytes, uint64_t usage_mib,
                 uint64_t cache_mib) {
    const std::string folder = "sys/fs/cgroup/memory" + group + "/";
    Put(folder + "memory.limit_in_bytes", std::to_string(limit_bytes) + "\n");
    Put(folder + "memory.usage_in_bytes", std::to_string(usage_mib * kMib) + "\n");
    Put(folder + "memory.stat",
        "cache 5\ninactive_file 7\ntotal_inactive_file " + std::to_string(cache_mib * kMib) + "\n");
  }
  void ExpectAvailable(uint64_t mib, std::string_view limited_by) {
    ASSERT_OK_AND_ASSIGN(const AvailableMemory got, ReadAvailableMemory(root_.path()));
    EXPECT_EQ(got.bytes, mib * kMib);
    EXPECT_THAT(got.limited_by, HasSubstr(limited_by));
  }

  TempDir root_;
};

TEST_F(AvailableMemoryTest, WithoutControlGroupsIsTheMachines) { ExpectAvailable(1000, "machine"); }

TEST_F(AvailableMemoryTest, Version2LimitsByTheTightestGroup) {
  Put("proc/self/cgroup", "0::/a/b\n");
  PutGroup2("/a/b", "max", 10, 0);
  PutGroup2("/a", "524288000", 300, 100);  // 500 MiB; 200 are held
  ExpectAvailable(300, "sys/fs/cgroup/a");
  PutGroup2("/a/b", "104857600", 10, 0);
  ExpectAvailable(90, "sys/fs/cgroup/a/b");
  PutGroup2("/a/b", "104857600", 150, 20);  // over its limit, as may be for a moment
  ExpectAvailable(0, "sys/fs/cgroup/a/b");
}

TEST_F(AvailableMemoryTest, Version2InAContainerThatSeesItsOwnRoot) {
  Put("proc/self/cgroup", "0::/\n");
  PutGroup2("", "209715200", 100, 40);
  ExpectAvailable(140, "sys/fs/cgroup");
}

TEST_F(AvailableMemoryTest, Version1CountsTheHierarchy) {
  Put("proc/self/cgroup", "3:cpu,cpuacct:/x\n2:memory:/docker/c1\n0::/system\n");
  PutGroup1("/docker/c1", 400 * kMib, 350, 150);
  ExpectAvailable(200, "memory/docker/c1");
  // In a container the path is the host's, and only the mount is there.
  std::filesystem::remove_all(root_.Path("sys/fs/cgroup/memory/docker"));
  PutGroup1("", 300 * kMib, 60, 10);
  ExpectAvailable(250, "sys/fs/cgroup/memory");
}

TEST_F(AvailableMemoryTest, NoLimitIsNoLimit) {
  Put("proc/self/cgroup", "2:memory:/g\n0::/h\n");
  PutGroup1("/g", uint64_t{9223372036854771712u}, 350, 0);
  PutGroup2("/h", "max", 350, 0);
  ExpectAvailable(1000, "machine");
}

TEST_F(AvailableMemoryTest, WhatCannotBeReadDoesNotLimit) {
  Put("proc/self/cgroup", "nonsense\n2:memory\n0::/h\n\n");
  Put("sys/fs/cgroup/h/memory.max", "12");
  ExpectAvailable(1000, "machine");
  Put("sys/fs/cgroup/h/memory.current", "not a number");
  ExpectAvailable(1000, "machine");
}

TEST_F(AvailableMemoryTest, ErrorsNameTheFile) {
  Put("proc/meminfo", "MemTotal: 5 kB\n");
  EXPECT_FAILS(ReadAvailableMemory(root_.path()), kDataLoss, HasSubstr("proc/meminfo"));
  std::filesystem::remove(root_.Path("proc/meminfo"));
  EXPECT_FAILS(ReadAvailableMemory(root_.path()), kNotFound, HasSubstr("proc/meminfo"));
}

TEST_F(AvailableMemoryTest, OfThisMachineIsPlausible) {
  ASSERT_OK_AND_ASSIGN(const AvailableMemory got, ReadAvailableMemory());
  EXPECT_GT(got.bytes, kMib);
  EXPECT_LT(got.bytes, uint64_t{1} << 50);
}

}  // namespace
}  // namespace latchkey::test
