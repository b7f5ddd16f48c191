#include "core/build/input_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/status_macros.h"

namespace latchkey {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// A pipe has no size and can't be read at an offset; an empty file can.
bool IsPipe(const ReadableFile& file, uint64_t size_bytes) {
  char byte;
  return size_bytes == 0 && !file.ReadAt(0, 1, &byte).ok();
}

}  // namespace

InputReader::InputReader(FileSystem& file_system, ByteOrderMark mark)
    : file_system_(&file_system), mark_(mark), buffer_(2 * kBlockBytes) {}

absl::StatusOr<InputReader> InputReader::Open(FileSystem& file_system,
                                              const std::vector<std::string>& paths,
                                              ByteOrderMark mark) {
  if (paths.empty()) return InvalidArgument("no input: expected at least one file");
  if (std::count(paths.begin(), paths.end(), "-") > 1) {
    return InvalidArgument("standard input (\"-\") is given more than once");
  }
  InputReader reader(file_system, mark);
  bool any_pipe = false;
  for (const std::string& path : paths) {
    LATCHKEY_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, file_system.Open(path));
    LATCHKEY_ASSIGN_OR_RETURN(const uint64_t size_bytes, file->SizeBytes());
    const bool is_pipe = IsPipe(*file, size_bytes);
    any_pipe |= is_pipe;
    reader.total_bytes_ += size_bytes;
    reader.inputs_.push_back(
        {path, path == "-" ? "standard input" : path, is_pipe ? std::move(file) : nullptr});
  }
  if (any_pipe) reader.total_bytes_ = 0;
  return reader;
}

absl::StatusOr<bool> InputReader::NextFile() {
  const size_t next = started_ ? file_index_ + 1 : 0;
  if (next == inputs_.size()) return false;
  file_ = std::move(inputs_[next].pipe);
  if (file_ == nullptr) {
    LATCHKEY_ASSIGN_OR_RETURN(file_, file_system_->Open(inputs_[next].path));
  }
  started_ = true;
  file_index_ = next;
  at_end_ = false;
  begin_ = end_ = 0;
  if (mark_ == ByteOrderMark::kSkip) LATCHKEY_RETURN_IF_ERROR(SkipByteOrderMark());
  return true;
}

absl::Status InputReader::SkipByteOrderMark() {
  while (window().size() < kByteOrderMark.size()) {
    LATCHKEY_ASSIGN_OR_RETURN(const bool grew, Fill());
    if (!grew) break;
  }
  if (window().starts_with(kByteOrderMark)) Consume(kByteOrderMark.size());
  return absl::OkStatus();
}

absl::StatusOr<bool> InputReader::Fill() {
  if (at_end_) return false;
  // What is left of a block is mostly less than a row, so moving it costs little.
  const size_t left = end_ - begin_;
  if (begin_ > 0) std::memmove(buffer_.data(), buffer_.data() + begin_, left);
  begin_ = 0;
  end_ = left;
  if (buffer_.size() - left < kBlockBytes) buffer_.resize(2 * buffer_.size());
  LATCHKEY_ASSIGN_OR_RETURN(const size_t got, file_->ReadNext(kBlockBytes, buffer_.data() + left));
  end_ += got;
  bytes_read_ += got;
  at_end_ = got == 0;
  if (at_end_) file_.reset();
  return got > 0;
}

absl::StatusOr<bool> LineReader::NextLine(std::string_view* line) {
  for (size_t scanned = 0;;) {
    const std::string_view window = input_.window();
    const void* newline = std::memchr(window.data() + scanned, '\n', window.size() - scanned);
    if (newline != nullptr) {
      return TakeLine(static_cast<size_t>(static_cast<const char*>(newline) - window.data()), 1,
                      line);
    }
    scanned = window.size();
    if (scanned > kRowTextBytesMax) return TakeLine(scanned, 0, line);
    LATCHKEY_ASSIGN_OR_RETURN(const bool grew, input_.Fill());
    if (grew) continue;
    if (scanned > 0) return TakeLine(scanned, 0, line);
    LATCHKEY_ASSIGN_OR_RETURN(const bool more, input_.NextFile());
    if (!more) return false;
    line_number_ = 0;
  }
}

absl::StatusOr<bool> LineReader::TakeLine(size_t size_bytes, size_t end_bytes,
                                          std::string_view* line) {
  ++line_number_;
  if (size_bytes > kRowTextBytesMax) {
    return InvalidArgument("{}: line too long: expected at most {} bytes, got more", Position(),
                           kRowTextBytesMax);
  }
  *line = input_.window().substr(0, size_bytes);
  input_.Consume(size_bytes + end_bytes);
  if (line->ends_with('\r')) line->remove_suffix(1);
  return true;
}

std::string LineReader::Position() const {
  return fmt::format("{}:{}", input_.name(), line_number_);
}

}  // namespace latchkey
