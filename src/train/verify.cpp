#include "train/verify.h"

#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "train/case_model.h"
#include "train/gather.h"
#include "train/layout_plan.h"
#include "train/run_model.h"

namespace hyperparallel::train {
namespace {

using models::deepseek_v41::ModelBatch;
using models::deepseek_v41::ModelConfig;
using models::deepseek_v41::ModelProgram;

const std::set<std::string> kInputs = {"input_ids",    "labels",      "shift_labels", "image_mask", "token_map",
                                       "cu_seqlens",   "segment_ids", "position_ids", "patches",    "grids",
                                       "image_starts", "cotangent",   "token_types"};

// Numbers of a case's JSON file by key; a missing file is an empty object. What has another form is a DataError that names file
// and key.
class NumberFile {
 public:
  explicit NumberFile(const std::filesystem::path& path) : path_(path.string()), values_(nlohmann::json::object()) {
    std::ifstream file(path);
    if (!file) return;
    values_ = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (!values_.is_object()) throw DataError("{}: is no JSON object", path_);
  }

  // The object under `key`, whose keys are named `key.name` in messages.
  NumberFile part(const std::string& key) const {
    const nlohmann::json& value = at(key);
    if (!value.is_object()) refuse(key, "an object");
    return {path_, key + ".", value};
  }
  bool has(const std::string& key) const { return values_.contains(key); }
  double number(const std::string& key) const {
    const nlohmann::json& value = at(key);
    if (!value.is_number()) refuse(key, "a number");
    return value;
  }
  std::pair<double, double> pair(const std::string& key) const {
    const nlohmann::json& value = at(key);
    if (!value.is_array() || value.size() != 2 || !value[0].is_number() || !value[1].is_number())
      refuse(key, "a list of two numbers");
    return {value[0], value[1]};
  }
  [[noreturn]] void refuse(const std::string& key, const char* accepted) const {
    throw DataError("{}: {}{} is {}; accepted: {}", path_, prefix_, key, at(key).dump(), accepted);
  }

 private:
  NumberFile(std::string path, std::string prefix, nlohmann::json values)
      : path_(std::move(path)), prefix_(std::move(prefix)), values_(std::move(values)) {}
  const nlohmann::json& at(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) throw DataError("{}: {}{} is missing", path_, prefix_, key);
    return *found;
  }

  std::string path_, prefix_;
  nlohmann::json values_;
};

struct NumberedName {
  int64_t number = 0;
  std::string rest;
};

// `doc3.logits` after `doc` is {3, "logits"}; nothing where the name has another form.
std::optional<NumberedName> numbered_name(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  NumberedName found;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), found.number);
  const auto digits = static_cast<size_t>(end - name.data());
  if (error != std::errc() || found.number < 0 || digits == name.size() || name[digits] != '.') return std::nullopt;
  found.rest = name.substr(digits + 1);
  return found;
}

models::deepseek_v41::ProgramOptions case_program_options(const VerifyOptions& options, const engine::Layout& layout) {
  models::deepseek_v41::ProgramOptions program{program_options(options.config, layout)};
  program.losses = {};  // a case's loss is the cross-entropy
  program.patch_gradient = true;
  return program;
}

// Stored codes of one layer that came out another way than in double, a row for each tensor of codes.
struct Ties {
  int64_t layer = 0, count = 0;
  std::vector<VerifyRow> rows;
};

// Whether a tensor of the case comes after the stored codes of a layer.
bool comes_after(const std::string& name, int64_t layer) {
  const auto in_document = numbered_name(name, "doc");
  const std::string& rest = in_document ? in_document->rest : name;
  if (const auto of_layer = numbered_name(rest, "layer.")) return of_layer->number >= layer;
  return !rest.starts_with("image.") && !rest.starts_with("engram.") && rest != "span_embeddings";
}

// Everything one run of the case made, in our own layout, and its translation into the fixture's names and shapes.
class CaseRun {
 public:
  CaseRun(const std::filesystem::path& folder, const TensorMap& tensors, at::ScalarType compute, const VerifyOptions& options,
          const Ranks& ranks)
      : file_((folder / "case.safetensors").string()), tensors_(tensors), ranks_(ranks) {
    run_ = load_case_model(folder, compute, case_program_options(options, ranks.layout), ranks.groups);
    batch_ = batch_of_case(tensors, "", model_config(), compute);
    // Every data-parallel rank has the whole case: the mean over them is what one would derive.
    copies_ = ranks.layout.size("dp");
    if (batch_.grids.defined()) {
      const models::deepseek_v41::BatchOutline own{batch_.ids.defined() ? batch_.ids.size(0) : 0, batch_.grids,
                                                   batch_.image_starts};
      batch_.outlines.assign(copies_, own);
    }
    held_ = held_rows(*run_.model, batch_);
    run_.executor->watch([this](const std::string& name, const std::string& rows, const at::Tensor& tensor) {
      made_[name] = {rows, tensor};
    });
    engine::ValueMap inputs = prepare_inputs(*run_.model, batch_, compute);
    if (run_.model->inputs.cotangent.valid()) {
      const at::Tensor whole = case_tensor(tensors, "cotangent").to(compute);
      const at::Tensor rows = models::tensor_of(held_.at("span_tokens").rows).remainder(whole.size(0));
      inputs[run_.model->inputs.cotangent.index] = whole.index_select(0, rows);
    }
    scored_ = batch_.targets.defined() ? batch_.targets.ge(0).sum().item<int64_t>() : 1;
    Config config = options.config;
    config.train.global_batch_size = config.train.local_batch_size * copies_;
    const auto schedule = make_schedule(run_.model->program, schedule_options(config, ranks.layout));
    const RecomputeSection& recompute = options.config.recompute;
    if (!recompute.offload.empty())
      run_.executor->offload_to(recompute.offload_folder.empty() ? std::filesystem::temp_directory_path()
                                                                 : recompute.offload_folder);
    run_.executor->run(schedule, {inputs}, {{1.0 / static_cast<double>(scored_ * copies_)}});
    if (batch_.engram_rows.defined()) lookup_ = engram_lookup_of_case(tensors, model_config(), batch_);
    const double own_loss = run_.executor->losses()[0][0];  // pictures alone are those of all copies
    loss_ = (model_config().text.num_hidden_layers > 0 ? ranks.sum(own_loss, "cp", "loss")
                                                       : ranks.sum(own_loss, "stage", "loss") / static_cast<double>(copies_)) /
            static_cast<double>(scored_);
    collect_gradients();
  }

  // Our counterpart of a tensor of the case, in its shape, whole on every rank; nothing when the name is unknown. Throws
  // DataError for a document or an image that the case does not have. Every rank asks for the same names in the same order.
  std::optional<at::Tensor> find(const std::string& name, at::IntArrayRef shape) const {
    if (name == "loss" || name == "objective") return at::scalar_tensor(loss_, at::kDouble);
    if (name.starts_with("grad.")) return find_gradient(name.substr(5), shape);
    if (name.starts_with("image.")) return find_image(name);
    if (const auto in_document = numbered_name(name, "doc")) {
      auto tensor = of_document(in_document->number, in_document->rest);
      return tensor ? std::optional(fit(tensor->unsqueeze(0), shape)) : std::nullopt;
    }
    if (name == "span_embeddings") return of_tokens(name);
    std::vector<at::Tensor> parts;
    const int64_t rows = shape.empty() ? 0 : shape[0];
    // A packed row is compared whole, rows of a batch one by one.
    if (rows == 0 || rows != documents()) {
      auto whole = of_tokens(name);
      return whole ? std::optional(whole->unsqueeze(0)) : std::nullopt;
    }
    for (int64_t d = 0; d < rows; ++d) {
      auto tensor = of_document(d, name);
      if (!tensor) return std::nullopt;
      parts.push_back(*tensor);
    }
    return fit(at::stack(parts), shape);
  }

  // NOTE [Ties of stored codes]: a cache element within rounding of the border between two codes may come out as either, and all
  // that follows from it moves by a step of the code. The first layer in which codes of this run differ from those of `exact`,
  // the same in double, gets a row a tensor: the largest distance of such an element in double to the border, which is the middle
  // of both codes, against 1e-6 of the largest value that is quantised, some roundings of FP32 and a tenth of what a float of the
  // fixture may be off. Within it, the row passes: a tie. Later layers differ in consequence. Collective.
  Ties find_ties(const CaseRun& exact) const {
    constexpr double kTie = 1e-6;  // of the largest value
    Ties ties;
    if (!model_config().switches.cache_quantisation) return ties;
    for (int64_t layer = 0; layer < model_config().text.num_hidden_layers && ties.rows.empty(); ++layer) {
      ties.layer = layer;
      for (const char* what : {"window_kv", "index_k", "compressed_kv"}) {
        const std::string name = fmt::format("layer.{}.{}", layer, what);
        const auto own = of_tokens(name), code = exact.of_tokens(name), value = exact.of_tokens(name + ".unquantised");
        if (!own || value->numel() == 0) continue;
        const at::Tensor mine = own->to(at::kDouble);
        at::Tensor differs = mine.ne(*code);
        if (value->equal(*code)) differs.zero_();  // the quantiser does not act
        const at::Tensor distance = (*value - (mine + *code) / 2).abs().masked_fill(differs.logical_not(), 0);
        const at::Tensor found = at::stack({differs.sum().to(at::kDouble), distance.max(), value->abs().max()});
        const at::Tensor worst = ranks_.group("world").all_reduce(found, "ties", dist::Reduction::kMax).wait();
        const auto count = static_cast<int64_t>(worst[0].item<double>());
        if (count == 0) continue;
        ties.count += count;
        const double scale = worst[2].item<double>(), furthest = worst[1].item<double>();
        ties.rows.push_back({"tie:" + name, fmt::format("{} of {}", count, mine.numel()), furthest, furthest / scale,
                             kTie * scale, furthest <= kTie * scale});
      }
    }
    return ties;
  }

 private:
  const ModelConfig& model_config() const { return run_.model->config; }
  int64_t documents() const { return batch_.cu_seqlens.defined() ? batch_.cu_seqlens.size(0) - 1 : 0; }

  void collect_gradients() {
    for (const engine::ParameterSpec& spec : run_.parameters->specs()) {
      const at::Tensor& own = run_.parameters->gradient(run_.parameters->find(spec.name));
      if (!own.defined()) continue;
      const at::Tensor gradient = gather_parameter(ranks_.group("world"), ranks_.layout, spec, own);
      for (const auto& [name, tensor] : released_tensors(spec, gradient)) gradients_[name] = tensor;
    }
    const auto& inputs = run_.executor->input_gradients();
    if (auto it = inputs.find(run_.model->inputs.patches.index); it != inputs.end()) {
      gradients_["patches"] = whole("grad.patches", "patches.sent", it->second * static_cast<double>(copies_));
    }
  }

  // The rows of all ranks; what every rank has, as it is.
  at::Tensor whole(const std::string& name, const std::string& rows, const at::Tensor& own) const {
    const auto held = held_.find(rows);
    if (held == held_.end()) return own;
    const at::Tensor all = gather_rows(ranks_.group(held->second.axis), own, held->second.rows, name);
    if (held->second.axis != "stage") return all;
    const int64_t count = all.size(0) / copies_;  // of one copy
    return all.narrow(0, ranks_.layout.coordinate("dp") * count, count);
  }

  // A value or an observed tensor of the whole case.
  std::optional<at::Tensor> made(const std::string& ours) const {
    const auto it = made_.find(ours);
    if (it == made_.end()) return std::nullopt;
    return whole(ours, it->second.first, it->second.second);
  }

  std::optional<at::Tensor> find_gradient(const std::string& name, at::IntArrayRef shape) const {
    auto it = gradients_.find(name);
    if (it == gradients_.end()) return std::nullopt;
    return it->second.numel() == c10::multiply_integers(shape) ? it->second.reshape(shape) : it->second;
  }

  // image.{j}.{patch_embed | block.b | features | unshuffled | aligned | span}
  std::optional<at::Tensor> find_image(const std::string& name) const {
    const auto of_image = numbered_name(name, "image.");
    if (!of_image || !batch_.grids.defined()) return std::nullopt;
    if (of_image->number >= batch_.grids.size(0))
      throw DataError("{}: the tensor {} is of an image that `grids` does not have; it has {}", file_, name,
                      batch_.grids.size(0));
    const int64_t image = of_image->number, down = model_config().vision->downsample_ratio;
    std::string what = of_image->rest;
    int64_t patches = 0, aligned = 0, span = 0, rows = 0, columns = 0, out_rows = 0, out_columns = 0;
    for (int64_t i = 0; i <= image; ++i) {
      patches += rows * columns, aligned += out_rows * out_columns, span += out_rows > 0 ? out_rows * (out_columns + 1) + 2 : 0;
      rows = batch_.grids[i][0].item<int64_t>(), columns = batch_.grids[i][1].item<int64_t>();
      out_rows = (rows + down - 1) / down, out_columns = (columns + down - 1) / down;
    }
    const auto cut = [&](const std::string& ours, int64_t first, int64_t count) -> std::optional<at::Tensor> {
      const auto tensor = made(ours);
      return tensor ? std::optional(tensor->narrow(0, first, count)) : std::nullopt;
    };
    if (what == "span") return cut("span_embeddings", span, out_rows * (out_columns + 1) + 2);
    if (what == "unshuffled" || what == "aligned") return cut("vision." + what, aligned, out_rows * out_columns);
    if (what.starts_with("block.")) what = "blocks." + what.substr(6);
    return cut("vision." + what, patches, rows * columns);
  }

  // A tensor with tokens (or groups) in front, under our own name.
  std::optional<at::Tensor> of_tokens(const std::string& name) const {
    if (name == "engram.hash_ids") return lookup_.rows;
    if (name == "engram.ngram_tokens") return lookup_.ngrams;
    std::string ours = name;
    if (name.starts_with("layer.")) ours = "layers" + name.substr(5);
    return made(ours);
  }

  // Its part of one document; group numbers become those of the document.
  std::optional<at::Tensor> of_document(int64_t document, const std::string& name) const {
    auto tensor = of_tokens(name);
    if (!tensor || !tensor->defined()) return std::nullopt;
    if (document >= documents())
      throw DataError("{}: the tensor doc{}.{} is of a document that the case does not have; it has {}", file_, document, name,
                      documents());
    const int64_t begin = batch_.cu_seqlens[document].item<int64_t>(), end = batch_.cu_seqlens[document + 1].item<int64_t>();
    const std::string what = name.substr(name.rfind('.') + 1);
    const bool by_group = what == "latent" || what == "compressed_kv" || what == "index_k";
    if (!by_group && what != "topk" && what != "index_scores") return tensor->slice(0, begin, end);
    const int64_t ratio = model_config().text.ratio(std::stoll(name.substr(6)));
    int64_t first = 0;
    for (int64_t d = 0; d < document; ++d) first += ((batch_.cu_seqlens[d + 1] - batch_.cu_seqlens[d]).item<int64_t>()) / ratio;
    const int64_t groups = (end - begin) / ratio;
    if (by_group) return tensor->narrow(0, first, groups);
    const at::Tensor rows = tensor->slice(0, begin, end);
    if (what == "index_scores") return rows.narrow(1, first, groups);
    return at::where(rows.ge(0), rows - first, rows);
  }

  // Choices: our width may differ from the fixture's; missing places are -1.
  static at::Tensor fit(at::Tensor tensor, at::IntArrayRef shape) {
    if (tensor.dim() != static_cast<int64_t>(shape.size()) || tensor.dim() == 0 || at::isFloatingType(tensor.scalar_type()))
      return tensor;
    const int64_t missing = shape.back() - tensor.size(-1);
    if (missing > 0) return at::constant_pad_nd(tensor, {0, missing}, -1);
    if (missing < 0 && tensor.slice(-1, shape.back()).eq(-1).all().item<bool>()) return tensor.slice(-1, 0, shape.back());
    return tensor;
  }

  const std::string file_;
  const TensorMap& tensors_;
  const Ranks& ranks_;
  CaseModel run_;
  ModelBatch batch_;
  models::deepseek_v41::EngramLookup lookup_;
  std::map<std::string, models::deepseek_v41::HeldRows> held_;      // by symbol of rows
  std::map<std::string, std::pair<std::string, at::Tensor>> made_;  // this rank's rows and their symbol
  TensorMap gradients_;                                             // whole
  int64_t scored_ = 1, copies_ = 1;
  double loss_ = 0;
};

VerifyRow compare(const std::string& name, const at::Tensor& theirs, const at::Tensor& ours, const NumberFile& errors,
                  bool float64) {
  VerifyRow row{name, fmt::format("[{}]", fmt::join(theirs.sizes().vec(), ", "))};
  if (ours.sizes() != theirs.sizes()) {
    row.shape += fmt::format(" ours [{}]", fmt::join(ours.sizes().vec(), ", "));
    row.absolute = row.relative = INFINITY;
    return row;
  }
  if (!at::isFloatingType(theirs.scalar_type())) {
    row.absolute = ours.to(at::kLong).ne(theirs.to(at::kLong)).sum().item<double>();
    row.relative = row.absolute / static_cast<double>(std::max<int64_t>(1, theirs.numel()));
    row.pass = row.absolute == 0;
    return row;
  }
  const at::Tensor expected = theirs.to(at::kDouble), difference = (ours.to(at::kDouble) - expected).abs();
  double scale = theirs.numel() > 0 ? expected.abs().max().item<double>() : 0.0, e = 0.0;
  row.absolute = theirs.numel() > 0 ? difference.max().item<double>() : 0.0;
  if (name.ends_with("_fp32_arith")) e = 1e-6 * scale;
  if (errors.has(name)) std::tie(e, scale) = errors.pair(name);
  row.relative = row.absolute / std::max(scale, 1e-300);
  if (float64) {
    row.limit = 2 * e + 1.2e-7 * scale;  // the file's value is e away, plus its rounding
  } else if (name == "loss" || name == "objective" || name == "loss_fp32_arith") {
    row.limit = 2e-6 * scale;
  } else {
    row.limit = std::max(10 * e, (name.find("grad") != std::string::npos ? 3e-5 : 1e-5) * scale);
  }
  row.pass = row.absolute <= row.limit;  // false for NaN
  return row;
}

VerifyRow limit_row(const std::string& name, const at::Tensor& theirs, double value, double scale, double limit) {
  return {name, fmt::format("[{}]", fmt::join(theirs.sizes().vec(), ", ")), value, value / scale, limit, value <= limit};
}

// BF16 rounding flips choices, so a BF16 case is held in aggregate by the limits of its notes.
std::vector<VerifyRow> compare_bf16(const TensorMap& tensors, const CaseRun& run, const NumberFile& limits) {
  const at::Tensor& logits = case_tensor(tensors, "logits");
  const double loss = case_tensor(tensors, "loss").item<double>(), scale = logits.abs().max().item<double>();
  const at::Tensor d = (run.find("logits", logits.sizes())->to(at::kDouble) - logits.to(at::kDouble)).abs().flatten();
  std::vector<VerifyRow> rows;
  rows.push_back(limit_row("loss", case_tensor(tensors, "loss"), std::abs(run.find("loss", {})->item<double>() - loss), loss,
                           limits.number("loss_abs")));
  rows.push_back(limit_row("logits (median)", logits, d.median().item<double>(), scale, limits.number("logit_median_abs")));
  if (limits.has("logit_fraction_within")) {
    const auto [fraction, within] = limits.pair("logit_fraction_within");
    if (fraction < 0 || fraction > 1) limits.refuse("logit_fraction_within", "a fraction from 0 to 1, and a number");
    rows.push_back(limit_row(fmt::format("logits ({:.0f} %)", 100 * fraction), logits, at::quantile(d, fraction).item<double>(),
                             scale, within));
  }
  if (limits.has("logit_max_abs")) {
    rows.push_back(limit_row("logits (largest)", logits, d.max().item<double>(), scale, limits.number("logit_max_abs")));
  }
  return rows;
}

}  // namespace

bool VerifyReport::pass() const {
  return std::all_of(rows.begin(), rows.end(), [](const VerifyRow& row) { return row.pass; });
}

const VerifyRow& VerifyReport::worst() const {
  return *std::max_element(rows.begin(), rows.end(), [](const VerifyRow& a, const VerifyRow& b) {
    if (a.pass != b.pass) return a.pass;
    const auto badness = [](const VerifyRow& row) { return row.limit > 0 ? row.absolute / row.limit : row.absolute; };
    return badness(a) < badness(b);
  });
}

namespace {

// Each rank has compared what it has; a row of the report becomes the worst of them.
void keep_worst(VerifyReport& report, dist::Group& world) {
  std::vector<double> found;
  for (const VerifyRow& row : report.rows) found.insert(found.end(), {row.absolute, row.relative});
  const at::Tensor worst = world.all_reduce(at::tensor(found, at::kDouble), "report", dist::Reduction::kMax).wait();
  for (size_t i = 0; i < report.rows.size(); ++i) {
    VerifyRow& row = report.rows[i];
    row.absolute = worst[static_cast<int64_t>(2 * i)].item<double>();
    row.relative = worst[static_cast<int64_t>(2 * i + 1)].item<double>();
    row.pass = row.absolute <= row.limit;  // false for NaN
  }
}

// Every tensor of the case.
void compare_all(const TensorMap& tensors, const CaseRun& run, const NumberFile& errors, bool is_bf16, bool float64,
                 VerifyReport& report) {
  static const std::string kArithmetic = "_fp32_arith";
  for (const auto& [name, theirs] : tensors) {
    if (kInputs.contains(name)) continue;
    std::string ours = name;
    if (is_bf16) {  // the FP32 numbers of a BF16 case have their own names
      if (!name.ends_with(kArithmetic)) continue;
      ours = name.substr(0, name.size() - kArithmetic.size());
    }
    if (const auto found = run.find(ours, theirs.sizes())) {
      report.rows.push_back(compare(name, theirs, *found, errors, float64));
    } else {
      report.not_compared.push_back(name);
    }
  }
}

}  // namespace

void check_case_layout(const std::filesystem::path& folder, const VerifyOptions& options, int64_t world_size) {
  if (const auto file = folder / "case.safetensors"; !std::filesystem::is_regular_file(file))
    throw CheckpointError("{}: is no file; a fixture folder has it", file.string());
  build_case_program(folder, case_program_options(options, layout_of(options.config, world_size)));
}

VerifyReport verify_case(const std::filesystem::path& folder, const VerifyOptions& options, dist::World* world) {
  const Ranks ranks = make_ranks(options.config, world);
  const TensorMap tensors = checkpoint::read_all(folder / "case.safetensors");
  const NumberFile errors(folder / "errors.json"), notes(folder / "notes.json");
  const bool is_bf16 = notes.has("limits");
  VerifyReport report;
  if (is_bf16 && !options.float64) {
    report.rows = compare_bf16(tensors, CaseRun(folder, tensors, at::kBFloat16, options, ranks), notes.part("limits"));
  }
  const CaseRun run(folder, tensors, options.float64 ? at::kDouble : at::kFloat, options, ranks);
  compare_all(tensors, run, errors, is_bf16, options.float64, report);
  if (report.rows.empty())
    throw CheckpointError("{}: the case holds no tensor to compare with", (folder / "case.safetensors").string());
  keep_worst(report, ranks.group("world"));
  if (report.pass() || options.float64 || is_bf16) return report;
  const CaseRun exact(folder, tensors, at::kDouble, options, ranks);
  const Ties ties = run.find_ties(exact);
  if (ties.rows.empty()) return report;
  VerifyReport in_double;
  compare_all(tensors, exact, errors, is_bf16, /*float64=*/true, in_double);
  keep_worst(in_double, ranks.group("world"));
  const bool are_proven = std::ranges::all_of(ties.rows, &VerifyRow::pass);
  for (size_t i = 0; i < report.rows.size(); ++i) {
    if (are_proven && !report.rows[i].pass && comes_after(report.rows[i].name, ties.layer)) report.rows[i] = in_double.rows[i];
  }
  report.rows.insert(report.rows.begin(), ties.rows.begin(), ties.rows.end());
  report.ties = ties.count;
  return report;
}

}  // namespace hyperparallel::train
