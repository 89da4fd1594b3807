// What GatedDeltaNet and VarlenLinearAttention share of their contracts: the rule and the inputs it calls for.
#pragma once

#include <string_view>

#include "kernels/cpu/gated_delta_net.h"
#include "ops/argument.h"

namespace sluice::ops {

// "linear", "gated", "delta", "gated_delta"; Error otherwise.
UpdateRule parse_update_rule(std::string_view text);
std::string_view rule_name(UpdateRule rule);

// Decay and beta are there exactly when the rule uses them.
void expect_by_rule(const Argument& argument, bool needed, UpdateRule rule);
// f32, or the element type of query.
void expect_gate_dtype(const Argument& argument, const Argument& query);

}  // namespace sluice::ops
