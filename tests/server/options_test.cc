#include "server/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temp_dir.h"

namespace latchkey::test {
namespace {

ParsedCommandLine Parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "latchkeyd");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return ParseServerCommandLine(static_cast<int>(argv.size()), argv.data());
}

TEST(ServerOptions, ServesWithDefaults) {
  const ParsedCommandLine parsed = Parse({"--data", "/d"});
  EXPECT_EQ(parsed.command, ServerCommand::kServe);
  EXPECT_EQ(parsed.options.data_dir, "/d");
  EXPECT_THAT(parsed.options.listen, testing::ElementsAre("127.0.0.1:50051"));
  EXPECT_EQ(parsed.options.batch_keys_max, 4096u);
  EXPECT_FALSE(parsed.options.allow_empty);
}

TEST(ServerOptions, ListensOnSeveralAddresses) {
  EXPECT_THAT(Parse({"--data", "d", "--listen", "0.0.0.0:1,unix:/s"}).options.listen,
              testing::ElementsAre("0.0.0.0:1", "unix:/s"));
}

TEST(ServerOptions, MemoryModesOfAllTablesAndOfOne) {
  EXPECT_EQ(Parse({"--data", "d"}).options.OptionsOf("t").memory_mode, MemoryMode::kMmap);
  const ServerOptions options =
      Parse({"--data", "d", "--memory-mode", "huge,a=locked,b=mmap", "--segment-map-mib-max", "3"})
          .options;
  EXPECT_EQ(options.OptionsOf("t").memory_mode, MemoryMode::kHuge);
  EXPECT_EQ(options.OptionsOf("a").memory_mode, MemoryMode::kLocked);
  EXPECT_EQ(options.OptionsOf("b").memory_mode, MemoryMode::kMmap);
  EXPECT_EQ(options.OptionsOf("b").segment_map_bytes_max, uint64_t{3} << 20);
}

TEST(ServerOptions, HowColdPagesAreTreated) {
  const ServerOptions defaults = Parse({"--data", "d"}).options;
  EXPECT_EQ(defaults.prefetch, PrefetchChoice::kAuto);
  EXPECT_EQ(defaults.warm_up, WarmUp::kIndex);
  EXPECT_EQ(defaults.warm_up_mib_per_s_max, 0u);
  const ServerOptions options = Parse({"--data", "d", "--prefetch", "never", "--warm-up", "all",
                                       "--warm-up-mib-per-s", "50", "--cold-threads", "3"})
                                    .options;
  EXPECT_EQ(options.prefetch, PrefetchChoice::kNever);
  EXPECT_EQ(options.warm_up, WarmUp::kAll);
  EXPECT_EQ(options.warm_up_mib_per_s_max, 50u);
  EXPECT_EQ(options.cold_threads, 3u);
  EXPECT_EQ(Parse({"--data", "d", "--warm-up", "none"}).options.warm_up, WarmUp::kNone);
}

TEST(ServerOptions, WhatIsVerifiedAndHowMetricsAreHad) {
  const ServerOptions defaults = Parse({"--data", "d"}).options;
  EXPECT_EQ(defaults.verify, VerifyLevel::kHeader);
  EXPECT_EQ(defaults.verify_mib_per_s_max, 32u);
  EXPECT_EQ(defaults.http, "");
  for (const VerifyLevel level : {VerifyLevel::kHeader, VerifyLevel::kIndex, VerifyLevel::kAll}) {
    EXPECT_EQ(
        Parse({"--data", "d", "--verify", std::string(VerifyLevelName(level))}).options.verify,
        level);
  }
  const ServerOptions options =
      Parse({"--data", "d", "--verify-mib-per-s", "0", "--http", "127.0.0.1:1"}).options;
  EXPECT_EQ(options.verify_mib_per_s_max, 0u);
  EXPECT_EQ(options.http, "127.0.0.1:1");
  EXPECT_EQ(Parse({"--data", "d", "--verify", "some"}).exit_code, 2);
}

TEST(ServerOptions, ReadsAFileThatFlagsOverride) {
  TempDir dir;
  const std::string path = dir.Path("latchkeyd.conf");
  std::ofstream(path) << "data = \"/from/file\"\nthreads = 3\nbatch-keys-max = 100\n";
  const ParsedCommandLine parsed = Parse({"--config", path, "--threads", "5"});
  EXPECT_EQ(parsed.options.data_dir, "/from/file");
  EXPECT_EQ(parsed.options.threads, 5u);
  EXPECT_EQ(parsed.options.batch_keys_max, 100u);
}

TEST(ServerOptions, RequestLimitFollowsTheBatchLimit) {
  ServerOptions options;
  for (const uint32_t keys : {1u, 4096u, kBatchKeysMax}) {
    options.batch_keys_max = keys;
    EXPECT_GE(options.request_bytes_max(), uint64_t{keys} * kRequestBytesPerKey);
    EXPECT_GE(options.request_bytes_max(), 2 * kKeyBytesMax) << "one key of any length";
    EXPECT_LE(options.request_bytes_max(), uint64_t{INT32_MAX}) << "as gRPC takes it";
  }
}

TEST(ServerOptions, UsageErrorsExitWith2) {
  for (const std::vector<std::string>& bad : {std::vector<std::string>{},
                                              {"--data"},
                                              {"--data", "d", "--threads", "-1"},
                                              {"--data", "d", "--batch-keys-max", "0"},
                                              {"--data", "d", "--batch-keys-max", "65537"},
                                              {"--data", "d", "--log-level", "loud"},
                                              {"--data", "d", "--memory-mode", "large"},
                                              {"--data", "d", "--memory-mode", "t=large"},
                                              {"--data", "d", "--prefetch", "some"},
                                              {"--data", "d", "--prefetch", "0"},
                                              {"--data", "d", "--warm-up", "half"},
                                              {"--data", "d", "--warm-up-mib-per-s", "-1"},
                                              {"--data", "d", "--no-such-flag"},
                                              {"--config", "/no/such/file"}}) {
    testing::internal::CaptureStderr();
    const ParsedCommandLine parsed = Parse(bad);
    EXPECT_EQ(parsed.command, ServerCommand::kExit);
    EXPECT_EQ(parsed.exit_code, 2);
    EXPECT_NE(testing::internal::GetCapturedStderr(), "");
  }
}

TEST(ServerOptions, HealthcheckNeedsNoData) {
  const ParsedCommandLine parsed = Parse({"healthcheck", "--server", "unix:/s"});
  EXPECT_EQ(parsed.command, ServerCommand::kHealthCheck);
  EXPECT_EQ(parsed.health_server, "unix:/s");
}

}  // namespace
}  // namespace latchkey::test
