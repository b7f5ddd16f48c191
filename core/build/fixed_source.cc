#include "core/build/fixed_source.h"

#include <utility>

#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/build/input_reader.h"
#include "core/key/limits.h"

namespace latchkey {
namespace {

class FixedSource final : public RecordSource {
 public:
  FixedSource(InputReader input, const InputOptions& options)
      : input_(std::move(input)),
        key_kind_(options.key_kind),
        key_width_(options.key_width),
        record_bytes_(options.key_width + options.value_width) {}

  absl::StatusOr<bool> Next(InputRow* row) override {
    offset_ = next_offset_;
    while (input_.window().size() < record_bytes_) {
      LATCHKEY_ASSIGN_OR_RETURN(const bool grew, input_.Fill());
      if (grew) continue;
      if (!input_.window().empty()) {
        return InvalidArgument("{}: record cut short: expected {} bytes, got {}", Position(),
                               record_bytes_, input_.window().size());
      }
      LATCHKEY_ASSIGN_OR_RETURN(const bool more, input_.NextFile());
      if (!more) return false;
      offset_ = next_offset_ = 0;
    }
    const std::string_view record = input_.window().substr(0, record_bytes_);
    input_.Consume(record_bytes_);
    next_offset_ += record_bytes_;
    row->key = record.substr(0, key_width_);
    row->value = record.substr(key_width_);
    row->doc_id.reset();
    const absl::Status status = ValidateKey(key_kind_, row->key);
    if (!status.ok()) return Prefixed(status, Position());
    return true;
  }

  std::string Position() const override {
    return fmt::format("{}, offset {}", input_.name(), offset_);
  }
  uint64_t bytes_read() const override { return input_.bytes_read(); }
  uint64_t total_bytes() const override { return input_.total_bytes(); }

 private:
  InputReader input_;
  const KeyKind key_kind_;
  const size_t key_width_;
  const size_t record_bytes_;
  uint64_t offset_ = 0;       // of the record read last
  uint64_t next_offset_ = 0;  // of the one after it
};

absl::Status CheckOptions(const InputOptions& options) {
  if (options.key_width == 0 || options.key_width > kKeyBytesMax) {
    return InvalidArgument("key width of format fixed: expected 1 to {} bytes, got {}",
                           kKeyBytesMax, options.key_width);
  }
  const size_t kind_width = KeyKindWidth(options.key_kind);
  if (kind_width != 0 && options.key_width != kind_width) {
    return InvalidArgument("key width of format fixed: expected {} bytes for kind {}, got {}",
                           kind_width, KeyKindName(options.key_kind), options.key_width);
  }
  if (options.value_width > kValueBytesMax) {
    return InvalidArgument("value width of format fixed: expected at most {} bytes, got {}",
                           kValueBytesMax, options.value_width);
  }
  if (!options.value_columns.empty()) {
    return InvalidArgument("format fixed has no columns: expected a value width, got column {}",
                           QuoteShort(options.value_columns[0]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RecordSource>> OpenFixedSource(
    FileSystem& file_system, const InputOptions& options, const std::vector<std::string>& paths) {
  LATCHKEY_RETURN_IF_ERROR(CheckOptions(options));
  LATCHKEY_ASSIGN_OR_RETURN(InputReader input, InputReader::Open(file_system, paths));
  return std::make_unique<FixedSource>(std::move(input), options);
}

}  // namespace latchkey
