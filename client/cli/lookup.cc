// latchkey get, latchkey batch
#include <algorithm>
#include <iostream>
#include <memory>
#include <vector>

#include "client/cli/backend.h"
#include "client/cli/commands.h"
#include "client/cli/row_printer.h"
#include "core/base/bytes.h"
#include "core/base/status_macros.h"

namespace latchkey {

std::string_view StatusWord(const ClientRow& row) {
  switch (row.outcome) {
    case v1::FOUND:
      return "found";
    case v1::ABSENT:
      return "absent";
    default:
      break;
  }
  switch (row.reason) {
    case v1::DEADLINE:
      return "not-done:deadline";
    case v1::REPLY_BUDGET:
      return "not-done:reply-budget";
    case v1::DAMAGED_DATA:
      return "not-done:damaged-data";
    default:
      return "not-done:unavailable";
  }
}

void PutValue(std::string_view value, nlohmann::ordered_json* json) {
  if (IsValidUtf8(value)) {
    (*json)["value"] = value;
  } else {
    (*json)["value_hex"] = KeyToText(KeyKind::kHex, value);
  }
}

bool PutLine(const std::string& line) {
  return std::fwrite(line.data(), 1, line.size(), stdout) == line.size() &&
         std::fputc('\n', stdout) != EOF;
}

namespace {

constexpr std::string_view kMalformed = "malformed";

// Where keys come from, and what was seen of them.
struct Tally {
  bool missing = false;  // a key was not found
  bool failed = false;   // a key could not be read, or its row is not known
  int ExitCode() const { return failed ? kExitFailure : missing ? kExitNotFound : kExitOk; }
};

std::string FormatRow(std::string_view text, std::string_view status, const ClientRow& row,
                      bool json) {
  const bool found = row.outcome == v1::FOUND;
  if (!json) {
    return fmt::format("{}\t{}\t{}\t{}", EscapeTsv(text), status,
                       found ? std::to_string(row.doc_id) : "", EscapeTsv(row.value));
  }
  nlohmann::ordered_json object;
  if (IsValidUtf8(text)) {
    object["key"] = text;
  } else {
    object["key_hex"] = KeyToText(KeyKind::kHex, text);
  }
  object["status"] = status;
  if (found) {
    object["doc_id"] = row.doc_id;
    PutValue(row.value, &object);
  }
  return object.dump();
}

// Looks up one batch of keys as they were typed, and prints a line for each, in order. `name(i)`
// says where key i stood, for messages.
template <typename Name>
absl::Status LookUpAndPrint(Backend& backend, const std::vector<std::string>& texts, bool json,
                            Name name, Tally* tally) {
  std::vector<std::string> keys;
  std::vector<bool> good;
  for (size_t i = 0; i < texts.size(); ++i) {
    auto key = KeyFromText(backend.key_kind(), texts[i]);
    good.push_back(key.ok());
    if (key.ok()) {
      keys.push_back(*std::move(key));
    } else {
      std::fprintf(stderr, "latchkey: %s: %s\n", name(i).c_str(), Message(key.status()).c_str());
      tally->failed = true;
    }
  }
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  LATCHKEY_ASSIGN_OR_RETURN(const ClientRows result, backend.BatchGet(views));
  size_t next = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const ClientRow row = good[i] ? result.rows[next++] : ClientRow{};
    tally->missing |= row.outcome == v1::ABSENT;
    if (row.outcome == v1::NOT_DONE) {
      std::fprintf(stderr, "latchkey: %s: %s\n", name(i).c_str(),
                   std::string(StatusWord(row)).c_str());
      tally->failed = true;
    }
    if (!PutLine(FormatRow(texts[i], good[i] ? StatusWord(row) : kMalformed, row, json))) {
      return ErrnoStatus(errno, "cannot write standard output");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int> RunGet(const BackendOptions& options, const std::vector<std::string>& texts,
                           bool json) {
  LATCHKEY_ASSIGN_OR_RETURN(const auto backend, OpenBackend(options));
  Tally tally;
  const size_t batch = backend->batch_keys_max();
  for (size_t begin = 0; begin < texts.size(); begin += batch) {
    const std::vector<std::string> part(
        texts.begin() + static_cast<ptrdiff_t>(begin),
        texts.begin() + static_cast<ptrdiff_t>(std::min(begin + batch, texts.size())));
    LATCHKEY_RETURN_IF_ERROR(LookUpAndPrint(
        *backend, part, json, [&](size_t i) { return fmt::format("key {}", begin + i + 1); },
        &tally));
  }
  return tally.ExitCode();
}

absl::StatusOr<int> RunBatch(const BackendOptions& options, bool json) {
  LATCHKEY_ASSIGN_OR_RETURN(const auto backend, OpenBackend(options));
  Tally tally;
  std::vector<std::string> texts;
  size_t text_bytes = 0, line_number = 1;
  const auto flush = [&]() -> absl::Status {
    const absl::Status status = LookUpAndPrint(
        *backend, texts, json,
        [&](size_t i) { return fmt::format("standard input:{}", line_number + i); }, &tally);
    line_number += texts.size();
    texts.clear();
    text_bytes = 0;
    return status;
  };
  std::string line;
  while (std::getline(std::cin, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    // A request's size is limited too, so long keys make smaller batches. A key has no more bytes
    // than its text.
    const size_t line_bytes = line.size() + kVarintBytesMax;
    if (texts.size() == backend->batch_keys_max() ||
        (!texts.empty() && text_bytes + line_bytes > backend->batch_bytes_max())) {
      LATCHKEY_RETURN_IF_ERROR(flush());
    }
    text_bytes += line_bytes;
    texts.push_back(line);
  }
  if (std::cin.bad() || std::ferror(stdin)) return ErrnoStatus(errno, "cannot read standard input");
  if (!texts.empty()) LATCHKEY_RETURN_IF_ERROR(flush());
  if (std::fflush(stdout) != 0) return ErrnoStatus(errno, "cannot write standard output");
  return tally.ExitCode();
}

}  // namespace

void AddGetCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command = app.add_subcommand(
      "get", "Look up keys given as arguments; prints key, status, doc id, value");
  const auto options = std::make_shared<BackendOptions>();
  const auto keys = std::make_shared<std::vector<std::string>>();
  const auto json = std::make_shared<bool>(false);
  command->add_option("KEY", *keys, "Keys, as the table's key kind writes them")->required();
  AddBackendOptions(*command, options.get());
  command->add_flag("--json", *json, "One JSON object a key");
  command->callback([=] { *exit_code = ExitCodeOf(RunGet(*options, *keys, *json)); });
}

void AddBatchCommand(CLI::App& app, int* exit_code) {
  CLI::App* const command = app.add_subcommand("batch",
                                               "Look up the keys on standard input, one a line; "
                                               "prints key, status, doc id, value in their order");
  const auto options = std::make_shared<BackendOptions>();
  const auto json = std::make_shared<bool>(false);
  AddBackendOptions(*command, options.get());
  command->add_flag("--json", *json, "One JSON object a key");
  command->callback([=] { *exit_code = ExitCodeOf(RunBatch(*options, *json)); });
}

}  // namespace latchkey
