#include <fmt/format.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>
#include <rocksdb/version.h>

#include <cstring>
#include <filesystem>

#include "tests/bench/peers/local_peers.h"
#include "tests/bench/peers/sorted_keys.h"

namespace latchkey {
namespace {

constexpr size_t kBlockCacheBytes = size_t{2} << 30;

void OrFail(const rocksdb::Status& status) {
  if (!status.ok()) FailBench("RocksDB: " + status.ToString());
}

class RocksDbPeer final : public LocalPeer {
 public:
  explicit RocksDbPeer(const PeerTable& table)
      : LocalPeer(table),
        slices_(kPeerBatchKeys),
        values_(kPeerBatchKeys),
        statuses_(kPeerBatchKeys) {
    rocksdb::BlockBasedTableOptions blocks;
    blocks.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    blocks.block_cache = rocksdb::NewLRUCache(kBlockCacheBytes);
    rocksdb::Options options;
    options.create_if_missing = true;
    // The keys are random bytes: there is nothing to compress.
    options.compression = rocksdb::kNoCompression;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(blocks));

    std::filesystem::create_directories(table.dir);
    const std::string sst = table.dir + "/ingest.sst";
    WriteSst(options, sst);
    size_bytes_ = std::filesystem::file_size(sst);
    rocksdb::DB* db = nullptr;
    OrFail(rocksdb::DB::Open(options, table.dir + "/db", &db));
    db_.reset(db);
    rocksdb::IngestExternalFileOptions ingest;
    ingest.move_files = true;
    OrFail(db_->IngestExternalFile({sst}, ingest));
  }
  std::string name() const override {
    return fmt::format("RocksDB {}.{}.{} MultiGet", ROCKSDB_MAJOR, ROCKSDB_MINOR, ROCKSDB_PATCH);
  }
  std::string settings() const override {
    return "one ingested file, Bloom filter of 10 bits a key, block cache of 2 GiB, no compression";
  }
  uint64_t size_bytes() const override { return size_bytes_; }

 protected:
  Answers LookUp(std::span<const std::string_view> keys) override {
    for (size_t i = 0; i < keys.size(); ++i) slices_[i] = {keys[i].data(), keys[i].size()};
    db_->MultiGet(read_options_, db_->DefaultColumnFamily(), keys.size(), slices_.data(),
                  values_.data(), statuses_.data());
    Answers answers;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (statuses_[i].ok()) {
        uint32_t id;
        std::memcpy(&id, values_[i].data(), sizeof(id));
        ++answers.found;
        answers.id_sum += id;
      } else if (!statuses_[i].IsNotFound()) {
        OrFail(statuses_[i]);
      }
      values_[i].Reset();
    }
    return answers;
  }

 private:
  void WriteSst(const rocksdb::Options& options, const std::string& path) {
    rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), options);
    OrFail(writer.Open(path));
    char key[64];
    for (const uint32_t id : SortedKeyOrder(table().shape, table().rows)) {
      MakeKey(table().shape, id, 0, key);
      OrFail(writer.Put({key, KeyShapeBytes(table().shape)},
                        {reinterpret_cast<const char*>(&id), sizeof(id)}));
    }
    OrFail(writer.Finish());
  }

  std::unique_ptr<rocksdb::DB> db_;
  const rocksdb::ReadOptions read_options_;
  // Of a batch, kept between batches. They pin blocks of the database, so they go before it.
  std::vector<rocksdb::Slice> slices_;
  std::vector<rocksdb::PinnableSlice> values_;
  std::vector<rocksdb::Status> statuses_;
  uint64_t size_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Peer> MakeRocksDbPeer(const PeerTable& table) {
  return std::make_unique<RocksDbPeer>(table);
}

}  // namespace latchkey
