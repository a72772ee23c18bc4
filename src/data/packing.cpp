#include "data/packing.h"

#include <numeric>

namespace hyperparallel::data {
namespace {

// Appends tokens to a micro-batch, document by document.
class BatchWriter {
 public:
  BatchWriter(MicroBatch& batch, int64_t pad_id, int64_t patch_size) : batch_(batch), pad_id_(pad_id), patch_size_(patch_size) {
    batch_.cu_seqlens.push_back(0);
  }

  void sample(const Sample& sample) {
    const auto start = static_cast<int64_t>(batch_.input_ids.size());
    append(batch_.input_ids, sample.input_ids);
    append(batch_.labels, sample.labels);
    append(batch_.token_types, sample.token_types);
    batch_.padding.insert(batch_.padding.end(), sample.input_ids.size(), 0);
    for (const SampleImage& image : sample.images) {
      batch_.images.push_back({.rows = image.plan.patch_rows,
                               .columns = image.plan.patch_columns,
                               .patches = image_patches(image.canvas, patch_size_),
                               .start = start + image.start});
    }
    batch_.samples.push_back(sample.id);
    batch_.supervised_tokens += sample.supervised_tokens;
    close_document();
  }

  // Pads up to `end` tokens in all.
  void pad(int64_t end) {
    const int64_t count = end - static_cast<int64_t>(batch_.input_ids.size());
    HP_CHECK(count >= 0, "a row is longer than the micro-batch is wide");
    if (count == 0) return;
    batch_.input_ids.insert(batch_.input_ids.end(), count, pad_id_);
    batch_.labels.insert(batch_.labels.end(), count, kIgnoreLabel);
    batch_.token_types.insert(batch_.token_types.end(), count, kSpanText);
    batch_.padding.insert(batch_.padding.end(), count, 1);
    close_document();
  }

 private:
  template <class T>
  static void append(std::vector<T>& to, const std::vector<T>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }
  void close_document() {
    const auto end = static_cast<int64_t>(batch_.input_ids.size());
    batch_.position_ids.resize(end);
    std::iota(batch_.position_ids.begin() + batch_.cu_seqlens.back(), batch_.position_ids.end(), 0);
    batch_.cu_seqlens.push_back(end);
  }

  MicroBatch& batch_;
  int64_t pad_id_, patch_size_;
};

}  // namespace

MicroBatch make_micro_batch(const std::vector<std::vector<const Sample*>>& rows, int64_t seq_len, int64_t pad_id,
                            int64_t patch_size) {
  MicroBatch batch;
  batch.rows = static_cast<int64_t>(rows.size());
  batch.seq_len = seq_len;
  BatchWriter writer(batch, pad_id, patch_size);
  int64_t end = 0;
  for (const auto& row : rows) {
    for (const Sample* sample : row) writer.sample(*sample);
    writer.pad(end += seq_len);
  }
  return batch;
}

BatchOutline outline_of(const std::vector<std::vector<const Sample*>>& rows, int64_t seq_len) {
  BatchOutline outline;
  for (const auto& row : rows) {
    int64_t start = outline.tokens;
    for (const Sample* sample : row) {
      for (const SampleImage& image : sample->images)
        outline.pictures.push_back({image.plan.patch_rows, image.plan.patch_columns, start + image.start});
      start += sample->tokens();
    }
    outline.tokens += seq_len;
  }
  return outline;
}

}  // namespace hyperparallel::data
