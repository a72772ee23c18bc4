// The file system without waiting for the disk, for tests that save often and never lose power.
#pragma once

#include "base/file.h"

namespace hyperparallel {

class UnsyncedSystem : public file::System {
 public:
  int fsync(int) override { return 0; }
};

}  // namespace hyperparallel
