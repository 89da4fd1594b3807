// The version of this build, as --version and every manifest say it.
#pragma once

#include <string_view>

namespace sluice {

std::string_view version() noexcept;  // "0.1.0"

}  // namespace sluice
