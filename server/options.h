// The daemon's command line.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/key/limits.h"
#include "core/lookup/probe_engine.h"
#include "core/prefetch/warm_up.h"
#include "core/table/snapshot.h"

namespace latchkey {

struct ServerOptions {
  std::string data_dir;
  std::vector<std::string> listen = {
      "127.0.0.1:50051"};  // HOST:PORT or unix:PATH; port 0 takes a free one
  unsigned threads = 0;    // that look keys up; 0: one a core
  unsigned cold_threads =
      0;  // more, for lookups that wait for the disk; 0: four a core, at least 8
  unsigned queue_max = 1024;  // requests waiting for a thread
  uint32_t batch_keys_max = kBatchKeysDefault;
  uint64_t reply_bytes_max = uint64_t{64} << 20;
  unsigned drain_s = 10;     // for requests in flight, after SIGTERM
  bool allow_empty = false;  // start without any table
  // Of all tables, and of those that have their own.
  MemoryMode memory_mode = MemoryMode::kMmap;
  std::map<std::string, MemoryMode> table_memory_modes;
  uint64_t segment_map_mib_max = 65'536;  // for each table; 0: no segment maps

  // How a table is to be opened.
  SnapshotOptions OptionsOf(const std::string& table) const {
    const auto own = table_memory_modes.find(table);
    return {own == table_memory_modes.end() ? memory_mode : own->second, segment_map_mib_max << 20};
  }
  PrefetchChoice prefetch = PrefetchChoice::kAuto;
  WarmUp warm_up = WarmUp::kIndex;
  uint64_t warm_up_mib_per_s_max = 0;  // 0: as fast as it goes
  VerifyLevel verify = VerifyLevel::kHeader;
  uint64_t verify_mib_per_s_max = 32;  // in the background; 0: not at all
  std::string http;                    // HOST:PORT for metrics; empty: none
  std::string log_level = "info";

  // What a request may weigh: a full batch of keys of kRequestBytesPerKey each always fits, and so
  // does one key of any length.
  uint64_t request_bytes_max() const {
    return uint64_t{batch_keys_max} * kRequestBytesPerKey + (uint64_t{128} << 10);
  }
};

// Bytes of values in a reply that asks for no other limit: with them a reply stays below the 4 MiB
// that a gRPC client takes by default.
inline constexpr uint64_t kReplyBytesDefault = (uint64_t{4} << 20) - (uint64_t{256} << 10);
static_assert(2 * kKeyBytesMax < size_t{128} << 10, "one key always fits a request, as text too");

enum class ServerCommand { kServe, kHealthCheck, kExit };

struct ParsedCommandLine {
  ServerCommand command = ServerCommand::kServe;
  ServerOptions options;
  std::string health_server = "127.0.0.1:50051";
  int exit_code = 0;  // for kExit: help, version or a usage error, which has been printed
};

ParsedCommandLine ParseServerCommandLine(int argc, char** argv);

}  // namespace latchkey
