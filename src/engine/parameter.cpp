#include "engine/parameter.h"

#include "base/error.h"
#include "base/random.h"

namespace hyperparallel::engine {
namespace {

// The start values of a box of a parameter. All dimensions from `inner` on are whole, so the box is made of runs of consecutive
// elements of the parameter.
at::Tensor normal_values(const ParameterSpec& spec, const Box& box, uint64_t seed) {
  size_t inner = spec.shape.size();
  while (inner > 1 && box.size[inner - 1] == spec.shape[inner - 1]) --inner;
  int64_t run = 1, runs = 1, row = 1;  // row: elements of the parameter in one index of dimension inner - 1
  for (size_t d = inner - 1; d < spec.shape.size(); ++d) run *= box.size[d];
  for (size_t d = inner; d < spec.shape.size(); ++d) row *= spec.shape[d];
  for (size_t d = 0; d + 1 < inner; ++d) runs *= box.size[d];
  at::Tensor values = at::empty(box.size, at::kFloat);
  if (values.numel() == 0) return values;
  for (int64_t i = 0; i < runs; ++i) {
    int64_t rest = i, first = 0, stride = row * spec.shape[inner - 1];  // of dimension inner - 2
    for (size_t d = inner - 1; d-- > 0;) {
      first += (box.offset[d] + rest % box.size[d]) * stride;
      rest /= box.size[d];
      stride *= spec.shape[d];
    }
    first += box.offset[inner - 1] * row;
    fill_normal(values.mutable_data_ptr<float>() + i * run, run, seed, spec.name, first, spec.initialiser.std);
  }
  return values;
}

// Rows of the owned box of a table, by their number in the box.
RowTable::Start start_of_rows(const ParameterSpec& spec, const Box& owned, at::ScalarType type, uint64_t seed) {
  HP_CHECK(spec.initialiser.kind == Initialiser::Kind::kNormal, "{}: rows of a table begin at random", spec.name);
  return [name = spec.name, std = spec.initialiser.std, width = owned.size[1], begin = owned.offset[0], type, seed](
             int64_t first, int64_t count, void* values) {
    const int64_t elements = count * width, index = (begin + first) * width;
    if (type == at::kFloat) return fill_normal(static_cast<float*>(values), elements, seed, name, index, std);
    std::vector<float> single(static_cast<size_t>(elements));  // FP64 runs begin from the same values
    fill_normal(single.data(), elements, seed, name, index, std);
    std::copy(single.begin(), single.end(), static_cast<double*>(values));
  };
}

}  // namespace

at::Tensor narrow_to(at::Tensor whole, const Box& box) {
  for (size_t d = 0; d < box.size.size(); ++d) whole = whole.narrow(static_cast<int64_t>(d), box.offset[d], box.size[d]);
  return whole;
}

ParameterStore::ParameterStore(std::vector<ParameterSpec> specs, at::ScalarType master, at::ScalarType compute,
                               const Layout& layout, const std::filesystem::path& table_folder)
    : specs_(std::move(specs)),
      master_type_(master),
      compute_type_(compute),
      computes_(specs_.size()),
      slots_(specs_.size()),
      gradients_(specs_.size()),
      tables_(specs_.size()),
      row_parts_(specs_.size()) {
  masters_.reserve(specs_.size());
  for (size_t i = 0; i < specs_.size(); ++i) {
    const bool is_new = by_name_.emplace(specs_[i].name, ParameterId{static_cast<int32_t>(i)}).second;
    HP_CHECK(is_new, "two parameters are called {}", specs_[i].name);
    placements_.push_back(place(specs_[i], layout));
    const std::vector<int64_t>& owned = placements_[i].owned.size;
    if (specs_[i].use == ParameterUse::kTable) {
      tables_[i] = std::make_unique<RowTable>(owned.at(0), owned.at(1), master, table_folder);
      masters_.emplace_back();
    } else {
      masters_.push_back(at::zeros(owned, at::TensorOptions().dtype(master)));
    }
    trainable_.push_back(specs_[i].use != ParameterUse::kState && specs_[i].trainable);
  }
}

void ParameterStore::initialise(uint64_t seed) {
  for (size_t i = 0; i < specs_.size(); ++i) {
    const ParameterSpec& spec = specs_[i];
    const Initialiser& rule = spec.initialiser;
    if (tables_[i]) {
      tables_[i]->begin_as(start_of_rows(spec, placements_[i].owned, master_type_, seed));
      continue;
    }
    at::Tensor& master = masters_[i];
    if (rule.kind == Initialiser::Kind::kConstant) {
      master.fill_(rule.constant);
    } else if (rule.kind == Initialiser::Kind::kValues) {
      HP_CHECK(static_cast<int64_t>(rule.values.size()) == volume(spec.shape), "{}: {} start values for {} elements", spec.name,
               rule.values.size(), volume(spec.shape));
      master.copy_(narrow_to(at::tensor(rule.values, at::kDouble).view(spec.shape), placements_[i].owned));
    } else {
      master.copy_(normal_values(spec, placements_[i].owned, seed));
    }
  }
  masters_changed();
}

at::Tensor& ParameterStore::master(ParameterId id) {
  if (tables_[id.index]) masters_[id.index] = table(id).whole();
  return masters_[id.index];
}

void ParameterStore::for_pieces(ParameterId id, const std::function<void(int64_t, const at::Tensor&)>& body) const {
  if (is_table(id)) return table(id).for_pieces(body);
  body(0, masters_[id.index]);
}

void ParameterStore::set_master(ParameterId id, const std::function<at::Tensor(int64_t, int64_t)>& values) {
  if (is_table(id)) return table(id).fill(values);
  const std::vector<int64_t>& size = placement(id).owned.size;
  masters_[id.index].copy_(values(0, size.empty() ? 0 : size[0]));
}

ParameterId ParameterStore::find(const std::string& name) const {
  auto it = by_name_.find(name);
  HP_CHECK(it != by_name_.end(), "no parameter is called {}", name);
  return it->second;
}

at::ScalarType ParameterStore::compute_type_of(ParameterId id) const {
  return spec(id).keep_master_type ? master_type_ : compute_type_;
}

void ParameterStore::masters_changed() {
  for (at::Tensor& copy : computes_) copy = at::Tensor();
}

at::Tensor ParameterStore::owned_copy(ParameterId id) const {
  return master(id).to(compute_type_of(id));
}

void ParameterStore::set_compute(ParameterId id, at::Tensor part) {
  HP_CHECK(part.sizes() == at::IntArrayRef(placement(id).part.size), "the compute copy of {} is [{}]", spec(id).name,
           fmt::join(part.sizes().vec(), ", "));
  computes_[id.index] = std::move(part);
}

void ParameterStore::gather(ParameterId id) {
  HP_CHECK(placement(id).owned == placement(id).part, "{} lies on several ranks", spec(id).name);
  if (!computes_[id.index].defined()) computes_[id.index] = owned_copy(id);
}

void ParameterStore::release(ParameterId id) {
  computes_[id.index] = at::Tensor();
}

const at::Tensor& ParameterStore::compute(ParameterId id) const {
  const at::Tensor& copy = computes_[id.index];
  HP_CHECK(copy.defined(), "{} is used while its unit is not gathered", spec(id).name);
  return copy;
}

at::Tensor& ParameterStore::slot(ParameterId id) {
  at::Tensor& slot = slots_[id.index];
  if (!slot.defined()) slot = at::zeros(placement(id).part.size, at::TensorOptions().dtype(master_type_));
  return slot;
}

ParameterStore::Slot ParameterStore::open_slot(ParameterId id) {
  at::Tensor& slot = slots_[id.index];
  const bool is_unset = !slot.defined();
  if (is_unset) slot = at::empty(placement(id).part.size, at::TensorOptions().dtype(master_type_));
  return {slot, is_unset};
}

void ParameterStore::add_to_slot(ParameterId id, const at::Tensor& gradient) {
  const auto [slot, is_unset] = open_slot(id);
  is_unset ? slot.copy_(gradient) : slot.add_(gradient);
}

void ParameterStore::move_to_slot(ParameterId id, at::Tensor gradient) {
  if (slots_[id.index].defined()) return add_to_slot(id, gradient);
  slots_[id.index] = std::move(gradient);
}

at::Tensor ParameterStore::take_slot(ParameterId id) {
  at::Tensor taken = slot(id);
  slots_[id.index] = at::Tensor();
  return taken;
}

void ParameterStore::add_gradient(ParameterId id, at::Tensor gradient) {
  HP_CHECK(gradient.sizes() == master(id).sizes(), "the gradient of {} is [{}]", spec(id).name,
           fmt::join(gradient.sizes().vec(), ", "));
  at::Tensor& sum = gradients_[id.index];
  if (sum.defined()) {
    sum.add_(gradient);
  } else {
    sum = std::move(gradient);
  }
}

at::Tensor& ParameterStore::gradient(ParameterId id) {
  at::Tensor& sum = gradients_[id.index];
  if (is_table(id) && trainable(id)) {
    const RowGradients& own = row_gradients(id);
    sum = at::zeros(placement(id).owned.size, at::TensorOptions().dtype(master_type_)).index_copy_(0, own.rows, own.values);
  }
  return sum;
}

void ParameterStore::add_row_gradients(ParameterId id, const at::Tensor& ids, const at::Tensor& values) {
  constexpr int64_t kFewRows = 8192;
  RowParts& parts = row_parts_[id.index];
  parts.rows.push_back(ids.detach());
  parts.values.push_back(values.detach().to(master_type_));
  parts.waiting += ids.numel();
  // However many micro-batches a step has, no more is kept than twice the rows that differ.
  const int64_t merged = parts.merged.rows.defined() ? parts.merged.rows.numel() : 0;
  if (parts.waiting > merged + kFewRows) row_gradients(id);
}

const RowGradients& ParameterStore::row_gradients(ParameterId id) {
  RowParts& parts = row_parts_[id.index];
  if (parts.merged.rows.defined() && parts.waiting == 0) return parts.merged;
  if (parts.rows.empty()) {
    parts.rows = {at::empty({0}, at::kLong)};
    parts.values = {at::empty({0, table(id).width()}, at::TensorOptions().dtype(master_type_))};
  }
  parts.merged = merge_rows(at::cat(parts.rows), at::cat(parts.values));  // in the order they came
  parts.rows = {parts.merged.rows};
  parts.values = {parts.merged.values};
  parts.waiting = 0;
  return parts.merged;
}

void ParameterStore::clear_gradients() {
  for (RowParts& parts : row_parts_) parts = {};
  for (at::Tensor& slot : slots_) slot = at::Tensor();
  for (at::Tensor& gradient : gradients_) gradient = at::Tensor();
}

std::vector<at::Tensor> ParameterStore::gradients_and_copies() const {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (slots_[i].defined()) tensors.push_back(slots_[i]);
    if (gradients_[i].defined()) tensors.push_back(gradients_[i]);
    for (const at::Tensor& values : row_parts_[i].values) tensors.push_back(values);
    if (computes_[i].defined() && !computes_[i].is_alias_of(masters_[i])) tensors.push_back(computes_[i]);
  }
  return tensors;
}

}  // namespace hyperparallel::engine
