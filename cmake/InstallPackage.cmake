# Installation: the program, the static libraries, the headers, and a CMake package. A project that uses it:
#   find_package(HyperParallel REQUIRED)
#   target_link_libraries(mine PRIVATE HyperParallel::hyperparallel)   # then #include "engine/program.h" and so on
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/HyperParallel)

get_property(modules GLOBAL PROPERTY HP_MODULES)
add_library(hp_all INTERFACE)
set_target_properties(hp_all PROPERTIES EXPORT_NAME hyperparallel)
target_link_libraries(hp_all INTERFACE ${modules})
install(TARGETS hp_all ${modules} EXPORT HyperParallelTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT HyperParallelTargets NAMESPACE HyperParallel:: DESTINATION ${package_folder})
install(DIRECTORY src/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/hyperparallel FILES_MATCHING PATTERN "*.h")

configure_package_config_file(cmake/HyperParallelConfig.cmake.in HyperParallelConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(HyperParallelConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/HyperParallelConfig.cmake ${PROJECT_BINARY_DIR}/HyperParallelConfigVersion.cmake
              cmake/Libtorch.cmake cmake/Dependencies.cmake DESTINATION ${package_folder})
