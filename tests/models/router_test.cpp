#include <nlohmann/json.hpp>

#include <fstream>

#include "checkpoint/safetensors.h"
#include "kernels/moe/op.h"
#include "support/tensors.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

using namespace hyperparallel::test;

struct Golden {
  std::string folder;
  std::map<std::string, at::Tensor> tensors;
  nlohmann::json notes;
  explicit Golden(const std::string& name)
      : folder(std::string(HP_SOURCE_DIR "/tests/golden/losses/") + name),
        tensors(checkpoint::read_all(folder + "/case.safetensors")),
        notes(nlohmann::json::parse(std::ifstream(folder + "/notes.json"))) {}
};

at::Tensor flat(const at::Tensor& tensor) {
  return tensor.reshape({-1, tensor.size(-1)});
}

TEST(Router, ScoresAndChoicesEqualTheBalanceFixtures) {
  for (const std::string name : {"balance-single", "balance-packed", "balance-rows"}) {
    const Golden golden(name);
    const at::Tensor logits = at::linear(flat(golden.tensors.at("hidden")), golden.tensors.at("weight"));
    EXPECT_CLOSE(logits, flat(golden.tensors.at("logits")), 1e-5) << name;
    const at::Tensor scores = kernels::router_scores(logits, golden.notes.at("gate_temp"));
    EXPECT_CLOSE(scores, flat(golden.tensors.at("scores")), 1e-5) << name;
    const at::Tensor image = golden.tensors.at("image_mask").flatten().to(at::kBool);
    const at::Tensor ids =
        kernels::choose_experts(scores, golden.tensors.at("bias"), golden.tensors.at("bias_vl"), image, golden.notes.at("top_k"));
    EXPECT_TRUE(at::equal(ids, flat(golden.tensors.at("expert_ids")).to(at::kLong))) << name;
  }
}

TEST(Router, ChoicesFollowTheBiasesOfEveryStep) {
  const Golden golden("balance-bias");
  const at::Tensor hidden = golden.tensors.at("hidden");  // [steps, micro-batches, tokens, width]
  for (int64_t step = 0; step < hidden.size(0); ++step) {
    const at::Tensor scores = kernels::router_scores(at::linear(flat(hidden[step]), golden.tensors.at("weight")), 1.0);
    const at::Tensor image = golden.tensors.at("image_mask")[step].flatten().to(at::kBool);
    const at::Tensor ids = kernels::choose_experts(scores, golden.tensors.at("bias")[step], golden.tensors.at("bias_vl")[step],
                                                   image, golden.notes.at("top_k"));
    EXPECT_TRUE(at::equal(ids, flat(golden.tensors.at("expert_ids")[step]).to(at::kLong))) << step;
  }
}

}  // namespace
}  // namespace hyperparallel::models::deepseek_v41
