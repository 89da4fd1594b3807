# Everything here comes from scripts/setup: Debian packages, and build/deps for what the wheels carry.

set(SLUICE_DEPS ${CMAKE_SOURCE_DIR}/build/deps CACHE PATH "What scripts/setup fetched")

find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_path(XXHASH_INCLUDE xxhash.h REQUIRED)
find_path(HIGHWAY_INCLUDE hwy/highway.h REQUIRED)

# ONNX Runtime: the library of the PyPI wheel, the headers of a Debian package.
add_library(onnxruntime SHARED IMPORTED)
set_target_properties(onnxruntime PROPERTIES
  IMPORTED_LOCATION ${SLUICE_DEPS}/onnxruntime/lib/libonnxruntime.so.1
  IMPORTED_SONAME libonnxruntime.so.1
  INTERFACE_INCLUDE_DIRECTORIES ${SLUICE_DEPS}/onnxruntime/include)
# The headers alone, for the operator library, which takes the API from the program that loads it.
add_library(onnxruntime_headers INTERFACE)
target_include_directories(onnxruntime_headers SYSTEM INTERFACE ${SLUICE_DEPS}/onnxruntime/include)

if(SLUICE_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
if(SLUICE_BENCH)
  find_package(benchmark REQUIRED)
endif()
