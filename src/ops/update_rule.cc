#include "ops/update_rule.h"

#include "base/error.h"
#include "ops/attributes.h"

namespace sluice::ops {

UpdateRule parse_update_rule(std::string_view text) {
  for (const UpdateRule rule : {UpdateRule::linear, UpdateRule::gated, UpdateRule::delta, UpdateRule::gated_delta}) {
    if (text == rule_name(rule)) return rule;
  }
  refuse_text("update_rule", "linear, gated, delta or gated_delta", text);
}

std::string_view rule_name(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::linear:
      return "linear";
    case UpdateRule::gated:
      return "gated";
    case UpdateRule::delta:
      return "delta";
    case UpdateRule::gated_delta:
      return "gated_delta";
  }
  return "?";
}

void expect_by_rule(const Argument& argument, bool needed, UpdateRule rule) {
  const std::string reason = fmt::format("update_rule {} {} it", rule_name(rule), needed ? "needs" : "does not use");
  if (needed) {
    expect_present(argument, reason);
  } else {
    expect_absent(argument, reason);
  }
}

void expect_gate_dtype(const Argument& argument, const Argument& query) {
  if (argument.dtype == DType::f32 || argument.dtype == query.dtype) return;
  if (query.dtype == DType::f32) expect_dtype(argument, {DType::f32});
  fail("{}: expected f32 or {} as {}, found {}", label(argument), dtype_name(query.dtype), label(query),
       dtype_name(argument.dtype));
}

}  // namespace sluice::ops
