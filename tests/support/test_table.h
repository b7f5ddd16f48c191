// A table built from rows in memory, beside the reference of what it must answer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/build/table_builder.h"
#include "core/table/snapshot.h"
#include "tests/support/reference_engine.h"
#include "tests/support/test_random.h"
#include "tests/support/vector_source.h"

namespace latchkey::test {

class TestTable {
 public:
  // A table "t" in `data_dir`. Its identity, and so its hashes, come from `random`: an empty
  // generation 1 is published to say so.
  TestTable(FileSystem& file_system, const std::string& data_dir, Random& random);

  // Builds a generation that replaces all segments, or adds one; after success the reference has
  // the rows too.
  absl::StatusOr<BuildResult> Build(const std::vector<Row>& rows) { return Run(rows, false); }
  absl::StatusOr<BuildResult> Append(const std::vector<Row>& rows) { return Run(rows, true); }

  // The same as Append with the number of partitions chosen, 2^partition_bits, which a build
  // derives from the number of rows. Keys are distinct.
  absl::Status AppendPartitioned(const std::vector<Row>& rows, uint8_t partition_bits);

  absl::StatusOr<std::shared_ptr<const Snapshot>> Open() const {
    return Snapshot::OpenNewest(file_system_, dir_);
  }

  const std::string& dir() const { return dir_; }  // the table's folder
  std::string Path(std::string_view name) const { return JoinPath(dir_, name); }
  const ReferenceEngine& reference() const { return reference_; }

  BuildOptions options;  // of the next builds

 private:
  absl::StatusOr<BuildResult> Run(const std::vector<Row>& rows, bool append);

  FileSystem& file_system_;
  std::string dir_;
  ReferenceEngine reference_;
};

// An identity drawn from `random`.
TableIdentity RandomIdentity(Random& random);

// `count` different keys of `key_bytes` each; as many as there are if that is fewer.
std::vector<std::string> DistinctKeys(Random& random, size_t count, size_t key_bytes);

// Keys that are likely to be absent, made from those that are there: a byte changed, cut, extended,
// another length; and random ones.
std::vector<std::string> StrangerKeys(Random& random, const std::vector<std::string>& keys,
                                      size_t count);

}  // namespace latchkey::test
