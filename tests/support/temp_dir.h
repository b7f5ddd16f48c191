// A folder of the machine's file system that goes away with the test.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "core/io/file_system.h"

namespace latchkey::test {

class TempDir {
 public:
  TempDir() : path_(testing::TempDir() + "latchkey_test_XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(std::string_view name) const { return JoinPath(path_, name); }

 private:
  std::string path_;
};

}  // namespace latchkey::test
