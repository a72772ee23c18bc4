# Finds libtorch and makes the target hp::torch.
#
# HYPERPARALLEL_TORCH names a folder that holds include/ and lib/: the `torch` folder of a Python wheel (CPU or CUDA build)
# or an unpacked libtorch archive. Its default is the environment variable of that
# name; where that is unset too, the wheel in the project's .venv is taken. The libraries are imported directly:
# libtorch's own CMake package asks for the CUDA toolkit whenever the wheel is a CUDA build, and we need only its CPU part.
set(HYPERPARALLEL_TORCH "$ENV{HYPERPARALLEL_TORCH}" CACHE PATH "Folder of libtorch: a wheel's torch folder or an unpacked libtorch archive")
if(HYPERPARALLEL_TORCH)
  set(torch_root ${HYPERPARALLEL_TORCH})
else()
  file(GLOB torch_root ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  list(LENGTH torch_root count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "libtorch not found: ${count} folders match ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch.\n"
                        "Run scripts/setup.sh, or pass -DHYPERPARALLEL_TORCH=DIR (a wheel's torch folder or a libtorch archive).")
  endif()
endif()
foreach(file include/ATen/ATen.h lib/libc10.so lib/libtorch_cpu.so)
  if(NOT EXISTS ${torch_root}/${file})
    message(FATAL_ERROR "HYPERPARALLEL_TORCH=${torch_root} is no libtorch: ${file} is missing there")
  endif()
endforeach()
message(STATUS "libtorch: ${torch_root}")

foreach(name c10 torch_cpu)
  add_library(hp_${name} SHARED IMPORTED)
  set_target_properties(hp_${name} PROPERTIES IMPORTED_LOCATION ${torch_root}/lib/lib${name}.so IMPORTED_NO_SONAME FALSE)
endforeach()

add_library(hp_torch INTERFACE)
add_library(hp::torch ALIAS hp_torch)
# libtorch ships fmt 12 headers, which break the system's spdlog: its folders come after the system's.
target_compile_options(hp_torch INTERFACE "SHELL:-idirafter ${torch_root}/include" "SHELL:-idirafter ${torch_root}/include/torch/csrc/api/include" -fopenmp)
target_compile_definitions(hp_torch INTERFACE USE_C10D=0 AT_PARALLEL_OPENMP=1)
# torch_cpu registers its operators when it is loaded, so it must stay linked even where no symbol of it is named.
target_link_libraries(hp_torch INTERFACE -Wl,--no-as-needed hp_torch_cpu -Wl,--as-needed hp_c10)
file(GLOB torch_gomp ${torch_root}/lib/libgomp*.so*)
if(torch_gomp)
  target_link_libraries(hp_torch INTERFACE ${torch_gomp})
else()
  target_link_libraries(hp_torch INTERFACE gomp)
endif()
target_link_options(hp_torch INTERFACE -Wl,-rpath,${torch_root}/lib)

# One precompiled header for everything that sees tensors.
add_library(hp_torch_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/torch_pch.cpp)
target_link_libraries(hp_torch_pch PRIVATE hp::torch)
target_precompile_headers(hp_torch_pch PRIVATE
  <ATen/ATen.h> <ATen/Parallel.h> <torch/csrc/autograd/custom_function.h> <torch/csrc/autograd/autograd.h>
  <algorithm> <functional> <map> <memory> <optional> <span> <string> <unordered_map> <vector>)
