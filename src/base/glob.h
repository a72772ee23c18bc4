// Globs over names of parameters and values.
#pragma once

#include <string>

namespace hyperparallel {

// The whole of `text` matches: `*` any text, `/` and `.` too, `?` one character, `[a-c]` a class, `\` takes the next one as it
// is.
bool glob_matches(const std::string& glob, const std::string& text);

// Layers that are alike share a name: "model.layers.*.attn.wkv.weight".
std::string without_numbers(const std::string& name);

}  // namespace hyperparallel
