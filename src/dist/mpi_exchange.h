// One call under way over MPI: its messages to and from each peer. Internal to mpi_comm; the progress thread alone calls MPI.
//
// Between two ranks all messages of a call have one tag and come in this order: the header (what the sender called, with the rows
// themselves where they are few), then the rows in pieces. A large all_reduce is a reduce-scatter of equal pieces of the tensor,
// then a gather of their sums: the sums' pieces follow on the same tag.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "dist/call.h"
#include "dist/group.h"

namespace hyperparallel::dist {

class MpiExchange {
 public:
  // `group_index` tells groups apart in tags; `description` begins every message about this call.
  MpiExchange(Call call, const std::vector<int>& members, int rank, Lane lane, int group_index, std::string description);

  // Posts the first messages. `tag_bits`: how many bits a tag of this MPI has.
  void post(MPI_Comm communicator, int tag_bits);
  // Moves on what can be moved; true when anything did. Throws PeerError when a peer called something else.
  bool advance();
  bool is_complete() const { return stage_ == Stage::kComplete; }

  Lane lane() const { return lane_; }
  const std::string& description() const { return description_; }
  at::Tensor take_result() { return std::move(result_); }
  // World ranks whose header did not come, and those whose header came but not all rows.
  std::vector<int> absent() const;
  std::vector<int> unfinished() const;
  // What a peer said it called, by world rank; for those whose header came.
  std::vector<std::pair<int, CallHeader>> heard() const;

 private:
  static constexpr int64_t kInlineBytes = 1024;
  enum class Stage { kFirst, kSums, kComplete };

  struct Message {
    CallHeader header;
    char rows[kInlineBytes];
  };
  // Bytes that go or come in pieces, one after the other.
  struct Stream {
    char* data = nullptr;
    int64_t bytes = 0, posted = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    bool is_complete() const { return posted == bytes && request == MPI_REQUEST_NULL; }
  };
  struct Peer {
    int member, world_rank;
    Message out, in;
    MPI_Request header_out = MPI_REQUEST_NULL, header_in = MPI_REQUEST_NULL;
    bool has_header = false;
    Stream rows_out, rows_in;
    bool is_complete() const {
      return has_header && header_out == MPI_REQUEST_NULL && rows_out.is_complete() && rows_in.is_complete();
    }
  };

  void plan_parts();
  void plan_pieces();
  bool advance_headers(Peer& peer);
  bool advance_stream(Stream& stream, const Peer& peer, bool is_send);
  void accept_header(Peer& peer);
  void begin_stream(Stream& stream, const at::Tensor& part);
  void finish_stage();
  std::pair<int64_t, int64_t> piece(int member) const;  // begin and length, in elements

  Call call_;
  std::vector<int> members_;
  int rank_;
  Lane lane_;
  int group_index_;
  std::string description_;
  std::vector<at::Tensor> send_parts_, receive_parts_;  // by member, contiguous; undefined: nothing between the two
  bool in_pieces_ = false;                              // a large all_reduce
  at::Tensor result_;
  std::vector<Peer> peers_;
  Stage stage_ = Stage::kFirst;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int tag_ = 0;
};

}  // namespace hyperparallel::dist
