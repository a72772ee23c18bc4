// MicroBatch: what the data pipeline hands to the trainer for one forward and backward. Plain vectors, no tensors.
//
// Tokens lie row by row, flattened [rows * seq_len]. Every index below counts in that order. The receiver owns everything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hyperparallel::data {

inline constexpr int64_t kIgnoreLabel = -100;  // no target at this position

// One picture, cut into patches and normalised.
struct ImagePatches {
  int64_t rows = 0, columns = 0;  // patch grid
  std::vector<float> patches;     // [rows * columns, 3 * patch * patch], row-major; each patch is channel, row, column
  int64_t start = 0;              // index of the image's START token in the micro-batch
};

// Where a sample came from, for logs and error reports.
struct SampleId {
  std::string file;
  int64_t line = 0;  // 1-based

  bool operator==(const SampleId&) const = default;
};

// What other ranks need to know of a micro-batch to share its pictures.
struct BatchOutline {
  struct Picture {
    int64_t rows = 0, columns = 0;  // patch grid
    int64_t start = 0;              // index of its START token in the micro-batch

    bool operator==(const Picture&) const = default;
  };
  int64_t tokens = 0;             // padding included
  std::vector<Picture> pictures;  // by rising `start`

  bool operator==(const BatchOutline&) const = default;
};

struct MicroBatch {
  int64_t rows = 0, seq_len = 0;
  std::vector<int64_t> input_ids;     // [rows * seq_len]; image spans hold the image token id, padding the pad id
  std::vector<int64_t> labels;        // [rows * seq_len]; the target of the position itself (already shifted), or kIgnoreLabel
  std::vector<int64_t> position_ids;  // [rows * seq_len]; restart at 0 in each document
  std::vector<int32_t> token_types;   // [rows * seq_len]; SpanType of data/image.h: -1 text, 0..3 the parts of an image span
  std::vector<int64_t> cu_seqlens;    // [documents + 1]; document borders from 0 to rows * seq_len, none crosses a row
  std::vector<uint8_t>
      padding;  // [rows * seq_len]; 1 where the position is no sample's; a row's padding is a document of its own
  std::vector<ImagePatches> images;    // by rising `start`
  std::vector<SampleId> samples;       // in token order, padding left out
  std::vector<BatchOutline> outlines;  // of the batches that all data-parallel ranks have at the same time, by rank
  int64_t supervised_tokens = 0;       // labels that are not kIgnoreLabel
};

}  // namespace hyperparallel::data
