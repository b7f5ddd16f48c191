// What a server counts, for Prometheus to collect.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace latchkey {

class Catalog;
class LookupService;
class Reloader;

// Answers GET /metrics in Prometheus's text format, on threads of its own. Metrics, each with the
// label `table`:
//   latchkey_generation, latchkey_segments, latchkey_rows    of what serves
//   latchkey_quarantined_segments, latchkey_unchecked_bytes  of what serves
//   latchkey_keys_total, latchkey_damaged_keys_total         looked up
//   latchkey_reloads_total                                   generations opened, since the start
//   latchkey_reload_failures_total                           attempts that failed
//   latchkey_reload_failing                                  1: the newest does not serve; else 0
class MetricsEndpoint {
 public:
  // Listens on HOST:PORT; port 0 takes a free one. Unavailable when that can't be had. What it is
  // given must outlive it.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& address,
                                                                const Catalog& catalog,
                                                                const LookupService& lookups,
                                                                const Reloader& reloader);
  virtual ~MetricsEndpoint() = default;
  // With the port that was taken.
  virtual std::string address() const = 0;
};

}  // namespace latchkey
