# Finds libtorch and makes the target hp::torch. The CMake package ships this file, so a consumer chooses libtorch in the same way.
#
# HYPERPARALLEL_TORCH names a folder that holds include/ and lib/: the `torch` folder of a Python wheel (CPU or CUDA build)
# or an unpacked libtorch archive. Its default is the environment variable of that name, then the wheel in the project's .venv
# (in the package: the folder that HyperParallel was built with). The libraries are imported directly: libtorch's own CMake
# package asks for the CUDA toolkit whenever the wheel is a CUDA build, and we need only its CPU part.
include_guard(GLOBAL)
set(HYPERPARALLEL_TORCH "$ENV{HYPERPARALLEL_TORCH}" CACHE PATH "Folder of libtorch: a wheel's torch folder or an unpacked libtorch archive")
if(HYPERPARALLEL_TORCH)
  set(HP_TORCH_ROOT ${HYPERPARALLEL_TORCH})
elseif(NOT DEFINED HP_TORCH_ROOT)
  file(GLOB HP_TORCH_ROOT ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  list(LENGTH HP_TORCH_ROOT count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "libtorch not found: ${count} folders match ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch.\n"
                        "Run scripts/setup.sh, or pass -DHYPERPARALLEL_TORCH=DIR (a wheel's torch folder or a libtorch archive).")
  endif()
endif()
foreach(file include/ATen/ATen.h lib/libc10.so lib/libtorch_cpu.so)
  if(NOT EXISTS ${HP_TORCH_ROOT}/${file})
    message(FATAL_ERROR "HYPERPARALLEL_TORCH=${HP_TORCH_ROOT} is no libtorch: ${file} is missing there")
  endif()
endforeach()
message(STATUS "libtorch: ${HP_TORCH_ROOT}")

foreach(name c10 torch_cpu)
  add_library(hp::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(hp::${name} PROPERTIES IMPORTED_LOCATION ${HP_TORCH_ROOT}/lib/lib${name}.so IMPORTED_NO_SONAME FALSE)
endforeach()

add_library(hp::torch INTERFACE IMPORTED GLOBAL)
# libtorch ships fmt 12 headers, which break the system's spdlog: its folders come after the system's.
target_compile_options(hp::torch INTERFACE "SHELL:-idirafter ${HP_TORCH_ROOT}/include"
                       "SHELL:-idirafter ${HP_TORCH_ROOT}/include/torch/csrc/api/include" -fopenmp)
target_compile_definitions(hp::torch INTERFACE USE_C10D=0 AT_PARALLEL_OPENMP=1 AT_PER_OPERATOR_HEADERS)
# torch_cpu registers its operators when it is loaded, so it must stay linked even where no symbol of it is named.
target_link_libraries(hp::torch INTERFACE -Wl,--no-as-needed hp::torch_cpu -Wl,--as-needed hp::c10)
file(GLOB torch_gomp ${HP_TORCH_ROOT}/lib/libgomp*.so*)
if(torch_gomp)
  target_link_libraries(hp::torch INTERFACE ${torch_gomp})
else()
  target_link_libraries(hp::torch INTERFACE gomp)
endif()
target_link_options(hp::torch INTERFACE -Wl,-rpath,${HP_TORCH_ROOT}/lib)
