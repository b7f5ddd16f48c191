// A generation, opened: its manifest and its segments, mapped and validated.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/io/file_system.h"
#include "core/segment/segment.h"
#include "core/table/manifest.h"

namespace latchkey {

// Immutable after Open; any thread may read it. Whatever was found in it is valid as long as it
// lives.
class Snapshot {
 public:
  // Opens every segment that `manifest` names in `table_dir`. Fails as a whole if any can't be
  // opened, is not the file that the manifest means, or belongs to another table; errors name the
  // file.
  static absl::StatusOr<std::shared_ptr<const Snapshot>> Open(FileSystem& file_system,
                                                              const std::string& table_dir,
                                                              Manifest manifest);
  // The newest generation.
  static absl::StatusOr<std::shared_ptr<const Snapshot>> OpenNewest(FileSystem& file_system,
                                                                    const std::string& table_dir);

  const Manifest& manifest() const { return manifest_; }
  uint64_t generation() const { return manifest_.generation; }
  const TableSchema& schema() const { return manifest_.schema; }
  uint64_t seed() const { return manifest_.identity.seed; }
  // Newest first.
  const std::vector<std::unique_ptr<const Segment>>& segments() const { return segments_; }
  // Sum over the segments: a key that several have counts in each.
  uint64_t row_count() const;

 private:
  explicit Snapshot(Manifest manifest) : manifest_(std::move(manifest)) {}

  const Manifest manifest_;
  std::vector<std::unique_ptr<const Segment>> segments_;
};

}  // namespace latchkey
