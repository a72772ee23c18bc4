#include "train/table_prefetch.h"

#include "base/trace.h"

namespace hyperparallel::train {

TablePrefetch::TablePrefetch(const RunModel& model, const std::vector<optim::StateTensor>& state, dist::Group& stage)
    : model_(model), stage_(stage) {
  const engine::ParameterStore& store = *model.parameters;
  for (const engine::ParameterSpec& spec : store.specs()) {
    const engine::ParameterId id = store.find(spec.name);
    if (store.is_table(id)) tables_[id.index].push_back(&store.table(id));
  }
  for (const optim::StateTensor& tensor : state) {
    if (tensor.table != nullptr) tables_.at(store.find(tensor.parameter).index).push_back(tensor.table);
  }
}

void TablePrefetch::begin(const std::vector<engine::ValueMap>& inputs) {
  std::vector<std::pair<const std::vector<const engine::RowTable*>*, at::Tensor>> wanted;  // in the order of use
  for (const engine::ValueMap& batch : inputs) {
    for (const models::TableRequest& request : model_.model->table_requests(batch)) {
      const at::Tensor counts = request.send_rows.contiguous();
      const int64_t* count = counts.const_data_ptr<int64_t>();
      const std::vector<int64_t> send(count, count + counts.numel()), receive = stage_.exchange_counts(send, "prefetch.counts");
      const at::Tensor asked = stage_.all_to_all(request.rows, send, receive, "prefetch.rows").wait();
      const int64_t first = model_.parameters->placement(request.table).owned.offset[0];
      wanted.emplace_back(&tables_.at(request.table.index), asked - first);
    }
  }
  reader_ = std::jthread([wanted = std::move(wanted)] {  // the one before has ended, or is waited for
    trace::set_thread_name("prefetch");
    for (const auto& [tables, rows] : wanted) {
      const at::Tensor sorted = std::get<0>(at::_unique(rows));
      for (const engine::RowTable* table : *tables) table->will_need(sorted);
    }
  });
}

}  // namespace hyperparallel::train
