// A decoder's inputs, states and outputs: their names, dtypes and shapes, and how they are recorded for the runtime.
#pragma once

#include "graph/context.h"

namespace sluice {

// Declares every graph input and state, in the order of the contract, and what the blocks derive from them once.
void add_inputs(DecoderContext& c);

// The state read through `past` goes on as `present`.
void set_present(DecoderContext& c, Value past, Value present);
// A captured update of a layer's state: output "state_update.<layer>.<name>".
void add_state_update(DecoderContext& c, std::int64_t layer, std::string_view name, Value update);
void set_logits(DecoderContext& c, Value logits);

// Declares the graph outputs, in the order of the contract: logits, states, state updates.
void add_outputs(DecoderContext& c);

}  // namespace sluice
