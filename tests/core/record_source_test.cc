#include "core/build/record_source.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/key/limits.h"

namespace latchkey {
namespace {

using std::string_literals::operator""s;

uint64_t TestSeed() {
  const char* given = std::getenv("LATCHKEY_TEST_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "LATCHKEY_TEST_SEED=" << seed << std::endl;
  return seed;
}

// Real files in a folder that goes away with the test.
class RecordSourceTest : public testing::Test {
 protected:
  RecordSourceTest() {
    std::string name = testing::TempDir() + "record_source_test_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~RecordSourceTest() override { std::filesystem::remove_all(folder_); }

  std::string PathOf(const std::string& name) const { return folder_ + "/" + name; }

  std::string Write(const std::string& name, const std::string& content) const {
    std::ofstream(PathOf(name), std::ios::binary) << content;
    return PathOf(name);
  }

  std::string folder_;
};

struct Row {
  std::string key;
  std::string value;
  std::optional<uint64_t> doc_id;
  std::string position;

  bool operator==(const Row&) const = default;
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.position << ": " << QuoteShort(row.key) << " " << QuoteShort(row.value);
  if (row.doc_id.has_value()) *out << " " << *row.doc_id;
}

struct Result {
  std::vector<Row> rows;
  absl::Status status;
  std::string position;  // after the last call
  uint64_t bytes_read = 0;
  uint64_t total_bytes = 0;
};

Result ReadAll(FileSystem& file_system, const InputOptions& options,
               const std::vector<std::string>& paths) {
  Result result;
  auto source = OpenRecordSource(file_system, options, paths);
  if (!source.ok()) {
    result.status = source.status();
    return result;
  }
  for (;;) {
    InputRow row;
    row.doc_id = 4711;  // must not be left from the row before
    const absl::StatusOr<bool> more = (*source)->Next(&row);
    result.status = more.status();
    result.position = (*source)->Position();
    if (!more.ok() || !*more) break;
    result.rows.push_back(
        {std::string(row.key), std::string(row.value), row.doc_id, (*source)->Position()});
  }
  result.bytes_read = (*source)->bytes_read();
  result.total_bytes = (*source)->total_bytes();
  return result;
}

// The machine's file system, with files that a test makes up as they are opened.
class FakeFileSystem final : public FileSystem {
 public:
  using Opener = std::function<absl::StatusOr<std::unique_ptr<ReadableFile>>(const std::string&)>;
  explicit FakeFileSystem(Opener opener) : opener_(std::move(opener)) {}

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    return opener_(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string&) override { return No(); }
  absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string&) override { return No(); }
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string&) override { return No(); }
  absl::StatusOr<std::unique_ptr<FileLock>> LockShared(const std::string&) override { return No(); }
  absl::StatusOr<std::unique_ptr<FileLock>> TryLockExclusive(const std::string&) override {
    return No();
  }
  absl::Status Rename(const std::string&, const std::string&) override { return No(); }
  absl::Status Remove(const std::string&) override { return No(); }
  absl::Status CreateDirectories(const std::string&) override { return No(); }
  absl::Status SyncDirectory(const std::string&) override { return No(); }
  absl::StatusOr<std::vector<std::string>> List(const std::string&) override { return No(); }

 private:
  static absl::Status No() { return absl::UnimplementedError("not for sources"); }
  Opener opener_;
};

// Reads a few bytes at a time, so that rows span reads in every way.
class TrickleFile final : public ReadableFile {
 public:
  TrickleFile(std::unique_ptr<ReadableFile> file, uint64_t seed)
      : file_(std::move(file)), random_(seed) {}
  absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t size_bytes, char* to) const override {
    return file_->ReadAt(offset, size_bytes, to);
  }
  absl::StatusOr<size_t> ReadNext(size_t size_bytes, char* to) override {
    return file_->ReadNext(std::min<size_t>(size_bytes, 1 + random_() % 9), to);
  }
  absl::StatusOr<uint64_t> SizeBytes() const override { return file_->SizeBytes(); }

 private:
  std::unique_ptr<ReadableFile> file_;
  std::mt19937_64 random_;
};

FakeFileSystem TrickleFileSystem(uint64_t seed) {
  return FakeFileSystem(
      [seed](const std::string& path) -> absl::StatusOr<std::unique_ptr<ReadableFile>> {
        auto file = PosixFileSystem().Open(path);
        if (!file.ok()) return file.status();
        return std::make_unique<TrickleFile>(*std::move(file), seed);
      });
}

// A pipe that gives `start`, then `filler` for ever, or until `error_at`, where reading fails.
class EndlessFile final : public ReadableFile {
 public:
  EndlessFile(std::string start, char filler, uint64_t error_at)
      : start_(std::move(start)), filler_(filler), error_at_(error_at) {}
  absl::StatusOr<size_t> ReadAt(uint64_t, size_t, char*) const override {
    return absl::UnknownError("a pipe");
  }
  absl::StatusOr<size_t> ReadNext(size_t size_bytes, char* to) override {
    if (offset_ >= error_at_) return DataLoss("cannot read endless: torn");
    std::fill_n(to, size_bytes, filler_);
    if (offset_ == 0) start_.copy(to, size_bytes);
    offset_ += size_bytes;
    return size_bytes;
  }
  absl::StatusOr<uint64_t> SizeBytes() const override { return 0; }

 private:
  const std::string start_;
  const char filler_;
  const uint64_t error_at_;
  uint64_t offset_ = 0;
};

FakeFileSystem EndlessFileSystem(const std::string& start, char filler,
                                 uint64_t error_at = UINT64_MAX) {
  return FakeFileSystem([=](const std::string&) -> absl::StatusOr<std::unique_ptr<ReadableFile>> {
    return std::make_unique<EndlessFile>(start, filler, error_at);
  });
}

InputOptions Lines(KeyKind kind = KeyKind::kRaw, bool has_rest = false) {
  InputOptions options;
  options.key_kind = kind;
  if (has_rest) options.value_columns = {"rest"};
  return options;
}

InputOptions Columns(InputFormat format, const std::string& key_column = "1",
                     const std::vector<std::string>& value_columns = {},
                     const std::string& doc_id_column = "", KeyKind kind = KeyKind::kRaw) {
  InputOptions options;
  options.format = format;
  options.key_kind = kind;
  options.key_column = key_column;
  options.value_columns = value_columns;
  options.doc_id_column = doc_id_column;
  return options;
}

constexpr InputFormat kCsv = InputFormat::kCsv;
constexpr InputFormat kTsv = InputFormat::kTsv;

InputOptions WithHeader(InputOptions options) {
  options.has_header = true;
  return options;
}

InputOptions Fixed(size_t key_width, size_t value_width, KeyKind kind = KeyKind::kRaw) {
  InputOptions options;
  options.format = InputFormat::kFixed;
  options.key_kind = kind;
  options.key_width = key_width;
  options.value_width = value_width;
  return options;
}

TEST_F(RecordSourceTest, FormatNamesRoundTrip) {
  for (const InputFormat format :
       {InputFormat::kLines, InputFormat::kCsv, InputFormat::kTsv, InputFormat::kFixed}) {
    EXPECT_EQ(ParseInputFormat(InputFormatName(format)), format);
  }
  EXPECT_EQ(ParseInputFormat("json"), std::nullopt);
  EXPECT_EQ(ParseInputFormat(""), std::nullopt);
}

const std::string kMark = "\xEF\xBB\xBF";  // UTF-8 byte order mark

struct Example {
  std::string name;
  InputOptions options;
  std::vector<std::string> contents;  // of the files f0, f1, …
  std::vector<Row> rows;              // positions without the folder
};

std::vector<Example> LinesExamples() {
  const std::string dpkg =
      "d41d8cd98f00b204e9800998ecf8427e  usr/share/doc/a b\n"
      "D41D8CD98F00B204E9800998ECF8427F  usr/bin/c\n";
  const std::string hash = "\xd4\x1d\x8c\xd9\x8f\x00\xb2\x04\xe9\x80\x09\x98\xec\xf8\x42"s;
  return {
      {"no files' bytes", Lines(), {"", ""}, {}},
      {"keys", Lines(), {"a\nb b\n"}, {{"a", "", {}, "f0:1"}, {"b b", "", {}, "f0:2"}}},
      {"no last newline", Lines(), {"a\nb"}, {{"a", "", {}, "f0:1"}, {"b", "", {}, "f0:2"}}},
      {"returns",
       Lines(),
       {"a\r\nb\rb\r\r\nc\r"},
       {{"a", "", {}, "f0:1"}, {"b\rb\r", "", {}, "f0:2"}, {"c", "", {}, "f0:3"}}},
      {"raw bytes are not unescaped",
       Lines(),
       {" \0\xff\\n\t\n"s},
       {{" \0\xff\\n\t"s, "", {}, "f0:1"}}},
      {"a mark is a key's", Lines(), {kMark + "a\n"}, {{kMark + "a", "", {}, "f0:1"}}},
      {"several files",
       Lines(),
       {"", "a", "", "b\nc\n", ""},
       {{"a", "", {}, "f1:1"}, {"b", "", {}, "f3:1"}, {"c", "", {}, "f3:2"}}},
      {"dpkg",
       Lines(KeyKind::kHex, true),
       {dpkg},
       {{hash + "\x7e", "usr/share/doc/a b", {}, "f0:1"},
        {hash + "\x7f", "usr/bin/c", {}, "f0:2"}}},
      {"rest",
       Lines(KeyKind::kRaw, true),
       {"a\nb \nc\t \t v \nd v\\n\r\n"},
       {{"a", "", {}, "f0:1"},
        {"b", "", {}, "f0:2"},
        {"c", "v ", {}, "f0:3"},
        {"d", "v\\n", {}, "f0:4"}}},
      {"u64", Lines(KeyKind::kU64), {"258\n"}, {{"\0\0\0\0\0\0\1\2"s, "", {}, "f0:1"}}},
      {"text", Lines(KeyKind::kText), {"h\xc3\xa9\\n\n"}, {{"h\xc3\xa9\\n", "", {}, "f0:1"}}},
  };
}

std::vector<Example> CsvExamples() {
  return {
      {"no bytes, no header", Columns(kCsv, "id"), {""}, {}},
      {"keys", Columns(kCsv), {"a,b\nc\n"}, {{"a", "", {}, "f0:1"}, {"c", "", {}, "f0:2"}}},
      {"blanks are kept", Columns(kCsv, "1", {"2"}), {" a ,\tb \n"}, {{" a ", "\tb ", {}, "f0:1"}}},
      {"quotes",
       Columns(kCsv, "2", {"1"}),
       {"\"x\"\"y\",\"a,\nb\"\n"},
       {{"a,\nb", "x\"y", {}, "f0:1"}}},
      {"lines are counted within quotes",
       Columns(kCsv, "1", {"2"}),
       {"a,\"\n\r\n\"\r\n\r\n\nb,\"\n\"\nc,"},
       {{"a", "\n\r\n", {}, "f0:1"}, {"b", "\n", {}, "f0:6"}, {"c", "", {}, "f0:8"}}},
      {"no unescaping",
       Columns(kCsv, "1", {"2"}),
       {"a\\t,\\x00\n"},
       {{"a\\t", "\\x00", {}, "f0:1"}}},
      {"several values",
       Columns(kCsv, "2", {"3", "1", "4"}),
       {"v1,k,\"\t\\\",\n"},
       {{"k", "\\t\\\\\tv1\t", {}, "f0:1"}}},
      {"NUL", Columns(kCsv, "1", {"2"}), {"a\0b,\0\n"s}, {{"a\0b"s, "\0"s, {}, "f0:1"}}},
      {"doc ids",
       Columns(kCsv, "1", {}, "2"),
       {"a,18446744073709551615\nb,007\n"},
       {{"a", "", UINT64_MAX, "f0:1"}, {"b", "", 7, "f0:2"}}},
      {"header by name",
       Columns(kCsv, "id", {"name"}, "n"),
       {"n,id,name\n1,a,x\n", "", "name,\"id\",n,id2\ny,b,2,-\n"},
       {{"a", "x", 1, "f0:2"}, {"b", "y", 2, "f2:2"}}},
      {"header by number",
       WithHeader(Columns(kCsv, "2")),
       {"\n\nx,x\n1,a\n", "x,y\n"},
       {{"a", "", {}, "f0:4"}}},
      {"mark before a header",
       Columns(kCsv, "id"),
       {kMark + "\"id\"\na\n", kMark + "id\nb"},
       {{"a", "", {}, "f0:2"}, {"b", "", {}, "f1:2"}}},
      {"mark without a header", Columns(kCsv), {kMark + "a\n"}, {{kMark + "a", "", {}, "f0:1"}}},
      {"end in a return",
       Columns(kCsv),
       {"a\r\nb\r", "\"c\"\r", "d"},
       {{"a", "", {}, "f0:1"},
        {"b", "", {}, "f0:2"},
        {"c", "", {}, "f1:1"},
        {"d", "", {}, "f2:1"}}},
      {"more fields than are looked at",
       Columns(kCsv),
       {"k" + std::string(1'500'000, ',') + "\nl\n"},
       {{"k", "", {}, "f0:1"}, {"l", "", {}, "f0:2"}}},
      {"hex",
       Columns(kCsv, "1", {}, "", KeyKind::kHex),
       {"\"0aFF\"\n"},
       {{"\x0a\xff", "", {}, "f0:1"}}},
  };
}

std::vector<Example> TsvExamples() {
  return {
      {"no bytes, no header", Columns(kTsv, "id"), {"", ""}, {}},
      {"keys", Columns(kTsv), {"a\tb\nc"}, {{"a", "", {}, "f0:1"}, {"c", "", {}, "f0:2"}}},
      {"escapes",
       Columns(kTsv, "1", {"2"}),
       {"\\t\\n\\\\\\x00\t\\xFf\"\r\n"},
       {{"\t\n\\\0"s, "\xff\"", {}, "f0:1"}}},
      {"escapes in text",
       Columns(kTsv, "1", {}, "", KeyKind::kText),
       {"\\xc3\\xa9\n"},
       {{"\xc3\xa9", "", {}, "f0:1"}}},
      {"several values",
       Columns(kTsv, "2", {"3", "1", "3"}),
       {"v\\x09\tk\t\\x41\n"},
       {{"k", "A\tv\\t\tA", {}, "f0:1"}}},
      {"empty value", Columns(kTsv, "2", {"1"}), {"\tk\n"}, {{"k", "", {}, "f0:1"}}},
      {"header",
       Columns(kTsv, "id", {"1"}, "n"),
       {"v\tid\tn\nx\ta\t1\n", "n\tid\r\n2\tb\r\n"},
       {{"a", "x", 1, "f0:2"}, {"b", "2", 2, "f1:2"}}},
      {"mark before a header", Columns(kTsv, "id"), {kMark + "id\na\n"}, {{"a", "", {}, "f0:2"}}},
      {"more fields than are looked at",
       Columns(kTsv),
       {"k" + std::string(1'500'000, '\t') + "\nl\n"},
       {{"k", "", {}, "f0:1"}, {"l", "", {}, "f0:2"}}},
      {"u64",
       Columns(kTsv, "1", {}, "1", KeyKind::kU64),
       {"258\n"},
       {{"\0\0\0\0\0\0\1\2"s, "", 258, "f0:1"}}},
  };
}

std::vector<Example> FixedExamples() {
  return {
      {"no bytes", Fixed(4, 0), {""}, {}},
      {"keys and values",
       Fixed(2, 1),
       {"ab\nc\0d"s, "", "efg"},
       {{"ab", "\n", {}, "f0, offset 0"},
        {"c\0"s, "d", {}, "f0, offset 3"},
        {"ef", "g", {}, "f2, offset 0"}}},
      {"u64", Fixed(8, 0, KeyKind::kU64), {"abcdefgh"}, {{"abcdefgh", "", {}, "f0, offset 0"}}},
      {"text",
       Fixed(2, 1, KeyKind::kText),
       {"\xc3\xa9\xff"},
       {{"\xc3\xa9", "\xff", {}, "f0, offset 0"}}},
  };
}

TEST_F(RecordSourceTest, ReadsExamples) {
  for (const auto& examples : {LinesExamples(), CsvExamples(), TsvExamples(), FixedExamples()}) {
    for (const Example& example : examples) {
      SCOPED_TRACE(std::string(InputFormatName(example.options.format)) + ": " + example.name);
      std::vector<std::string> paths;
      uint64_t size_bytes = 0;
      for (const std::string& content : example.contents) {
        paths.push_back(Write("f" + std::to_string(paths.size()), content));
        size_bytes += content.size();
      }
      std::vector<Row> expected = example.rows;
      for (Row& row : expected) row.position = PathOf(row.position);
      FakeFileSystem trickle = TrickleFileSystem(1);
      for (FileSystem* file_system : {&PosixFileSystem(), static_cast<FileSystem*>(&trickle)}) {
        const Result result = ReadAll(*file_system, example.options, paths);
        EXPECT_TRUE(result.status.ok()) << result.status;
        EXPECT_EQ(result.rows, expected);
        EXPECT_EQ(result.bytes_read, size_bytes);
        EXPECT_EQ(result.total_bytes, size_bytes);
      }
    }
  }
}

struct BadExample {
  InputOptions options;
  std::vector<std::string> contents;
  size_t row_count;     // that can be read before
  std::string message;  // its beginning, without the folder
  bool at_open = false;
};

std::vector<BadExample> BadLines() {
  const std::string long_key(kKeyBytesMax + 1, 'k');
  const std::string long_value(kValueBytesMax + 1, 'v');
  return {
      {Lines(), {"\n"}, 0, "f0:1: empty key"},
      {Lines(), {"a\n\nb\n"}, 1, "f0:2: empty key: expected 1 to 32766 bytes"},
      {Lines(), {"a\n\r\n"}, 1, "f0:2: empty key"},
      {Lines(), {"a\nb\n", "c\n\n"}, 3, "f1:2: empty key"},
      {Lines(KeyKind::kRaw, true), {"a v\n v\n"}, 1, "f0:2: empty key"},
      {Lines(),
       {"a\n" + long_key},
       1,
       "f0:2: key too long: expected at most 32766 bytes, got 32767"},
      {Lines(KeyKind::kRaw, true),
       {"k " + long_value},
       0,
       "f0:1: value too long: expected at most 16777216 bytes, got 16777217"},
      {Lines(KeyKind::kText),
       {"\xc0\x80\n"},
       0,
       "f0:1: not text: expected valid UTF-8, got byte \\xc0"},
      {Lines(KeyKind::kUuid),
       {"0\n"},
       0,
       "f0:1: not a UUID: expected 8-4-4-4-12 or 32 hexadecimal digits, got \"0\""},
      {Lines(KeyKind::kU64), {"1\n2 \n"}, 1, "f0:2: not a u64"},
      {Lines(KeyKind::kHex, true), {"abc value\n"}, 0, "f0:1: not hexadecimal"},
  };
}

std::vector<BadExample> BadCsv() {
  const std::string late = "not first,\"\n\"\n\n";
  return {
      {Columns(kCsv, "1", {"2"}),
       {late + "k,a\"b\nc,d\n"},
       1,
       "f0:4: malformed CSV: expected quotes only around a field, and doubled within, got one in "
       "\"not first,\"\\n\"\\n\\nk,a\"b\\nc,d\\n\""},
      {Columns(kCsv), {"k,\"a\n\" b\n"}, 0, "f0:1: malformed CSV: expected quotes only around"},
      {Columns(kCsv), {"k\nl, \"a\"\n"}, 1, "f0:2: malformed CSV: expected quotes only around"},
      {Columns(kCsv),
       {"a\nb,\"c\n\nd\n"},
       1,
       "f0:2: malformed CSV: expected a closing quote, got the end of the file"},
      {Columns(kCsv), {"\"", "a"}, 0, "f0:1: malformed CSV: expected a closing quote"},
      {Columns(kCsv),
       {"a\rb\n"},
       1,
       "f0:1: malformed CSV: expected a newline after a carriage return, got \"b\""},
      {Columns(kCsv),
       {"a\n\r\rb\n"},
       1,
       "f0:2: malformed CSV: expected a newline after a carriage return, got another"},
      {Columns(kCsv), {"a\n\"\"\n"}, 1, "f0:2: empty key"},
      {Columns(kCsv, "2"), {"a,b\n,\n"}, 1, "f0:2: empty key"},
  };
}

std::vector<BadExample> BadCsvColumns() {
  return {
      {Columns(kCsv, "1", {"2", "4"}, "3"),
       {"not first,\"\n\"\n\nb,c,3\n"},
       0,
       "f0:1: too few fields: expected at least 4 for value column 4, got 2"},
      {Columns(kCsv, "id", {"v"}),
       {"id,w,v\na,\"\n\",x\nb,y\n"},
       1,
       "f0:4: too few fields: expected at least 3 for value column \"v\", got 2"},
      {Columns(kCsv, "1", {}, "2"),
       {"a,1\nb,\n"},
       1,
       "f0:2: doc id column 2: not a doc id: expected decimal digits, 0 to 18446744073709551615, "
       "got \"\""},
      {Columns(kCsv, "1", {}, "2"),
       {"a,18446744073709551616\n"},
       0,
       "f0:1: doc id column 2: not a doc id: expected decimal digits, 0 to 18446744073709551615, "
       "got \"18446744073709551616\""},
      {Columns(kCsv, "1", {}, "2"), {"a,-1\n"}, 0, "f0:1: doc id column 2: not a doc id"},
      {Columns(kCsv, "1", {}, "2"), {"a, 1\n"}, 0, "f0:1: doc id column 2: not a doc id"},
      {Columns(kCsv, "1", {}, "2"), {"a,1x\n"}, 0, "f0:1: doc id column 2: not a doc id"},
      {Columns(kCsv, "id"),
       {"\n\nkey,name\n"},
       0,
       "f0:3: key column \"id\": expected it in the header, got \"key, name\"",
       true},
      {Columns(kCsv, "id"),
       {"id\na\n", "\"key\"\n"},
       1,
       "f1:1: key column \"id\": expected it in the header, got \"key\""},
      {Columns(kCsv, "1", {"v"}),
       {"k,v,v\n"},
       0,
       "f0:1: value column \"v\": expected it once in the header, got 2",
       true},
      {WithHeader(Columns(kCsv, "3")),
       {"k,v\n"},
       0,
       "f0:1: too few fields: expected at least 3 for key column 3, got 2",
       true},
      {Columns(kCsv, "id"), {"\"id\n"}, 0, "f0:1: malformed CSV: expected a closing quote", true},
      {Columns(kCsv, "1", {"2"}),
       {"k," + std::string(kValueBytesMax + 1, 'v')},
       0,
       "f0:1: value too long"},
      {Columns(kCsv, "1", {"2", "2"}),
       {"k," + std::string(kValueBytesMax / 2, 'v')},
       0,
       "f0:1: value too long: expected at most 16777216 bytes, got 16777217"},
      {Columns(kCsv), {std::string(kKeyBytesMax + 1, 'k')}, 0, "f0:1: key too long"},
      {Columns(kCsv, "1", {}, "", KeyKind::kText), {"a\n\xff\n"}, 1, "f0:2: not text"},
  };
}

std::vector<BadExample> BadTsv() {
  return {
      {Columns(kTsv),
       {"a\n\nb\n"},
       1,
       "f0:2: empty key: expected fields by tab, got an empty line"},
      {Columns(kTsv, "2"), {"\n"}, 0, "f0:1: empty key"},
      {Columns(kTsv), {"a\n\tb\n"}, 1, "f0:2: empty key: expected 1 to 32766 bytes"},
      {Columns(kTsv, "2", {"3"}),
       {"a\tb\tc\nd\te\n"},
       1,
       "f0:2: too few fields: expected at least 3 for value column 3, got 2"},
      {Columns(kTsv, "1", {"2"}),
       {"a\tb\\\n"},
       0,
       "f0:1: value column 2: bad escape at offset 1: expected \\t \\n \\\\ or \\xHH, got "
       "\"\\\\\""},
      {Columns(kTsv, "1", {"2", "1"}), {"a\tb\\q\n"}, 0, "f0:1: value column 2: bad escape"},
      {Columns(kTsv), {"a\\r\n"}, 0, "f0:1: key column 1: bad escape at offset 1"},
      {Columns(kTsv, "1", {}, "", KeyKind::kText), {"\\xff\n"}, 0, "f0:1: not text"},
      {Columns(kTsv, "1", {}, "", KeyKind::kHex), {"\\x00\n"}, 0, "f0:1: not hexadecimal"},
      {Columns(kTsv, "id"),
       {"a\tb\n"},
       0,
       "f0:1: key column \"id\": expected it in the header",
       true},
      {Columns(kTsv, "id"), {"id\tid\n"}, 0, "f0:1: key column \"id\": expected it once", true},
      {Columns(kTsv, "id"),
       {"id\n", "name\n"},
       0,
       "f1:1: key column \"id\": expected it in the header"},
      {Columns(kTsv, "1", {}, "2"),
       {"a\t99999999999999999999\n"},
       0,
       "f0:1: doc id column 2: not a doc id"},
  };
}

std::vector<BadExample> BadFixed() {
  return {
      {Fixed(2, 2),
       {"abcd", "abcdefg"},
       2,
       "f1, offset 4: record cut short: expected 4 bytes, got 3"},
      {Fixed(8, 0), {"a"}, 0, "f0, offset 0: record cut short: expected 8 bytes, got 1"},
      {Fixed(1, 1, KeyKind::kText), {"a\xff\xff_"}, 1, "f0, offset 2: not text"},
  };
}

TEST_F(RecordSourceTest, NamesThePlaceOfWhatIsWrong) {
  for (const auto& examples : {BadLines(), BadCsv(), BadCsvColumns(), BadTsv(), BadFixed()}) {
    for (const BadExample& example : examples) {
      SCOPED_TRACE(std::string(InputFormatName(example.options.format)) + ": " + example.message);
      std::vector<std::string> paths;
      for (const std::string& content : example.contents) {
        paths.push_back(Write("f" + std::to_string(paths.size()), content));
      }
      const Result result = ReadAll(PosixFileSystem(), example.options, paths);
      EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(Message(result.status).substr(0, folder_.size() + 1 + example.message.size()),
                PathOf(example.message));
      EXPECT_LT(result.status.message().size(), folder_.size() + 250);
      EXPECT_EQ(result.rows.size(), example.row_count);
      // At open there is no source that could be asked for its position.
      EXPECT_EQ(result.position.empty(), example.at_open);
      EXPECT_EQ(Message(result.status).substr(0, result.position.size()), result.position);
    }
  }
}

TEST_F(RecordSourceTest, RefusesOptionsThatContradictEachOther) {
  const auto with = [](InputOptions options, auto change) {
    change(options);
    return options;
  };
  const std::pair<InputOptions, std::string> cases[] = {
      {with(Lines(), [](auto& o) { o.value_columns = {"2"}; }),
       "value column of format lines: expected \"rest\" or none, got \"2\""},
      {with(Lines(),
            [](auto& o) {
              o.value_columns = {"rest", "rest"};
            }),
       "got \"rest, rest\""},
      {with(Lines(), [](auto& o) { o.doc_id_column = "2"; }),
       "format lines has no columns: expected no doc id column, got \"2\""},
      {with(Lines(), [](auto& o) { o.key_column = "2"; }), "expected no key column"},
      {WithHeader(Lines()), "format lines has no header"},
      {with(Lines(), [](auto& o) { o.key_width = 2; }), "format lines has no widths"},
      {with(Columns(kCsv), [](auto& o) { o.value_width = 2; }), "format csv has no widths"},
      {Columns(kCsv, ""), "key column: expected a number or a name, got none"},
      {Columns(kCsv, "0"), "key column: expected a number from 1 to 1048576, got \"0\""},
      {Columns(kTsv, "1048577"), "expected a number from 1 to 1048576, got \"1048577\""},
      {Columns(kTsv, "99999999999999999999"), "key column: expected a number from 1"},
      {Columns(kTsv, "1", {"2", ""}), "value column: expected a number or a name, got none"},
      {Columns(kTsv, "1", {"00"}), "value column: expected a number from 1 to 1048576, got \"00\""},
      {Columns(kTsv, "1", {}, "0"), "doc id column: expected a number from 1"},
      {Fixed(0, 4), "key width of format fixed: expected 1 to 32766 bytes, got 0"},
      {Fixed(kKeyBytesMax + 1, 4), "got 32767"},
      {Fixed(15, 0, KeyKind::kUuid),
       "key width of format fixed: expected 16 bytes for kind uuid, got 15"},
      {Fixed(16, 0, KeyKind::kU64), "expected 8 bytes for kind u64, got 16"},
      {Fixed(4, kValueBytesMax + 1), "value width of format fixed: expected at most 16777216"},
      {with(Fixed(4, 4), [](auto& o) { o.value_columns = {"2"}; }), "format fixed has no columns"},
      {with(Fixed(4, 4), [](auto& o) { o.doc_id_column = "2"; }), "format fixed has no columns"},
      {with(Fixed(4, 4), [](auto& o) { o.key_column = "id"; }), "format fixed has no columns"},
      {WithHeader(Fixed(4, 4)), "format fixed has no header"},
  };
  const std::string path = Write("f", "");
  for (const auto& [options, message] : cases) {
    const Result result = ReadAll(PosixFileSystem(), options, {path});
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_NE(Message(result.status).find(message), std::string::npos) << message << "\n"
                                                                       << result.status;
  }
}

TEST_F(RecordSourceTest, RefusesPathsThatCannotBeRead) {
  const std::string path = Write("f", "a\n");
  for (const InputOptions& options : {Lines(), Columns(kCsv), Columns(kTsv), Fixed(2, 0)}) {
    const auto status_of = [&](const std::vector<std::string>& paths) {
      return OpenRecordSource(PosixFileSystem(), options, paths).status();
    };
    EXPECT_EQ(status_of({}).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status_of({path, PathOf("none")}).code(), absl::StatusCode::kNotFound);
    EXPECT_NE(Message(status_of({PathOf("none")})).find(PathOf("none")), std::string::npos);
    EXPECT_EQ(status_of({folder_}).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Message(status_of({"-", path, "-"})),
              "standard input (\"-\") is given more than once");
  }
}

TEST_F(RecordSourceTest, PassesReadErrorsOn) {
  for (const InputOptions& options : {Lines(), Columns(kCsv), Columns(kTsv), Fixed(2, 0)}) {
    FakeFileSystem file_system = EndlessFileSystem("a\n", 'b', 1 << 20);
    const Result result = ReadAll(file_system, options, {"endless"});
    EXPECT_EQ(result.status, DataLoss("cannot read endless: torn"));
  }
}

TEST_F(RecordSourceTest, RefusesARowWithoutEnd) {
  const std::pair<InputOptions, std::string> cases[] = {
      {Lines(), "a\nb"},        {Lines(KeyKind::kRaw, true), "a\nb "}, {Columns(kTsv), "a\nb\t"},
      {Columns(kCsv), "a\nb,"}, {Columns(kCsv), "a\nb,\"\n"},
  };
  for (const auto& [options, start] : cases) {
    for (const char filler : {'x', options.format == kCsv ? ',' : '\t'}) {
      FakeFileSystem file_system = EndlessFileSystem(start, filler);
      const Result result = ReadAll(file_system, options, {"endless"});
      EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_NE(Message(result.status).find("too long: expected at most 67305464 bytes, got more"),
                std::string::npos)
          << result.status;
      EXPECT_EQ(Message(result.status).substr(0, 11), "endless:2: ");
      EXPECT_EQ(result.position, "endless:2");
      EXPECT_EQ(result.rows.size(), 1u);
      EXPECT_LT(result.bytes_read, uint64_t{80} << 20);
    }
  }
}

TEST_F(RecordSourceTest, ReadsTheLargestRows) {
  const std::string key(kKeyBytesMax, '\1');
  const std::string value(kValueBytesMax, '\2');
  const std::string small = "small";
  std::string quoted;
  for (size_t i = 0; i < kValueBytesMax; ++i) quoted += "\"\"";
  const std::string tsv =
      small + "\tv\n" + EscapeTsv(key) + "\t" + EscapeTsv(value) + "\n" + small + "\tv";
  const std::string csv = small + ",v\n" + key + ",\"" + quoted + "\"\n" + small + ",v";
  const std::string lines = small + " v\n" + key + " " + value + "\n" + small + " v";
  const std::tuple<InputOptions, std::string, std::string> cases[] = {
      {Columns(kTsv, "1", {"2"}), tsv, value},
      {Columns(kCsv, "1", {"2"}), csv, std::string(kValueBytesMax, '"')},
      {Lines(KeyKind::kRaw, true), lines, value},
  };
  for (const auto& [options, content, expected] : cases) {
    SCOPED_TRACE(InputFormatName(options.format));
    const Result result = ReadAll(PosixFileSystem(), options, {Write("f", content)});
    ASSERT_TRUE(result.status.ok()) << result.status;
    ASSERT_EQ(result.rows.size(), 3u);
    EXPECT_EQ(result.rows[0].key, small);
    EXPECT_TRUE(result.rows[1].key == key);
    EXPECT_TRUE(result.rows[1].value == expected);
    EXPECT_EQ(result.rows[2], (Row{small, "v", {}, PathOf("f:3")}));
  }
}

TEST_F(RecordSourceTest, ReadsStandardInput) {
  const int saved = ::dup(STDIN_FILENO);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "b\n\n", 3), 3);
  ::close(ends[1]);
  ASSERT_EQ(::dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
  ::close(ends[0]);
  const Result result = ReadAll(PosixFileSystem(), Lines(), {Write("f", "a\n"), "-"});
  ASSERT_EQ(::dup2(saved, STDIN_FILENO), STDIN_FILENO);
  ::close(saved);
  EXPECT_EQ(result.rows,
            (std::vector<Row>{{"a", "", {}, PathOf("f:1")}, {"b", "", {}, "standard input:1"}}));
  EXPECT_EQ(Message(result.status), "standard input:2: empty key: expected 1 to 32766 bytes");
  EXPECT_EQ(result.total_bytes, 0u);
  EXPECT_EQ(result.bytes_read, 5u);
}

TEST_F(RecordSourceTest, OpensAPipeOnce) {
  const std::string path = PathOf("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(path) << "id,v\na,b\n"; });
  const Result result = ReadAll(PosixFileSystem(), Columns(kCsv, "id", {"v"}), {path});
  writer.join();
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.rows, (std::vector<Row>{{"a", "b", {}, path + ":2"}}));
  EXPECT_EQ(result.total_bytes, 0u);
}

TEST_F(RecordSourceTest, HoldsOneFileOpenAtATime) {
  const auto open_count = [] {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    return std::distance(begin(open), end(open));
  };
  std::vector<std::string> paths;
  for (int i = 0; i < 200; ++i) {
    paths.push_back(Write("f" + std::to_string(i), i % 3 == 0 ? "" : "a\n"));
  }
  const auto before = open_count();
  auto source = OpenRecordSource(PosixFileSystem(), Lines(), paths).value();
  size_t row_count = 0;
  for (InputRow row; source->Next(&row).value(); ++row_count) {
    EXPECT_LE(open_count(), before + 1);
  }
  EXPECT_EQ(row_count, 133u);
}

// Random tables, written in each format, with what is to be read back.
class TableWriter {
 public:
  TableWriter(std::mt19937_64& random, InputFormat format) : random_(random) {
    options_.format = format;
    const KeyKind kinds[] = {KeyKind::kRaw, KeyKind::kText, KeyKind::kHex, KeyKind::kUuid,
                             KeyKind::kU64};
    options_.key_kind = kinds[Below(5)];
    if (format == InputFormat::kFixed) {
      const size_t width = KeyKindWidth(options_.key_kind);
      options_.key_width = width == 0 ? 1 + Below(40) : width;
      options_.value_width = Below(3) == 0 ? 0 : Below(40);
    } else if (format == InputFormat::kLines) {
      if (Below(2) == 0) options_.value_columns = {"rest"};
    } else {
      ChooseColumns();
    }
  }

  const InputOptions& options() const { return options_; }

  // A file of rows, which are put behind *expected.
  std::string File(const std::string& path, size_t row_count, std::vector<Row>* expected) {
    file_.clear();
    line_ = 1;
    if (has_header_ && row_count > 0) AddHeader();
    for (size_t i = 0; i < row_count; ++i) {
      Row row;
      row.key = Key();
      row.position = options_.format == InputFormat::kFixed
                         ? fmt::format("{}, offset {}", path, file_.size())
                         : fmt::format("{}:{}", path, line_);
      switch (options_.format) {
        case InputFormat::kLines:
          AddLine(&row);
          break;
        case InputFormat::kFixed:
          row.value = Bytes(options_.value_width);
          file_ += row.key + row.value;
          break;
        default:
          AddFields(&row);
      }
      expected->push_back(std::move(row));
    }
    if (options_.format != InputFormat::kFixed && Below(2) == 0 && file_.ends_with('\n')) {
      file_.pop_back();
    }
    return file_;
  }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }

  // Bytes that often mean something to a format.
  std::string Bytes(size_t size_bytes) {
    std::string bytes(size_bytes, '\0');
    for (char& byte : bytes) {
      byte = Below(2) == 0 ? static_cast<char>(random_()) : "\t\n\r\\\",  x\0"[Below(10)];
    }
    return bytes;
  }

  std::string Key() {
    const bool is_lines = options_.format == InputFormat::kLines;
    size_t size_bytes = KeyKindWidth(options_.key_kind);
    if (size_bytes == 0) size_bytes = options_.key_width > 0 ? options_.key_width : 1 + Below(30);
    std::string key = Bytes(size_bytes);
    if (options_.key_kind == KeyKind::kText) {
      for (char& byte : key) byte &= 0x7F;
    }
    if (is_lines && KeyToTextIsKey()) {
      for (char& byte : key) {
        if (byte == '\n' || byte == '\r') byte = 'n';
        if (!options_.value_columns.empty() && (byte == ' ' || byte == '\t')) byte = 'b';
      }
    }
    return key;
  }

  // Whether the key stands in the input as its bytes.
  bool KeyToTextIsKey() const {
    return options_.key_kind == KeyKind::kRaw || options_.key_kind == KeyKind::kText;
  }

  void EndLine() {
    file_ += Below(2) == 0 ? "\n" : "\r\n";
    ++line_;
  }

  void AddLine(Row* row) {
    file_ += KeyToTextIsKey() ? row->key : KeyToText(options_.key_kind, row->key);
    if (!options_.value_columns.empty()) {
      row->value = Bytes(Below(60));
      std::erase_if(row->value, [](char c) { return c == '\n' || c == '\r'; });
      row->value.erase(0, row->value.find_first_not_of(" \t"));
      if (!row->value.empty() || Below(2) == 0) file_ += Below(2) == 0 ? "  " : "\t";
      file_ += row->value;
    }
    EndLine();
  }

  void ChooseColumns() {
    column_count_ = 1 + Below(6);
    has_header_ = Below(2) == 0;
    options_.has_header = has_header_ && Below(2) == 0;
    key_ = Below(column_count_);
    for (uint64_t i = Below(4); i > 0; --i) values_.push_back(Below(column_count_));
    // The key's column is its text, which is no number.
    if (column_count_ > 1 && Below(2) == 0) doc_id_ = (key_ + 1) % column_count_;
    const auto name = [&](size_t column) {
      return has_header_ && (Below(2) == 0 || !options_.has_header) ? fmt::format("c,{}", column)
                                                                    : std::to_string(column + 1);
    };
    options_.key_column = name(key_);
    for (const size_t value : values_) options_.value_columns.push_back(name(value));
    if (doc_id_.has_value()) options_.doc_id_column = name(*doc_id_);
  }

  void AddHeader() {
    std::vector<std::string> names;
    for (size_t i = 0; i < column_count_; ++i) names.push_back(fmt::format("c,{}", i));
    AddTexts(names);
  }

  void AddFields(Row* row) {
    const bool is_tsv = options_.format == InputFormat::kTsv;
    std::vector<std::string> fields(column_count_);  // their bytes
    std::vector<std::string> texts(column_count_);   // as they are written, quotes aside
    for (size_t i = 0; i < column_count_; ++i) {
      fields[i] = i == key_ ? (KeyToTextIsKey() ? row->key : KeyToText(options_.key_kind, row->key))
                            : Bytes(Below(8) == 0 ? Below(300) : Below(12));
      if (doc_id_ == i) {
        row->doc_id = random_() >> Below(64);
        fields[i] = std::to_string(*row->doc_id);
      }
      texts[i] = is_tsv ? EscapeTsv(fields[i]) : fields[i];
    }
    for (const size_t value : values_) {
      if (values_.size() == 1) row->value = fields[value];
      if (values_.size() == 1) break;
      row->value += EscapeTsv(fields[value]) + "\t";
    }
    if (values_.size() > 1) row->value.pop_back();
    AddTexts(texts);
  }

  void AddTexts(const std::vector<std::string>& texts) {
    const bool is_tsv = options_.format == InputFormat::kTsv;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (i > 0) file_ += is_tsv ? '\t' : ',';
      if (is_tsv) {
        file_ += texts[i];
        continue;
      }
      line_ += static_cast<uint64_t>(std::count(texts[i].begin(), texts[i].end(), '\n'));
      const bool must_quote = texts[i].find_first_of(",\"\r\n") != std::string::npos;
      if (!must_quote && Below(2) == 0) {
        file_ += texts[i];
        continue;
      }
      file_ += '"';
      for (const char c : texts[i]) file_ += c == '"' ? std::string("\"\"") : std::string(1, c);
      file_ += '"';
    }
    EndLine();
    while (!is_tsv && Below(8) == 0) EndLine();
  }

  std::mt19937_64& random_;
  InputOptions options_;
  size_t column_count_ = 0;
  bool has_header_ = false;
  size_t key_ = 0;
  std::vector<size_t> values_;
  std::optional<size_t> doc_id_;
  std::string file_;
  uint64_t line_ = 1;
};

TEST_F(RecordSourceTest, RandomTablesAreReadBackAsWritten) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 400; ++round) {
    const InputFormat formats[] = {InputFormat::kLines, kCsv, kTsv, InputFormat::kFixed};
    TableWriter writer(random, formats[round % 4]);
    SCOPED_TRACE(fmt::format("round {}, {}, {}", round, InputFormatName(writer.options().format),
                             KeyKindName(writer.options().key_kind)));
    // Now and then as much as several blocks.
    const size_t rows_max = round % 80 < 4 ? 30'000 : 30;
    std::vector<std::string> paths;
    std::vector<Row> expected;
    for (uint64_t i = 0; i < 1 + random() % 3; ++i) {
      const std::string path = PathOf("f" + std::to_string(i));
      Write("f" + std::to_string(i), writer.File(path, random() % rows_max, &expected));
      paths.push_back(path);
    }
    FakeFileSystem trickle = TrickleFileSystem(random());
    FileSystem& file_system = round % 8 < 4 && rows_max < 1000 ? trickle : PosixFileSystem();
    const Result result = ReadAll(file_system, writer.options(), paths);
    ASSERT_TRUE(result.status.ok()) << result.status;
    ASSERT_EQ(result.rows.size(), expected.size());
    const auto [got, wanted] =
        std::mismatch(result.rows.begin(), result.rows.end(), expected.begin());
    if (got != result.rows.end()) {
      ASSERT_EQ(*got, *wanted);
    }
    ASSERT_EQ(result.bytes_read, result.total_bytes);
  }
}

}  // namespace
}  // namespace latchkey
