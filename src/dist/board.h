// What every rank called last, for messages about ranks that are missing. Internal to mpi_comm.
//
// The ranks of a host write their own entries into memory that they share, so even one that is frozen or dead can be read. Of
// ranks elsewhere each rank notes what their messages say.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "dist/call.h"

namespace hyperparallel::dist {

// The last call of one rank. Written by one thread at a time, read by any process; zero is an entry without a call.
class LastCall {
 public:
  struct Record {
    char group[64];  // ends with 0; longer names are cut
    CallHeader header;
  };
  void write(const std::string& group, const CallHeader& header);
  // False where there was no call, or the writer was stopped while it wrote.
  bool read(Record& record) const;

 private:
  static constexpr size_t kWords = (sizeof(Record) + 7) / 8;
  // NOTE [Last call]: `version_` is odd while the words are written. Who reads the same even version before and after the words
  // has read one call; the words are atomic only so that reading them meanwhile is defined.
  std::atomic<uint64_t> version_{0};
  std::array<std::atomic<uint64_t>, kWords> words_{};
};

class Board {
 public:
  // `shared`, by world rank: where the ranks of this host write; nullptr for all others.
  Board(int rank, std::vector<LastCall*> shared);
  // This rank calls.
  void post(const std::string& group, const CallHeader& header);
  // What a message of another rank says.
  void hear(int rank, const std::string& group, const CallHeader& header);
  // Whether the last call of a rank of this host is a collective of this group with this number or a later one.
  bool has_called(int rank, const std::string& group, int64_t sequence) const;
  // For example: ; its last call is barrier "start" #1, Byte [0] in group "tp"
  std::string last_call_text(int rank) const;

 private:
  int rank_;
  std::vector<LastCall*> shared_;
  std::vector<LastCall> own_;  // of ranks that share nothing with this one
  std::mutex mutex_;
};

}  // namespace hyperparallel::dist
