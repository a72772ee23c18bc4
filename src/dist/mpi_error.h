// Errors of MPI calls as exceptions. Internal to mpi_comm.
#pragma once

namespace hyperparallel::dist {

// Throws PeerError with MPI's own words unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* operation);

}  // namespace hyperparallel::dist
