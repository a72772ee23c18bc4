// OUT/report.html: one page without links to anything outside, with the run's curves, facts, evaluation and sample predictions.
//
// It is made from files in the run's output folder alone, so it can be made again at any time (`hyperparallel report OUT`):
//   metrics.jsonl  required; see metrics.h. Names under `moe/load_max_over_mean` become curves of expert load:
//                  `moe/load_max_over_mean[/layer.<i>][/text|/image]`. Names that no chart knows get one of their own.
//   run.json       optional: facts of the run, see write_run_facts().
//   config.yaml    optional: the resolved configuration, shown as it is.
//   eval.json      optional: {"exact_match": 0.87, "count": 4000, "split": "test", "baseline": B, "by_type": {"yes/no": T, ...},
//                  "examples": [E, ...]}. Shares are 0 to 1. T is {"exact_match", "count", "baseline"} or the share alone; B is
//                  {"exact_match", "by_type": {"yes/no": share}} or the share alone.
//   samples.json   optional: [E, ...], shown where eval.json has no examples.
// An example E is {"images": [...], "question": "...", "expected": "...", "predicted": "...", "correct": true, "type": "..."};
// `correct` absent means expected == predicted. An image is a path, absolute or relative to OUT, or a data URI.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace hyperparallel::train {

// Writes OUT/run.json: label and value of each row of the report's table of facts, in order ("parameters", "1.62 M").
void write_run_facts(const std::filesystem::path& output, const std::vector<std::pair<std::string, std::string>>& facts);

// What the page shows, as the page's script reads it. Long runs are reduced to at most kReportPoints points a curve, each with
// the mean, lowest and highest of its steps. Throws UsageError where `output` holds no metrics, DataError for a broken file.
nlohmann::ordered_json report_data(const std::filesystem::path& output);
inline constexpr size_t kReportPoints = 800;

// Writes OUT/report.html and returns its path.
std::filesystem::path write_report(const std::filesystem::path& output);

}  // namespace hyperparallel::train
