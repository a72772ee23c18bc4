#include "models/adapter/family.h"

#include "base/error.h"

namespace hyperparallel::models {
namespace {

const char* name_of(Ability ability) {
  switch (ability) {
    case Ability::kGeneration:
      return "cached generation";
    case Ability::kGoldenCases:
      return "golden cases";
    case Ability::kCrop:
      return "rules for smaller sizes";
    case Ability::kReleasedNames:
      return "a second spelling of tensor names";
  }
  throw InternalError("an unknown ability");
}

}  // namespace

void require(const Architecture& architecture, Ability ability, const std::string& asker) {
  if (architecture.can(ability)) return;
  throw UsageError("model_type {}: {} needs {}, which this family does not have yet", architecture.model_type(), asker,
                   name_of(ability));
}

}  // namespace hyperparallel::models
