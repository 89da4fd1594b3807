// A package on ONNX Runtime as a source of logits.
#pragma once

#include <memory>

#include "eval/logits_source.h"
#include "session/session.h"

namespace sluice {

// `session` must outlive the source. A feed of n tokens runs as one step where the graph allows it (a dense graph with
// a pruned head ends a step at every position asked for).
std::unique_ptr<LogitsSource> make_package_source(const Session& session, std::string location);

}  // namespace sluice
