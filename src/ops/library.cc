// libsluice_ops.so's one exported function: what ONNX Runtime calls in a custom operator library.
#include "ops/register.h"

extern "C" __attribute__((visibility("default"))) OrtStatus* ORT_API_CALL
RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) noexcept {
  return sluice::ops::register_custom_ops(options, base, sluice::best_level());
}
