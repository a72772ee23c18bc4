#include "train/verify.h"

#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "train/case_model.h"

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

// Everything one run of the case made, in our own layout, and its translation into the fixture's names and shapes.
class CaseRun {
 public:
  CaseRun(const std::filesystem::path& folder, const TensorMap& tensors, at::ScalarType compute, const VerifyOptions& options)
      : file_((folder / "case.safetensors").string()), tensors_(tensors) {
    models::deepseek_v41::ProgramOptions program;
    program.attention_chunk = options.attention_chunk;
    program.index_chunk_elements = options.index_chunk_elements;
    program.cross_entropy_chunk = options.cross_entropy_chunk;
    program.patch_gradient = true;
    run_ = load_case_model(folder, compute, program);
    batch_ = batch_of_case(tensors, "", config(), compute);
    run_.executor->watch([this](const std::string& name, const at::Tensor& tensor) { made_[name] = tensor; });
    engine::ValueMap inputs = prepare_inputs(*run_.model, batch_, compute);
    if (run_.model->inputs.cotangent.valid())
      inputs[run_.model->inputs.cotangent.index] = case_tensor(tensors, "cotangent").to(compute);
    scored_ = batch_.targets.defined() ? batch_.targets.ge(0).sum().item<int64_t>() : 1;
    engine::ScheduleOptions schedule;
    schedule.recompute = options.recompute;
    run_.executor->run(build_schedule(run_.model->program, schedule), {inputs}, {{1.0 / static_cast<double>(scored_)}});
    if (batch_.engram_rows.defined()) lookup_ = engram_lookup_of_case(tensors, config(), batch_);
    collect_gradients();
  }

  // Our counterpart of a tensor of the case, in its shape; nothing when the name is unknown. Throws DataError for a document or
  // an image that the case does not have.
  std::optional<at::Tensor> find(const std::string& name, at::IntArrayRef shape) const {
    if (name == "loss" || name == "objective")
      return at::scalar_tensor(run_.executor->losses()[0][0] / static_cast<double>(scored_), at::kDouble);
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

 private:
  const ModelConfig& config() const { return run_.model->config; }
  int64_t documents() const { return batch_.cu_seqlens.defined() ? batch_.cu_seqlens.size(0) - 1 : 0; }

  void collect_gradients() {
    for (const engine::ParameterSpec& spec : run_.parameters->specs()) {
      const at::Tensor& gradient = run_.parameters->gradient(run_.parameters->find(spec.name));
      if (!gradient.defined()) continue;
      for (const auto& [name, tensor] : released_tensors(spec, gradient)) gradients_[name] = tensor;
    }
    const auto& inputs = run_.executor->input_gradients();
    if (auto it = inputs.find(run_.model->inputs.patches.index); it != inputs.end()) gradients_["patches"] = it->second;
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
    const int64_t image = of_image->number, down = config().vision->downsample_ratio;
    std::string what = of_image->rest;
    int64_t patches = 0, aligned = 0, span = 0, rows = 0, columns = 0, out_rows = 0, out_columns = 0;
    for (int64_t i = 0; i <= image; ++i) {
      patches += rows * columns, aligned += out_rows * out_columns, span += out_rows > 0 ? out_rows * (out_columns + 1) + 2 : 0;
      rows = batch_.grids[i][0].item<int64_t>(), columns = batch_.grids[i][1].item<int64_t>();
      out_rows = (rows + down - 1) / down, out_columns = (columns + down - 1) / down;
    }
    const auto cut = [&](const std::string& ours, int64_t first, int64_t count) -> std::optional<at::Tensor> {
      auto it = made_.find(ours);
      return it == made_.end() ? std::nullopt : std::optional(it->second.narrow(0, first, count));
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
    auto it = made_.find(ours);
    return it == made_.end() ? std::nullopt : std::optional(it->second);
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
    const int64_t ratio = config().text.ratio(std::stoll(name.substr(6)));
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
  CaseModel run_;
  ModelBatch batch_;
  models::deepseek_v41::EngramLookup lookup_;
  TensorMap made_, gradients_;
  int64_t scored_ = 1;
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

VerifyReport verify_case(const std::filesystem::path& folder, const VerifyOptions& options) {
  const TensorMap tensors = checkpoint::read_all(folder / "case.safetensors");
  const NumberFile errors(folder / "errors.json"), notes(folder / "notes.json");
  const bool is_bf16 = notes.has("limits");
  VerifyReport report;
  if (is_bf16 && !options.float64) {
    report.rows = compare_bf16(tensors, CaseRun(folder, tensors, at::kBFloat16, options), notes.part("limits"));
  }
  const CaseRun run(folder, tensors, options.float64 ? at::kDouble : at::kFloat, options);
  static const std::string kArithmetic = "_fp32_arith";
  for (const auto& [name, theirs] : tensors) {
    if (kInputs.contains(name)) continue;
    std::string ours = name;
    if (is_bf16) {  // the FP32 numbers of a BF16 case have their own names
      if (!name.ends_with(kArithmetic)) continue;
      ours = name.substr(0, name.size() - kArithmetic.size());
    }
    const auto found = run.find(ours, theirs.sizes());
    if (!found) {
      report.not_compared.push_back(name);
      continue;
    }
    report.rows.push_back(compare(name, theirs, *found, errors, options.float64));
  }
  if (report.rows.empty())
    throw CheckpointError("{}: the case holds no tensor to compare with", (folder / "case.safetensors").string());
  return report;
}

}  // namespace hyperparallel::train
