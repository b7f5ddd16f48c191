// Holds the source tree to the rules of its layout: what each folder may include, and how files look.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace latchkey {
namespace {

constexpr size_t kColumnsMax = 110;
constexpr size_t kLinesMax = 600;
constexpr size_t kTestLinesMax = 1000;

struct SourceFile {
  std::string path;  // from the root of the tree
  std::vector<std::string> lines;

  bool IsTest() const { return path.starts_with("tests/"); }
  bool IsHeader() const { return path.ends_with(".h"); }
  std::string At(size_t index) const { return path + ":" + std::to_string(index + 1) + ": "; }
};

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Files of the tree with one of these extensions, sorted by path.
std::vector<SourceFile> FilesWith(const std::set<std::string>& extensions) {
  const std::filesystem::path root = LATCHKEY_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (const char* folder : {"client", "core", "deploy", "proto", "server", "tests"}) {
    if (!std::filesystem::exists(root / folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !extensions.contains(entry.path().extension())) continue;
      SourceFile file{std::filesystem::relative(entry.path(), root).generic_string(), {}};
      std::istringstream text(ReadText(entry.path()));
      for (std::string line; std::getline(text, line);) file.lines.push_back(line);
      files.push_back(std::move(file));
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

const std::vector<SourceFile>& CppFiles() {
  static const std::vector<SourceFile> files = FilesWith({".h", ".cc"});
  return files;
}

// What a line includes; empty if it does not.
std::string IncludedBy(const std::string& line) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*[<"]([^>"]+)[>"])re");
  std::smatch match;
  return std::regex_search(line, match, kInclude) ? match[1].str() : "";
}

// The part of the tree that a file is in, or that an include names; empty for what is not ours.
std::string PartOf(const std::string& path) {
  if (path.starts_with("latchkey/v1/")) return "proto";
  for (const char* part : {"core/base", "core/key", "core/io", "core/segment", "core/table",
                           "core/prefetch", "core/lookup", "core/build", "client/cli", "client",
                           "server", "tests", "core"}) {
    if (path.starts_with(std::string(part) + "/")) return part;
  }
  return "";
}

// Which parts a part may include, itself aside. Only downwards, and no neighbour.
const std::map<std::string, std::set<std::string>>& Layers() {
  static const auto& layers = *new std::map<std::string, std::set<std::string>>{
      {"core/base", {}},
      {"core/key", {"core/base"}},
      {"core/io", {"core/base"}},
      {"core/segment", {"core/base", "core/key", "core/io"}},
      {"core/table", {"core/base", "core/key", "core/io", "core/segment"}},
      {"core/prefetch", {"core/base", "core/key", "core/io", "core/segment", "core/table"}},
      {"core/lookup",
       {"core/base", "core/key", "core/io", "core/segment", "core/table", "core/prefetch"}},
      // A deletion looks up what it is to delete.
      {"core/build",
       {"core/base", "core/key", "core/io", "core/segment", "core/table", "core/lookup"}},
      {"server",
       {"proto", "core/base", "core/key", "core/io", "core/segment", "core/table", "core/prefetch",
        "core/lookup", "core/build"}},
      {"client", {"proto", "core/base", "core/key"}},
      {"client/cli",
       {"proto", "client", "core/base", "core/key", "core/io", "core/segment", "core/table",
        "core/prefetch", "core/lookup", "core/build"}},
  };
  return layers;
}

TEST(TidyTest, FindsTheTree) {
  std::set<std::string> parts;
  for (const SourceFile& file : CppFiles()) parts.insert(PartOf(file.path));
  for (const char* part : {"core/base", "core/segment", "core/lookup", "server", "client", "tests"}) {
    EXPECT_TRUE(parts.contains(part)) << part;
  }
  EXPECT_EQ(IncludedBy("#include \"core/base/hash.h\""), "core/base/hash.h");
  EXPECT_EQ(IncludedBy("  # include <vector>  // why"), "vector");
  EXPECT_EQ(IncludedBy("// #include <vector>"), "");
}

TEST(TidyTest, IncludesPointDownwards) {
  for (const SourceFile& file : CppFiles()) {
    const std::string part = PartOf(file.path);
    if (part == "tests") continue;
    const auto layer = Layers().find(part);
    ASSERT_NE(layer, Layers().end()) << file.path << " is in no layer";
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string to = PartOf(IncludedBy(file.lines[i]));
      EXPECT_TRUE(to.empty() || to == part || layer->second.contains(to))
          << file.At(i) << part << " may not include " << to;
    }
  }
}

// Core knows no RPC, no log and no command line.
TEST(TidyTest, CoreIncludesNoServersLibraries) {
  for (const SourceFile& file : CppFiles()) {
    if (!file.path.starts_with("core/")) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string included = IncludedBy(file.lines[i]);
      for (const char* library : {"grpc", "google/protobuf/", "spdlog/", "CLI/", "gtest/", "gmock/",
                                  "benchmark/"}) {
        EXPECT_FALSE(included.starts_with(library)) << file.At(i) << included;
      }
    }
  }
}

TEST(TidyTest, OneRoomForEachLibrary) {
  static const std::regex kIntrinsics(R"re(^(\w*intrin|arm_\w+|cpuid)\.h$)re");
  for (const SourceFile& file : CppFiles()) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string included = IncludedBy(file.lines[i]);
      if (included == "xxhash.h") {
        EXPECT_EQ(file.path, "core/base/hash.cc") << file.At(i);
      }
      if (std::regex_match(included, kIntrinsics)) {
        EXPECT_EQ(file.path, "core/table/bucket_match.cc") << file.At(i);
      }
    }
  }
}

// Abseil's own does not convert from the standard one.
TEST(TidyTest, NoAbseilStringViewInHeadersOfCore) {
  for (const SourceFile& file : CppFiles()) {
    if (!file.path.starts_with("core/") || !file.IsHeader()) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_EQ(file.lines[i].find("absl::string_view"), std::string::npos) << file.At(i);
    }
  }
}

TEST(TidyTest, LinesAreNotTooLong) {
  for (const SourceFile& file : CppFiles()) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      // Characters, of which UTF-8 takes one byte or more.
      const auto columns = std::count_if(file.lines[i].begin(), file.lines[i].end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
      });
      EXPECT_LE(static_cast<size_t>(columns), kColumnsMax) << file.At(i);
    }
  }
}

TEST(TidyTest, LinesEndCleanly) {
  for (const SourceFile& file : CppFiles()) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string& line = file.lines[i];
      EXPECT_EQ(line.find('\t'), std::string::npos) << file.At(i) << "a tab";
      EXPECT_TRUE(line.empty() || (line.back() != ' ' && line.back() != '\r'))
          << file.At(i) << "blanks at the end";
    }
  }
}

TEST(TidyTest, FilesAreNotTooLong) {
  for (const SourceFile& file : CppFiles()) {
    EXPECT_LE(file.lines.size(), file.IsTest() ? kTestLinesMax : kLinesMax) << file.path;
  }
}

TEST(TidyTest, HeadersAreIncludedOnce) {
  for (const SourceFile& file : CppFiles()) {
    if (!file.IsHeader()) continue;
    EXPECT_NE(std::find(file.lines.begin(), file.lines.end(), "#pragma once"), file.lines.end())
        << file.path;
  }
}

// A note to oneself is not for those who read on.
TEST(TidyTest, NoNotesAreLeft) {
  static const std::regex kNotes(R"re(\b(TO)(DO)\b|\b(FIX)(ME)\b|\bX(XX)\b)re");
  for (const SourceFile& file :
       FilesWith({".h", ".cc", ".proto", ".md", ".py", ".sh", ".yml", ".txt", ""})) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(file.lines[i], kNotes)) << file.At(i) << file.lines[i];
    }
  }
}

// A test that is not built passes for ever.
TEST(TidyTest, EverySourceIsBuilt) {
  const std::string build =
      ReadText(std::filesystem::path(LATCHKEY_SOURCE_DIR) / "CMakeLists.txt");
  ASSERT_FALSE(build.empty());
  for (const SourceFile& file : CppFiles()) {
    if (file.IsHeader() || file.path.starts_with("tests/bench/")) continue;
    EXPECT_NE(build.find(file.path), std::string::npos) << file.path << " is not in CMakeLists.txt";
  }
}

}  // namespace
}  // namespace latchkey
