#include "server/metrics.h"

#include <fmt/format.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "core/table/catalog.h"
#include "server/lookup_service.h"
#include "server/reloader.h"

namespace latchkey {
namespace {

constexpr size_t kThreads = 1;  // collecting is quick, and one collector the rule

using Families = std::vector<prometheus::MetricFamily>;

class Collector final : public prometheus::Collectable {
 public:
  Collector(const Catalog& catalog, const LookupService& lookups, const Reloader& reloader)
      : catalog_(catalog), lookups_(lookups), reloader_(reloader) {}

  Families Collect() const override {
    std::map<std::string, std::shared_ptr<const Snapshot>> open;
    for (const std::string& table : catalog_.Names()) {
      if (auto snapshot = catalog_.Acquire(table)) open[table] = std::move(snapshot);
    }
    const auto gauge = prometheus::MetricType::Gauge, counter = prometheus::MetricType::Counter;
    const auto states = reloader_.States();
    Families families;
    const auto add = [&](const char* name, const char* help, prometheus::MetricType type,
                         const auto& tables, const auto& value_of) {
      prometheus::MetricFamily family{name, help, type, {}};
      for (const auto& [table, of] : tables) {
        prometheus::ClientMetric metric;
        metric.label = {{"table", table}};
        const auto value = static_cast<double>(value_of(table, of));
        metric.gauge.value = metric.counter.value = value;
        family.metric.push_back(std::move(metric));
      }
      families.push_back(std::move(family));
    };
    using Held = std::shared_ptr<const Snapshot>;
    add("latchkey_generation", "Number of the generation that serves.", gauge, open,
        [](const auto&, const Held& snapshot) { return snapshot->generation(); });
    add("latchkey_segments", "Segments of the generation that serves.", gauge, open,
        [](const auto&, const Held& snapshot) { return snapshot->segments().size(); });
    add("latchkey_rows", "Rows of all segments together.", gauge, open,
        [](const auto&, const Held& snapshot) { return snapshot->row_count(); });
    add("latchkey_quarantined_segments", "Segments whose files are damaged.", gauge, open,
        [](const auto&, const Held& snapshot) {
          uint64_t count = 0;
          for (const auto& segment : snapshot->segments()) count += segment->quarantined();
          return count;
        });
    add("latchkey_unchecked_bytes", "Not read against their checksums yet.", gauge, open,
        [](const auto&, const Held& snapshot) { return snapshot->unchecked_bytes(); });
    add("latchkey_keys_total", "Keys looked up.", counter, open,
        [&](const std::string& table, const Held&) { return lookups_.CountsOf(table).keys; });
    add("latchkey_damaged_keys_total", "Keys not answered for damaged data.", counter, open,
        [&](const std::string& table, const Held&) { return lookups_.CountsOf(table).damaged; });
    add("latchkey_reloads_total", "Generations opened.", counter, states,
        [](const auto&, const ReloadState& state) { return state.opened; });
    add("latchkey_reload_failures_total", "Attempts to open a generation that failed.", counter,
        states, [](const auto&, const ReloadState& state) { return state.failed; });
    add("latchkey_reload_failing", "1 while the newest generation does not serve.", gauge, states,
        [](const auto&, const ReloadState& state) { return state.error.ok() ? 0 : 1; });
    return families;
  }

 private:
  const Catalog& catalog_;
  const LookupService& lookups_;
  const Reloader& reloader_;
};

class Endpoint final : public MetricsEndpoint {
 public:
  Endpoint(const std::string& address, std::shared_ptr<Collector> collector)
      : collector_(std::move(collector)), exposer_(address, kThreads) {
    exposer_.RegisterCollectable(collector_);
    address_ = fmt::format("{}:{}", address.substr(0, address.rfind(':')),
                           exposer_.GetListeningPorts().at(0));
  }
  std::string address() const override { return address_; }

 private:
  const std::shared_ptr<Collector> collector_;
  prometheus::Exposer exposer_;
  std::string address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& address, const Catalog& catalog, const LookupService& lookups,
    const Reloader& reloader) {
  try {
    return std::make_unique<Endpoint>(address,
                                      std::make_shared<Collector>(catalog, lookups, reloader));
  } catch (const std::exception&) {  // whose text is not for people
    return absl::UnavailableError(fmt::format(
        "cannot listen on {}: expected HOST:PORT, of this machine's and not taken", address));
  }
}

}  // namespace latchkey
