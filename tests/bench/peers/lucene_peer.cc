#include "tests/bench/peers/lucene_peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

extern char** environ;

namespace latchkey {
namespace {

constexpr uint64_t kCheckedKeys = 1'000'000;

// As LucenePeer.java has it.
std::string KeyChecksum(KeyShape shape, uint64_t salt, uint64_t keys) {
  uint64_t sum = 0xCBF29CE484222325;
  char key[64];
  for (uint64_t i = 0; i < keys; ++i) {
    MakeKey(shape, i, salt, key);
    for (size_t b = 0; b < KeyShapeBytes(shape); ++b) {
      sum = (sum ^ static_cast<uint8_t>(key[b])) * 0x100000001B3;
    }
  }
  return fmt::format("{:x}", sum);
}

class LucenePeer final : public Peer {
 public:
  LucenePeer(LuceneProcess& process, LuceneLookup lookup) : process_(process), lookup_(lookup) {}

  std::string name() const override {
    return fmt::format("{}{} {}", process_.versions(), process_.bloom() ? " Bloom" : "",
                       lookup_ == LuceneLookup::kSeekExact ? "seekExact" : "TermInSetQuery");
  }
  std::string settings() const override {
    return fmt::format(
        "{}{}, mapped and preloaded, id from the document's number",
        process_.bloom() ? "BloomFilteringPostingsFormat over the default codec's"
                         : "the default codec",
        lookup_ == LuceneLookup::kSeekExact ? ", the largest segments asked first" : "");
  }
  uint64_t size_bytes() const override { return process_.size_bytes(); }

  double RunRound(const Round& round) override {
    const bool as_set = lookup_ == LuceneLookup::kTermInSet;
    const std::string answer =
        process_.Ask(fmt::format("ROUND {} {} {} {}", as_set ? "set" : "seek", round.hit_percent,
                                 round.seed, round.batches));
    unsigned long ns;
    Answers answers;
    if (std::sscanf(answer.c_str(), "%lu %lu %lu", &ns, &answers.found, &answers.id_sum) != 3) {
      FailBench("Lucene: not an answer to a round: " + answer);
    }
    CheckAnswers(name(), process_.table(), round, /*distinct=*/as_set, answers);
    return static_cast<double>(ns) / round.batches / kPeerBatchKeys;
  }

 private:
  LuceneProcess& process_;
  const LuceneLookup lookup_;
};

}  // namespace

LuceneProcess::LuceneProcess(const PeerTable& table) : table_(table) {
  // A process that died shows as an answer that does not come.
  std::signal(SIGPIPE, SIG_IGN);
  int down[2], up[2];
  if (::pipe2(down, O_CLOEXEC) != 0 || ::pipe2(up, O_CLOEXEC) != 0) {
    FailBench(fmt::format("Lucene: no pipe: {}", std::strerror(errno)));
  }
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, down[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, up[1], STDOUT_FILENO);
  char command[] = LATCHKEY_SOURCE_DIR "/tests/bench/peers/lucene/run";
  char* const arguments[] = {command, nullptr};
  const int error = ::posix_spawn(&pid_, command, &actions, nullptr, arguments, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(down[0]);
  ::close(up[1]);
  if (error != 0)
    FailBench(fmt::format("Lucene: cannot run {}: {}", command, std::strerror(error)));
  to_ = ::fdopen(down[1], "w");
  from_ = ::fdopen(up[0], "r");

  const std::string ready = ReadLine();
  char lucene[32], java[32];
  if (std::sscanf(ready.c_str(), "READY %31s %31s", lucene, java) != 2) {
    FailBench("Lucene: not ready: " + ready);
  }
  versions_ = fmt::format("Lucene {} (JDK {})", lucene, java);
  CheckKeys();
}

LuceneProcess::~LuceneProcess() {
  // It ends with its input.
  std::fclose(to_);
  std::fclose(from_);
  ::waitpid(pid_, nullptr, 0);
}

void LuceneProcess::CheckKeys() {
  const uint64_t keys = std::min(table_.rows, kCheckedKeys);
  for (const uint64_t salt : {0, 1}) {
    const std::string theirs =
        Ask(fmt::format("CHECKSUM {} {} {}", KeyShapeName(table_.shape), salt, keys));
    if (theirs != KeyChecksum(table_.shape, salt, keys)) {
      FailBench(fmt::format("Lucene: LucenePeer.java makes other keys of shape {}, salt {}",
                            KeyShapeName(table_.shape), salt));
    }
  }
}

void LuceneProcess::BuildIndex(bool bloom) {
  std::string rows;
  for (const uint64_t part : table_.segment_rows) {
    rows += fmt::format("{}{}", rows.empty() ? "" : ",", part);
  }
  const std::string folder = fmt::format("{}/{}", table_.dir, bloom ? "bloom" : "default");
  std::filesystem::create_directories(folder);
  size_bytes_ = std::stoull(Ask(fmt::format("BUILD {} {} {} {}", KeyShapeName(table_.shape),
                                            bloom ? "bloom" : "default", folder, rows)));
  bloom_ = bloom;
}

std::string LuceneProcess::Ask(const std::string& line) {
  if (std::fprintf(to_, "%s\n", line.c_str()) < 0 || std::fflush(to_) != 0) {
    FailBench("Lucene: the process is gone");
  }
  const std::string answer = ReadLine();
  if (answer.compare(0, 3, "OK ") != 0) FailBench(fmt::format("Lucene: {}: {}", line, answer));
  return answer.substr(3);
}

std::string LuceneProcess::ReadLine() {
  char line[4096];
  if (std::fgets(line, sizeof(line), from_) == nullptr) FailBench("Lucene: the process is gone");
  std::string text(line);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::unique_ptr<Peer> MakeLucenePeer(LuceneProcess& process, LuceneLookup lookup) {
  return std::make_unique<LucenePeer>(process, lookup);
}

}  // namespace latchkey
