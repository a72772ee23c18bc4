#include "dist/call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <numeric>

#include "base/error.h"

namespace hyperparallel::dist {
namespace {

const char* operation_name(Operation operation) {
  switch (operation) {
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kAllToAll:
      return "all_to_all";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kBarrier:
      return "barrier";
    case Operation::kSend:
      return "send";
    case Operation::kReceive:
      return "receive";
  }
  return "unknown operation";
}

bool operations_fit(Operation mine, Operation theirs) {
  if (mine == Operation::kSend) return theirs == Operation::kReceive;
  if (mine == Operation::kReceive) return theirs == Operation::kSend;
  return mine == theirs;
}

}  // namespace

at::Tensor part_for(const Call& call, int member) {
  const auto begin = call.send_rows.begin();
  const int64_t offset = call.same_rows_for_all ? 0 : std::accumulate(begin, begin + member, int64_t{0});
  return call.input.narrow(0, offset, call.send_rows[member]);
}

at::Tensor reduce_in_order(const std::vector<at::Tensor>& parts, Reduction reduction) {
  std::vector<const void*> data;
  for (const at::Tensor& part : parts) data.push_back(part.const_data_ptr());
  at::Tensor result = at::empty(parts[0].sizes(), parts[0].options());
  reduce_elements(result.mutable_data_ptr(), data, result.numel(), result.scalar_type(), reduction);
  return result;
}

at::Tensor combine(const Call& call, const std::vector<at::Tensor>& parts) {
  if (parts.size() == 1) return parts[0].view(call.result_shape);
  if (call.reduces()) return reduce_in_order(parts, call.reduction).view(call.result_shape);
  return at::cat(parts).view(call.result_shape);
}

CallHeader header_for(const Call& call, int member) {
  CallHeader header;
  std::memset(&header, 0, sizeof(header));  // the padding too: it is sent
  header.operation = call.operation;
  header.dtype = static_cast<int32_t>(call.input.scalar_type());
  header.reduction = call.reduction;
  header.peer = call.point_to_point() ? -1 : call.peer;
  header.sequence = call.sequence;
  header.rows_to_you = call.send_rows[member];
  header.rows_from_you = call.receive_rows[member];
  header.dims = static_cast<int32_t>(call.shape.size());
  std::copy(call.shape.begin(), call.shape.end(), header.shape);
  call.label.copy(header.label, sizeof(header.label) - 1);
  return header;
}

std::string mismatch(const CallHeader& mine, const CallHeader& theirs) {
  if (!operations_fit(mine.operation, theirs.operation)) return "operation";
  if (std::strcmp(mine.label, theirs.label) != 0) return "label";
  if (mine.sequence != theirs.sequence) return "sequence number";
  if (mine.dtype != theirs.dtype) return "data type";
  if (mine.reduction != theirs.reduction) return "reduction";
  if (mine.peer != theirs.peer) return fmt::format("root: {} and {}", mine.peer, theirs.peer);
  if (mine.dims != theirs.dims) return "number of dimensions";
  for (int i = 1; i < mine.dims; ++i) {
    if (mine.shape[i] != theirs.shape[i]) return fmt::format("size of dimension {}", i);
  }
  if (mine.rows_to_you != theirs.rows_from_you) {
    return fmt::format("rows: {} are sent, {} are expected", mine.rows_to_you, theirs.rows_from_you);
  }
  if (mine.rows_from_you != theirs.rows_to_you) {
    return fmt::format("rows: {} are expected, {} are sent", mine.rows_from_you, theirs.rows_to_you);
  }
  return "";
}

std::string describe(const CallHeader& header) {
  return fmt::format("{} \"{}\" #{}, {} [{}]", operation_name(header.operation), header.label, header.sequence,
                     at::toString(static_cast<at::ScalarType>(header.dtype)),
                     fmt::join(header.shape, header.shape + header.dims, ", "));
}

}  // namespace hyperparallel::dist
