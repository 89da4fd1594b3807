#include "session/ort.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace sluice::ort {
namespace {

void ORT_API_CALL ignore_log(void*, OrtLoggingLevel, const char*, const char*, const char*, const char*) {}

std::string one_line(std::string text) {
  std::replace_if(text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace

const OrtApi& api() {
  static const OrtApi* const table = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (table == nullptr) {
    fail("ONNX Runtime {} serves no C API of version {}; expected 1.{} or later", OrtGetApiBase()->GetVersionString(),
         ORT_API_VERSION, ORT_API_VERSION);
  }
  return *table;
}

void check(OrtStatus* status, std::string_view where) {
  if (status == nullptr) return;
  std::string message = one_line(api().GetErrorMessage(status));
  api().ReleaseStatus(status);
  fail("{}: ONNX Runtime: {}", where, message);
}

Owner<OrtEnv> make_environment() {
  OrtEnv* environment = nullptr;
  check(api().CreateEnvWithCustomLogger(ignore_log, nullptr, ORT_LOGGING_LEVEL_FATAL, "sluice", &environment),
        "environment");
  return Owner<OrtEnv>(environment);
}

}  // namespace sluice::ort
