// The rules for paths that a package names.
#pragma once

#include <string_view>

namespace sluice {

// Throws Error, naming `source`, unless `path` is relative, non-empty and stays inside the package (no "..", no root).
void check_relative_path(std::string_view path, std::string_view source);

}  // namespace sluice
