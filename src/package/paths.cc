#include "package/paths.h"

#include <filesystem>

#include "base/error.h"

namespace sluice {

void check_relative_path(std::string_view path, std::string_view source) {
  const std::filesystem::path p(path);
  bool inside = !path.empty() && !p.is_absolute() && path.find('\0') == std::string_view::npos;
  for (const auto& part : p) inside = inside && part != "..";
  if (!inside) fail("{}: the path \"{}\" must stay inside the package", source, path);
}

}  // namespace sluice
