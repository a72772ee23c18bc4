// What the segments keep and need inside, for plans.
#include "models/adapter/footprints.h"
#include "models/llama/program.h"

namespace hyperparallel::models::llama {

void declare_footprints(engine::Program& program, const LlamaConfig& config, const engine::Layout& layout) {
  const int64_t d = config.hidden_size, hd = config.head_dim, heads = layout.part(config.num_attention_heads, "tp"),
                kv_heads = layout.part(config.num_key_value_heads, "tp"), width = layout.part(config.intermediate_size, "tp");
  const engine::Dimension rows = layout.sequence_parallel ? "shard" : "tokens";
  for (engine::ValueSpec& value : program.values) {
    if (value.name == "loss" || value.name == "rope.cos" || value.name == "rope.sin") value.element = engine::Element::kMath;
  }
  const Footprints footprints(program);
  const auto rotating = [&](int64_t rotated) {
    return Buffers{compute({"tokens", rotated, hd}), math({3, "tokens", rotated, hd}), cast({2, "tokens", rotated, hd})};
  };
  const engine::Footprint norm{{math({rows})}, {}, {}};
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string name = layer_name(layer), attn = name + ".attn";
    footprints.set(name + ".attn_norm", norm);
    footprints.set(name + ".mlp_norm", norm);
    footprints.set(attn + ".kv", {{}, rotating(kv_heads), rotating(kv_heads)});
    footprints.set(attn + ".queries", {{}, rotating(heads), {compute({"tokens", heads, hd}), math({2, "tokens", heads, hd})}});
    // A chunk of queries at a time, against all keys.
    const Buffers keys{math({2, "all_tokens", kv_heads, hd})};
    engine::Footprint attend{{compute({"tokens", heads, hd})},
                             {math({2, "attention.rows", heads, "all_tokens"})},
                             {compute({2, "tokens", heads, hd}), math({3, "attention.rows", heads, "all_tokens"})}};
    append(attend.forward, keys);
    append(attend.backward, keys);
    append(attend.backward, keys);
    footprints.set(attn + ".attend", attend);
    footprints.set(name + ".mlp", {{compute({4, "tokens", width})}, {}, {compute({2, "tokens", width})}});
  }
  footprints.set("final_norm", norm);
  footprints.set_ends(d, layout.part(config.vocab_size, "tp"));
}

}  // namespace hyperparallel::models::llama
