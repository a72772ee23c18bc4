// The rules between keys that every model configuration keeps (docs/model.md, Rules).
#pragma once

#include <functional>
#include <string>

#include "models/deepseek_v41/config.h"

namespace hyperparallel::models::deepseek_v41 {

// Receives a broken rule: the key to mend and what is wrong.
using Complain = std::function<void(const std::string& key, const std::string& message)>;

void check_text(const TextConfig& config, const Complain& complain);
void check_vision(const VisionConfig& config, const Complain& complain);

}  // namespace hyperparallel::models::deepseek_v41
