// A sequence on a packed package, in the middle of a ragged batch: what continuous batching does to it.
#pragma once

#include <memory>

#include "eval/logits_source.h"
#include "session/session.h"

namespace sluice {

// Every feed is one step of three rows: another sequence, the one asked for, a third. Their lengths differ from step to
// step and may be zero, and the pages of the three lie interleaved, last page first. `session` must outlive the source
// and its package must be packed. Gives no states and no greedy tokens.
std::unique_ptr<LogitsSource> make_company_source(const Session& session, std::string location);

}  // namespace sluice
