#include "train/import_check.h"

#include <set>

#include "base/error.h"
#include "checkpoint/hf_names.h"

namespace hyperparallel::train {
namespace {

// "\n  2 tensors are missing:\n    a\n    b"; empty where there are none.
std::string section(const std::vector<std::string>& tensors, const std::string& what) {
  constexpr size_t kShown = 10;
  if (tensors.empty()) return "";
  std::string text = fmt::format("\n  {} {}:", tensors.size(), what);
  for (size_t i = 0; i < std::min(tensors.size(), kShown); ++i) text += "\n    " + tensors[i];
  if (tensors.size() > kShown) text += fmt::format("\n    and {} more", tensors.size() - kShown);
  return text;
}

}  // namespace

void check_weights(const checkpoint::HfFolder& folder, const models::Architecture& architecture) {
  std::vector<std::string> missing, unexpected, misshapen;
  std::set<std::string> known;
  const auto check_shape = [&](const engine::ParameterSpec& spec, const std::vector<int64_t>& shape) {
    if (shape != spec.shape)
      misshapen.push_back(
          fmt::format("{} [{}], the model needs [{}]", spec.name, fmt::join(shape, ", "), fmt::join(spec.shape, ", ")));
  };
  const auto model = architecture.build({}, nullptr);
  for (const engine::ParameterSpec& spec : model->program().parameters) {
    known.insert(spec.name);
    const auto found = folder.tensors().find(spec.name);
    if (found == folder.tensors().end()) {
      missing.push_back(fmt::format("{} [{}]", spec.name, fmt::join(spec.shape, ", ")));
    } else {
      check_shape(spec, found->second.shape);
    }
  }
  for (const engine::ParameterSpec& spec : architecture.parameters_without_forward()) {
    if (const auto found = folder.tensors().find(spec.name); found != folder.tensors().end())
      check_shape(spec, found->second.shape);
  }
  for (const auto& [name, tensor] : folder.tensors()) {
    if (!known.contains(name) && !checkpoint::is_draft(name))
      unexpected.push_back(fmt::format("{} [{}]", name, fmt::join(tensor.shape, ", ")));
  }
  const std::string faults =
      section(missing, "missing") + section(unexpected, "unexpected") + section(misshapen, "of another shape");
  if (!faults.empty())
    throw CheckpointError("{}: the tensors are not those of the model in its config.json:{}", folder.folder().string(), faults);
}

}  // namespace hyperparallel::train
