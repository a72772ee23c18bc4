# Language level, warnings and the speed of the build itself.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
add_compile_options(-fPIC)  # everywhere alike, so that one precompiled header serves libraries and programs
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})

# libtorch is built with the new libstdc++ ABI; say so instead of hoping.
add_compile_definitions(_GLIBCXX_USE_CXX11_ABI=1)
# -pthread for all alike: some packages ask for it, and a precompiled header must be built with what its users are.
add_compile_options(-Wall -Wextra -Werror -Wno-unknown-pragmas -pthread)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers need these sloppiness flags, or ccache misses every time.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
  set(CMAKE_PCH_INSTANTIATE_TEMPLATES OFF)
  add_compile_options(-fpch-preprocess)
endif()

find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()

# -g1 keeps file and line in stack traces at a small cost in size and build time.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -fno-omit-frame-pointer")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")

set(HYPERPARALLEL_SANITIZE "" CACHE STRING "Sanitizers to build with, for example address,undefined or thread")
if(HYPERPARALLEL_SANITIZE)
  add_compile_options(-fsanitize=${HYPERPARALLEL_SANITIZE} -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${HYPERPARALLEL_SANITIZE})
  if(HYPERPARALLEL_SANITIZE MATCHES thread)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)  # fences in headers of libtorch
  endif()
endif()
