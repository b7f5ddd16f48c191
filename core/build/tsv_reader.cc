#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/status_macros.h"
#include "core/build/field_reader.h"

namespace latchkey {
namespace {

class TsvReader final : public FieldReader {
 public:
  explicit TsvReader(InputReader input) : lines_(std::move(input)) {}

  absl::StatusOr<bool> NextRow(size_t fields_needed,
                               std::vector<std::string_view>* fields) override {
    std::string_view line;
    LATCHKEY_ASSIGN_OR_RETURN(const bool more, lines_.NextLine(&line));
    if (!more) return false;
    if (line.empty()) {
      return InvalidArgument("{}: empty key: expected fields by tab, got an empty line",
                             Position());
    }
    fields->clear();
    const size_t field_count = is_first_of_file() ? kRowFieldsMax : fields_needed;
    while (fields->size() < field_count) {
      const void* tab = std::memchr(line.data(), '\t', line.size());
      if (tab == nullptr) {
        fields->push_back(line);
        break;
      }
      const auto size_bytes = static_cast<size_t>(static_cast<const char*>(tab) - line.data());
      fields->push_back(line.substr(0, size_bytes));
      line.remove_prefix(size_bytes + 1);
    }
    return true;
  }

  bool is_first_of_file() const override { return lines_.line_number() == 1; }
  std::string Position() const override { return lines_.Position(); }
  const InputReader& input() const override { return lines_.input(); }

 private:
  LineReader lines_;
};

}  // namespace

std::unique_ptr<FieldReader> MakeTsvReader(InputReader input) {
  return std::make_unique<TsvReader>(std::move(input));
}

}  // namespace latchkey
