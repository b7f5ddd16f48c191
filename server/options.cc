#include "server/options.h"

#include <CLI/CLI.hpp>

namespace latchkey {

namespace {

// "huge", or "files=huge" for one table. Returns a message for what is neither.
std::string ParseMemoryModeFlag(const std::string& text, ServerOptions* options) {
  const size_t equals = text.rfind('=');
  const auto mode = ParseMemoryMode(text.substr(equals == std::string::npos ? 0 : equals + 1));
  if (!mode) return "expected mmap, huge or locked, or TABLE=MODE; got '" + text + "'";
  if (equals == std::string::npos) {
    options->memory_mode = *mode;
  } else {
    options->table_memory_modes[text.substr(0, equals)] = *mode;
  }
  return {};
}

// A flag whose value is one of some words, the first by default.
template <typename Value>
CLI::Option* AddChoice(CLI::App& app, const std::string& flag, const std::string& help,
                       const std::vector<std::pair<std::string, Value>>& choices, Value* value) {
  std::vector<std::string> words;
  for (const auto& [word, choice] : choices) words.push_back(word);
  return app
      .add_option_function<std::string>(
          flag,
          [choices, value](const std::string& text) {
            for (const auto& [word, choice] : choices) {
              if (word == text) *value = choice;
            }
          },
          help)
      ->check(CLI::IsMember(words))
      ->default_str(words.front());
}

}  // namespace

ParsedCommandLine ParseServerCommandLine(int argc, char** argv) {
  ParsedCommandLine parsed;
  ServerOptions& options = parsed.options;
  CLI::App app("Serves the Latchkey tables of a data directory over gRPC.", "latchkeyd");
  app.set_version_flag("--version", std::string("latchkeyd ") + LATCHKEY_VERSION);
  app.add_option("--data", options.data_dir, "Folder with a sub-folder for each table")
      ->envname("LATCHKEY_DATA");
  app.add_option("--listen", options.listen, "Addresses: HOST:PORT or unix:PATH, several by comma")
      ->delimiter(',')
      ->envname("LATCHKEY_LISTEN")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads that look keys up; 0 means one a core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option(
         "--cold-threads", options.cold_threads,
         "More threads, for look-ups that wait for the disk; 0 means four a core, 8 at least")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--queue-max", options.queue_max, "Requests that may wait for a thread")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--batch-keys-max", options.batch_keys_max, "Keys in one BatchGet at most")
      ->check(CLI::Range(uint32_t{1}, kBatchKeysMax))
      ->capture_default_str();
  app.add_option("--reply-bytes-max", options.reply_bytes_max,
                 "Bytes of values in one reply at most, whatever the request allows")
      ->check(CLI::Range(uint64_t{1} << 10, uint64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--drain-s", options.drain_s, "Seconds that requests in flight have after SIGTERM")
      ->check(CLI::Range(0, 3600))
      ->capture_default_str();
  app.add_flag("--allow-empty", options.allow_empty, "Start even if there is no table");
  app.add_option_function<std::vector<std::string>>(
         "--memory-mode",
         [&options](const std::vector<std::string>& modes) {
           for (const std::string& mode : modes) {
             const std::string error = ParseMemoryModeFlag(mode, &options);
             if (!error.empty()) throw CLI::ValidationError("--memory-mode", error);
           }
         },
         "mmap: the page cache keeps what is used; huge: all in memory, in 2 MiB pages; locked: "
         "all "
         "in memory, not to be evicted. TABLE=MODE for one table, several by comma")
      ->delimiter(',')
      ->envname("LATCHKEY_MEMORY_MODE")
      ->default_str("mmap");
  app.add_option("--segment-map-mib-max", options.segment_map_mib_max,
                 "MiB of memory for the segment map of a table at most; without one, a table of "
                 "several segments is slower. 0: none")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 24))
      ->capture_default_str();
  AddChoice<PrefetchChoice>(
      app, "--prefetch",
      "Hints to the kernel, before pages are touched: auto, while look-ups find pages cold; "
      "always; or never",
      {{"auto", PrefetchChoice::kAuto},
       {"always", PrefetchChoice::kAlways},
       {"never", PrefetchChoice::kNever}},
      &options.prefetch)
      ->envname("LATCHKEY_PREFETCH");
  AddChoice<WarmUp>(
      app, "--warm-up",
      "What is read into memory before a table serves: index (filters and pilots), none, or "
      "all",
      {{"index", WarmUp::kIndex}, {"none", WarmUp::kNone}, {"all", WarmUp::kAll}}, &options.warm_up)
      ->envname("LATCHKEY_WARM_UP");
  app.add_option("--warm-up-mib-per-s", options.warm_up_mib_per_s_max,
                 "How fast at most; 0: as fast as it goes")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 20))
      ->capture_default_str();
  AddChoice<VerifyLevel>(
      app, "--verify",
      "What of a segment is read against its checksums before it serves, when it comes: header "
      "(and what is warmed up), index (filters and pilots), or all; the rest follows in the "
      "background",
      {{"header", VerifyLevel::kHeader},
       {"index", VerifyLevel::kIndex},
       {"all", VerifyLevel::kAll}},
      &options.verify)
      ->envname("LATCHKEY_VERIFY");
  app.add_option("--verify-mib-per-s", options.verify_mib_per_s_max,
                 "How fast at most what serves is checked in the background; 0: not at all")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--http", options.http,
                 "HOST:PORT that answers GET /metrics, for Prometheus; none by default")
      ->envname("LATCHKEY_HTTP");
  app.add_option("--log-level", options.log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->envname("LATCHKEY_LOG_LEVEL")
      ->capture_default_str();
  app.set_config("--config", "", "File of flags, a line each: threads = 4");
  CLI::App* health =
      app.add_subcommand("healthcheck", "Exit 0 if a server says it is serving, else 1");
  health->add_option("--server", parsed.health_server, "The server's address")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
    if (*health) {
      parsed.command = ServerCommand::kHealthCheck;
    } else if (options.data_dir.empty()) {
      throw CLI::RequiredError("--data");
    }
  } catch (const CLI::ParseError& error) {
    parsed.command = ServerCommand::kExit;
    parsed.exit_code = app.exit(error) == 0 ? 0 : 2;
  }
  return parsed;
}

}  // namespace latchkey
