// Loader: micro-batches from JSONL files, in an order that depends on seed and files alone and that resumes exactly.
//
// Samples are read, tokenized and decoded ahead of time by worker threads; the order of batches does not depend on their number.
// Rows are numbered over the whole run: batch t of rank r holds rows (t * world + r) * rows + 0 .. rows - 1, so that the
// stream of rows is the same for every world.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/sample.h"

namespace hyperparallel::data {

struct DataFile {
  std::string path;
  double weight = 0;  // share of the samples relative to the other files; 0: the file's number of samples
};

struct LoaderOptions {
  std::vector<DataFile> files;
  SampleOptions sample;    // its max_tokens is set to seq_len
  int64_t seq_len = 0;     // tokens of a row
  int64_t rows = 1;        // of a micro-batch
  bool packing = true;     // rows of seq_len tokens; false: one sample a row, as wide as the batch's longest sample
  int64_t open_rows = 16;  // rows that first fit keeps open
  bool shuffle = true;
  bool repeat = true;  // false: every sample once, file after file, then the end
  uint64_t seed = 0;
  int64_t workers = 1;           // threads that read and encode; 0: next() does it all itself
  int64_t prefetch_batches = 2;  // finished batches kept ahead
  int64_t rank = 0, world = 1;   // data-parallel position
};

// Totals over all ranks up to the last batch delivered, except the two of tokens, which count this rank's batches.
struct LoaderCounters {
  int64_t samples = 0;            // used
  int64_t samples_dropped = 0;    // too long
  int64_t samples_truncated = 0;  // cut to the length of a row
  int64_t bad_lines = 0;
  int64_t bad_images = 0;
  int64_t tokens_truncated = 0;
  int64_t tokens = 0;             // delivered, padding left out
  int64_t tokens_supervised = 0;  // of these
  int64_t tokens_padding = 0;     // delivered beside them

  bool operator==(const LoaderCounters&) const = default;
};

class Loader {
 public:
  // Indexes the files. `tokenizer` must outlive the loader. Throws DataError for files that cannot be read or are empty.
  Loader(const Tokenizer& tokenizer, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next micro-batch; nothing at the end of the data (never with `repeat`). With several ranks the last batch of a rank may
  // have fewer rows, or one of nothing but padding, so that all ranks see the same number of batches.
  // Throws DataError for a bad line, picture or length where the policy says error, when its turn comes, and where a whole pass
  // through the data gave no usable sample.
  std::optional<MicroBatch> next();

  // Rows hold `tokens` from the next batch on, not fewer than before. Rows that are begun are filled up.
  void set_seq_len(int64_t tokens);

  // Position after the last batch that next() returned, the same on all ranks. It restores on any rank, world, number of rows
  // and number of workers.
  nlohmann::json state() const;
  // Continues from `state`. Throws DataError, naming the file, where a data file is not the one of the state (number of bytes or
  // hash), or where seed, seq_len, packing, open_rows, shuffle, repeat or weights differ, which would change the order.
  void restore(const nlohmann::json& state);

  // Back to the first sample, counters at zero, without indexing the files again. Nothing is read ahead until the next next().
  void rewind();

  const LoaderCounters& counters() const;
  double epoch() const;     // samples taken / samples of all files
  int64_t samples() const;  // of all files

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hyperparallel::data
