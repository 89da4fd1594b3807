// Sums that reports of checkpoints and packages share, and the two ways to make one.
#pragma once

#include <filesystem>

#include "inspect/report.h"

namespace sluice {

InspectReport inspect_checkpoint(const std::filesystem::path& path);
InspectReport inspect_package(const std::filesystem::path& path);

// Counts a tensor in its part and its layer.
void add_part(InspectReport& report, const TensorReport& tensor, std::uint64_t parameters);
// Of each part what one token needs; called when all tensors are in.
void finish_parts(InspectReport& report);
// From the model's sizes and the dtypes that are in `report.state`.
void fill_state(InspectReport& report);

}  // namespace sluice
