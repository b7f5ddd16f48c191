#include <fmt/format.h>
#include <lmdb.h>

#include <cstring>
#include <filesystem>

#include "tests/bench/peers/local_peers.h"
#include "tests/bench/peers/sorted_keys.h"

namespace latchkey {
namespace {

// A transaction holds its dirty pages in a list of limited length.
constexpr uint64_t kRowsATransaction = 1'000'000;

void OrFail(int error) {
  if (error != 0) FailBench(fmt::format("LMDB: {}", mdb_strerror(error)));
}

class LmdbPeer final : public LocalPeer {
 public:
  explicit LmdbPeer(const PeerTable& table) : LocalPeer(table) {
    std::filesystem::create_directories(table.dir);
    Write();
    size_bytes_ = std::filesystem::file_size(table.dir + "/data.mdb");
    Open(MDB_RDONLY);
    OrFail(mdb_txn_begin(env_, nullptr, MDB_RDONLY, &transaction_));
    OrFail(mdb_dbi_open(transaction_, nullptr, 0, &dbi_));
  }
  ~LmdbPeer() override {
    mdb_txn_abort(transaction_);
    mdb_env_close(env_);
  }
  std::string name() const override {
    return fmt::format("LMDB {}.{}.{} mdb_get", MDB_VERSION_MAJOR, MDB_VERSION_MINOR,
                       MDB_VERSION_PATCH);
  }
  std::string settings() const override {
    return "rows appended in the order of keys, one read transaction";
  }
  uint64_t size_bytes() const override { return size_bytes_; }

 protected:
  Answers LookUp(std::span<const std::string_view> keys) override {
    Answers answers;
    for (const std::string_view key : keys) {
      MDB_val wanted = {key.size(), const_cast<char*>(key.data())};
      MDB_val value;
      const int error = mdb_get(transaction_, dbi_, &wanted, &value);
      if (error == MDB_NOTFOUND) continue;
      OrFail(error);
      uint32_t id;
      std::memcpy(&id, value.mv_data, sizeof(id));
      ++answers.found;
      answers.id_sum += id;
    }
    return answers;
  }

 private:
  void Open(unsigned flags) {
    OrFail(mdb_env_create(&env_));
    // Twice what a row takes, so that the map never fills.
    const uint64_t row_bytes = KeyShapeBytes(table().shape) + 24;
    OrFail(mdb_env_set_mapsize(env_, table().rows * row_bytes * 2 + (uint64_t{64} << 20)));
    OrFail(mdb_env_open(env_, table().dir.c_str(), flags, 0644));
  }

  void Write() {
    Open(MDB_NOSYNC);
    char key[64];
    uint64_t written = 0;
    for (uint32_t id : SortedKeyOrder(table().shape, table().rows)) {
      if (written % kRowsATransaction == 0) {
        if (written != 0) OrFail(mdb_txn_commit(transaction_));
        OrFail(mdb_txn_begin(env_, nullptr, 0, &transaction_));
        OrFail(mdb_dbi_open(transaction_, nullptr, 0, &dbi_));
      }
      MakeKey(table().shape, id, 0, key);
      MDB_val name = {KeyShapeBytes(table().shape), key};
      MDB_val value = {sizeof(id), &id};
      OrFail(mdb_put(transaction_, dbi_, &name, &value, MDB_APPEND));
      ++written;
    }
    OrFail(mdb_txn_commit(transaction_));
    mdb_env_close(env_);
  }

  MDB_env* env_ = nullptr;
  MDB_txn* transaction_ = nullptr;
  MDB_dbi dbi_ = 0;
  uint64_t size_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Peer> MakeLmdbPeer(const PeerTable& table) {
  return std::make_unique<LmdbPeer>(table);
}

}  // namespace latchkey
