# Precompiled headers that targets share: hp_torch_pch of everything that sees tensors, and those of the tests with and without tensors.
function(hp_pch name)
  cmake_parse_arguments(arg "" "" "LINK;OPTIONS;HEADERS" ${ARGN})
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch.cpp)
  target_link_libraries(${name} PRIVATE ${arg_LINK})
  target_compile_options(${name} PRIVATE ${arg_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${arg_HEADERS})
endfunction()
option(HYPERPARALLEL_UNITY "Compile sources in batches: much faster from cold, slower after a change of one file" ON)
set(hp_std_headers <algorithm> <functional> <map> <memory> <optional> <span> <string> <unordered_map> <vector>)
set(hp_torch_headers ${PROJECT_SOURCE_DIR}/src/base/aten.h <ATen/Parallel.h>)
hp_pch(hp_torch_pch LINK hp::torch HEADERS ${hp_torch_headers} ${hp_std_headers})

# Tests and commands are built with little optimisation: what takes time at run time is in the libraries. -O1 sees too little for
# -Wmaybe-uninitialized, which then raises false alarms.
set(hp_light_options $<$<CONFIG:Release>:-O1> -Wno-maybe-uninitialized)

# Sources in batches, HYPERPARALLEL_UNITY: their headers are read once a batch.
function(hp_batches target size)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${HYPERPARALLEL_UNITY} UNITY_BUILD_BATCH_SIZE ${size})
endfunction()

# hp_module(FOLDER [TORCH] [LINK targets...]): the library hp_<folder> of all sources under src/FOLDER.
# With TORCH it sees libtorch and uses the shared precompiled header. A folder without sources yet becomes an empty interface.
function(hp_module folder)
  cmake_parse_arguments(arg "TORCH" "" "LINK" ${ARGN})
  string(REPLACE "/" "_" name hp_${folder})
  set_property(GLOBAL APPEND PROPERTY HP_MODULES ${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.cpp)
  if(NOT sources)
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${arg_LINK} $<$<BOOL:${arg_TORCH}>:hp::torch>)
    return()
  endif()
  add_library(${name} STATIC ${sources})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/hyperparallel>)
  target_link_libraries(${name} PUBLIC ${arg_LINK} Threads::Threads)
  hp_batches(${name} 4)
  if(arg_TORCH)
    target_link_libraries(${name} PUBLIC hp::torch)
    target_precompile_headers(${name} REUSE_FROM hp_torch_pch)
  endif()
endfunction()

# hp_tests(FOLDER [TORCH] [WHOLE] [LINK targets...]): one test program of all tests/FOLDER/*_test.cpp, each test known to ctest by
# name. With WHOLE ctest runs the program as one test: its tests share what is dear to compute.
function(hp_tests folder)
  cmake_parse_arguments(arg "TORCH;WHOLE" "" "LINK" ${ARGN})
  string(REPLACE "/" "_" name ${folder}_test)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE HP_SOURCE_DIR="${PROJECT_SOURCE_DIR}" HP_BINARY_DIR="${PROJECT_BINARY_DIR}")
  target_compile_options(${name} PRIVATE ${hp_light_options})
  hp_batches(${name} 3)
  target_link_libraries(${name} PRIVATE ${arg_LINK} GTest::gmock GTest::gtest GTest::gtest_main)
  if(arg_TORCH)
    target_precompile_headers(${name} REUSE_FROM hp_torch_test_pch)
  else()
    target_precompile_headers(${name} REUSE_FROM hp_test_pch)
  endif()
  if(arg_WHOLE)
    add_test(NAME ${folder} COMMAND ${name})
    set_tests_properties(${folder} PROPERTIES TIMEOUT 900 LABELS ${folder} ENVIRONMENT OMP_NUM_THREADS=1)
    return()
  endif()
  # ctest runs several at once: more threads than cores would wait for each other in OpenMP's spinning barriers.
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST TEST_PREFIX ${folder}.
                       PROPERTIES TIMEOUT 600 LABELS ${folder} ENVIRONMENT OMP_NUM_THREADS=1)
endfunction()
