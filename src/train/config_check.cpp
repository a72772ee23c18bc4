#include "train/config_check.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hyperparallel::train {
namespace {

class Checker {
 public:
  Checker(const Config& config, const yaml::Node& root, Problems& problems) : c_(config), root_(root), problems_(problems) {}

  void check_all() {
    check_unfinished();
    check_parallel();
    check_batch();
    check_losses();
    check_schedule();
    const auto check_betas = [&](const char* key, const std::vector<double>& betas) {
      if (betas.size() != 2) complain(key, fmt::format("expected two numbers, found {}", betas.size()));
    };
    check_betas("optimizer.betas", c_.optimizer.betas);
    check_betas("optimizer.sparse_adam.betas", c_.optimizer.sparse_adam.betas);
    const std::pair<const char*, const Path&> folders[] = {{"recompute.offload_folder", c_.recompute.offload_folder},
                                                           {"model.engram_folder", c_.model.engram_folder},
                                                           {"optimizer.state_folder", c_.optimizer.state_folder}};
    for (const auto& [key, folder] : folders) {
      if (folder.empty()) continue;
      if (!std::filesystem::is_directory(folder)) {
        complain(key, fmt::format("{} is no folder", folder.string()));
      } else if (::access(folder.c_str(), W_OK | X_OK) != 0) {
        complain(key, fmt::format("{} cannot be written: {}", folder.string(), std::strerror(errno)));
      }
    }
    if (c_.recompute.mode == RecomputeMode::kSelective && c_.recompute.keep.empty()) {
      complain("recompute.keep", "is required with recompute.mode selective");
    }
    if (c_.recompute.mode == RecomputeMode::kNone && c_.recompute.every != 1) {
      complain("recompute.every", fmt::format("{} needs recompute.mode full or selective", c_.recompute.every));
    }
    if (c_.recompute.mode == RecomputeMode::kNone) {
      if (!c_.recompute.regather.empty()) complain("recompute.regather", "needs recompute.mode full or selective");
      if (!c_.recompute.offload.empty()) {
        complain("recompute.offload",
                 "needs recompute.mode full or selective: without it the graphs of segments hold all values");
      }
    }
    if (c_.debug.check_ledger && c_.checkpoint.async_mode && c_.checkpoint.interval > 0) {
      complain("debug.check_ledger", "needs checkpoint.async_mode false: a save in the background frees memory during a step");
    }
    if (c_.recompute.mode != RecomputeMode::kSelective && !c_.recompute.keep.empty()) {
      complain("recompute.keep", "needs recompute.mode selective");
    }
  }

  // What a training run cannot do without.
  void check_training() {
    require_file("data.tokenizer", c_.data.tokenizer);
    if (c_.data.train.empty()) complain("data.train", "is required");
    check_sources("data.train", c_.data.train);
    check_sources("data.validation", c_.data.validation);
    check_sources("data.test", c_.data.test);
    if (c_.validation.interval > 0 && c_.data.validation.empty()) {
      complain("validation.interval", fmt::format("{} needs data.validation", c_.validation.interval));
    }
    if (!c_.data.tool_text.empty()) require_file("data.tool_text", c_.data.tool_text);
    if (c_.train.output.empty()) complain("train.output", "is required");
    if (!c_.model.weights.empty() && !std::filesystem::is_directory(c_.model.weights)) {
      complain("model.weights", fmt::format("{} is no folder", c_.model.weights.string()));
    }
  }

 private:
  // At the key's own place, or the nearest place above it.
  void complain(const std::string& key, const std::string& message) {
    const yaml::Node* node = &root_;
    for (size_t begin = 0; begin <= key.size();) {
      const size_t end = std::min(key.find('.', begin), key.size());
      const yaml::Node* child = node->find(key.substr(begin, end - begin));
      if (!child) break;
      node = child;
      begin = end + 1;
    }
    problems_.error(fmt::format("{}: {}: {}", node->where(), key, message));
  }

  void unfinished(const std::string& key, const std::string& value, const std::string& accepted) {
    complain(key, fmt::format("{} is not finished in this version; accepted: {}", value, accepted));
  }

  void check_unfinished() {
    if (c_.data.allow_http) unfinished("data.allow_http", "true", "false");
  }

  void check_parallel() {
    const ParallelSection& p = c_.parallel;
    const std::pair<const char*, int64_t> degrees[] = {{"fsdp_replicate", p.fsdp_replicate},
                                                       {"fsdp_shard", p.fsdp_shard},
                                                       {"tp", p.tp},
                                                       {"cp", p.cp},
                                                       {"ep", p.ep},
                                                       {"pp", p.pp},
                                                       {"vision_ulysses", p.vision_ulysses}};
    for (const auto& [name, degree] : degrees) {
      if (degree == 0) complain(fmt::format("parallel.{}", name), "expected 1 or more, or -1, found 0");
    }
    if (p.pp != 1) unfinished("parallel.pp", fmt::format("degree {}", p.pp), "1");
  }

  void check_losses() {
    const LossSection& loss = c_.train.loss;
    if (loss.indexer_dense && loss.indexer == 0) complain("train.loss.indexer_dense", "needs a train.loss.indexer above 0");
  }

  void check_batch() {
    const TrainSection& t = c_.train;
    if (t.global_batch_size % t.local_batch_size != 0) {
      complain("train.global_batch_size",
               fmt::format("{} is not a multiple of train.local_batch_size {}", t.global_batch_size, t.local_batch_size));
    }
    for (size_t i = 0; i < t.batch_ramp.size(); ++i) {
      const BatchStage& stage = t.batch_ramp[i];
      if (i > 0 && stage.until_step <= t.batch_ramp[i - 1].until_step)
        complain("train.batch_ramp", fmt::format("entry {}: until_step {} is not above {} of the entry before", i,
                                                 stage.until_step, t.batch_ramp[i - 1].until_step));
      if (stage.global_batch_size % t.local_batch_size != 0)
        complain("train.batch_ramp", fmt::format("entry {}: global_batch_size {} is not a multiple of train.local_batch_size {}",
                                                 i, stage.global_batch_size, t.local_batch_size));
    }
    for (size_t i = 0; i < t.length_ramp.size(); ++i) {
      const LengthStage& stage = t.length_ramp[i];
      const int64_t next = i + 1 < t.length_ramp.size() ? t.length_ramp[i + 1].seq_len : c_.data.seq_len;
      if (i > 0 && stage.until_step <= t.length_ramp[i - 1].until_step)
        complain("train.length_ramp", fmt::format("entry {}: until_step {} is not above {} of the entry before", i,
                                                  stage.until_step, t.length_ramp[i - 1].until_step));
      if (stage.seq_len > next)
        complain("train.length_ramp",
                 fmt::format("entry {}: seq_len {} is more than the {} that follow; rows may only grow", i, stage.seq_len, next));
    }
    const int64_t longest = c_.model.architecture ? c_.model.architecture->max_positions() : 0;
    if (longest > 0 && c_.data.seq_len > longest) {
      complain("data.seq_len", fmt::format("{} is more than the model's max_position_embeddings {}", c_.data.seq_len, longest));
    }
  }

  void check_schedule() {
    const std::vector<optim::Schedule> schedules = c_.schedules();
    const auto check_one = [&](const std::string& key, const optim::Schedule& schedule, int64_t decay_until) {
      for (const std::string& finding : optim::check(schedule)) complain(key, finding);
      if (decay_until > schedule.total_steps)
        complain(key + ".decay_until",
                 fmt::format("{} is more than the {} steps of the schedule", decay_until, schedule.total_steps));
    };
    check_one("optimizer.schedule", schedules[0], c_.optimizer.schedule.decay_until);
    std::vector<std::string> names;
    for (size_t i = 0; i < c_.optimizer.schedules.size(); ++i) {
      const NamedSchedule& named = c_.optimizer.schedules[i];
      check_one(fmt::format("optimizer.schedules[{}]", i), schedules[i + 1], named.decay_until);
      if (std::ranges::find(names, named.name) != names.end())
        complain("optimizer.schedules", fmt::format("two are called `{}`", named.name));
      names.push_back(named.name);
    }
    for (const std::string& name : names) {
      const auto follows = [&](const OptimizerGroup& group) { return group.schedule == name; };
      if (!name.empty() && std::ranges::none_of(c_.optimizer.groups, follows))
        complain("optimizer.schedules", fmt::format("no entry of optimizer.groups follows `{}`", name));
    }
    for (const OptimizerGroup& group : c_.optimizer.groups) {
      if (!group.schedule || std::ranges::find(names, *group.schedule) != names.end()) continue;
      complain("optimizer.groups",
               fmt::format("`{}` names the schedule `{}`; optimizer.schedules has {}", group.match, *group.schedule,
                           names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
    }
  }

  void require_file(const std::string& key, const Path& path) {
    if (path.empty()) {
      complain(key, "is required");
    } else if (!std::filesystem::is_regular_file(path)) {
      complain(key, fmt::format("{} is no file", path.string()));
    }
  }

  void check_sources(const std::string& key, const std::vector<DataSource>& sources) {
    for (const DataSource& source : sources) require_file(key, source.path);
  }

  const Config& c_;
  const yaml::Node& root_;
  Problems& problems_;
};

}  // namespace

int64_t Config::batch_size(int64_t step) const {
  for (const BatchStage& stage : train.batch_ramp) {
    if (step <= stage.until_step) return stage.global_batch_size;
  }
  return train.global_batch_size;
}

int64_t Config::seq_len(int64_t step) const {
  for (const LengthStage& stage : train.length_ramp) {
    if (step <= stage.until_step) return stage.seq_len;
  }
  return data.seq_len;
}

namespace {

optim::Schedule schedule_of(const ScheduleSection& s, double lr, int64_t steps) {
  const auto total_steps = static_cast<double>(s.total_steps > 0 ? s.total_steps : steps);
  return {.kind = s.kind,
          .warmup_from = s.warmup_counts_from,
          .total_steps = total_steps,
          .warmup_steps = static_cast<double>(s.warmup_steps),
          .base_lr = lr,
          .min_lr = s.min_lr,
          .start_lr = s.start_lr,
          .decay_ratio = s.decay_ratio,
          .stable_until = static_cast<double>(s.stable_until),
          .decay_until = s.decay_until > 0 ? static_cast<double>(s.decay_until) : total_steps};
}

}  // namespace

std::vector<optim::Schedule> Config::schedules() const {
  std::vector<optim::Schedule> all{schedule_of(optimizer.schedule, optimizer.lr, train.steps)};
  for (const NamedSchedule& named : optimizer.schedules)
    all.push_back(schedule_of(named, named.lr > 0 ? named.lr : optimizer.lr, train.steps));
  return all;
}

void check_config(const Config& config, const yaml::Node& root, const LoadOptions& options, Problems& problems) {
  Checker checker(config, root, problems);
  checker.check_all();
  if (options.for_training) checker.check_training();
}

}  // namespace hyperparallel::train
