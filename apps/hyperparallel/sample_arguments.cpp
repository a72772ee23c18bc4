#include "sample_arguments.h"

namespace hyperparallel {

void add_sample_arguments(CLI::App& app, SampleArguments& arguments) {
  app.add_option("--tokenizer", arguments.tokenizer, "a tokenizer.json")->required();
  app.add_option("--tool-text", arguments.tool_text,
                 "a JSON file with the fixed texts around tool schemas and response formats: tools_head, tools_tail, "
                 "response_format_head, response_format_tail");
  app.add_option("--supervise", arguments.supervise, "assistant turns to train on where a message does not say: last or all")
      ->check(CLI::IsMember({"last", "all"}))
      ->capture_default_str();
  add_image_arguments(app, arguments.image);
}

data::SampleOptions sample_options(const SampleArguments& arguments) {
  data::SampleOptions options;
  if (!arguments.tool_text.empty()) options.tool_text = data::ToolText::load(arguments.tool_text);
  options.supervise = arguments.supervise == "all" ? data::Supervise::kAll : data::Supervise::kLast;
  const ImageSettings image = image_settings(arguments.image);
  options.image_limits = image.limits;
  options.image_token_id = image.token_id;
  return options;
}

}  // namespace hyperparallel
