// An inspect report as one self-contained page: no scripts, no fetched fonts or images.
#pragma once

#include <string>

#include "inspect/report.h"

namespace sluice {

std::string to_html(const InspectReport& report);

}  // namespace sluice
