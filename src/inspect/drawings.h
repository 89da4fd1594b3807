// The drawings of the page, each one <svg> element styled by the page's classes.
#pragma once

#include <string>
#include <string_view>

#include "inspect/report.h"

namespace sluice {

// Text for HTML: & < > " replaced, control characters dropped.
std::string escaped(std::string_view text);

// The layers side by side: kind at the foot, bytes of mixer and MLP above it.
std::string draw_layers(const InspectReport& report);
// Two bars of one scale: the weights by part, and what one token reads of them.
std::string draw_parts(const InspectReport& report);
// Bytes a sequence keeps over its length, both axes logarithmic: fixed state, KV cache, and the cache it would have if
// every layer were full attention.
std::string draw_state(const InspectReport& report);

}  // namespace sluice
