#include "ops/register.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/adapters.h"

namespace sluice::ops {
namespace {

class Domain {
 public:
  Domain(const OrtApi& api, std::string_view name, std::vector<CustomOp> ops)
      : ops_(std::move(ops)), domain_(api.ReleaseCustomOpDomain) {
    check(api, api.CreateCustomOpDomain(std::string(name).c_str(), domain_.out()));
    for (const CustomOp& op : ops_) check(api, api.CustomOpDomain_Add(domain_.get(), &op));
  }

  OrtCustomOpDomain* get() const noexcept { return domain_.get(); }

 private:
  std::vector<CustomOp> ops_;
  OrtHandle<OrtCustomOpDomain> domain_;
};

std::vector<CustomOp> microsoft_ops(const OrtApi& api, Level level) {
  std::vector<CustomOp> ops;
  add_gated_delta_net(api, level, ops);
  add_varlen_linear_attention(api, level, ops);
  add_varlen_causal_conv(api, level, ops);
  add_paged_attention(api, level, ops);
  add_gated_rms_norm(api, level, ops);
  return ops;
}

std::vector<CustomOp> sluice_ops(const OrtApi& api, Level level) {
  std::vector<CustomOp> ops;
  add_linear(api, level, ops);
  add_moe(api, level, ops);
  return ops;
}

// The operators of one runtime at one level.
struct Library {
  Library(const OrtApi& api, Level level)
      : microsoft(api, kMicrosoftDomain, microsoft_ops(api, level)),
        sluice(api, kSluiceDomain, sluice_ops(api, level)) {}
  Domain microsoft;
  Domain sluice;
};

// Sessions keep pointers to the operators they were given and say nothing when they end, so the operators live as long
// as the program: one set for each runtime and level that asked.
const Library& library_for(const OrtApi& api, Level level) {
  static std::mutex mutex;
  static std::map<std::pair<const OrtApi*, Level>, Library> libraries;
  const std::lock_guard lock(mutex);
  return libraries.try_emplace({&api, level}, api, level).first->second;
}

// The table of version 1 is in every runtime, and has what makes a status.
OrtStatus* refuse_runtime(const OrtApiBase& base) noexcept {
  const std::string message =
      std::string("sluice operators need ONNX Runtime 1.21 or later, this is ") + base.GetVersionString();
  return base.GetApi(1)->CreateStatus(ORT_FAIL, message.c_str());
}

}  // namespace

OrtStatus* register_custom_ops(OrtSessionOptions* options, const OrtApiBase* base, Level level) noexcept {
  const OrtApi* api = base->GetApi(kOrtApiVersion);
  if (api == nullptr) return refuse_runtime(*base);
  try {
    const Library& library = library_for(*api, level);
    check(*api, api->AddCustomOpDomain(options, library.microsoft.get()));
    check(*api, api->AddCustomOpDomain(options, library.sluice.get()));
    return nullptr;
  } catch (...) {
    return status_of_current_exception(*api, "sluice operators: ");
  }
}

}  // namespace sluice::ops
