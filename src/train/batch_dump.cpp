#include "train/batch_dump.h"

#include "base/aten.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/safetensors.h"

namespace hyperparallel::train {
namespace {

std::vector<int64_t> document_ids(const data::MicroBatch& batch) {
  std::vector<int64_t> ids(batch.input_ids.size(), -1);
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    for (int64_t t = batch.cu_seqlens[document]; t < batch.cu_seqlens[document + 1]; ++t) {
      if (batch.padding[t] == 0) ids[t] = static_cast<int64_t>(document);
    }
  }
  return ids;
}

std::vector<checkpoint::NamedTensor> tensors_of(const data::MicroBatch& batch) {
  const auto rows = [&](const std::vector<int64_t>& values) { return at::tensor(values, at::kLong).view({batch.rows, -1}); };
  std::vector<checkpoint::NamedTensor> tensors = {
      {"input_ids", rows(batch.input_ids)},
      {"labels", rows(batch.labels)},
      {"position_ids", rows(batch.position_ids)},
      {"document_ids", rows(document_ids(batch))},
      {"token_types", at::tensor(batch.token_types, at::kInt).view({batch.rows, -1})},
  };
  std::vector<int64_t> starts;
  for (const data::ImagePatches& image : batch.images) {
    tensors.emplace_back(fmt::format("image.{}", starts.size()),
                         at::tensor(image.patches, at::kFloat).view({image.rows, image.columns, -1}));
    starts.push_back(image.start);
  }
  tensors.emplace_back("image_starts", at::tensor(starts, at::kLong));
  return tensors;
}

}  // namespace

void BatchDump::on_batches(Trainer&, int64_t step, const std::vector<data::MicroBatch>& batches) {
  for (size_t i = 0; i < batches.size() && left_ > 0; ++i, --left_) {
    nlohmann::json samples = nlohmann::json::array();
    for (const data::SampleId& id : batches[i].samples) samples.push_back(data::to_string(id));
    file::create_folders(folder_);
    const auto path = folder_ / fmt::format("step-{:08}-batch-{}.safetensors", step, i);
    checkpoint::write_safetensors(path, tensors_of(batches[i]), {{"format", "pt"}, {"samples", samples.dump()}});
    log::info("wrote {}: {} samples", path.string(), batches[i].samples.size());
  }
}

}  // namespace hyperparallel::train
