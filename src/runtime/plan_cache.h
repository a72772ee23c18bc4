// Plans by shape class: each is built when it is first asked for and shared by all layers and threads.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "runtime/plan.h"

namespace hyperparallel::runtime {

// `Key` has an order. The most plans are kept that a run can need; beyond them the cache begins anew.
template <class Key>
class PlanCache {
 public:
  // build(plan) adds tasks; the plan is closed for it.
  template <class Build>
  std::shared_ptr<const Plan> get(const Key& key, const Build& build) {
    std::lock_guard lock(mutex_);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    constexpr size_t kMost = 256;
    if (plans_.size() == kMost) plans_.clear();
    auto plan = std::make_shared<Plan>();
    build(*plan);
    plan->close();
    return plans_[key] = std::move(plan);
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const Plan>> plans_;
};

}  // namespace hyperparallel::runtime
