#include "dist/mpi_error.h"

#include <mpi.h>

#include <string_view>

#include "base/error.h"

namespace hyperparallel::dist {

void check_mpi(int code, const char* operation) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw PeerError("{} failed: {}", operation, std::string_view(text, length));
}

}  // namespace hyperparallel::dist
