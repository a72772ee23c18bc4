// Tables outside of device memory: what a step costs as they grow, in memory and in a file, under SparseAdam and under Sinkhorn
// balancing; and look-ups in a file whose pages were dropped, with and without telling the system before.
//
//   bench_tables [FOLDER]     FOLDER: of the files, which are sparse and have no names; default: the current one
//
// One JSON line each. A step looks up `hits` rows, takes a gradient of each and updates them; rows are drawn from `used` rows
// spread over the whole table. Resident memory is what the process has more than before the table was made.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "optim/sinkhorn.h"
#include "optim/sparse_adam.h"

namespace hyperparallel::optim {
namespace {

constexpr int64_t kWidth = 64, kHits = 4096, kUsed = 20000;
constexpr int kSteps = 12;

double resident_mb() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return static_cast<double>(resident * ::sysconf(_SC_PAGESIZE)) / 1e6;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

at::Tensor rows_of_step(int64_t rows, int step) {
  const RandomStream random(7, "rows");
  std::vector<int64_t> list;
  const int64_t used = std::min(kUsed, rows);
  for (int64_t i = 0; i < kHits; ++i)
    list.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(step * kHits + i), static_cast<uint64_t>(used))) *
                   (rows / used));
  return at::tensor(list, at::kLong);
}

void run(int64_t rows, const std::string& rule, const std::filesystem::path& folder) {
  const double before = resident_mb();
  engine::RowTable table(rows, kWidth, at::kFloat, folder);
  table.begin_as([](int64_t first, int64_t count, void* values) {
    fill_normal(static_cast<float*>(values), count * kWidth, 7, "table", first * kWidth, 0.02);
  });
  std::vector<OptimizedParameter> parameters{{"table", {}, {}, &table, {}}};
  const std::vector<ParameterSettings> settings{{rule == "sinkhorn" ? Rule::kSinkhorn : Rule::kSparseAdam, 1, 0}};
  std::unique_ptr<Optimizer> optimizer;
  if (rule == "sinkhorn") {
    optimizer = std::make_unique<Sinkhorn>(parameters, settings, SinkhornSettings{}, std::vector<TableRows>{{rows, true}},
                                           dist::self_group());
  } else {
    optimizer = std::make_unique<SparseAdam>(parameters, settings, SparseAdamSettings{}, dist::self_group());
  }
  std::vector<double> look_up, update;
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor ids = rows_of_step(rows, step);
    double begin = monotonic_seconds();
    const at::Tensor found = table.look_up(ids);
    look_up.push_back(monotonic_seconds() - begin);
    begin = monotonic_seconds();
    const engine::RowGradients gradients = engine::merge_rows(ids, found);
    parameters[0].gradient = gradients.values;
    parameters[0].rows = gradients.rows;
    optimizer->step(parameters, 1e-3, 1);
    update.push_back(monotonic_seconds() - begin);
  }
  const std::vector<double> late_look_up(look_up.begin() + kSteps / 2, look_up.end()),
      late_update(update.begin() + kSteps / 2, update.end());
  std::printf(
      "{\"rows\": %lld, \"storage\": \"%s\", \"rule\": \"%s\", \"width\": %lld, \"hits\": %lld, \"begun\": %lld, "
      "\"look_up_ms\": %.2f, \"update_ms\": %.2f, \"resident_mb\": %.0f}\n",
      static_cast<long long>(rows), folder.empty() ? "host" : "mmap", rule.c_str(), static_cast<long long>(kWidth),
      static_cast<long long>(kHits), static_cast<long long>(table.begun_rows()), 1e3 * median(late_look_up),
      1e3 * median(late_update), resident_mb() - before);
}

// Of rows that were written once.
void run_cold(int64_t rows, const std::filesystem::path& folder) {
  engine::RowTable table(rows, kWidth, at::kFloat, folder);
  for (int step = 0; step < 8; ++step) table.begun(rows_of_step(rows, step)).index_fill_(0, rows_of_step(rows, step), 1.0);
  for (const bool told : {false, true}) {
    std::vector<double> seconds, telling;
    for (int step = 0; step < 8; ++step) {
      const at::Tensor ids = rows_of_step(rows, step);
      table.drop_pages();
      double begin = monotonic_seconds();
      if (told) table.will_need(std::get<0>(at::_unique(ids)));
      telling.push_back(monotonic_seconds() - begin);
      if (told) ::usleep(100'000);  // another micro-batch computes
      begin = monotonic_seconds();
      table.look_up(ids);
      seconds.push_back(monotonic_seconds() - begin);
    }
    std::printf(
        "{\"rows\": %lld, \"storage\": \"mmap\", \"pages\": \"dropped\", \"told\": %s, \"telling_ms\": %.2f, "
        "\"look_up_ms\": %.2f}\n",
        static_cast<long long>(rows), told ? "true" : "false", 1e3 * median(telling), 1e3 * median(seconds));
  }
}

}  // namespace
}  // namespace hyperparallel::optim

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 ? argv[1] : ".";
  for (const char* rule : {"sparse_adam", "sinkhorn"}) {
    for (const auto& storage : {std::filesystem::path(), folder}) {
      for (const int64_t rows : {100'000, 1'000'000, 10'000'000, 100'000'000}) hyperparallel::optim::run(rows, rule, storage);
    }
  }
  hyperparallel::optim::run_cold(10'000'000, folder);
}
