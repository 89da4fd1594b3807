// Any bytes are either a model, which is written and read again unchanged, or an Error of one line.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"
#include "onnx/serialize.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const sluice::OnnxModel model = sluice::parse_model({reinterpret_cast<const char*>(data), size}, "model");
    const std::string written = sluice::serialize(model);
    require(sluice::serialize(sluice::parse_model(written, "model")) == written);
  } catch (const sluice::Error& error) {
    require(std::strchr(error.what(), '\n') == nullptr && std::strlen(error.what()) < 4096);
  }
  return 0;
}
