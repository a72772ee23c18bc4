#include "models/adapter/config_reader.h"

namespace hyperparallel::models {

void read_dtype(yaml::MapReader& reader, std::string& dtype) {
  for (const char* key : {"torch_dtype", "dtype"}) {
    std::string found;
    if (!reader.read(key, found)) continue;
    if (found != "float32" && found != "bfloat16") {
      reader.complain(key, fmt::format("{} is not supported, expected float32 or bfloat16", found));
    } else {
      dtype = found;
    }
  }
}

void ignore_extras(yaml::MapReader& reader) {
  for (const char* key : {"architectures", "transformers_version", "quantization_config", "use_cache", "_name_or_path",
                          "auto_map", "chunk_size_feed_forward", "output_attentions", "output_hidden_states", "return_dict",
                          "is_encoder_decoder", "id2label", "label2id", "problem_type"})
    reader.ignore(key);
}

}  // namespace hyperparallel::models
