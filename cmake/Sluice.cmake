# The project's CMake vocabulary: a library a folder, with its floor checked; its tests, benchmarks and fuzz targets.

add_library(sluice_flags INTERFACE)
target_compile_options(sluice_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wno-sign-conversion -Werror
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # g++ 12 warns falsely about "literal" + std::string (GCC bug 105329)
  -ffp-contract=off)  # results may not depend on which multiply and add the compiler chose to fuse
if(SLUICE_SANITIZE)
  add_compile_options(-fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${SLUICE_SANITIZE})
  if(SLUICE_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-maybe-uninitialized)  # g++ 12 sees through std::optional no more once it is instrumented
  endif()
endif()

find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SLUICE_CCACHE})
endif()

# sluice_library(NAME floor SOURCES ... DEPENDS folders... LIBRARIES targets...)
# One target a folder, called sluice_<NAME>. DEPENDS names folders: each must stand on a lower floor.
function(sluice_library name floor)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LIBRARIES;PRIVATE_LIBRARIES" ${ARGN})
  set(target sluice_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  set_target_properties(${target} PROPERTIES SLUICE_FLOOR ${floor})
  target_link_libraries(${target} PRIVATE sluice_flags ${ARG_PRIVATE_LIBRARIES} PUBLIC ${ARG_LIBRARIES})
  foreach(below ${ARG_DEPENDS})
    get_target_property(below_floor sluice_${below} SLUICE_FLOOR)
    if(NOT below_floor LESS floor)
      message(FATAL_ERROR "${name} (floor ${floor}) may not depend on ${below} (floor ${below_floor})")
    endif()
    target_link_libraries(${target} PUBLIC sluice_${below})
  endforeach()
  # For tests/lint: one line a folder, with its path below src/.
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR})
  set(below_folders "")
  foreach(below ${ARG_DEPENDS})
    get_target_property(source_dir sluice_${below} SOURCE_DIR)
    file(RELATIVE_PATH below_folder ${CMAKE_SOURCE_DIR}/src ${source_dir})
    list(APPEND below_folders ${below_folder})
  endforeach()
  list(JOIN below_folders "," below_folders)
  set_property(GLOBAL APPEND PROPERTY SLUICE_FLOOR_LINES "${folder} ${floor} ${below_folders}")
endfunction()

# sluice_test(NAME SOURCES ... DEPENDS folders... LIBRARIES targets... LABELS ...): one GoogleTest program, its cases found by CTest.
# tests/sanitizers says which programs run under sanitizers too.
function(sluice_test name)
  if(NOT SLUICE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LIBRARIES;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  foreach(folder ${ARG_DEPENDS})
    target_link_libraries(${name} PRIVATE sluice_${folder})
  endforeach()
  target_link_libraries(${name} PRIVATE sluice_flags ${ARG_LIBRARIES} GTest::gmock GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})  # tests include "tests/support/..."
  target_compile_definitions(${name} PRIVATE SLUICE_SOURCE_DIR="${CMAKE_SOURCE_DIR}" SLUICE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  if(NOT ARG_LABELS)
    set(ARG_LABELS ${name})  # an empty property would swallow the next one's name
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600)
endfunction()

# sluice_bench(NAME SOURCES ... DEPENDS folders... LIBRARIES targets...): a Google Benchmark program; never run by CTest.
function(sluice_bench name)
  if(NOT SLUICE_BENCH)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  foreach(folder ${ARG_DEPENDS})
    target_link_libraries(${name} PRIVATE sluice_${folder})
  endforeach()
  target_link_libraries(${name} PRIVATE sluice_flags ${ARG_LIBRARIES} benchmark::benchmark)
endfunction()

# sluice_fuzz(NAME SOURCES ... DEPENDS folders...): a libFuzzer program, only with SLUICE_FUZZ (clang). scripts/test runs it
# for a few seconds, from the seeds in tests/data/fuzz/NAME where there are any.
function(sluice_fuzz name)
  set_property(GLOBAL APPEND PROPERTY SLUICE_FUZZ_TARGETS ${name})
  if(NOT SLUICE_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  foreach(folder ${ARG_DEPENDS})
    target_link_libraries(${name} PRIVATE sluice_${folder})
  endforeach()
  target_link_libraries(${name} PRIVATE sluice_flags ${ARG_LIBRARIES})
endfunction()

# The instruction-set levels of kernels/cpu and their flags; each *.simd.cc is compiled once a vector level, each *.amx.cc
# for amx alone.
set(SLUICE_VECTOR_LEVELS avx2 avx512)
set(SLUICE_LEVEL_FLAGS_avx2 -march=haswell -maes -mpclmul)
set(SLUICE_LEVEL_FLAGS_avx512 -march=skylake-avx512 -maes -mpclmul -mprefer-vector-width=512)
set(SLUICE_LEVEL_FLAGS_amx ${SLUICE_LEVEL_FLAGS_avx512} -mamx-tile -mamx-bf16)

# sluice_level_sources(TARGET LEVELS ... SOURCES ...): compiles each file once a level, with SLUICE_LEVEL naming the
# level's namespace.
function(sluice_level_sources target)
  cmake_parse_arguments(ARG "" "" "LEVELS;SOURCES" ${ARGN})
  foreach(level ${ARG_LEVELS})
    set(objects ${target}_${level})
    add_library(${objects} OBJECT ${ARG_SOURCES})
    # Kernels neither throw nor catch; without exceptions an object needs no weak reference to a personality either.
    target_compile_options(${objects} PRIVATE ${SLUICE_LEVEL_FLAGS_${level}} -fno-math-errno -fno-trapping-math -fno-exceptions)
    target_compile_definitions(${objects} PRIVATE SLUICE_LEVEL=${level} HWY_COMPILE_ONLY_STATIC)
    target_link_libraries(${objects} PRIVATE sluice_flags sluice_base)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()
