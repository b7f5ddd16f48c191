// What the commands have in common that work on a table of a data directory.
#pragma once

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <ctime>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/status_macros.h"
#include "core/io/file_system.h"
#include "core/table/generations.h"
#include "core/table/manifest.h"

namespace latchkey {

struct LocalTable {
  std::string data_dir;
  std::string name;

  std::string dir() const { return JoinPath(data_dir, name); }
};

// --data, --table.
inline void AddLocalTable(CLI::App& command, LocalTable* table) {
  command.add_option("--data", table->data_dir, "The data directory")->required();
  command.add_option("--table", table->name, "The table's name")->required();
}

// The manifest of a generation, or of the newest if it is 0.
inline absl::StatusOr<HeldManifest> HoldLocal(const LocalTable& table, uint64_t generation) {
  LATCHKEY_RETURN_IF_ERROR(ValidateTableName(table.name));
  if (generation == 0) return HoldNewestManifest(PosixFileSystem(), table.dir());
  return HoldGeneration(PosixFileSystem(), table.dir(), generation);
}

inline std::string BytesText(uint64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} B", bytes);
  if (bytes < 10'000'000) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / 1024);
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 1024 / 1024);
}

// `latchkey gc`, which a watched table has done too. The exit code.
absl::StatusOr<int> RunGc(const LocalTable& table, const GcOptions& options, bool as_json);

// "1 file", "2 files".
inline std::string CountText(uint64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

inline std::string TimeText(int64_t unix_s) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(static_cast<std::time_t>(unix_s)));
}

}  // namespace latchkey
