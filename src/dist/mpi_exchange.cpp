#include "dist/mpi_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "dist/mpi_error.h"

namespace hyperparallel::dist {
namespace {

constexpr int64_t kBulkPiece = int64_t{4} << 20;  // bytes of one message of the bulk lane
constexpr int64_t kPiece = int64_t{1} << 30;      // MPI counts in int
constexpr int kGroupBits = 6, kKindBits = 2;      // HostMemory::kMostGroups

char* bytes_of(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.mutable_data_ptr());
}

bool test(MPI_Request& request) {
  int is_done = 0;
  check_mpi(MPI_Test(&request, &is_done, MPI_STATUS_IGNORE), "MPI_Test");
  return is_done != 0;
}

}  // namespace

MpiExchange::MpiExchange(Call call, const std::vector<int>& members, int rank, Lane lane, int group_index,
                         std::string description)
    : call_(std::move(call)),
      members_(members),
      rank_(rank),
      lane_(lane),
      group_index_(group_index),
      description_(std::move(description)) {
  const int size = static_cast<int>(members_.size());
  for (int member = 0; member < size; ++member) {
    if (member == rank_ || (call_.point_to_point() && member != call_.peer)) continue;
    peers_.emplace_back();
    peers_.back().member = member;
    peers_.back().world_rank = members_[member];
  }
  send_parts_.resize(size);
  receive_parts_.resize(size);
  in_pieces_ = call_.operation == Operation::kAllReduce && static_cast<int64_t>(call_.input.nbytes()) >= kLargeSum;
  in_pieces_ ? plan_pieces() : plan_parts();
}

// Rows go as they are declared.
void MpiExchange::plan_parts() {
  for (size_t member = 0; member < members_.size(); ++member) send_parts_[member] = part_for(call_, static_cast<int>(member));
  if (call_.reduces()) {
    for (size_t member = 0; member < members_.size(); ++member) {
      receive_parts_[member] = static_cast<int>(member) == rank_ ? send_parts_[member] : at::empty_like(send_parts_[rank_]);
    }
    return;
  }
  const bool is_send = call_.operation == Operation::kSend;
  result_ = is_send ? call_.input.view(call_.result_shape) : at::empty(call_.result_shape, call_.input.options());
  const at::Tensor rows = result_.dim() == 0 ? result_.view({1}) : result_;
  int64_t offset = 0;
  for (size_t member = 0; member < members_.size(); ++member) {
    receive_parts_[member] = rows.narrow(0, offset, call_.receive_rows[member]);
    offset += call_.receive_rows[member];
  }
  if (!call_.point_to_point() && receive_parts_[rank_].numel() > 0) receive_parts_[rank_].copy_(send_parts_[rank_]);
}

// First every rank sums one piece of the flat tensor.
void MpiExchange::plan_pieces() {
  const at::Tensor flat = call_.input.view(-1);
  const auto [mine, length] = piece(rank_);
  for (size_t member = 0; member < members_.size(); ++member) {
    const auto [begin, count] = piece(static_cast<int>(member));
    send_parts_[member] = flat.narrow(0, begin, count);
    receive_parts_[member] = static_cast<int>(member) == rank_ ? send_parts_[member] : at::empty({length}, call_.input.options());
  }
}

std::pair<int64_t, int64_t> MpiExchange::piece(int member) const {
  const int64_t total = call_.input.numel(), size = static_cast<int64_t>(members_.size());
  const int64_t begin = total * member / size;
  return {begin, total * (member + 1) / size - begin};
}

void MpiExchange::post(MPI_Comm communicator, int tag_bits) {
  communicator_ = communicator;
  int kind = 0;  // a group's collectives, and both directions between two ranks, number their calls independently
  if (call_.point_to_point()) kind = (call_.operation == Operation::kSend) == (rank_ < call_.peer) ? 1 : 2;
  const int64_t numbers = int64_t{1} << (tag_bits - kGroupBits - kKindBits);
  tag_ = static_cast<int>(((call_.sequence % numbers) << kKindBits | kind) << kGroupBits | group_index_);

  for (Peer& peer : peers_) {
    const at::Tensor& part = send_parts_[peer.member];
    const int64_t bytes = static_cast<int64_t>(part.nbytes());
    const bool is_inline = bytes <= kInlineBytes;
    peer.out.header = header_for(call_, peer.member);
    if (is_inline && bytes > 0) std::memcpy(peer.out.rows, part.const_data_ptr(), bytes);
    check_mpi(MPI_Irecv(&peer.in, sizeof(Message), MPI_BYTE, peer.world_rank, tag_, communicator_, &peer.header_in), "MPI_Irecv");
    const auto length = static_cast<int>(sizeof(CallHeader) + (is_inline ? bytes : 0));
    check_mpi(MPI_Isend(&peer.out, length, MPI_BYTE, peer.world_rank, tag_, communicator_, &peer.header_out), "MPI_Isend");
    if (!is_inline) begin_stream(peer.rows_out, part);
  }
}

bool MpiExchange::advance() {
  bool has_moved = false;
  bool is_stage_complete = true;
  for (Peer& peer : peers_) {
    if (peer.is_complete()) continue;
    has_moved |= advance_headers(peer);
    has_moved |= advance_stream(peer.rows_out, peer, /*is_send=*/true);
    has_moved |= advance_stream(peer.rows_in, peer, /*is_send=*/false);
    is_stage_complete &= peer.is_complete();
  }
  if (is_stage_complete) finish_stage();
  return has_moved || is_stage_complete;
}

bool MpiExchange::advance_headers(Peer& peer) {
  bool has_moved = false;
  if (peer.header_out != MPI_REQUEST_NULL) has_moved |= test(peer.header_out);
  if (!peer.has_header && test(peer.header_in)) {
    accept_header(peer);
    has_moved = true;
  }
  return has_moved;
}

void MpiExchange::accept_header(Peer& peer) {
  const std::string difference = mismatch(header_for(call_, peer.member), peer.in.header);
  if (!difference.empty()) {
    throw PeerError("{}: the calls do not fit ({}); rank {} called {}", description_, difference, peer.world_rank,
                    describe(peer.in.header));
  }
  peer.has_header = true;
  const at::Tensor& part = receive_parts_[peer.member];
  const int64_t bytes = static_cast<int64_t>(part.nbytes());
  if (bytes > kInlineBytes) {
    begin_stream(peer.rows_in, part);
  } else if (bytes > 0) {
    std::memcpy(bytes_of(part), peer.in.rows, bytes);
  }
}

void MpiExchange::begin_stream(Stream& stream, const at::Tensor& part) {
  stream = Stream{};
  stream.bytes = static_cast<int64_t>(part.nbytes());
  if (stream.bytes > 0) stream.data = static_cast<char*>(const_cast<void*>(part.const_data_ptr()));
}

bool MpiExchange::advance_stream(Stream& stream, const Peer& peer, bool is_send) {
  if (stream.is_complete()) return false;
  if (stream.request != MPI_REQUEST_NULL && !test(stream.request)) return false;
  if (stream.posted < stream.bytes) {
    const int count = static_cast<int>(std::min(stream.bytes - stream.posted, lane_ == Lane::kBulk ? kBulkPiece : kPiece));
    char* data = stream.data + stream.posted;
    check_mpi(is_send ? MPI_Isend(data, count, MPI_BYTE, peer.world_rank, tag_, communicator_, &stream.request)
                      : MPI_Irecv(data, count, MPI_BYTE, peer.world_rank, tag_, communicator_, &stream.request),
              is_send ? "MPI_Isend" : "MPI_Irecv");
    stream.posted += count;
  }
  return true;
}

void MpiExchange::finish_stage() {
  if (stage_ == Stage::kFirst && in_pieces_) {
    result_ = at::empty(call_.result_shape, call_.input.options());
    const at::Tensor flat = result_.view(-1);
    const auto [mine, length] = piece(rank_);
    const at::Tensor sums = flat.narrow(0, mine, length);
    sums.copy_(reduce_in_order(receive_parts_, call_.reduction));
    for (Peer& peer : peers_) {
      const auto [begin, count] = piece(peer.member);
      begin_stream(peer.rows_out, sums);
      begin_stream(peer.rows_in, flat.narrow(0, begin, count));
    }
    stage_ = Stage::kSums;
    return;
  }
  if (call_.reduces() && !in_pieces_) result_ = reduce_in_order(receive_parts_, call_.reduction).view(call_.result_shape);
  send_parts_.clear();
  receive_parts_.clear();
  call_.input.reset();
  stage_ = Stage::kComplete;
}

std::vector<int> MpiExchange::absent() const {
  std::vector<int> ranks;
  for (const Peer& peer : peers_) {
    if (!peer.has_header) ranks.push_back(peer.world_rank);
  }
  return ranks;
}

std::vector<int> MpiExchange::unfinished() const {
  std::vector<int> ranks;
  for (const Peer& peer : peers_) {
    if (peer.has_header && !peer.is_complete()) ranks.push_back(peer.world_rank);
  }
  return ranks;
}

std::vector<std::pair<int, CallHeader>> MpiExchange::heard() const {
  std::vector<std::pair<int, CallHeader>> calls;
  for (const Peer& peer : peers_) {
    if (peer.has_header) calls.emplace_back(peer.world_rank, peer.in.header);
  }
  return calls;
}

}  // namespace hyperparallel::dist
