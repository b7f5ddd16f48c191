// Rows that a test makes up, as a builder reads them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/build/record_source.h"

namespace latchkey::test {

struct Row {
  std::string key;
  std::string value;
  std::optional<uint64_t> doc_id = std::nullopt;  // the row's ordinal if there is none
};

// Rows in memory, which must outlive it.
class VectorSource final : public RecordSource {
 public:
  explicit VectorSource(const std::vector<Row>& rows) : rows_(rows) {}
  explicit VectorSource(std::vector<Row>&&) = delete;

  absl::StatusOr<bool> Next(InputRow* row) override {
    if (next_ == rows_.size()) return false;
    const Row& from = rows_[next_++];
    *row = {from.key, from.value, from.doc_id};
    return true;
  }
  std::string Position() const override { return "row " + std::to_string(next_); }
  uint64_t bytes_read() const override { return next_; }
  uint64_t total_bytes() const override { return rows_.size(); }

 private:
  const std::vector<Row>& rows_;
  size_t next_ = 0;
};

// Rows made one at a time, so that a large input takes no memory.
class GeneratorSource final : public RecordSource {
 public:
  // Makes the row of an ordinal; what it is given still holds the row before.
  using Make = std::function<void(uint64_t ordinal, Row* row)>;
  GeneratorSource(uint64_t row_count, Make make) : row_count_(row_count), make_(std::move(make)) {}

  absl::StatusOr<bool> Next(InputRow* row) override {
    if (next_ == row_count_) return false;
    make_(next_++, &row_);
    *row = {row_.key, row_.value, row_.doc_id};
    return true;
  }
  std::string Position() const override { return "row " + std::to_string(next_); }
  uint64_t bytes_read() const override { return next_; }
  uint64_t total_bytes() const override { return row_count_; }

 private:
  const uint64_t row_count_;
  const Make make_;
  Row row_;
  uint64_t next_ = 0;
};

}  // namespace latchkey::test
