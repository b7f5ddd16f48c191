// The bytes of the input files, as every format reads them: by block, with a bound on what is held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/io/file_system.h"
#include "core/key/limits.h"

namespace latchkey {

// The most bytes that one row's text may have: a key and a value with every byte written as \xHH,
// and some room for other columns. A longer row is refused, so that memory stays bounded whatever
// the input is.
inline constexpr size_t kRowTextBytesMax = 4 * (kKeyBytesMax + kValueBytesMax) + (size_t{64} << 10);

// A window that slides over one file after the other. One thread.
class InputReader {
 public:
  enum class ByteOrderMark { kKeep, kSkip };

  // Checks that every path can be opened. Only pipes, which can be opened but once, stay open.
  // `mark` says what becomes of a UTF-8 byte order mark at a file's start.
  static absl::StatusOr<InputReader> Open(FileSystem& file_system,
                                          const std::vector<std::string>& paths,
                                          ByteOrderMark mark = ByteOrderMark::kKeep);

  // Moves on to the start of the next file, first of all to that of the first; false after the
  // last.
  absl::StatusOr<bool> NextFile();

  // The bytes read from the current file that are not consumed. The view is valid until the next
  // call of Fill or NextFile.
  std::string_view window() const { return {buffer_.data() + begin_, end_ - begin_}; }
  void Consume(size_t size_bytes) { begin_ += size_bytes; }

  // Reads a block, or what a pipe has of it, to the window's end; false at the end of the current
  // file.
  absl::StatusOr<bool> Fill();

  // The current file's name for messages.
  const std::string& name() const { return inputs_[file_index_].name; }

  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  struct Input {
    std::string path;
    std::string name;
    std::unique_ptr<ReadableFile> pipe;  // null: opened by path when its turn comes
  };

  InputReader(FileSystem& file_system, ByteOrderMark mark);
  absl::Status SkipByteOrderMark();

  FileSystem* file_system_;
  ByteOrderMark mark_;
  std::vector<Input> inputs_;
  size_t file_index_ = 0;
  bool started_ = false;
  bool at_end_ = true;
  std::unique_ptr<ReadableFile> file_;
  std::vector<char> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  uint64_t bytes_read_ = 0;
  uint64_t total_bytes_ = 0;
};

// Splits the input files into lines. One thread.
class LineReader {
 public:
  explicit LineReader(InputReader input) : input_(std::move(input)) {}

  // The next line without its end, "\n" or "\r\n"; false after the last of the last file. The view
  // is valid until the next call. InvalidArgument, after Position(), for a line longer than
  // kRowTextBytesMax.
  absl::StatusOr<bool> NextLine(std::string_view* line);

  // Of the line read last: "FILE:LINE", and LINE alone, from 1.
  std::string Position() const;
  uint64_t line_number() const { return line_number_; }

  const InputReader& input() const { return input_; }

 private:
  absl::StatusOr<bool> TakeLine(size_t size_bytes, size_t end_bytes, std::string_view* line);

  InputReader input_;
  uint64_t line_number_ = 0;
};

}  // namespace latchkey
