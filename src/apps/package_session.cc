#include "apps/package_session.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/level.h"
#include "ops/register.h"

namespace sluice {
namespace {

template <Level level>
OrtStatus* register_at(OrtSessionOptions* options, const OrtApiBase* base) {
  return ops::register_custom_ops(options, base, level);
}

RegisterOperators operators_at(Level level) {
  switch (level) {
    case Level::scalar:
      return register_at<Level::scalar>;
    case Level::avx2:
      return register_at<Level::avx2>;
    case Level::avx512:
      return register_at<Level::avx512>;
    case Level::amx:
      return register_at<Level::amx>;
  }
  return nullptr;
}

}  // namespace

void add_session_options(CLI::App& command, SessionArguments& a) {
  command.add_option("--operators", a.operators, "Whose kernels run: auto (by the package's target) | stock | sluice")
      ->check(CLI::IsMember({"auto", "stock", "sluice"}))
      ->capture_default_str();
  command
      .add_option("--level", a.level,
                  "Instruction set of our kernels: scalar | avx2 | avx512 | amx; default the best here")
      ->check(CLI::IsMember({"scalar", "avx2", "avx512", "amx"}));
  command.add_flag("--spin", a.spin, "Worker threads spin between operators: faster on an idle machine");
  command.add_flag("--no-prepack", a.no_prepack, "Leave stock weights in the mapped file instead of repacking them");
}

Level chosen_level(const SessionArguments& arguments) {
  const std::string& name = arguments.level;
  if (name.empty()) return best_level();
  const auto level = level_from_name(name);
  const auto supported = supported_levels();
  if (!level || std::find(supported.begin(), supported.end(), *level) == supported.end()) {
    fail("--level {}: not a level this processor runs; the best is {}", name, level_name(best_level()));
  }
  return *level;
}

SessionOptions session_options(const SessionArguments& a, const Manifest& manifest, int threads) {
  SessionOptions options;
  const bool own = a.operators == "sluice" || (a.operators == "auto" && manifest.target != "ort-cpu");
  if (!own && manifest.target == "sluice") {
    fail("--operators stock: a package for --target sluice needs the operators that stock ONNX Runtime lacks");
  }
  if (!own && !a.level.empty()) {
    fail("--level {}: stock kernels run this package; --operators sluice brings those that have a level", a.level);
  }
  if (own) options.register_operators = operators_at(chosen_level(a));
  options.threads = threads;
  options.spin = a.spin;
  options.prepack = !a.no_prepack;
  return options;
}

}  // namespace sluice
