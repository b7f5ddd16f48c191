#include <cdb.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tests/bench/peers/local_peers.h"

namespace latchkey {
namespace {

// cdb's functions return a negative number and set errno.
void OrFail(int result, const char* what) {
  if (result < 0) FailBench(fmt::format("tinycdb: {}: {}", what, std::strerror(errno)));
}

class TinyCdbPeer final : public LocalPeer {
 public:
  explicit TinyCdbPeer(const PeerTable& table) : LocalPeer(table) {
    std::filesystem::create_directories(table.dir);
    const std::string path = table.dir + "/rows.cdb";
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    OrFail(fd_, "open");
    Write();
    size_bytes_ = std::filesystem::file_size(path);
    OrFail(cdb_init(&cdb_, fd_), "cdb_init");
  }
  ~TinyCdbPeer() override {
    cdb_free(&cdb_);
    ::close(fd_);
  }
  std::string name() const override { return fmt::format("tinycdb {} cdb_find", TINYCDB_VERSION); }
  std::string settings() const override { return "mapped by cdb_init"; }
  uint64_t size_bytes() const override { return size_bytes_; }

 protected:
  Answers LookUp(std::span<const std::string_view> keys) override {
    Answers answers;
    for (const std::string_view key : keys) {
      const int found = cdb_find(&cdb_, key.data(), static_cast<unsigned>(key.size()));
      OrFail(found, "cdb_find");
      if (found == 0) continue;
      uint32_t id;
      std::memcpy(&id, cdb_getdata(&cdb_), sizeof(id));
      ++answers.found;
      answers.id_sum += id;
    }
    return answers;
  }

 private:
  void Write() {
    cdb_make maker;
    OrFail(cdb_make_start(&maker, fd_), "cdb_make_start");
    const auto key_bytes = static_cast<unsigned>(KeyShapeBytes(table().shape));
    char key[64];
    for (uint64_t i = 0; i < table().rows; ++i) {
      MakeKey(table().shape, i, 0, key);
      const auto id = static_cast<uint32_t>(i);
      OrFail(cdb_make_add(&maker, key, key_bytes, &id, sizeof(id)), "cdb_make_add");
    }
    OrFail(cdb_make_finish(&maker), "cdb_make_finish");
  }

  int fd_ = -1;
  cdb cdb_ = {};
  uint64_t size_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Peer> MakeTinyCdbPeer(const PeerTable& table) {
  return std::make_unique<TinyCdbPeer>(table);
}

}  // namespace latchkey
