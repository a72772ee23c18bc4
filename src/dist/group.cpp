#include "dist/group.h"

#include "base/error.h"

namespace hyperparallel::dist {
namespace {

class SelfGroup final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  Pending all_gather(const at::Tensor& local, const std::vector<int64_t>& rows, const std::string& label) override {
    return same(local, rows, label);
  }
  Pending reduce_scatter(const at::Tensor& full, const std::vector<int64_t>& rows, const std::string& label) override {
    return same(full, rows, label);
  }
  Pending all_reduce(const at::Tensor& local, const std::string&) override {
    return Pending([local] { return local; });
  }
  Pending all_to_all(const at::Tensor& rows, const std::vector<int64_t>& send_rows, const std::vector<int64_t>& receive_rows,
                     const std::string& label) override {
    HP_CHECK(send_rows == receive_rows, "{}: a group of one sends what it receives", label);
    return same(rows, send_rows, label);
  }

 private:
  static Pending same(const at::Tensor& tensor, const std::vector<int64_t>& rows, const std::string& label) {
    HP_CHECK(rows.size() == 1 && rows[0] == tensor.size(0), "{}: the row counts do not describe a tensor of {} rows", label,
             tensor.size(0));
    return Pending([tensor] { return tensor; });
  }
};

}  // namespace

std::shared_ptr<Group> self_group() {
  return std::make_shared<SelfGroup>();
}

}  // namespace hyperparallel::dist
